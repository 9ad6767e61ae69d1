// Blocks of heap memory, counted, that are used again: bytes that frames and ops share, and the frames themselves.
#ifndef PCCL_LINK_POOL_H
#define PCCL_LINK_POOL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct neighbour;
struct pool;

// A sum whose last addition is left until somebody asks for the bytes (data/algorithms/direct).
struct block_sum {
    struct block *operand; // owned reference, of the same length; NULL: the bytes of the block are complete
    uint64_t count;        // elements
    uint32_t divisor;      // of an average; 0: none
    uint8_t op, dtype;     // pcclRedOp_t, pcclDataType_t
    bool operand_first;    // block = operand op block, instead of block op operand
};

struct block {
    struct block *next; // in the pool
    uint32_t references;
    size_t class_bytes;
    size_t length;
    struct block_sum sum;
    // An input that lies in slots of a neighbour (data/slots) instead of `bytes`; NULL: it does not.
    const uint8_t *in_slots;
    struct neighbour *from;
    uint32_t slots;
    void (*return_slots)(const struct block *block); // called with the last reference
    _Alignas(64) uint8_t bytes[];
};

// Creates a pool that `lock`, which is borrowed, guards. It calls `refused` when it gets no memory for a block. NULL:
// no memory.
struct pool *pool_new(pthread_mutex_t *lock, void (*refused)(void *context), void *context);
// NULL is allowed. No block is in use.
void pool_free(struct pool *pool);

// A block with one reference; NULL: memory was refused, and reported.
struct block *block_new(struct pool *pool, size_t length);
// NULL is allowed.
void block_put(struct pool *pool, struct block *block);

static inline const uint8_t *block_payload(const struct block *block) {
    return block->in_slots != NULL ? block->in_slots : block->bytes;
}

#endif
