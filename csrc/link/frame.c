#include "link/frame.h"

#include <stdlib.h>

#include "base/platform.h"

// ---- blocks ----
enum { SMALLEST_CLASS_BITS = 8, CLASSES = 16, CACHE_BYTES = 4 * 1024 * 1024 };

struct pool {
    pthread_mutex_t *lock;
    void (*refused)(void *context);
    void *context;
    struct block *blocks[CLASSES];
    size_t bytes;
};

struct pool *frame_pool_new(pthread_mutex_t *lock, void (*refused)(void *context), void *context) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL) *pool = (struct pool){.lock = lock, .refused = refused, .context = context};
    return pool;
}

void frame_pool_free(struct pool *pool) {
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

// ---- frames ----
bool frame_has_epoch(uint16_t type) { return type < WIRE_SYNC_ASK_HASHES || type > WIRE_LINK_HEARTBEAT; }

static uint8_t lead_of(const struct frame *frame) {
    enum { WORTH_IT = 4096 }; // a short copy is fast at every distance
    bool fits = frame->length >= WORTH_IT && frame->length + 2 * WIRE_ALIGN <= WIRE_MAX_DATA_BYTES;
    return fits ? (uint8_t)((uintptr_t)frame->payload % WIRE_ALIGN) : 0;
}

void frame_encode(struct frame *frame, uint8_t out[FRAME_BEFORE_BYTES]) {
    struct wire_head *head = &frame->head;
    head->lead = lead_of(frame);
    head->padding = wire_padding(head->lead + frame->length);
    frame->header.length = WIRE_HEAD_BYTES + head->lead + frame->length + head->padding;
    wire_header_encode(out, &frame->header);
    wire_head_encode(out + WIRE_HEADER_BYTES, frame->header.type, head);
}

struct frame *frame_new(struct frame_source *source, uint16_t type, const struct wire_head *head, size_t payload) {
    struct block *room = block_new(source->pool, sizeof(struct frame));
    if (room == NULL) return NULL;
    struct frame *frame = (struct frame *)(void *)room->bytes;
    *frame = (struct frame){.header = source->now, .head = *head, .length = (uint32_t)payload, .room = room};
    frame->header.type = type;
    return frame;
}

void frame_free(struct frame_source *source, struct frame *frame) {
    block_put(source->pool, frame->block);
    block_put(source->pool, frame->room);
}
