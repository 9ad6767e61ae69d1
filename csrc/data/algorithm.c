#include "data/algorithm.h"

#include <string.h>

#include "base/memory.h"
#include "data/core.h"
#include "link/connection.h"
#include "link/frame.h"
#include "device/device.h"

// ---- what an algorithm asks ----
struct neighbour *algorithm_peer(const struct op *op, uint32_t place) { return neighbour_of(op->team->members[place]); }

uint32_t algorithm_place_of(const struct op *op, const struct neighbour *peer) {
    return team_place(op->team, &op_peer_of(peer)->member);
}

struct neighbour *algorithm_successor(const struct op *op) {
    return algorithm_peer(op, (op->team->place + 1) % op->team->count);
}

struct neighbour *algorithm_predecessor(const struct op *op) {
    return algorithm_peer(op, (op->team->place + op->team->count - 1) % op->team->count);
}

// Samples the start skew to the ring successor only: a member hears from its successor in every operation, so all means
// are of the same operations. For a segmented call only the first segment counts; the data plane decides when the
// others begin.
void algorithm_entered(const struct op *op, struct neighbour *from, uint16_t type, int64_t heard_ns) {
    bool says = type == WIRE_READY || type == WIRE_SMALL;
    if (says && op->name.segment == 0 && from == algorithm_successor(op))
        stats_entered(&from->stats, op->begun_ns, heard_ns);
}

struct unexpected *algorithm_unexpected(struct engine *engine, const struct op *op, struct neighbour *from,
                                        uint16_t type) {
    engine_assert_locked(engine);
    struct unexpected *unexpected = call_table_unexpected(&engine->call_table, op, &op_peer_of(from)->member, type);
    if (unexpected != NULL) algorithm_entered(op, from, type, unexpected->heard_ns);
    return unexpected;
}

bool algorithm_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end) {
    engine_assert_locked(engine);
    bool taken = ranges_take(ranges, begin, end);
    if (!taken && ranges->refused) engine_fail(engine);
    return taken;
}

void algorithm_offer(struct engine *engine, const struct op *op, struct neighbour *to, struct wire_ready ready) {
    engine_assert_locked(engine);
    struct wire_head head = {.op = op_on_wire(op), .ready = ready};
    lanes_signal(to, WIRE_READY, &head, NULL);
}

bool algorithm_may_use(struct engine *engine, const struct lane *lane) {
    if (lane->index > 0) return lane_is_for_bulk(lane);
    engine_lock(engine);
    bool bulk = lane_is_for_bulk(lane);
    engine_unlock(engine);
    return bulk;
}

struct frame *algorithm_frame(struct engine *engine, struct op *op, uint16_t type, const struct wire_head *head,
                              size_t bytes) {
    engine_assert_locked(engine);
    struct frame *frame = frame_new(&engine->lanes->frames, type, head, bytes);
    if (frame == NULL) return NULL;
    frame->op = op;
    frame->bytes = (uint32_t)bytes;
    return frame;
}

bool algorithm_save(struct op *op, uint64_t offset, uint64_t length) {
    return backup_save(&op->backup, op->args.send, offset, length);
}

bool algorithm_save_apart(struct engine *engine, struct op *op, uint64_t offset, uint64_t length) {
    struct backup *backup = &op->backup;
    if (engine->lanes->workers == NULL || backup->bytes == NULL || backup->queue != NULL)
        return algorithm_save(op, offset, length);
    struct plan_range gap = {.end = offset};
    while (ranges_gap(&backup->saved, gap.end, offset + length, &gap)) {
        turn_leave(engine->lanes->workers);
        memory_copy_past_caches(backup->bytes + gap.begin, (const uint8_t *)op->args.send + gap.begin,
                                gap.end - gap.begin);
        turn_take(engine->lanes->workers);
    }
    return ranges_add(&backup->saved, offset, offset + length);
}

bool algorithm_show(struct engine *engine, struct op *op, struct frame *frame, const void *tensor) {
    engine_assert_locked(engine);
    frame->device = op->args.queue;
    frame->payload = device_map(op->args.queue, tensor, frame->length, &frame->fence);
    if (frame->payload != NULL || frame->length == 0) return true;
    frame_free(&engine->lanes->frames, frame);
    return false;
}

struct frame *algorithm_chunk(struct engine *engine, struct op *op, const struct wire_head *head, const void *tensor,
                              size_t bytes) {
    engine_lock(engine);
    struct frame *frame = algorithm_frame(engine, op, WIRE_CHUNK, head, bytes);
    if (frame != NULL && !algorithm_show(engine, op, frame, tensor)) frame = NULL;
    engine_unlock(engine);
    return frame;
}

uint8_t *algorithm_staging(struct op *op, uint64_t offset, size_t length) {
    return device_staging(op->args.queue, (uint8_t *)op->args.recv + offset, length);
}

void algorithm_unstage(struct op *op, uint64_t offset, uint8_t *staging, size_t length) {
    device_unstage(op->args.queue, (uint8_t *)op->args.recv + offset, staging, length);
}

bool algorithm_locate(struct engine *engine, struct op *op, struct incoming *in, uint64_t offset) {
    engine_assert_locked(engine);
    if (!algorithm_save(op, offset, in->length)) {
        engine_fail(engine);
        return false;
    }
    in->to = algorithm_staging(op, offset, in->length);
    return in->to != NULL;
}

// Each member has all inputs of an all-to-all, and takes its own part of each; of what is reduced or scattered, one.
bool algorithm_write(struct op *op, const uint8_t *common) {
    if (op->out_bytes == 0) return true;
    uint8_t *staging = algorithm_staging(op, 0, op->out_bytes);
    if (staging == NULL) return false;
    const struct call_parts *parts = op->args.parts;
    const struct plan_collective *collective = op_collective(op);
    bool all = op->args.fingerprint.kind == PLAN_ALL_TO_ALL, whole = !collective->divided || collective->gathers;
    uint32_t inputs = all ? op->args.subgroup->count : 1;
    uint64_t at = whole && !all ? 0 : parts->own_at * op->element, each = op->out_bytes / inputs;
    for (uint32_t i = 0; i < inputs; i++) memory_copy(staging + i * each, common + i * op->bytes + at, each);
    algorithm_unstage(op, 0, staging, op->out_bytes);
    return true;
}
