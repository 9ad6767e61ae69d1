// Ring all-reduce, see plan.h. A partial sum lives where its result will be (recv), so a chunk can always be received,
// whatever waits to be sent: rings cannot lock, and nothing but the chunk on its way needs memory of ours.
#include <pccl.h>
#include <stdlib.h>
#include <string.h>

#include "compute/kernels.h"
#include "data/op.h"
#include "net/socket.h"

static struct peer *successor(struct engine *engine) { return peer_at(engine, (engine->rank + 1) % engine->count); }
static struct peer *predecessor(struct engine *engine) {
    return peer_at(engine, (engine->rank + engine->count - 1) % engine->count);
}

static bool can_be_read(const struct op *op) {
    return memory_can_be_read(op->reduce.send, op->bytes) && memory_can_be_read(op->reduce.recv, op->bytes);
}

void ring_begin(struct engine *engine, struct op *op) {
    uint64_t count = op->count;
    struct plan_range own = plan_shard(count, engine->count, engine->rank);
    op->inject = own.begin;
    op->inject_end = own.end;
    op->injected = op->returned = op->under_way = 0;
    op->send_left = op->tx_bytes = plan_ring_sent(count, engine->count, engine->rank) * op->element;
    ranges_clear(&op->reducing);
    ranges_clear(&op->gathering);
    op->receive_left = op->rx_bytes = plan_ring_received(count, engine->count, engine->rank) * op->element;

    struct wire_op head;
    op_head(op, &head);
    pthread_mutex_lock(&engine->lock);
    struct early *early = book_early(&engine->book, op, &successor(engine)->member, WIRE_READY);
    op->next_ready = early != NULL;
    op->next_reads = early != NULL && early->head.extra == 1 && can_be_read(op);
    free(early);
    head.extra = same_host_may_read(predecessor(engine));
    peer_signal(engine, predecessor(engine), WIRE_READY, &head, NULL);
    peer_heat(successor(engine));
    pthread_mutex_unlock(&engine->lock);
}

static bool is_placed(const struct incoming *in) { return in->header.type == WIRE_CHUNK_AT; }

// Of the chunk, wherever it is.
static size_t chunk_bytes(const struct incoming *in) { return is_placed(in) ? in->head.extra : in->length; }

bool ring_place(struct engine *engine, struct op *op, struct incoming *in) {
    const struct wire_op *head = &in->head;
    size_t bytes = chunk_bytes(in);
    if (is_placed(in) && (in->length != FRAME_PLACE_BYTES || !lane_is_vouched(in->lane))) return false;
    if (in->from != predecessor(engine) || bytes == 0 || bytes > PLAN_PLACED_MAX || bytes % op->element != 0 ||
        bytes > op->receive_left)
        return false;
    enum plan_step step = plan_ring_step(engine->count, engine->rank, head->shard, head->hop);
    struct plan_range shard = plan_shard(op->count, engine->count, head->shard);
    uint64_t elements = bytes / op->element;
    if (step == PLAN_INVALID || head->offset < shard.begin || head->offset > shard.end ||
        elements > shard.end - head->offset)
        return false;
    // Everything comes once: what came twice would count for something that never came, and be under way when the op is
    // over.
    bool reduce = step == PLAN_REDUCE || step == PLAN_REDUCE_LAST;
    if (!op_take(engine, reduce ? &op->reducing : &op->gathering, head->offset, head->offset + elements)) return false;
    if (is_placed(in)) { // part by part, as it is read
        in->to = in->place;
        return true;
    }
    if (reduce) {
        in->to = lane_scratch(in->lane);
        return in->to != NULL;
    }
    uint64_t at = head->offset * op->element;
    // The first write to a range of an in-place tensor: while reducing for all shards but the own, which is only sent
    // then.
    if (!backup_save(&op->backup, op->reduce.send, at, bytes)) {
        engine_fail(engine);
        return false;
    }
    in->to = (uint8_t *)op->reduce.recv + at;
    return true;
}

// Lock held. The chunk at `payload`, copied into the link, or, when the neighbour reads our memory, named.
static struct frame *chunk_frame(struct engine *engine, struct op *op, struct wire_op *head, const uint8_t *payload,
                                 size_t bytes) {
    if (op->next_reads) head->extra = (uint32_t)bytes;
    struct frame *frame = frame_new(engine, op->next_reads ? WIRE_CHUNK_AT : WIRE_CHUNK, head,
                                    op->next_reads ? FRAME_PLACE_BYTES : bytes);
    if (frame == NULL) return NULL;
    uint64_t address = (uint64_t)(uintptr_t)payload;
    memcpy(frame->place, &address, sizeof address);
    frame->op = op;
    frame->bytes = (uint32_t)bytes;
    frame->payload = op->next_reads ? frame->place : payload;
    return frame;
}

static void forward_now(struct engine *engine, struct op *op, struct wire_op *head, size_t bytes, uint32_t index) {
    struct lane *next = peer_lane(successor(engine), index);
    if (next == NULL) return; // the link broke; the op is redone in the next epoch
    struct frame *frame =
        chunk_frame(engine, op, head, (const uint8_t *)op->reduce.recv + head->offset * op->element, bytes);
    if (frame == NULL) return;
    lane_push(next, frame);
    lane_heat(next);
}

static void forward(struct engine *engine, struct op *op, const struct incoming *in) {
    pthread_mutex_lock(&engine->lock);
    struct held *held = op->next_ready ? NULL : malloc(sizeof *held);
    struct wire_op head = in->head;
    head.hop++;
    head.extra = 0;
    if (op->next_ready) {
        forward_now(engine, op, &head, chunk_bytes(in), lane_index(in->lane));
    } else if (held == NULL) {
        engine_fail(engine);
    } else {
        *held = (struct held){op->held, head, chunk_bytes(in), lane_index(in->lane)};
        op->held = held;
    }
    pthread_mutex_unlock(&engine->lock);
}

void ring_next_ready(struct engine *engine, struct op *op, bool reads) {
    op->next_ready = true;
    op->next_reads = reads && can_be_read(op);
    while (op->held != NULL) {
        struct held *held = op->held;
        op->held = held->next;
        forward_now(engine, op, &held->head, held->bytes, held->lane);
        free(held);
    }
}

void ring_release(struct op *op) {
    ranges_fini(&op->reducing);
    ranges_fini(&op->gathering);
    while (op->held != NULL) {
        struct held *held = op->held;
        op->held = held->next;
        free(held);
    }
}

static void check_complete(struct engine *engine, struct op *op) {
    if (op->receive_left == 0 && op->send_left == 0) engine_complete(engine, op);
}

// result = partial sum op own input, and on the last hop the average.
static void reduce_part(struct engine *engine, struct op *op, enum plan_step step, uint64_t at, const void *partial,
                        size_t bytes) {
    const struct wire_fingerprint *what = &op->reduce.fingerprint;
    const struct kernels *kernels = kernels_get();
    void *result = (uint8_t *)op->reduce.recv + at;
    size_t elements = bytes / op->element;
    kernels->reduce[what->op][what->dtype](result, partial, (const uint8_t *)op->reduce.send + at, elements);
    if (step == PLAN_REDUCE_LAST && what->op == pcclAvg) kernels->divide[what->dtype](result, elements, engine->count);
}

// Takes a chunk out of the neighbour's memory. Part by part, so that what is saved, read and reduced is still in the
// cache.
static bool take_placed(struct engine *engine, struct op *op, const struct incoming *in, enum plan_step step,
                        uint64_t at) {
    uint64_t address;
    memcpy(&address, in->place, sizeof address);
    bool reduce = step == PLAN_REDUCE || step == PLAN_REDUCE_LAST;
    bool save = reduce || in->head.shard == engine->rank;
    size_t bytes = chunk_bytes(in), part_bytes = save ? PLAN_CHUNK_MAX / 2 : bytes;
    for (size_t done = 0; done < bytes; done += part_bytes) {
        size_t part = bytes - done < part_bytes ? bytes - done : part_bytes;
        if (!backup_save(&op->backup, op->reduce.send, at + done, part)) return false;
        if (!reduce) {
            uint8_t *to = (uint8_t *)op->reduce.recv + at + done;
            if (!same_host_read_written(in->lane, to, address + done, part)) return false;
            continue;
        }
        const uint8_t *read = same_host_read(in->lane, address + done, part);
        if (read == NULL) return false;
        reduce_part(engine, op, step, at + done, read, part);
    }
    // The memory of a member that gives up its op is its caller's again, but not before its links have ended.
    // Nor may another process have got its number meanwhile.
    return same_host_still_stands(in->lane);
}

bool ring_arrived(struct engine *engine, struct op *op, struct incoming *in) {
    enum plan_step step = plan_ring_step(engine->count, engine->rank, in->head.shard, in->head.hop);
    uint64_t at = in->head.offset * op->element;
    size_t bytes = chunk_bytes(in);
    if (is_placed(in)) {
        if (!take_placed(engine, op, in, step, at)) return false;
    } else if (step == PLAN_REDUCE || step == PLAN_REDUCE_LAST) {
        if (!backup_save(&op->backup, op->reduce.send, at, bytes)) return false;
        reduce_part(engine, op, step, at, in->to, bytes);
    }
    op->receive_left -= bytes;
    if (in->head.shard == engine->rank) {
        op->returned++;
        uint64_t back = bytes < op->under_way ? bytes : op->under_way;
        op->under_way -= back;
        engine->under_way -= back;
        engine_lock(engine);
        peer_heat(successor(engine));
        engine_unlock(engine);
    }
    if (step != PLAN_GATHER_LAST) forward(engine, op, in);
    check_complete(engine, op);
    return true;
}

// Own chunks go before those to forward until enough are under way, so that every member always has work. More would
// leave the caches before they are read. One of each op always may: a member behind the successor may post this op
// first, and others under way only afterwards.
static bool may_inject(const struct engine *engine, const struct op *op) {
    if (op->injected == op->returned) return true;
    if (op->next_reads) return op->injected - op->returned < CHUNKS_AHEAD;
    return engine->under_way + PLAN_CHUNK_MAX <=
           plan_window(engine->count, engine->latency_us, engine->megabytes_per_s);
}

struct frame *ring_next(struct engine *engine, struct op *op, struct lane *lane) {
    if (!op->next_ready || op->inject == op->inject_end || lane_index(lane) == 0 ||
        lane_peer(lane) != successor(engine))
        return NULL;
    if (!may_inject(engine, op)) return NULL;
    struct plan_range own = plan_shard(op->count, engine->count, engine->rank);
    uint64_t elements = plan_chunk(own.end - own.begin, op->element, op->next_reads ? PLAN_PLACED_MAX : PLAN_CHUNK_MAX,
                                   op->whole != NULL);
    if (elements > op->inject_end - op->inject) elements = op->inject_end - op->inject;
    struct wire_op head;
    op_head(op, &head);
    head.shard = (uint16_t)engine->rank;
    head.offset = op->inject;
    pthread_mutex_lock(&engine->lock);
    struct frame *frame = chunk_frame(engine, op, &head, (const uint8_t *)op->reduce.send + op->inject * op->element,
                                      elements * op->element);
    pthread_mutex_unlock(&engine->lock);
    if (frame == NULL) return NULL;
    op->inject += elements;
    op->injected++;
    if (!op->next_reads) {
        op->under_way += frame->bytes;
        engine->under_way += frame->bytes;
    }
    return frame;
}

void ring_sent(struct engine *engine, struct op *op, const struct frame *frame) {
    op->send_left -= frame->bytes;
    check_complete(engine, op);
}
