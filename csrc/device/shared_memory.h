// Memory that one process writes and another one of the same host reads: made here, handed over as a descriptor.
//
// It is the library's own, so no page of it waits for anybody, and it cannot shrink under a reader. It stays until the
// last process unmaps it, whoever has died. A forked child does not inherit it.
#ifndef PCCL_DEVICE_SHARED_MEMORY_H
#define PCCL_DEVICE_SHARED_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A descriptor, the caller's to close (base/descriptor), of so much memory, which is mapped to be written at `bytes`.
// -1: the system refuses.
int shared_memory_new(size_t length, uint8_t **bytes);
// Maps what another process has made, to be read. NULL: the descriptor is something else, or of other length, or the
// system refuses.
const uint8_t *shared_memory_map(int fd, size_t length);
// Gives it pages. False: there are none, and a write would end the process.
bool shared_memory_populate(uint8_t *bytes, size_t length);
void shared_memory_unmap(const uint8_t *bytes, size_t length); // NULL is allowed

#endif
