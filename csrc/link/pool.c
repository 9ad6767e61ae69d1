#include "link/pool.h"

#include <stdlib.h>

#include "base/platform.h"

enum { SMALLEST_CLASS_BITS = 8, CLASSES = 16, CACHE_BYTES = 4 * 1024 * 1024 };

struct pool {
    pthread_mutex_t *lock;
    void (*refused)(void *context);
    void *context;
    struct block *blocks[CLASSES];
    size_t bytes;
};

struct pool *pool_new(pthread_mutex_t *lock, void (*refused)(void *context), void *context) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL) *pool = (struct pool){.lock = lock, .refused = refused, .context = context};
    return pool;
}

void pool_free(struct pool *pool) {
    for (unsigned class = 0; pool != NULL && class < CLASSES; class++)
        while (pool->blocks[class] != NULL) {
            struct block *block = pool->blocks[class];
            pool->blocks[class] = block->next;
            free(block);
        }
    free(pool);
}

static unsigned block_class(size_t length) {
    unsigned class = 0;
    while (((size_t)1 << (SMALLEST_CLASS_BITS + class)) < length) class++;
    return class;
}

struct block *block_new(struct pool *pool, size_t length) {
    lock_assert_held(pool->lock);
    unsigned class = block_class(length);
    bool large = class >= CLASSES; // of a member that is alone: small ops among more have small results
    struct block *block = large ? NULL : pool->blocks[class];
    if (block != NULL) {
        pool->blocks[class] = block->next;
        pool->bytes -= block->class_bytes;
    } else {
        size_t bytes = (size_t)1 << (SMALLEST_CLASS_BITS + class);
        block = aligned_alloc(_Alignof(struct block), sizeof *block + bytes);
        if (block == NULL) {
            pool->refused(pool->context);
            return NULL;
        }
        block->class_bytes = bytes;
    }
    block->references = 1;
    block->length = length;
    block->sum.operand = NULL;
    block->in_slots = NULL;
    return block;
}

void block_put(struct pool *pool, struct block *block) {
    lock_assert_held(pool->lock);
    if (block == NULL || --block->references > 0) return;
    block_put(pool, block->sum.operand);
    if (block->in_slots != NULL) block->return_slots(block);
    if (block->class_bytes > CACHE_BYTES || pool->bytes + block->class_bytes > CACHE_BYTES) {
        free(block);
        return;
    }
    unsigned class = block_class(block->class_bytes);
    block->next = pool->blocks[class];
    pool->blocks[class] = block;
    pool->bytes += block->class_bytes;
}
