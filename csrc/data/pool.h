// Blocks of heap memory, counted, that are used again: bytes that frames and ops share, and the frames themselves.
#ifndef PCCL_DATA_POOL_H
#define PCCL_DATA_POOL_H

#include <stddef.h>
#include <stdint.h>

struct engine;
struct pool;

struct block {
    struct block *next; // in the pool
    uint32_t references;
    size_t class_bytes;
    size_t length;
    _Alignas(64) uint8_t bytes[];
};

// NULL: no memory.
struct pool *pool_new(void);
// NULL is allowed. No block is in use.
void pool_free(struct pool *pool);

// A block with one reference; NULL: memory was refused, the engine is dead. Lock held.
struct block *block_new(struct engine *engine, size_t length);
// NULL is allowed. Lock held.
void block_put(struct engine *engine, struct block *block);

#endif
