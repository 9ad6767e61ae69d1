// A copy past the caches, for bytes that nobody looks at soon, or another core alone.
#ifndef PCCL_BASE_STREAM_H
#define PCCL_BASE_STREAM_H

#include <stddef.h>

// As memcpy. What was written there before need not be fetched from whoever has it in its cache.
void stream_copy(void *to, const void *from, size_t bytes);

#endif
