// Questions about memory of this process.
#ifndef PCCL_DEVICE_MEMORY_H
#define PCCL_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

// Returns false if this process cannot read the first or last byte.
bool memory_can_be_read(const void *bytes, size_t length);

// Returns false if the first or last byte is mapped read-only. Writes both bytes back as they are.
bool memory_can_be_written(void *bytes, size_t length);

#endif
