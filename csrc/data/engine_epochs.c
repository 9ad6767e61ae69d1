// Handles what the control side reports: group epochs, ready links, and verdicts. The thread enters an epoch.
#define _GNU_SOURCE
#include <stdlib.h>

#include "data/engine.h"
#include "data/algorithm.h"
#include "data/slots.h"
#include "data/core.h"
#include "data/op_peer.h"
#include "link/connection.h"
#include "link/frame.h"
#include "data/service.h"

// ---- the control side ----
void engine_missed_loss(struct engine *engine, uint64_t group_epoch) {
    engine_lock(engine);
    call_table_note_loss(&engine->call_table, group_epoch);
    engine_unlock(engine);
}

void engine_enter_epoch(struct engine *engine, const struct epoch *epoch) {
    const struct epoch_ring *ring = &epoch->ring;
    bool known = true;
    engine_lock(engine);
    for (uint32_t i = 0; i < ring->count && known; i++) {
        struct neighbour *peer = i == ring->rank ? NULL : neighbour_get(engine->lanes, &ring->members[i].id);
        if (peer != NULL) peer->name = ring->members[i].name;
        known = i == ring->rank || peer != NULL;
    }
    if (known) {
        epoch_put(engine->pending);
        engine->pending = epoch_get(epoch);
        engine->pending_ready = engine->call_table.ready = false;
        if (epoch->lost) call_table_note_loss(&engine->call_table, epoch->group_epoch);
    }
    engine_wake(engine);
    engine_unlock(engine);
}

static void links_are_ready(struct engine *engine) {
    slots_announce(engine);
    call_table_links_ready(&engine->call_table);
}

void engine_links_ready(struct engine *engine, uint64_t group_epoch) {
    engine_lock(engine);
    if (engine->pending != NULL) {
        if (engine->pending->group_epoch == group_epoch) engine->pending_ready = true;
    } else if (engine->call_table.now->group_epoch == group_epoch) {
        links_are_ready(engine);
    }
    engine_unlock(engine);
}

void engine_verdict(struct engine *engine, const struct wire_verdict *verdict) {
    engine_lock(engine);
    call_table_verdict(&engine->call_table, verdict);
    engine_unlock(engine);
}

// ---- the thread ----
void engine_drop_ops(struct engine *engine) {
    engine_assert_locked(engine);
    lanes_drop_frames(engine->lanes, false);
    engine->running.first = engine->posted.first = NULL;
    engine_note_running(engine);
    struct algorithm_shared *shared = algorithm_shared(engine);
    shared->under_way = shared->early = shared->granted = 0;
}

// Returns true if this member, which was in a group, continues with another master, or again with the one that it had
// lost.
static bool changes_master(const struct engine *engine) {
    const struct epoch *now = engine->call_table.now;
    return now->ring.count > 0 && now->generation != engine->pending->generation;
}

// Forgets what neighbours were in the epoch before.
static void leave_epoch(struct engine *engine) {
    for (struct neighbour *peer = engine->lanes->neighbours; peer != NULL; peer = peer->next) {
        struct op_peer *op_peer = op_peer_of(peer);
        op_peer->eager_bytes = 0;
        op_peer->offered = false;
        slots_end(&op_peer->slots);
        if (op_peer->member.rank == UINT32_MAX) service_changed(engine, peer, SERVICE_PEER_LEFT);
    }
}

void engine_enter_pending(struct engine *engine) {
    engine_assert_locked(engine);
    struct wire_report report;
    // The last report of the operations may be lost with the connection to the previous master.
    if (changes_master(engine)) atomic_store(&engine->op_stats.awake, true);
    engine_drop_ops(engine);
    engine->request_epoch = false;
    if (!call_table_enter(&engine->call_table, engine->pending, &report)) {
        engine_fail(engine);
        return;
    }
    epoch_put(engine->pending);
    engine->pending = NULL;
    wire_encode_report(&engine->for_master, engine_header(engine), &report);
    free(report.ops);
    algorithm_leave_slots(engine); // they end with the epoch
    struct wire_header now = engine_header(engine);
    leave_epoch(engine);
    lanes_enter_epoch(engine->lanes, &now);
    if (engine->pending_ready) links_are_ready(engine);
}
