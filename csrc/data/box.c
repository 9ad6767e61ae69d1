#include "data/box.h"

#include "base/descriptor.h"
#include "base/stream.h"
#include "data/core.h"
#include "data/lane.h"
#include "data/algorithm.h"
#include "data/pool.h"
#include "device/shared_memory.h"

enum { ALL = (1 << BOX_SLOTS) - 1 };

static uint32_t slots_of(uint64_t bytes) { return (uint32_t)((bytes + BOX_SLOT_BYTES - 1) / BOX_SLOT_BYTES); }

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
    boxes->populated = boxes->takes_inputs = false;
}

void box_take_other(struct boxes *boxes, int fd) {
    if (boxes->other == NULL) boxes->other = shared_memory_map(fd, BOX_BYTES); // blocks may lie in it
}

void box_end(struct boxes *boxes) {
    box_drop_own(boxes);
    shared_memory_unmap(boxes->other, BOX_BYTES);
    boxes->other = NULL;
    boxes->to_return = 0;
}

// ---- what goes out ----
uint32_t box_offer(const struct neighbour *to, const struct op *op) {
    return op->args.queue == NULL && to->boxes.other != NULL ? BOX_READY : 0;
}

static bool has_pages(struct boxes *boxes) {
    if (boxes->own == NULL) return false;
    boxes->populated = boxes->populated || shared_memory_populate(boxes->own, BOX_BYTES);
    return boxes->populated;
}

bool box_serves(struct neighbour *to, const struct op *op, uint32_t extra) {
    return extra == BOX_READY && op->args.queue == NULL && has_pages(&to->boxes);
}

// Takes `count` consecutive slots. False: they are not free.
static bool take_slots(struct boxes *boxes, uint32_t count, uint32_t *first) {
    uint32_t all = (1u << count) - 1;
    for (uint32_t at = 0; at + count <= BOX_SLOTS; at++)
        if ((boxes->free >> at & all) == all) {
            boxes->free &= ~(all << at);
            *first = at;
            return true;
        }
    return false;
}

struct frame *box_frame(struct engine *engine, struct op *op, struct neighbour *to, struct wire_op *head,
                        const uint8_t *chunk, size_t bytes) {
    struct boxes *boxes = &to->boxes;
    uint32_t slot;
    head->extra = (uint32_t)bytes;
    engine_lock(engine);
    bool taken = take_slots(boxes, 1, &slot);
    struct frame *frame = taken ? algorithm_frame(engine, op, WIRE_CHUNK_IN, head, WIRE_PLACE_BYTES) : NULL;
    engine_unlock(engine);
    if (frame == NULL) return NULL; // without memory the engine is dead
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
    if (in->head.offset == 0) {
        boxes->takes_inputs = boxes->own != NULL;
        return true;
    }
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
    engine_lock(engine);
    in->from->boxes.to_return |= 1u << slot;
    box_return(engine, in->from);
    engine_unlock(engine);
    return true;
}

// ---- inputs of small all-reduces ----
void box_take_inputs(struct engine *engine, struct neighbour *from) {
    engine_assert_locked(engine);
    struct wire_op head = {0};
    if (from->boxes.other != NULL) neighbour_signal(engine, from, WIRE_TAKEN, &head, NULL);
}

struct frame *box_input_frame(struct engine *engine, struct neighbour *to, const struct op *op, struct wire_op *head,
                              uint8_t **out) {
    engine_assert_locked(engine);
    struct boxes *boxes = &to->boxes;
    uint32_t first;
    if (op->in_bytes < BOX_INPUT_LEAST || op->args.queue != NULL || !boxes->takes_inputs || !has_pages(boxes) ||
        !take_slots(boxes, slots_of(op->in_bytes), &first))
        return NULL;
    head->extra = (uint32_t)op->in_bytes;
    struct frame *frame = frame_new(engine, WIRE_SMALL_IN, head, WIRE_PLACE_BYTES);
    if (frame == NULL) return NULL;
    *out = boxes->own + (size_t)first * BOX_SLOT_BYTES;
    wire_place_encode(frame->place, first);
    frame->payload = frame->place;
    return frame;
}

bool box_input_is_named(struct incoming *in) {
    in->to = in->place;
    return in->length == WIRE_PLACE_BYTES && in->from->boxes.other != NULL && in->head.extra > 0 &&
           in->head.extra <= PLAN_SMALL_MAX;
}

// The neighbour is told when half of the box has come together: each message wakes it.
static void return_slots(struct engine *engine, const struct block *block) {
    struct boxes *boxes = &block->from->boxes;
    boxes->to_return |= block->slots;
    if (__builtin_popcount(boxes->to_return) >= BOX_SLOTS / 2) box_return(engine, block->from);
}

struct block *box_input(struct engine *engine, struct incoming *in) {
    engine_assert_locked(engine);
    uint64_t first = wire_place_decode(in->place);
    uint32_t count = slots_of(in->head.extra);
    if (first > BOX_SLOTS - count || in->from->boxes.other == NULL) return NULL;
    struct block *block = block_new(engine, 0);
    if (block == NULL) return NULL;
    block->length = in->head.extra;
    block->boxed = in->from->boxes.other + first * BOX_SLOT_BYTES;
    block->from = in->from;
    block->slots = ((1u << count) - 1) << first;
    block->return_slots = return_slots;
    in->head.extra = 0;
    return block;
}

void box_return(struct engine *engine, struct neighbour *from) {
    engine_assert_locked(engine);
    struct wire_op head = {.offset = from->boxes.to_return};
    if (head.offset != 0) neighbour_signal(engine, from, WIRE_TAKEN, &head, NULL);
    from->boxes.to_return = 0;
}
