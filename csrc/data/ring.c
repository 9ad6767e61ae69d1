// Ring all-reduce, see plan.h. A partial sum lives where its result will be (recv), so a chunk can always be received, whatever waits
// to be sent: rings cannot lock, and nothing but the chunk on its way needs memory of ours.
#include <pccl.h>

#include "compute/kernels.h"
#include "data/engine_private.h"

static struct peer *successor(struct engine *engine) { return engine->members[(engine->rank + 1) % engine->count]; }
static struct peer *predecessor(struct engine *engine) { return engine->members[(engine->rank + engine->count - 1) % engine->count]; }

void ring_begin(struct engine *engine, struct op *op) {
    uint64_t count = op->reduce.fingerprint.count;
    struct plan_range own = plan_shard(count, engine->count, engine->rank);
    op->inject = own.begin;
    op->inject_end = own.end;
    op->chunk = plan_chunk(own.end - own.begin, op->element);
    op->send_left = op->tx_bytes = plan_ring_sent(count, engine->count, engine->rank) * op->element;
    op->receive_left = op->rx_bytes = plan_ring_received(count, engine->count, engine->rank) * op->element;

    struct wire_op head;
    op_head(op, &head);
    pthread_mutex_lock(&engine->lock);
    struct early *early = early_take(engine, successor(engine), head.tag, head.sequence, WIRE_READY);
    op->next_ready = early != NULL;
    if (early != NULL && !wire_fingerprint_equal(&early->head.fingerprint, &head.fingerprint))
        engine_accuse(engine, op, early->from, &early->head.fingerprint);
    if (early != NULL) early_free(engine, early);
    signal_send(engine, predecessor(engine), WIRE_READY, &head, NULL);
    peer_heat(successor(engine));
    pthread_mutex_unlock(&engine->lock);
}

bool ring_receive(struct lane *lane, struct op *op, size_t length) {
    struct engine *engine = lane->engine;
    const struct wire_op *head = &lane->head;
    if (lane->peer != predecessor(engine) || length == 0 || length > PLAN_CHUNK_MAX || length % op->element != 0 || length > op->receive_left)
        return false;
    enum plan_step step = plan_ring_step(engine->count, engine->rank, head->shard, head->hop);
    struct plan_range shard = plan_shard(op->reduce.fingerprint.count, engine->count, head->shard);
    uint64_t elements = length / op->element;
    if (step == PLAN_INVALID || head->offset < shard.begin || head->offset > shard.end || elements > shard.end - head->offset) return false;
    if (step == PLAN_REDUCE || step == PLAN_REDUCE_LAST) {
        lane->to = lane_scratch(lane);
        return lane->to != NULL;
    }
    uint64_t at = head->offset * op->element;
    // The first write to a range of an in-place tensor: while reducing for all shards but the own, which is only sent then.
    if (head->shard == engine->rank && !backup_save(op, at, length)) return false;
    lane->to = (uint8_t *)op->reduce.recv + at;
    return true;
}

// Lock held.
static void forward_now(struct engine *engine, struct frame *frame) {
    struct lane *next = engine_lane(successor(engine), frame->lane);
    if (next == NULL) { // the link broke; the op is redone in the next epoch
        frame_free(engine, frame);
        return;
    }
    lane_push(next, frame);
    lane_heat(next);
}

static void forward(struct lane *lane, struct op *op) {
    struct engine *engine = lane->engine;
    struct wire_op head = lane->head;
    head.hop++;
    pthread_mutex_lock(&engine->lock);
    struct frame *frame = frame_new(engine, WIRE_CHUNK, &head, lane->length);
    if (frame != NULL) {
        frame->op = op;
        frame->payload = (const uint8_t *)op->reduce.recv + head.offset * op->element;
        frame->lane = lane->index;
        if (op->next_ready) {
            forward_now(engine, frame);
        } else {
            frame->next = op->held;
            op->held = frame;
        }
    }
    pthread_mutex_unlock(&engine->lock);
}

void ring_next_ready(struct engine *engine, struct op *op) {
    op->next_ready = true;
    while (op->held != NULL) {
        struct frame *frame = op->held;
        op->held = frame->next;
        forward_now(engine, frame);
    }
}

void ring_release(struct engine *engine, struct op *op) {
    while (op->held != NULL) {
        struct frame *frame = op->held;
        op->held = frame->next;
        frame_free(engine, frame);
    }
}

static void check_complete(struct engine *engine, struct op *op) {
    if (op->receive_left == 0 && op->send_left == 0) engine_complete(engine, op);
}

void ring_received(struct lane *lane, struct op *op) {
    struct engine *engine = lane->engine;
    const struct wire_fingerprint *what = &op->reduce.fingerprint;
    enum plan_step step = plan_ring_step(engine->count, engine->rank, lane->head.shard, lane->head.hop);
    uint64_t at = lane->head.offset * op->element;
    size_t elements = lane->length / op->element;
    if (step == PLAN_REDUCE || step == PLAN_REDUCE_LAST) {
        const struct kernels *kernels = kernels_get();
        uint8_t *result = (uint8_t *)op->reduce.recv + at;
        if (!backup_save(op, at, lane->length)) return; // no memory: the op stays open and ends with the communicator
        kernels->reduce[what->op][what->dtype](result, lane->scratch, (const uint8_t *)op->reduce.send + at, elements);
        if (step == PLAN_REDUCE_LAST && what->op == pcclAvg) kernels->divide[what->dtype](result, elements, engine->count);
    }
    op->receive_left -= lane->length;
    if (step != PLAN_GATHER_LAST) forward(lane, op);
    check_complete(engine, op);
}

struct frame *ring_next(struct lane *lane, struct op *op) {
    struct engine *engine = lane->engine;
    if (!op->next_ready || op->inject == op->inject_end || lane->index == 0 || lane->peer != successor(engine)) return NULL;
    uint64_t elements = op->inject_end - op->inject < op->chunk ? op->inject_end - op->inject : op->chunk;
    struct wire_op head;
    op_head(op, &head);
    head.shard = (uint16_t)engine->rank;
    head.offset = op->inject;
    pthread_mutex_lock(&engine->lock);
    struct frame *frame = frame_new(engine, WIRE_CHUNK, &head, elements * op->element);
    pthread_mutex_unlock(&engine->lock);
    if (frame == NULL) return NULL;
    frame->op = op;
    frame->payload = (const uint8_t *)op->reduce.send + op->inject * op->element;
    op->inject += elements;
    return frame;
}

void ring_sent(struct engine *engine, struct op *op, uint32_t length) {
    op->send_left -= length;
    check_complete(engine, op);
}
