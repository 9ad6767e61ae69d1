#include "data/box.h"

#include "base/descriptor.h"
#include "base/stream.h"
#include "data/core.h"
#include "data/lane.h"
#include "data/mover.h"
#include "device/shared_memory.h"

enum { ALL = (1 << BOX_SLOTS) - 1 };

// ---- life ----
int box_make(struct boxes *boxes) {
    if (boxes->own != NULL) return -1; // it was handed over in this epoch, and is in use
    int fd = shared_memory_new(BOX_BYTES, &boxes->own);
    if (fd < 0) boxes->own = NULL;
    boxes->free = ALL;
    return fd;
}

void box_drop_own(struct boxes *boxes) {
    shared_memory_unmap(boxes->own, BOX_BYTES);
    boxes->own = NULL;
    boxes->populated = false;
}

void box_take_other(struct boxes *boxes, int fd) {
    shared_memory_unmap(boxes->other, BOX_BYTES);
    boxes->other = shared_memory_map(fd, BOX_BYTES);
}

void box_end(struct boxes *boxes) {
    box_drop_own(boxes);
    shared_memory_unmap(boxes->other, BOX_BYTES);
    boxes->other = NULL;
}

// ---- what goes out ----
uint32_t box_offer(const struct neighbour *to, const struct op *op) {
    return op->args.queue == NULL && to->boxes.other != NULL ? BOX_READY : 0;
}

bool box_serves(struct neighbour *to, const struct op *op, uint32_t extra) {
    struct boxes *boxes = &to->boxes;
    if (extra != BOX_READY || op->args.queue != NULL || boxes->own == NULL) return false;
    boxes->populated = boxes->populated || shared_memory_populate(boxes->own, BOX_BYTES);
    return boxes->populated;
}

struct frame *box_frame(struct engine *engine, struct op *op, struct neighbour *to, struct wire_op *head,
                        const uint8_t *chunk, size_t bytes) {
    struct boxes *boxes = &to->boxes;
    if (boxes->free == 0) return NULL;
    uint32_t slot = (uint32_t)__builtin_ctz(boxes->free);
    head->extra = (uint32_t)bytes;
    engine_lock(engine);
    struct frame *frame = mover_frame(engine, op, WIRE_CHUNK_IN, head, WIRE_PLACE_BYTES);
    engine_unlock(engine);
    if (frame == NULL) return NULL;
    boxes->free &= ~(1u << slot);
    stream_copy(boxes->own + (size_t)slot * BOX_SLOT_BYTES, chunk, bytes);
    frame->bytes = frame->copied = (uint32_t)bytes;
    wire_place_encode(frame->place, slot);
    frame->payload = frame->place;
    return frame;
}

bool box_taken(struct engine *engine, struct incoming *in) {
    engine_assert_locked(engine);
    struct boxes *boxes = &in->from->boxes;
    if (in->header.epoch != engine_header(engine).epoch) return true;
    if (boxes->own == NULL || in->head.offset > ALL || (in->head.offset & boxes->free) != 0) return false;
    boxes->free |= (uint32_t)in->head.offset;
    neighbour_schedule(in->from);
    return true;
}

// ---- what comes in ----
bool box_is_named(struct incoming *in, const struct op *op) {
    if (in->header.type != WIRE_CHUNK_IN || in->length != WIRE_PLACE_BYTES || op->args.queue != NULL ||
        in->from->boxes.other == NULL || in->head.extra > BOX_SLOT_BYTES)
        return false;
    in->to = in->place;
    return true;
}

bool box_copy(struct engine *engine, struct incoming *in, uint8_t *to) {
    uint64_t slot = wire_place_decode(in->place);
    const uint8_t *box = in->from->boxes.other;
    if (slot >= BOX_SLOTS || box == NULL) return false;
    stream_copy(to, box + slot * BOX_SLOT_BYTES, in->head.extra);
    struct wire_op head = {.offset = UINT64_C(1) << slot};
    engine_lock(engine);
    neighbour_signal(engine, in->from, WIRE_TAKEN, &head, NULL);
    engine_unlock(engine);
    return true;
}
