#include "sim/refuse.h"

#include <stdlib.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void *refuse_never(size_t bytes) {
    void *taken = __real_malloc(bytes);
    if (taken == NULL) abort(); // a test that cannot go on
    return taken;
}

void *__wrap_malloc(size_t bytes) { return refuse_now() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return refuse_now() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse_now() ? NULL : __real_realloc(old, bytes); }
