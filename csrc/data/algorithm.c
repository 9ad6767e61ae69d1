#include "data/algorithm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stream.h"
#include "data/backup.h"
#include "data/core.h"
#include "link/lane.h"
#include "link/pool.h"
#include "link/workers.h"
#include "device/device.h"

static const struct algorithm *const algorithms[] = {
    [PLAN_SMALL] = &direct_algorithm,    [PLAN_RING] = &ring_algorithm,       [PLAN_WEIGHTED] = &weighted_algorithm,
    [PLAN_SHARDED] = &sharded_algorithm, [PLAN_CHAIN] = &broadcast_algorithm, [PLAN_PIECES] = &pieces_algorithm};

const struct algorithm *algorithm_of(const struct op *op) { return algorithms[op->path]; }

size_t algorithm_work_bytes(void) {
    size_t most = 0;
    for (size_t i = 0; i < sizeof algorithms / sizeof algorithms[0]; i++)
        if (algorithms[i]->work_bytes > most) most = algorithms[i]->work_bytes;
    return most;
}

// ---- what the engine asks ----
bool algorithm_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                      const struct wire_op *head, struct block *block) {
    const struct algorithm *algorithm = algorithm_of(op);
    if (!algorithm->direct) {
        struct moving *moving = op->work;
        block_put(engine, block);
        block = NULL;
        moving->next_ready |= type == WIRE_READY && from == algorithm_successor(op);
    }
    return algorithm->signal == NULL || algorithm->signal(engine, op, from, type, head, block);
}

bool algorithm_arrived(struct engine *engine, struct op *op, struct incoming *in) {
    stats_op_moved(&engine->op_stats);
    op_note_bytes(op);
    bool good = algorithm_of(op)->arrived(engine, op, in);
    if (!good && op->backup.saved.refused) {
        engine_lock(engine);
        engine_fail(engine);
        engine_unlock(engine);
    }
    return good;
}

// Without a direct link the op is redone in the next epoch.
bool algorithm_take_early(struct engine *engine, struct op *op, struct neighbour *from, const struct wire_op *head,
                          struct block *block) {
    const struct algorithm *algorithm = algorithm_of(op);
    struct incoming in = {
        .from = from, .header = {.type = WIRE_CHUNK}, .head = *head, .length = block->length, .to = block->bytes};
    engine_lock(engine);
    in.lane = from->lanes[0];
    bool taken = in.lane != NULL && wire_fingerprint_equal(&op->args.fingerprint, &head->fingerprint);
    bool good = !taken || (algorithm->types[0] == WIRE_CHUNK && algorithm->place(engine, op, &in));
    engine_unlock(engine);
    if (taken && good) {
        if (in.to != block->bytes) memcpy(in.to, block->bytes, block->length);
        good = algorithm_arrived(engine, op, &in);
    }
    engine_lock(engine);
    block_put(engine, block);
    engine_unlock(engine);
    return good;
}

static void take_all_early(struct engine *engine, struct op *op, struct neighbour *from) {
    for (bool good = true; good;) {
        engine_lock(engine);
        struct unexpected *early = algorithm_unexpected(engine, op, from, WIRE_EARLY);
        struct lane *direct = from->lanes[0];
        engine_unlock(engine);
        if (early == NULL) return;
        good = algorithm_take_early(engine, op, from, &early->head, early->block);
        free(early);
        if (!good && direct != NULL) lane_break(direct, WIRE_LINK_MALFORMED, "malformed EARLY");
    }
}

bool algorithm_begin(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    struct moving *moving = op->work;
    if (!algorithm_of(op)->begin(engine, op)) return false;
    op->tx_bytes = moving->send_left;
    op->rx_bytes = moving->receive_left;
    engine_lock(engine);
    for (uint32_t place = 0; place < now->count; place++) {
        struct neighbour *peer = algorithm_peer(op, place);
        if (peer != NULL) peer->alone = op->path == PLAN_RING;
        struct unexpected *unexpected = peer == NULL ? NULL : algorithm_unexpected(engine, op, peer, WIRE_READY);
        if (unexpected == NULL) continue;
        algorithm_signal(engine, op, peer, WIRE_READY, &unexpected->head, NULL);
        neighbour_schedule(peer);
        free(unexpected);
    }
    engine_unlock(engine);
    for (uint32_t place = 0; place < now->count; place++)
        if (algorithm_peer(op, place) != NULL) take_all_early(engine, op, algorithm_peer(op, place));
    algorithm_check(engine, op);
    return true;
}

void algorithm_sent(struct engine *engine, const struct frame *frame) {
    struct op *op = frame->op;
    struct moving *moving = op->work;
    moving->send_left -= frame->bytes;
    stats_op_moved(&engine->op_stats);
    if (moving->early == 0) op_note_bytes(op); // a successor that only keeps it does not get on
    if (algorithm_of(op)->sent != NULL) algorithm_of(op)->sent(engine, op, frame);
    algorithm_check(engine, op);
}

void algorithm_check(struct engine *engine, struct op *op) {
    const struct moving *moving = op->work;
    if (moving->receive_left > 0 || moving->send_left > 0) return;
    if (!op->moved) op->fence = device_mark(op->args.queue);
    op->moved = device_passed(op->args.queue, op->fence) != DEVICE_DONE;
    if (op->moved) return; // again when the device wakes the thread
    struct wire_op_done done = {.name = op->name, .members = (uint16_t)(op->args.group == NULL ? 0 : op->team->count)};
    op_list_remove(&engine->running, op);
    engine_lock(engine);
    bool told = call_table_complete(&engine->call_table, op);
    if (told) wire_encode_op_done(&engine->for_master, engine_header(engine), &done);
    engine_unlock(engine);
    if (told) engine_tell(engine);
}

// ---- what an algorithm asks ----
struct algorithm_shared *algorithm_shared(struct engine *engine) { return engine->shared; }

const struct epoch *algorithm_epoch(const struct engine *engine) { return engine->call_table.now; }

struct neighbour *algorithm_peer(const struct op *op, uint32_t place) { return neighbour_of(op->team->members[place]); }

uint32_t algorithm_place_of(const struct op *op, const struct neighbour *peer) {
    return team_place(op->team, &peer->member);
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
    struct unexpected *unexpected = call_table_unexpected(&engine->call_table, op, &from->member, type);
    if (unexpected != NULL) algorithm_entered(op, from, type, unexpected->heard_ns);
    return unexpected;
}

bool algorithm_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end) {
    engine_assert_locked(engine);
    bool taken = ranges_take(ranges, begin, end);
    if (!taken && ranges->refused) engine_fail(engine);
    return taken;
}

void algorithm_offer(struct engine *engine, const struct op *op, struct neighbour *to, uint32_t extra) {
    engine_assert_locked(engine);
    struct wire_op head;
    op_head(op, &head);
    head.extra = extra;
    neighbour_signal(engine, to, WIRE_READY, &head, NULL);
}

bool algorithm_waits_for_next(const struct op *op, char *out, size_t capacity) {
    const struct moving *moving = op->work;
    if (moving->next_ready) return false;
    snprintf(out, capacity, "%s has not begun it", neighbour_label(algorithm_successor(op)).chars);
    return true;
}

bool algorithm_may_use(struct engine *engine, const struct lane *lane) {
    if (lane->index > 0) return lane_is_for_bulk(lane);
    engine_lock(engine);
    bool bulk = lane_is_for_bulk(lane);
    engine_unlock(engine);
    return bulk;
}

struct frame *algorithm_frame(struct engine *engine, struct op *op, uint16_t type, const struct wire_op *head,
                              size_t bytes) {
    engine_assert_locked(engine);
    struct frame *frame = frame_new(engine, type, head, bytes);
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
    if (engine->workers == NULL || backup->bytes == NULL || backup->queue != NULL)
        return algorithm_save(op, offset, length);
    struct plan_range gap = {.end = offset};
    while (ranges_gap(&backup->saved, gap.end, offset + length, &gap)) {
        turn_leave(engine);
        stream_copy(backup->bytes + gap.begin, (const uint8_t *)op->args.send + gap.begin, gap.end - gap.begin);
        turn_take(engine);
    }
    return ranges_add(&backup->saved, offset, offset + length);
}

bool algorithm_show(struct engine *engine, struct op *op, struct frame *frame, const void *tensor) {
    engine_assert_locked(engine);
    frame->device = op->args.queue;
    frame->payload = device_window(op->args.queue, tensor, frame->length, &frame->fence);
    if (frame->payload != NULL || frame->length == 0) return true;
    frame_free(engine, frame);
    return false;
}

struct frame *algorithm_chunk(struct engine *engine, struct op *op, const struct wire_op *head, const void *tensor,
                              size_t bytes) {
    engine_lock(engine);
    struct frame *frame = algorithm_frame(engine, op, WIRE_CHUNK, head, bytes);
    if (frame != NULL && !algorithm_show(engine, op, frame, tensor)) frame = NULL;
    engine_unlock(engine);
    return frame;
}

uint8_t *algorithm_landing(struct op *op, uint64_t offset, size_t length) {
    return device_landing(op->args.queue, (uint8_t *)op->args.recv + offset, length);
}

void algorithm_land(struct op *op, uint64_t offset, uint8_t *landing, size_t length) {
    device_land(op->args.queue, (uint8_t *)op->args.recv + offset, landing, length);
}

bool algorithm_place(struct engine *engine, struct op *op, struct incoming *in, uint64_t offset) {
    engine_assert_locked(engine);
    if (!algorithm_save(op, offset, in->length)) {
        engine_fail(engine);
        return false;
    }
    in->to = algorithm_landing(op, offset, in->length);
    return in->to != NULL;
}

// Each member has all inputs of an all-to-all, and takes its own part of each; of what is reduced or scattered, one.
bool algorithm_write(struct op *op, const uint8_t *common) {
    if (op->out_bytes == 0) return true;
    uint8_t *landing = algorithm_landing(op, 0, op->out_bytes);
    if (landing == NULL) return false;
    const struct call_parts *parts = op->args.parts;
    const struct plan_collective *collective = op_collective(op);
    bool all = op->args.fingerprint.kind == PLAN_ALL_TO_ALL, whole = !collective->divided || collective->gathers;
    uint32_t inputs = all ? op->args.group->count : 1;
    uint64_t at = whole && !all ? 0 : parts->own_at * op->element, each = op->out_bytes / inputs;
    for (uint32_t i = 0; i < inputs; i++) copy_bytes(landing + i * each, common + i * op->bytes + at, each);
    algorithm_land(op, 0, landing, op->out_bytes);
    return true;
}

void algorithm_complete_direct(struct engine *engine, struct op *op) {
    engine_assert_locked(engine);
    call_table_complete(&engine->call_table, op);
}

struct op *algorithm_first(const struct engine *engine) { return engine->running.first; }
