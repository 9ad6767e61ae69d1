#include "data/slots.h"

#include "base/descriptor.h"
#include "base/memory.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/algorithm.h"
#include "link/frame.h"
#include "data/op_peer.h"

enum {
    ALL = (1 << SLOTS) - 1,
    INPUTS_FROM = SLOTS / 2, // inputs are held for long; chunks need not wait for them
    RETURN_LEAST = 2,        // slots that are returned together, since each frame wakes the neighbour
};

// The receiver keeps fewer than RETURN_LEAST slots, so a chunk fits between them.
_Static_assert(INPUTS_FROM / RETURN_LEAST * SLOT_BYTES >= SLOTS_CHUNK_MAX, "it fits");

// The lengths that frames name for slots were bounded where they were decoded.
_Static_assert((size_t)WIRE_MAX_DATA_BYTES <= SLOTS_BYTES && (size_t)WIRE_MAX_DATA_BYTES <= PLAN_SMALL_MAX,
               "slots_find can trust it");

static uint32_t slots_of(uint64_t bytes) { return (uint32_t)((bytes + SLOT_BYTES - 1) / SLOT_BYTES); }

static uint32_t mask_of(uint32_t first, uint64_t bytes) { return ((1u << slots_of(bytes)) - 1) << first; }

// ---- life ----
int slots_make(struct slots *slots) {
    if (slots->own != NULL) return -1; // it was handed over in this epoch, and is in use
    int fd = memory_shared_new(SLOTS_BYTES, &slots->own);
    if (fd < 0) slots->own = NULL;
    slots->free = ALL;
    return fd;
}

void slots_drop_own(struct slots *slots) {
    memory_shared_unmap(slots->own, SLOTS_BYTES);
    slots->own = NULL;
    slots->populated = slots->mapped = false;
}

void slots_map(struct slots *slots, int fd) {
    if (slots->other == NULL) slots->other = memory_shared_map(fd, SLOTS_BYTES); // blocks may lie in it
}

void slots_end(struct slots *slots) {
    slots_drop_own(slots);
    memory_shared_unmap(slots->other, SLOTS_BYTES);
    slots->other = NULL;
    slots->to_return = 0;
}

// ---- what goes out ----
struct wire_ready slots_offer(const struct neighbour *to, const struct op *op) {
    return (struct wire_ready){.in_slots = op->args.queue == NULL && op_peer_of(to)->slots.other != NULL};
}

static bool has_pages(struct slots *slots) {
    if (slots->own == NULL) return false;
    slots->populated = slots->populated || memory_shared_populate(slots->own, SLOTS_BYTES);
    return slots->populated;
}

bool slots_serve(struct neighbour *to, const struct op *op, const struct wire_ready *ready) {
    return ready->in_slots == 1 && op->args.queue == NULL && has_pages(&op_peer_of(to)->slots);
}

// Takes consecutive slots from `from` on. Returns false if they are not free.
static bool reserve(struct slots *slots, uint32_t from, uint64_t bytes, uint32_t *first, uint8_t **room) {
    for (uint32_t at = from; at + slots_of(bytes) <= SLOTS; at++) {
        uint32_t mask = mask_of(at, bytes);
        if ((slots->free & mask) != mask) continue;
        slots->free &= ~mask;
        *first = at;
        *room = slots->own + (size_t)at * SLOT_BYTES;
        return true;
    }
    return false;
}

void slots_write(struct engine *engine, struct frame *frame, uint32_t first) {
    engine_assert_locked(engine);
    wire_slot_encode(frame->place, first, engine_header(engine).epoch);
    frame->payload = frame->place;
    frame->length = WIRE_SLOT_BYTES;
}

struct frame *slots_frame(struct engine *engine, struct op *op, struct neighbour *to, struct wire_head *head,
                          size_t bytes, uint8_t **room) {
    uint32_t first;
    head->chunk.bytes = (uint32_t)bytes;
    engine_lock(engine);
    bool taken = reserve(&op_peer_of(to)->slots, 0, bytes, &first, room);
    struct frame *frame = taken ? algorithm_frame(engine, op, WIRE_CHUNK_IN, head, WIRE_SLOT_BYTES) : NULL;
    if (frame != NULL) slots_write(engine, frame, first);
    engine_unlock(engine);
    if (frame == NULL) return NULL; // without memory the engine is dead
    frame->bytes = frame->copied = (uint32_t)bytes;
    return frame;
}

struct frame *slots_chunk(struct engine *engine, struct op *op, struct neighbour *to, struct wire_head *head,
                          const uint8_t *chunk, size_t bytes) {
    uint8_t *room;
    struct frame *frame = slots_frame(engine, op, to, head, bytes, &room);
    if (frame != NULL) memory_copy_past_caches(room, chunk, bytes);
    return frame;
}

bool slots_returned(struct engine *engine, struct incoming *in) {
    engine_assert_locked(engine);
    struct slots *slots = &op_peer_of(in->from)->slots;
    uint32_t taken = in->head.taken.slots;
    if (in->header.epoch != engine_header(engine).epoch) return true;
    if (taken == 0) {
        slots->mapped = slots->own != NULL;
        return true;
    }
    if (slots->own == NULL || taken > ALL || (taken & slots->free) != 0) return false;
    slots->free |= taken;
    neighbour_schedule(in->from);
    return true;
}

// ---- what comes in ----
bool slots_are_named(const struct incoming *in) {
    uint16_t type = in->header.type;
    return type == WIRE_CHUNK_IN || type == WIRE_SMALL_IN ||
           (type == WIRE_SYNC_LEAF && in->head.sync_leaf.coding == WIRE_SYNC_SLOT);
}

// Returns how many bytes lie in the slots that the frame names, at most.
static uint32_t named_bytes(const struct incoming *in) {
    if (in->header.type == WIRE_SYNC_LEAF) return SLOT_BYTES;
    return in->header.type == WIRE_SMALL_IN ? in->head.small_in.bytes : in->head.chunk.bytes;
}

bool slots_find(struct engine *engine, struct incoming *in) {
    bool leaf = in->header.type == WIRE_SYNC_LEAF;
    uint64_t first, epoch, bytes = named_bytes(in);
    wire_slot_decode(in->place, &first, &epoch);
    in->slot = NULL;
    const uint8_t *other = op_peer_of(in->from)->slots.other;
    if (first > SLOTS - slots_of(bytes)) return false;
    // A round of shared state outlives epochs, so a leaf may lie in slots that are no more, or not mapped yet.
    if (epoch != engine_header(engine).epoch || other == NULL) return leaf;
    in->slot = other + first * SLOT_BYTES;
    in->slots = mask_of((uint32_t)first, bytes);
    return true;
}

static void give_back(struct engine *engine, struct neighbour *from, uint32_t mask) {
    op_peer_of(from)->slots.to_return |= mask;
    if (__builtin_popcount(op_peer_of(from)->slots.to_return) >= RETURN_LEAST) slots_return(engine, from);
}

void slots_release(struct engine *engine, struct incoming *in) {
    if (in->slot == NULL) return;
    engine_lock(engine);
    give_back(engine, in->from, in->slots);
    engine_unlock(engine);
    in->slot = NULL;
}

void slots_return(struct engine *engine, struct neighbour *from) {
    engine_assert_locked(engine);
    struct wire_head head = {.taken = {op_peer_of(from)->slots.to_return}};
    if (head.taken.slots != 0) lanes_signal(from, WIRE_TAKEN, &head, NULL);
    op_peer_of(from)->slots.to_return = 0;
}

// ---- inputs of small all-reduces ----
void slots_report(struct engine *engine, struct neighbour *from) {
    engine_assert_locked(engine);
    static const struct wire_head head;
    if (op_peer_of(from)->slots.other != NULL) lanes_signal(from, WIRE_TAKEN, &head, NULL);
}

struct frame *slots_input_frame(struct engine *engine, struct neighbour *to, const struct op *op,
                                struct wire_head *head, uint8_t **room) {
    engine_assert_locked(engine);
    struct slots *slots = &op_peer_of(to)->slots;
    uint32_t first;
    if (op->in_bytes < SLOTS_INPUT_LEAST || op->args.queue != NULL || !slots->mapped || !has_pages(slots) ||
        !reserve(slots, INPUTS_FROM, op->in_bytes, &first, room))
        return NULL;
    head->small_in.bytes = (uint32_t)op->in_bytes;
    struct frame *frame = frame_new(&engine->lanes->frames, WIRE_SMALL_IN, head, WIRE_SLOT_BYTES);
    if (frame != NULL) slots_write(engine, frame, first);
    return frame;
}

static void return_input(const struct block *block) { give_back(block->from->all->context, block->from, block->slots); }

struct block *slots_input(struct engine *engine, struct incoming *in) {
    engine_assert_locked(engine);
    struct block *block = block_new(engine->pool, 0);
    if (block == NULL) return NULL;
    block->length = in->head.small_in.bytes;
    block->in_slots = in->slot;
    block->from = in->from;
    block->slots = in->slots;
    block->return_slots = return_input;
    in->slot = NULL;
    return block;
}

// ---- leaves of a shared state ----
enum slots_leaf slots_reserve_leaf(struct neighbour *to, size_t bytes, uint32_t *first, uint8_t **room) {
    struct slots *slots = &op_peer_of(to)->slots;
    if (!slots->mapped || bytes > SLOT_BYTES || !has_pages(slots)) return SLOTS_LEAF_SENT;
    return reserve(slots, 0, bytes, first, room) ? SLOTS_LEAF : SLOTS_LEAF_LATER;
}
