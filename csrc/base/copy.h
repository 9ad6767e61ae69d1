// Copies of memory: past the caches, for bytes that only another core reads soon, and fast at any distance.
#ifndef PCCL_BASE_COPY_H
#define PCCL_BASE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COPY_ALIGN = 32 }; // addresses that are equal modulo this are never copied slowly

// Copies like memcpy, but does not read the old content of `to` into the cache.
void copy_past_caches(void *to, const void *from, size_t bytes);

// Returns whether `rep movsb`, with which libc and the kernel copy, is ten times slower than elsewhere: the destination
// lies 1 to 31 bytes behind the source, modulo 4096 (docs/decisions/frames-are-aligned.md).
static inline bool copy_is_slow(const void *to, uint64_t from) {
    uint64_t behind = ((uintptr_t)to - from) % 4096;
    return behind > 0 && behind < COPY_ALIGN;
}

// Copies like memcpy, and past the caches if memcpy is slow.
void copy_bytes(void *to, const void *from, size_t bytes);

#endif
