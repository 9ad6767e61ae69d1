// All algorithms, and what the engine asks of the one of an op.
#include "data/algorithm.h"

#include <stdlib.h>
#include <string.h>

#include "data/core.h"
#include "link/frame.h"
#include "device/device.h"
#include "link/connection.h"

static const struct algorithm *const algorithms[] = {
    [PLAN_SMALL] = &direct_algorithm,    [PLAN_RING] = &ring_algorithm,       [PLAN_WEIGHTED] = &weighted_algorithm,
    [PLAN_SHARDED] = &sharded_algorithm, [PLAN_CHAIN] = &broadcast_algorithm, [PLAN_PIECES] = &pieces_algorithm};

const struct algorithm *algorithm_of(const struct op *op) { return algorithms[op->algorithm]; }

size_t algorithm_work_bytes(void) {
    size_t most = 0;
    for (size_t i = 0; i < sizeof algorithms / sizeof algorithms[0]; i++)
        if (algorithms[i]->work_bytes > most) most = algorithms[i]->work_bytes;
    return most;
}

// ---- what the engine asks ----
bool algorithm_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                      const struct wire_head *head, struct block *block) {
    const struct algorithm *algorithm = algorithm_of(op);
    if (!algorithm->direct) {
        struct moving *moving = op->work;
        block_put(engine->pool, block);
        block = NULL;
        moving->next_ready |= type == WIRE_READY && from == algorithm_successor(op);
    }
    return algorithm->signal == NULL || algorithm->signal(engine, op, from, type, head, block);
}

bool algorithm_arrived(struct engine *engine, struct op *op, struct incoming *in) {
    engine_assert_thread(engine);
    op_stats_moved(&engine->op_stats);
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
bool algorithm_take_early(struct engine *engine, struct op *op, struct neighbour *from, const struct wire_head *head,
                          struct block *block) {
    engine_assert_thread(engine);
    const struct algorithm *algorithm = algorithm_of(op);
    struct incoming in = {
        .from = from, .header = {.type = WIRE_CHUNK}, .head = *head, .length = block->length, .to = block->bytes};
    engine_lock(engine);
    in.lane = from->lanes[0];
    bool taken = in.lane != NULL && wire_fingerprint_equal(&op->args.fingerprint, &head->op.fingerprint);
    bool good = !taken || (algorithm->types[0] == WIRE_CHUNK && algorithm->locate(engine, op, &in));
    engine_unlock(engine);
    if (taken && good) {
        if (in.to != block->bytes) memcpy(in.to, block->bytes, block->length);
        good = algorithm_arrived(engine, op, &in);
    }
    engine_lock(engine);
    block_put(engine->pool, block);
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
    engine_assert_thread(engine);
    const struct team *now = op->team;
    struct moving *moving = op->work;
    if (!algorithm_of(op)->begin(engine, op)) return false;
    op->tx_bytes = moving->send_left;
    op->rx_bytes = moving->receive_left;
    engine_lock(engine);
    for (uint32_t place = 0; place < now->count; place++) {
        struct neighbour *peer = algorithm_peer(op, place);
        if (peer != NULL) peer->rate.alone = op->algorithm == PLAN_RING;
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
    op_stats_moved(&engine->op_stats);
    if (moving->early == 0) op_note_bytes(op); // a successor that only keeps it does not get on
    if (algorithm_of(op)->sent != NULL) algorithm_of(op)->sent(engine, op, frame);
    algorithm_check(engine, op);
}

void algorithm_check(struct engine *engine, struct op *op) {
    engine_assert_thread(engine);
    const struct moving *moving = op->work;
    if (moving->receive_left > 0 || moving->send_left > 0) return;
    if (!op->moved) op->fence = device_mark(op->args.queue);
    op->moved = device_passed(op->args.queue, op->fence) != DEVICE_DONE;
    if (op->moved) return; // again when the device wakes the thread
    struct wire_op_done done = {.name = op->name,
                                .members = (uint16_t)(op->args.subgroup == NULL ? 0 : op->team->count)};
    op_queue_remove(&engine->running, op);
    engine_note_running(engine);
    engine_lock(engine);
    bool told = call_table_complete(&engine->call_table, op);
    if (told) wire_encode_op_done(&engine->for_master, engine_header(engine), &done);
    engine_unlock(engine);
    if (told) engine_tell(engine);
}

bool algorithm_misses(const struct op *op, uint32_t place) {
    const struct algorithm *algorithm = algorithm_of(op);
    const struct moving *moving = op->work;
    if (place == op->team->place) return false;
    if (algorithm->misses != NULL) return algorithm->misses(op, place);
    return place == (op->team->place + 1) % op->team->count && !moving->next_ready;
}
