// Reading a neighbour's memory, when it is a process of this host.
//
// Two peers on one machine need no socket to move a chunk: the receiver copies it straight out of the sender's tensor
// (process_vm_readv), once instead of twice and without the kernel's TCP. Everything else stays on the link: the head
// of the frame, its order, and the news of a death. docs/decisions/same-host-memory.md says what this gives and when it
// is not used.
#ifndef PCCL_DEVICE_MEMORY_H
#define PCCL_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// A process as the kernel has named it.
struct memory_process {
    pid_t pid; // 0: none
    int pidfd; // owned; -1 where the kernel has none: then another process may have the pid one day
};

// False: PCCL_SAME_HOST_MEMORY=0 in the environment turns it off. What is neither 0 nor 1 is told and ignored.
bool memory_is_wanted(void);

// The process that has connected this UNIX socket to ours. False: it is of another user, or not visible from here, or
// gone.
bool memory_process_of(int fd, struct memory_process *out);
void memory_process_close(struct memory_process *process);
// True as long as no other process can have its pid.
bool memory_process_lives(const struct memory_process *process);
// True when the kernel lets us read its memory.
bool memory_process_permits(const struct memory_process *process);

// True when another process could read these bytes of ours: device memory, for one, cannot.
bool memory_can_be_read(const void *bytes, size_t length);

// False when these bytes of ours are mapped read-only. Their first and last byte are written back as they are.
bool memory_can_be_written(void *bytes, size_t length);

// Copies `length` bytes at `from` in that process. False when that is not possible (any more); `to` is then
// unspecified.
bool memory_read(pid_t process, void *to, uint64_t from, size_t length);

#endif
