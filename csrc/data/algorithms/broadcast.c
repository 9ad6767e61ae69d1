// Broadcast: the root's tensor travels round the ring. Every member but the root receives all of it, from its
// predecessor, straight into its result, and every member but the root's predecessor passes on what has come, in order.
// A neighbour on the same host gets the chunks through shared-memory slots (data/slots), any other one on the link.
// A chunk may take any lane, so what is passed on is what is there from the beginning without a gap.
#include "base/memory.h"
#include "data/slots.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/algorithm.h"
#include "link/pace.h"

struct broadcast {
    struct moving moving;
    bool root, last;             // the last member of the way sends nothing
    bool next_began;             // the successor has begun the op, of the last member that is the root
    bool in_slots;               // the successor gets the chunks through slots
    struct ranges placed, whole; // elements that are here or on their way; that are here
    uint64_t next;               // to be passed on, elements
};

static bool broadcast_begin(struct engine *engine, struct op *op) {
    struct broadcast *b = op->work;
    const struct team *now = op->team;
    b->root = op_is_root(op);
    b->last = now->ranks[(now->place + 1) % now->count] == op->root;
    b->moving.receive_left = b->root ? 0 : op->bytes;
    b->moving.send_left = b->last ? 0 : op->bytes;
    if (b->root && !ranges_add(&b->whole, 0, op->count)) return false;
    engine_lock(engine);
    b->moving.next_ready = b->last; // nothing is sent there
    // The root receives nothing, but its predecessor compares the arguments.
    algorithm_offer(engine, op, algorithm_predecessor(op),
                    b->root ? (struct wire_ready){0} : slots_offer(algorithm_predecessor(op), op));
    engine_unlock(engine);
    return true;
}

// READY of the successor: it has posted the op.
static bool broadcast_take_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                                  const struct wire_head *head, struct block *block) {
    struct broadcast *b = op->work;
    (void)engine, (void)block;
    if (type != WIRE_READY || from != algorithm_successor(op)) return true;
    b->next_began = true;
    b->in_slots = !b->last && slots_serve(from, op, &head->ready);
    return true;
}

static void broadcast_release(struct engine *engine, struct op *op) {
    (void)engine;
    struct broadcast *b = op->work;
    ranges_fini(&b->placed);
    ranges_fini(&b->whole);
    *b = (struct broadcast){0};
}

// A root that does not come is missed by the last member, which sends nothing there.
static bool broadcast_misses(const struct op *op, uint32_t place) {
    const struct broadcast *b = op->work;
    return place == (op->team->place + 1) % op->team->count && !b->next_began;
}

static bool broadcast_locate(struct engine *engine, struct op *op, struct incoming *in) {
    struct broadcast *b = op->work;
    bool in_slots = in->header.type == WIRE_CHUNK_IN;
    size_t bytes = algorithm_chunk_bytes(in);
    uint64_t offset = in->head.chunk.offset, elements = bytes / op->element;
    if (in->header.type != WIRE_CHUNK && (!in_slots || op->args.queue != NULL)) return false;
    if (b->root || in->from != algorithm_predecessor(op) || bytes == 0 || bytes % op->element != 0 ||
        offset > op->count || elements > op->count - offset)
        return false;
    return algorithm_take(engine, &b->placed, offset, offset + elements) &&
           (in_slots || algorithm_locate(engine, op, in, offset * op->element));
}

static bool broadcast_arrived(struct engine *engine, struct op *op, struct incoming *in) {
    struct broadcast *b = op->work;
    uint64_t offset = in->head.chunk.offset;
    bool in_slots = in->header.type == WIRE_CHUNK_IN;
    size_t bytes = algorithm_chunk_bytes(in);
    if (!in_slots)
        algorithm_unstage(op, offset * op->element, in->to, bytes);
    else
        memory_copy_past_caches((uint8_t *)op->args.recv + offset * op->element, in->slot, bytes);
    engine_lock(engine);
    bool noted = ranges_add(&b->whole, offset, offset + bytes / op->element);
    if (!noted) engine_fail(engine);
    if (!b->last) neighbour_schedule(algorithm_successor(op));
    engine_unlock(engine);
    b->moving.receive_left -= bytes;
    return noted;
}

static struct frame *broadcast_next(struct engine *engine, struct op *op, struct lane *lane, bool idle) {
    struct broadcast *b = op->work;
    uint64_t here = b->whole.count > 0 && b->whole.list[0].begin == 0 ? b->whole.list[0].end : 0;
    if (!idle || b->last || !b->moving.next_ready || b->next >= here || lane->peer != algorithm_successor(op) ||
        !algorithm_may_use(engine, lane))
        return NULL;
    uint64_t elements =
        pace_chunk(op->count, op->element, b->in_slots ? SLOTS_CHUNK_MAX : pace_frame(&lane->pace), op->parent != NULL);
    if (elements > here - b->next) elements = here - b->next;
    const uint8_t *from = b->root ? op->args.send : op->args.recv;
    struct wire_head head = {.op = op_on_wire(op), .chunk = {.offset = b->next}};
    from += b->next * op->element;
    struct frame *frame = b->in_slots ? slots_chunk(engine, op, lane->peer, &head, from, elements * op->element)
                                      : algorithm_chunk(engine, op, &head, from, elements * op->element);
    if (frame != NULL) b->next += elements;
    return frame;
}

const struct algorithm broadcast_algorithm = {
    .name = "broadcast",
    .work_bytes = sizeof(struct broadcast),
    .types = {WIRE_CHUNK, WIRE_CHUNK_IN},
    .begin = broadcast_begin,
    .signal = broadcast_take_signal,
    .release = broadcast_release,
    .misses = broadcast_misses,
    .locate = broadcast_locate,
    .arrived = broadcast_arrived,
    .next = broadcast_next,
};
