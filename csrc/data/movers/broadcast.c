// Broadcast: the root's tensor travels round the ring. Every member but the root receives all of it, from its
// predecessor, straight into its result, and every member but the root's predecessor passes on what has come, in order.
// A chunk may take any lane, so what is passed on is what is there from the beginning without a gap.
#include <stdio.h>
#include <stdlib.h>

#include "data/core.h"
#include "data/lane.h"
#include "data/mover.h"
#include "data/pace.h"
#include "data/pool.h"

struct broadcast {
    bool root, last;                  // the last member of the way sends nothing
    bool next_ready;                  // the successor has posted the op
    struct ranges placed, whole;      // elements that are here or on their way; that are here
    uint64_t next;                    // to be passed on, elements
    uint64_t receive_left, send_left; // bytes
};

static bool is_root(const struct engine *engine, const struct op *op, struct neighbour *peer) {
    const struct wire_id *id = peer == NULL ? engine_self(engine) : &neighbour_op_member(peer)->id;
    return wire_id_equal(id, &op->args.root);
}

static void check_complete(struct engine *engine, struct op *op) {
    const struct broadcast *b = op->work;
    if (b->receive_left == 0 && b->send_left == 0) mover_complete(engine, op);
}

static bool begin(struct engine *engine, struct op *op) {
    struct broadcast *b = op->work;
    struct wire_op head;
    op_head(op, &head);
    b->root = is_root(engine, op, NULL);
    b->last = is_root(engine, op, mover_successor(engine));
    b->receive_left = op->rx_bytes = b->root ? 0 : op->bytes;
    b->send_left = op->tx_bytes = b->last ? 0 : op->bytes;
    if (b->root && op->count > 0 && !ranges_add(&b->whole, 0, op->count)) return false;
    engine_lock(engine);
    struct early *early = mover_early(engine, op, mover_successor(engine), WIRE_READY);
    b->next_ready = early != NULL;
    free(early);
    // The root receives nothing, but its predecessor compares the arguments.
    neighbour_signal(engine, mover_predecessor(engine), WIRE_READY, &head, NULL);
    neighbour_heat(mover_successor(engine));
    engine_unlock(engine);
    check_complete(engine, op);
    return true;
}

static void take_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                        const struct wire_op *head, struct block *block) {
    (void)head;
    struct broadcast *b = op->work;
    block_put(engine, block);
    b->next_ready |= type == WIRE_READY && from == mover_successor(engine);
}

static void release(struct engine *engine, struct op *op) {
    (void)engine;
    struct broadcast *b = op->work;
    ranges_fini(&b->placed);
    ranges_fini(&b->whole);
    *b = (struct broadcast){0};
}

static bool waits_for(const struct engine *engine, const struct op *op, char *out, size_t capacity) {
    const struct broadcast *b = op->work;
    char name[NEIGHBOUR_NAME_BYTES];
    if (b->last || b->next_ready) return false;
    snprintf(out, capacity, "%s has not begun it", neighbour_name(name, mover_successor(engine)));
    return true;
}

static bool place(struct engine *engine, struct op *op, struct incoming *in) {
    struct broadcast *b = op->work;
    uint64_t offset = in->head.offset, elements = in->length / op->element;
    if (b->root || in->from != mover_predecessor(engine) || in->length == 0 || in->length % op->element != 0 ||
        offset > op->count || elements > op->count - offset)
        return false;
    if (!mover_take(engine, &b->placed, offset, offset + elements)) return false;
    if (!mover_save(op, offset * op->element, in->length)) {
        engine_fail(engine);
        return false;
    }
    in->to = mover_landing(op, offset * op->element, in->length);
    return in->to != NULL;
}

static bool arrived(struct engine *engine, struct op *op, struct incoming *in) {
    struct broadcast *b = op->work;
    uint64_t offset = in->head.offset;
    mover_land(op, offset * op->element, in->to, in->length);
    engine_lock(engine);
    bool noted = ranges_add(&b->whole, offset, offset + in->length / op->element);
    if (!noted) engine_fail(engine);
    if (!b->last) neighbour_heat(mover_successor(engine));
    engine_unlock(engine);
    b->receive_left -= in->length;
    if (noted) check_complete(engine, op);
    return noted;
}

static struct frame *next(struct engine *engine, struct op *op, struct lane *lane, bool idle) {
    struct broadcast *b = op->work;
    uint64_t here = b->whole.count > 0 && b->whole.list[0].begin == 0 ? b->whole.list[0].end : 0;
    if (!idle || b->last || !b->next_ready || b->next >= here || lane_peer(lane) != mover_successor(engine))
        return NULL;
    uint64_t elements = pace_chunk(op->count, op->element, PACE_CHUNK_MAX, op->whole != NULL);
    if (elements > here - b->next) elements = here - b->next;
    const uint8_t *from = b->root ? op->args.send : op->args.recv;
    struct wire_op head;
    op_head(op, &head);
    head.offset = b->next;
    engine_lock(engine);
    bool bulk = lane_is_for_bulk(lane);
    struct frame *frame = bulk ? frame_new(engine, WIRE_CHUNK, &head, elements * op->element) : NULL;
    if (frame != NULL && !mover_show(engine, op, frame, from + b->next * op->element)) frame = NULL;
    engine_unlock(engine);
    if (frame == NULL) return NULL;
    frame->op = op;
    b->next += elements;
    return frame;
}

static void sent(struct engine *engine, struct op *op, const struct frame *frame) {
    struct broadcast *b = op->work;
    b->send_left -= frame->length;
    check_complete(engine, op);
}

const struct mover broadcast_mover = {
    .name = "broadcast",
    .work_bytes = sizeof(struct broadcast),
    .types = {WIRE_CHUNK},
    .begin = begin,
    .signal = take_signal,
    .release = release,
    .waits_for = waits_for,
    .place = place,
    .arrived = arrived,
    .next = next,
    .sent = sent,
};
