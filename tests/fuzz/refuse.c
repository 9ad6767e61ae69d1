// Allocations that fail when a target asks for it: the linker sends malloc, calloc and realloc through here (--wrap).
#include "fuzz.h"

static unsigned countdown;
static bool refused;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void fuzz_refuse(unsigned count) { countdown = count; }

bool fuzz_refused(void) {
    bool was = refused;
    refused = false;
    return was;
}

static bool refuse(void) {
    if (countdown == 0 || --countdown > 0) return false;
    refused = true;
    return true;
}

void *__wrap_malloc(size_t bytes) { return refuse() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return refuse() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse() ? NULL : __real_realloc(old, bytes); }
