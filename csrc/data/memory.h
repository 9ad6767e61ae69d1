// Reading a neighbour's memory, when it is a process of this host.
//
// Two peers on one machine need no socket to move a chunk: the receiver copies it straight out of the sender's tensor
// (process_vm_readv), once instead of twice and without the kernel's TCP. Everything else stays on the link: the head of the frame, its
// order, and the news of a death. docs/decisions/same-host-memory.md says what this gives and when it is not used.
#ifndef PCCL_DATA_MEMORY_H
#define PCCL_DATA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { MEMORY_OFFER_BYTES = 32 };

// What a process tells a neighbour: where to look for a random value, and what it will see there.
void memory_offer(uint8_t out[MEMORY_OFFER_BYTES]);

// The process behind this connection, if it is on this host, if its memory can be read, and if nobody shapes the loopback device
// (who does so wants a slow link, not a way round it); else 0. PCCL_SAME_HOST_MEMORY=0 in the environment turns it off.
pid_t memory_accept(int fd, const uint8_t offer[MEMORY_OFFER_BYTES]);

// True when another process could read these bytes of ours: device memory, for one, cannot.
bool memory_can_be_read(const void *bytes, size_t length);

// False when these bytes of ours are mapped read-only. Their first and last byte are written back as they are.
bool memory_can_be_written(void *bytes, size_t length);

// Copies `length` bytes at `from` in that process. False when that is not possible (any more); `to` is then unspecified.
bool memory_read(pid_t process, void *to, uint64_t from, size_t length);

#endif
