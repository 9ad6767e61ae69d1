// Allocations that fail when a target asks for it: the linker sends malloc, calloc and realloc through here (--wrap).
#include "fuzz.h"

static unsigned countdown;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void fuzz_refuse(unsigned count) { countdown = count; }

static bool refuse(void) { return countdown > 0 && --countdown == 0; }

uint8_t *fuzz_copy(const void *bytes, size_t length) {
    uint8_t *copy = __real_malloc(length + (length == 0));
    MUST(copy != NULL);
    if (length > 0) memcpy(copy, bytes, length);
    return copy;
}

void *__wrap_malloc(size_t bytes) { return refuse() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return refuse() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse() ? NULL : __real_realloc(old, bytes); }
