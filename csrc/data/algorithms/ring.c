// Ring all-reduce, and its first half by itself: reduce-scatter and reduce, see plan.h. A partial sum lives where its
// result will be (recv), or, if that is at another member, in room of the op (op->room). So a chunk can always be
// received, whatever waits to be sent: rings cannot lock.
#include <pccl.h>
#include <stdlib.h>

#include "base/memory.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/algorithm.h"
#include "link/pace.h"
#include "data/slots.h"
#include "device/device.h"

enum { CHUNKS_AHEAD = 2 }; // own chunks of an op under way where they pass through slots, of which forwards need some

// A chunk, or what is left of it, for whichever lane has room first: the successor was not ready, or is far.
struct forward {
    struct forward *next;
    struct wire_head head;
    size_t bytes;
};

struct ring {
    struct moving moving;
    bool slots;                        // chunks pass to the successor through shared-memory slots
    uint64_t under_way;                // bytes of own chunks; they may come back in other pieces
    struct forward *forwards, **last;  // chunks to forward, in the order in which they came
    uint64_t inject, inject_end;       // own shard, elements
    struct ranges reducing, gathering; // what has come, or is on its way: elements
    struct ranges summed;              // bytes; with workers: what has come and is added up
};

// All but an all-reduce end with the reduce-scatter half.
static bool is_half(const struct op *op) { return op->args.fingerprint.kind != PLAN_ALL_REDUCE; }

// Returns a shard. In a half, a shard is the part of the member at which its sum is complete; in a reduce, the root
// owns everything.
static struct plan_range shard_of(const struct op *op, uint32_t shard) {
    const struct team *now = op->team;
    if (!is_half(op)) return plan_shard(op->count, now->count, shard);
    uint32_t owner = now->ranks[(shard + now->count - 1) % now->count];
    if (op->args.parts == NULL) return (struct plan_range){0, owner == op->root ? op->count : 0};
    const struct call_part *part = &op->args.parts->to[owner];
    return (struct plan_range){part->at, part->at + part->count};
}

static uint64_t shard_size(const struct op *op, uint32_t shard) {
    struct plan_range range = shard_of(op, shard % op->team->count);
    return range.end - range.begin;
}

// The range that is the own result.
static struct plan_range result_of(const struct op *op) {
    return is_half(op) ? shard_of(op, (op->team->place + 1) % op->team->count) : (struct plan_range){0, op->count};
}

static enum plan_step step_of(const struct op *op, const struct wire_chunk *chunk) {
    enum plan_step step = plan_ring_step(op->team->count, op->team->place, chunk->shard, chunk->hop);
    return is_half(op) && step > STEP_REDUCE_LAST ? STEP_INVALID : step;
}

// Returns where the sum of this element is, or will be.
static uint8_t *sum_at(const struct op *op, uint64_t element) {
    struct plan_range result = result_of(op);
    if (element < result.begin || element >= result.end) return op->room.bytes + element * op->element;
    return (uint8_t *)op->args.recv + (element - result.begin) * op->element;
}

static bool ring_begin(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    struct ring *ring = op->work;
    uint64_t count = op->count, sent = count - shard_size(op, now->place + 1),
             passed = sent - shard_size(op, now->place);
    struct plan_range own = shard_of(op, now->place);
    ring->last = &ring->forwards;
    ring->inject = own.begin;
    ring->inject_end = own.end;
    if (!is_half(op)) sent = plan_ring_sent(count, now->count, now->place);
    ring->moving.send_left = sent * op->element;
    ring->moving.receive_left =
        (is_half(op) ? count - (own.end - own.begin) : plan_ring_received(count, now->count, now->place)) * op->element;
    engine_lock(engine);
    if (is_half(op) && passed > 0 && op->room.bytes == NULL &&
        !backup_begin(&engine->backups, &op->room, op->args.queue, op->bytes)) {
        engine_unlock(engine);
        return false;
    }
    algorithm_offer(engine, op, algorithm_predecessor(op), slots_offer(algorithm_predecessor(op), op));
    neighbour_schedule(algorithm_successor(op)); // what may go early
    engine_unlock(engine);
    return true;
}

static bool is_in_slots(const struct incoming *in) { return in->header.type == WIRE_CHUNK_IN; }

// With workers a sum of other members may come while another thread adds up the same range: a member that sends it
// before it has the partial sum lies.
static bool note_summed(struct engine *engine, struct op *op, uint64_t at, size_t bytes) {
    struct ring *ring = op->work;
    if (engine->lanes->workers == NULL || ranges_add(&ring->summed, at, at + bytes)) return true;
    engine_lock(engine);
    engine_fail(engine);
    engine_unlock(engine);
    return false;
}

static bool comes_too_early(const struct engine *engine, const struct op *op, uint64_t at, size_t bytes) {
    const struct ring *ring = op->work;
    struct plan_range gap;
    return engine->lanes->workers != NULL && ranges_gap(&ring->summed, at, at + bytes, &gap);
}

static bool ring_locate(struct engine *engine, struct op *op, struct incoming *in) {
    struct ring *ring = op->work;
    const struct wire_chunk *chunk = &in->head.chunk;
    size_t bytes = algorithm_chunk_bytes(in);
    if (is_in_slots(in) && op->args.queue != NULL) return false;
    if (in->from != algorithm_predecessor(op) || bytes == 0 || bytes > SLOTS_CHUNK_MAX || bytes % op->element != 0 ||
        bytes > ring->moving.receive_left)
        return false;
    enum plan_step step = step_of(op, chunk);
    struct plan_range shard = shard_of(op, chunk->shard);
    uint64_t elements = bytes / op->element;
    if (step == STEP_INVALID || chunk->offset < shard.begin || chunk->offset > shard.end ||
        elements > shard.end - chunk->offset)
        return false;
    // Everything comes once: what came twice would count for something that never came, and be under way when the op is
    // over.
    bool reduce = step == STEP_REDUCE || step == STEP_REDUCE_LAST;
    if (!reduce && chunk->shard != op->team->place && comes_too_early(engine, op, chunk->offset * op->element, bytes))
        return false;
    if (!algorithm_take(engine, reduce ? &ring->reducing : &ring->gathering, chunk->offset, chunk->offset + elements))
        return false;
    if (is_in_slots(in)) return true;
    uint64_t at = chunk->offset * op->element;
    if (reduce) {
        if (op->args.queue != NULL)
            in->to = algorithm_staging(op, at, bytes);
        else if (in->to == NULL)
            in->to = lane_scratch(in->lane);
        return in->to != NULL;
    }
    // The first write to a range of an in-place tensor: while reducing for all shards but the own, which is only sent
    // then.
    return algorithm_locate(engine, op, in, at);
}

// Returns a frame with the chunk, which is sent from where it lies.
static struct frame *sent_chunk(struct engine *engine, struct op *op, const struct wire_head *head,
                                const uint8_t *chunk, size_t bytes) {
    engine_assert_locked(engine);
    const struct ring *ring = op->work;
    struct frame *frame = algorithm_frame(engine, op, ring->moving.next_ready ? WIRE_CHUNK : WIRE_EARLY, head, bytes);
    return frame != NULL && algorithm_show(engine, op, frame, chunk) ? frame : NULL;
}

// Returns the lane on which what came is forwarded at once. NULL: it has to wait for a lane that has room. A chunk that
// was kept counts as one of the direct link, which is not for bulk where there are lanes.
static struct lane *forward_lane(struct engine *engine, const struct op *op, const struct incoming *in) {
    engine_assert_locked(engine);
    const struct ring *ring = op->work;
    struct lane *lane = ring->moving.next_ready ? neighbour_lane(algorithm_successor(op), in->lane->index) : NULL;
    return lane != NULL && !lane->pace.far && lane_is_for_bulk(lane) ? lane : NULL;
}

static struct wire_head forward_head(const struct incoming *in) {
    struct wire_head head = in->head;
    head.chunk.hop++;
    return head;
}

// Returns a frame for what came, once it is added up, with free slots for it at `*room`. NULL: it takes no slots, or
// has to wait for them.
static struct frame *slots_for(struct engine *engine, struct op *op, const struct incoming *in, uint8_t **room) {
    const struct ring *ring = op->work;
    struct wire_head head = forward_head(in);
    engine_lock(engine);
    bool now = ring->slots && forward_lane(engine, op, in) != NULL;
    engine_unlock(engine);
    return now ? slots_frame(engine, op, algorithm_successor(op), &head, algorithm_chunk_bytes(in), room) : NULL;
}

// Queues what came, or `filled`, for the successor.
static void forward(struct engine *engine, struct op *op, const struct incoming *in, struct frame *filled) {
    struct ring *ring = op->work;
    struct wire_head head = forward_head(in);
    engine_lock(engine);
    struct lane *lane = forward_lane(engine, op, in);
    bool now = lane != NULL && !ring->slots;
    // A sum that a device has reduced is still in host memory: shown at once, it does not cross the bus again.
    struct frame *frame =
        now ? sent_chunk(engine, op, &head, sum_at(op, head.chunk.offset), algorithm_chunk_bytes(in)) : filled;
    if (filled != NULL && lane == NULL) lane = neighbour_lane(algorithm_successor(op), 0); // that one has broken
    struct forward *forward = now || filled != NULL ? NULL : malloc(sizeof *forward);
    if (frame != NULL && lane != NULL) {
        lane_push(lane, frame);
        lane_schedule(lane);
    } else if (frame != NULL) {
        frame_free(&engine->lanes->frames, frame); // the link is gone, and the operation is redone
    } else if (forward != NULL) {
        *forward = (struct forward){NULL, head, algorithm_chunk_bytes(in)};
        *ring->last = forward;
        ring->last = &forward->next;
        neighbour_schedule(algorithm_successor(op));
    } else if (!now) {
        engine_fail(engine);
    }
    engine_unlock(engine);
}

// READY: the successor has posted the op.
static bool ring_take_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                             const struct wire_head *head, struct block *block) {
    struct ring *ring = op->work;
    (void)block;
    if (type != WIRE_READY || from != algorithm_successor(op)) return true;
    if (ring->under_way == 0) ring->slots = slots_serve(from, op, &head->ready);
    op_peer_of(from)->eager_bytes -= ring->moving.early;
    engine->shared->early -= ring->moving.early;
    ring->moving.early = 0;
    return true;
}

static struct forward *forward_pop(struct ring *ring) {
    struct forward *forward = ring->forwards;
    ring->forwards = forward->next;
    if (ring->forwards == NULL) ring->last = &ring->forwards;
    return forward;
}

static void ring_release(struct engine *engine, struct op *op) {
    (void)engine;
    struct ring *ring = op->work;
    ranges_fini(&ring->reducing);
    ranges_fini(&ring->gathering);
    ranges_fini(&ring->summed);
    while (ring->forwards != NULL) free(forward_pop(ring));
    *ring = (struct ring){0};
}

// result = partial sum op own input, and on the last hop the average. `at`: bytes.
static void reduce_part(struct engine *engine, struct op *op, bool last, uint64_t at, const void *partial, void *result,
                        size_t bytes) {
    const struct wire_fingerprint *what = &op->args.fingerprint;
    struct device_sum sum = {.op = what->op, .dtype = what->dtype};
    if (last && what->op == pcclAvg) sum.divisor = op->team->count;
    bool apart = op->args.queue == NULL;
    if (apart) turn_leave(engine->lanes->workers);
    device_reduce(op->args.queue, result, (void *)(uintptr_t)partial, (const uint8_t *)op->args.send + at,
                  bytes / op->element, &sum);
    if (apart) turn_take(engine->lanes->workers);
}

// Bytes that arrived, on their way to the result and, part by part while it is in the cache, to slots for the
// successor.
struct passage {
    enum plan_step step;
    uint64_t at;         // in the tensor, bytes
    const uint8_t *from; // its bytes
    uint8_t *room;       // slots for the successor; NULL: none
    uint8_t *scratch;    // SLOTS_PART bytes; NULL: sums are written to the result
    bool kept;           // the sum is written to the result
};

// Returns false if the system refused memory.
static bool pass_sum(struct engine *engine, struct op *op, const struct passage *p, uint64_t done, size_t bytes) {
    uint64_t at = p->at + done;
    uint8_t *result = sum_at(op, at / op->element);
    if (p->kept && !algorithm_save_apart(engine, op, at, bytes)) return false;
    uint8_t *sum = p->scratch != NULL ? p->scratch : result;
    reduce_part(engine, op, p->step == STEP_REDUCE_LAST, at, p->from + done, sum, bytes);
    if (p->room != NULL) memory_copy_past_caches(p->room + done, sum, bytes);
    if (p->scratch != NULL && p->kept) memory_copy_past_caches(result, sum, bytes);
    return true;
}

static bool pass_sums(struct engine *engine, struct op *op, const struct passage *p, size_t bytes) {
    size_t most = op->args.queue == NULL ? SLOTS_PART : bytes;
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < most ? bytes - done : most;
        if (!pass_sum(engine, op, p, done, part)) return false;
    }
    return true;
}

// Copies a result out of the neighbour's slots. Returns false if the system refused memory.
static bool pass_results(struct engine *engine, struct op *op, const struct passage *p, size_t bytes) {
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < SLOTS_PART ? bytes - done : SLOTS_PART;
        if (!algorithm_save_apart(engine, op, p->at + done, part)) return false;
        memory_copy_past_caches((uint8_t *)op->args.recv + p->at + done, p->from + done, part);
        if (p->room != NULL) memory_copy_past_caches(p->room + done, p->from + done, part);
    }
    return true;
}

// NULL: memory was refused, and the engine ends.
static uint8_t *scratch_unlocked(struct engine *engine, struct lane *lane) {
    engine_lock(engine);
    uint8_t *scratch = lane_scratch(lane);
    engine_unlock(engine);
    return scratch;
}

// Brings what arrived to the result, and copies it to `room`, the slots for the successor, unless that is NULL.
static bool pass(struct engine *engine, struct op *op, struct incoming *in, uint8_t *room) {
    enum plan_step step = step_of(op, &in->head.chunk);
    struct passage p = {.step = step,
                        .at = in->head.chunk.offset * op->element,
                        .from = in->slot != NULL ? in->slot : in->to,
                        .room = room};
    size_t bytes = algorithm_chunk_bytes(in);
    if (step == STEP_REDUCE || step == STEP_REDUCE_LAST) {
        // The lane's scratch is free, unless the chunk was kept before. Where the input is saved, its place is in the
        // cache already; else a store past the caches is faster.
        bool complete = step == STEP_REDUCE_LAST, free = in == &in->lane->in;
        bool direct = room == NULL || !free || (complete && op->backup.bytes != NULL);
        if (!direct && (p.scratch = scratch_unlocked(engine, in->lane)) == NULL) return false;
        p.kept = direct || complete;
        return pass_sums(engine, op, &p, bytes);
    }
    if (in->slot != NULL) return pass_results(engine, op, &p, bytes);
    algorithm_unstage(op, p.at, in->to, bytes);
    if (room != NULL) memory_copy_past_caches(room, (const uint8_t *)op->args.recv + p.at, bytes);
    return true;
}

static bool drop(struct engine *engine, struct frame *frame) {
    engine_lock(engine);
    if (frame != NULL) frame_free(&engine->lanes->frames, frame);
    engine_unlock(engine);
    return false;
}

static bool ring_arrived(struct engine *engine, struct op *op, struct incoming *in) {
    const struct team *now = op->team;
    struct ring *ring = op->work;
    enum plan_step step = step_of(op, &in->head.chunk);
    size_t bytes = algorithm_chunk_bytes(in);
    bool reduce = step == STEP_REDUCE || step == STEP_REDUCE_LAST;
    bool forwards = step != STEP_GATHER_LAST && !(is_half(op) && step == STEP_REDUCE_LAST);
    uint8_t *room = NULL;
    struct frame *filled = forwards ? slots_for(engine, op, in, &room) : NULL;
    bool passed =
        pass(engine, op, in, room) && (!reduce || note_summed(engine, op, in->head.chunk.offset * op->element, bytes));
    if (!passed) return drop(engine, filled);
    ring->moving.receive_left -= bytes;
    if (is_half(op) ? step == STEP_REDUCE_LAST : in->head.chunk.shard == now->place) {
        uint64_t back = bytes < ring->under_way ? bytes : ring->under_way;
        ring->under_way -= back;
        if (!ring->slots) engine->shared->under_way -= back;
        engine_lock(engine);
        neighbour_schedule(algorithm_successor(op));
        engine_unlock(engine);
    }
    if (forwards) forward(engine, op, in, filled);
    return true;
}

// Returns true for the first segment of a call; any other operation is its own first segment.
static bool is_first_segment(const struct engine *engine, const struct op *op) {
    if (op->parent == NULL) return true;
    for (const struct op *other = engine->running.first; other != NULL; other = other->next)
        if (other->parent == op->parent && other->name.segment < op->name.segment) return false;
    return true;
}

// Own chunks go before those to forward until enough are under way, so that every member always has work. More would
// leave the caches before they are read. One of each op always may: a member behind the successor may post this op
// first, and others under way only afterwards. So what waits at a successor that has not posted its op does not count.
// In a half no own chunk comes back, so chunks to forward go first. `chunk`: bytes.
static bool may_inject(struct engine *engine, const struct op *op, uint64_t chunk, bool idle) {
    const struct ring *ring = op->work;
    if (is_half(op)) return idle;
    if (ring->under_way == 0 && is_first_segment(engine, op)) return true;
    if (ring->slots) return ring->under_way < CHUNKS_AHEAD * chunk;
    const struct epoch *now = engine->call_table.now;
    const struct algorithm_shared *shared = engine->shared;
    return shared->under_way + PACE_CHUNK_MAX <=
           shared->early + pace_window(op->team->count, now->latency_us, now->megabytes_per_s);
}

// Returns the largest part of a chunk that this lane takes.
static size_t part_most(const struct op *op, const struct lane *lane) {
    const struct ring *ring = op->work;
    return ring->slots ? SLOTS_CHUNK_MAX : pace_frame(&lane->pace) / op->element * op->element;
}

// Returns a frame with the chunk. NULL: no slots are free, memory was refused, or the device has failed.
static struct frame *chunk_frame(struct engine *engine, struct op *op, struct wire_head *head, const uint8_t *chunk,
                                 size_t bytes) {
    const struct ring *ring = op->work;
    if (ring->slots) return slots_chunk(engine, op, algorithm_successor(op), head, chunk, bytes);
    engine_lock(engine);
    struct frame *frame = sent_chunk(engine, op, head, chunk, bytes);
    engine_unlock(engine);
    return frame;
}

// The same with the own input, which is saved while it is in the cache.
static struct frame *own_frame(struct engine *engine, struct op *op, struct wire_head *head, size_t bytes) {
    const struct ring *ring = op->work;
    uint64_t at = ring->inject * op->element;
    const uint8_t *chunk = (const uint8_t *)op->args.send + at;
    if (!ring->slots || is_half(op)) return chunk_frame(engine, op, head, chunk, bytes);
    uint8_t *room;
    struct frame *frame = slots_frame(engine, op, algorithm_successor(op), head, bytes, &room);
    for (size_t done = 0, part; frame != NULL && done < bytes; done += part) {
        part = bytes - done < SLOTS_PART ? bytes - done : SLOTS_PART;
        memory_copy_past_caches(room + done, chunk + done, part);
        if (algorithm_save_apart(engine, op, at + done, part)) continue;
        drop(engine, frame);
        frame = NULL;
    }
    return frame;
}

static struct frame *forward_next(struct engine *engine, struct op *op, const struct lane *lane) {
    struct ring *ring = op->work;
    struct forward *forward = ring->forwards;
    size_t most = part_most(op, lane), bytes = forward->bytes < most ? forward->bytes : most;
    struct frame *frame = chunk_frame(engine, op, &forward->head, sum_at(op, forward->head.chunk.offset), bytes);
    if (frame == NULL) return NULL;
    forward->head.chunk.offset += bytes / op->element;
    forward->bytes -= bytes;
    if (forward->bytes == 0) free(forward_pop(ring));
    return frame;
}

// A far successor keeps the first chunks until it posts the op: they need not wait for its READY. A half may be
// complete here without READY, and its bytes would be counted for good. Where a queue was seen, the pause between two
// ops is what others on the way live on.
static bool may_go_early(const struct op *op, const struct lane *lane) {
    return lane->pace.far && !is_half(op) && !pace_sees_queue(&lane->peer->rate.lanes);
}

static bool is_kept(const struct engine *engine, const struct lane *lane, uint64_t bytes) {
    return op_peer_of(lane->peer)->eager_bytes + bytes <=
           call_table_unexpected_chunk_limit(engine->call_table.now->ring.count);
}

static struct frame *ring_next(struct engine *engine, struct op *op, struct lane *lane, bool idle) {
    const struct team *now = op->team;
    struct ring *ring = op->work;
    bool early = !ring->moving.next_ready;
    if (lane->peer != algorithm_successor(op) || (early && !may_go_early(op, lane)) || !algorithm_may_use(engine, lane))
        return NULL;
    bool forwards = ring->forwards != NULL;
    struct plan_range own = shard_of(op, now->place);
    uint64_t elements = pace_chunk(own.end - own.begin, op->element, part_most(op, lane), op->parent != NULL);
    if (ring->inject == ring->inject_end || !may_inject(engine, op, elements * op->element, idle && !forwards))
        return idle && forwards && !early ? forward_next(engine, op, lane) : NULL;
    if (elements > ring->inject_end - ring->inject) elements = ring->inject_end - ring->inject;
    struct wire_head head = {.op = op_on_wire(op), .chunk = {.shard = (uint16_t)now->place, .offset = ring->inject}};
    uint64_t bytes = elements * op->element;
    if (early && !is_kept(engine, lane, bytes)) return NULL;
    struct frame *frame = own_frame(engine, op, &head, bytes);
    engine_lock(engine);
    if (early && frame != NULL) {
        ring->moving.early += frame->bytes;
        engine->shared->early += frame->bytes;
        op_peer_of(lane->peer)->eager_bytes += frame->bytes;
    }
    engine_unlock(engine);
    if (frame == NULL) return NULL;
    ring->inject += elements;
    if (!is_half(op)) ring->under_way += frame->bytes;
    if (!is_half(op) && !ring->slots) engine->shared->under_way += frame->bytes;
    return frame;
}

const struct algorithm ring_algorithm = {
    .name = "ring",
    .work_bytes = sizeof(struct ring),
    .types = {WIRE_CHUNK, WIRE_CHUNK_IN},
    .begin = ring_begin,
    .signal = ring_take_signal,
    .release = ring_release,
    .locate = ring_locate,
    .arrived = ring_arrived,
    .next = ring_next,
};
