// Memory of this process: arrays that grow, copies, what may be read and written, and memory that processes of one host
// share.
#ifndef PCCL_BASE_MEMORY_H
#define PCCL_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// ---- arrays that grow ----

// Makes `*array`, of `*room` elements of `size` bytes, one that has room for `count`, at least `least` and twice as
// much as before when it grows. False: memory was refused, and nothing has changed.
bool memory_grow(void *array, size_t *room, size_t count, size_t size, size_t least);
// Makes room for one more than `count` in `array`, an array of which `room` elements are allocated.
#define GROW(array, room, count, least) memory_grow(&(array), &(room), (size_t)(count) + 1, sizeof *(array), least)

// ---- copies ----

enum { MEMORY_COPY_ALIGN = 32 }; // addresses that are equal modulo this are never copied slowly

// Copies like memcpy, but does not read the old content of `to` into the cache.
void memory_copy_past_caches(void *to, const void *from, size_t bytes);

// Returns whether `rep movsb`, with which libc and the kernel copy, is ten times slower than elsewhere: the destination
// lies 1 to 31 bytes behind the source, modulo 4096 (docs/decisions/frames-are-aligned.md).
static inline bool memory_copy_is_slow(const void *to, uint64_t from) {
    uint64_t behind = ((uintptr_t)to - from) % 4096;
    return behind > 0 && behind < MEMORY_COPY_ALIGN;
}

// Copies like memcpy, and past the caches if memcpy is slow.
void memory_copy(void *to, const void *from, size_t bytes);

// ---- memory for secrets ----

// Returns `bytes` of zeros in pages that core dumps leave out. NULL: the system refuses.
void *memory_secret_new(size_t bytes);
// Wipes and frees what memory_secret_new has returned for so many bytes. NULL is allowed.
void memory_secret_free(void *at, size_t bytes);

// ---- access ----

// Returns false if this process cannot read the first or last byte.
bool memory_can_be_read(const void *bytes, size_t length);
// Copies memory of this process that may be unmapped at any moment. False: some of it cannot be read, or the system
// lacks process_vm_readv, which other errors than a crash need.
bool memory_copy_checked(void *to, const void *from, size_t bytes);
// Returns false if the first or last byte is mapped read-only. Writes both bytes back as they are.
bool memory_can_be_written(void *bytes, size_t length);

// Returns whether this process may write a file of this length (`ulimit -f`). More would end it by SIGXFSZ.
bool memory_file_may_have(size_t length);

// ---- memory that processes share ----
// A process makes and writes it, and hands it over as a descriptor; another one of the same host reads it. It is the
// library's own, so no page of it waits for anybody, and it cannot shrink under a reader. It stays until the last
// process unmaps it, whoever has died. A forked child does not inherit it.

// Maps so much memory to be written, at *bytes. Returns a descriptor of it, the caller's to close (base/descriptor), or
// -1: the system refuses.
int memory_shared_new(size_t length, uint8_t **bytes);
// Maps what another process has made, to be read. NULL: the descriptor is something else, or of other length, or the
// system refuses.
const uint8_t *memory_shared_map(int fd, size_t length);
// Gives it pages. False: there are none, and a write would end the process.
bool memory_shared_populate(uint8_t *bytes, size_t length);
void memory_shared_unmap(const uint8_t *bytes, size_t length); // NULL is allowed

#endif
