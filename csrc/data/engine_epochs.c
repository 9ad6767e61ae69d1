// Entering a group epoch: every op is frozen, what it was told is forgotten, and the report of where each op stood goes
// to the master.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "data/engine.h"
#include "data/op.h"
#include "data/service.h"

// ---- the control side ----
static void note_loss(struct engine *engine, uint64_t group_epoch) {
    if (engine->lost_count == LOST_EPOCHS_MAX)
        memmove(engine->lost, engine->lost + 1, --engine->lost_count * sizeof engine->lost[0]);
    engine->lost[engine->lost_count++] = group_epoch;
}

void engine_missed_loss(struct engine *engine, uint64_t group_epoch) {
    pthread_mutex_lock(&engine->lock);
    note_loss(engine, group_epoch);
    pthread_mutex_unlock(&engine->lock);
}

static struct pending_epoch *pending_new(struct engine *engine, const struct engine_epoch *epoch) {
    struct pending_epoch *pending = calloc(1, sizeof *pending + epoch->count * sizeof(struct peer *));
    if (pending == NULL) return NULL;
    pending->run = epoch->run;
    pending->generation = epoch->generation;
    pending->epoch = epoch->group_epoch;
    pending->latency_us = epoch->latency_us == 0 ? 1 : epoch->latency_us;
    pending->megabytes_per_s = epoch->megabytes_per_s == 0 ? 1 : epoch->megabytes_per_s;
    pending->rank = epoch->rank;
    pending->count = epoch->count;
    for (uint32_t i = 0; i < epoch->count; i++) {
        if (i == epoch->rank || (pending->members[i] = peer_get(engine, &epoch->members[i].id)) != NULL) continue;
        free(pending);
        return NULL;
    }
    return pending;
}

void engine_enter_epoch(struct engine *engine, const struct engine_epoch *epoch) {
    pthread_mutex_lock(&engine->lock);
    struct pending_epoch *pending = pending_new(engine, epoch);
    if (pending == NULL) {
        engine_fail(engine);
    } else {
        free(engine->pending);
        engine->pending = pending;
        engine->ready = false;
        if (epoch->lost) note_loss(engine, epoch->group_epoch);
    }
    engine_wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

static void links_are_ready(struct engine *engine) {
    same_host_offer(engine);
    small_send_supplies(engine);
    engine_begin_waiting(engine);
}

void engine_links_ready(struct engine *engine, uint64_t group_epoch) {
    pthread_mutex_lock(&engine->lock);
    if (engine->pending != NULL) {
        if (engine->pending->epoch == group_epoch) engine->pending->ready = true;
    } else if (engine->epoch == group_epoch) {
        engine->ready = true;
        links_are_ready(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

// ---- the thread, lock held ----
static void freeze(struct engine *engine, struct op *op) {
    bool begun = op->phase == OP_QUEUED || op->phase == OP_RUNNING || op->phase == OP_COMPLETE;
    if (begun && op->mismatched) {
        op_end(engine, op, ENGINE_MISMATCH);
    } else if (op->phase == OP_QUEUED) {
        // Nobody has heard of it: it simply begins later.
        engine_wait_for_links(engine, op);
    } else if (op->phase == OP_RUNNING || op->phase == OP_COMPLETE) {
        op->frozen = true;
        small_release(engine, op);
        ring_release(op);
        sharded_release(engine, op);
    }
}

static void end_if_lost(struct engine *engine, struct op *op) {
    if (op->phase != OP_WAITING || op->reduce.retry || engine_first_loss(engine, op->adopted) == 0) return;
    op_list_remove(&engine->waiting, op);
    engine_end_lost(engine, op);
}

static void report_add(struct wire_report *report, const struct wire_op_name *name, enum wire_op_state state,
                       bool small) {
    if (report->count == 2 * WIRE_MAX_LIVE_OPS) return; // what a report holds; live ops come first
    report->ops[report->count++] = (struct wire_op_report){.name = *name, .state = (uint8_t)state, .small = small};
}

static bool build_report(struct engine *engine, struct wire_report *report) {
    size_t room = engine->live + engine->extra;
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct kept *kept = engine->kept[i]; kept != NULL; kept = kept->next) room++;
    *report = (struct wire_report){.ops = calloc(room + 1, sizeof(struct wire_op_report))};
    if (report->ops == NULL) return false;
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct op *op = engine->table[i]; op != NULL; op = op->chain)
            if (op->frozen && op->phase != OP_ENDED)
                report_add(report, &op->name, op->phase == OP_COMPLETE ? WIRE_OP_DONE : WIRE_OP_OPEN,
                           op->path == PLAN_SMALL);
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct kept *kept = engine->kept[i]; kept != NULL; kept = kept->next)
            report_add(report, &kept->name, WIRE_OP_KEPT, true);
    return true;
}

void engine_let_go(struct engine *engine) {
    for (size_t i = 0; i < engine->lane_count; i++) {
        lane_let_go(engine->lanes[i]);
        lane_heat(engine->lanes[i]);
    }
    engine->running.first = engine->posted.first = NULL;
    engine->under_way = 0;
}

static struct op *find_wanting_whole(struct op *op) {
    while (op != NULL && !segments_wants_whole(op)) op = op->chain;
    return op;
}

// Each of them moves ops in its chain, so each time the chain is looked through again.
static void begin_wholes(struct engine *engine) {
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct op *op; (op = find_wanting_whole(engine->table[i])) != NULL;) segments_begin_whole(engine, op);
}

static struct roster *roster_new(struct engine *engine, const struct pending_epoch *pending) {
    struct roster *roster = malloc(sizeof *roster + pending->count * sizeof roster->ids[0]);
    if (roster == NULL) return NULL;
    roster->references = 1;
    roster->count = pending->count;
    for (uint32_t i = 0; i < pending->count; i++)
        roster->ids[i] = pending->members[i] == NULL ? engine->self : pending->members[i]->id;
    return roster;
}

// Thread, lock held. The report to make, if any.
bool engine_enter_pending(struct engine *engine, struct wire_report *report) {
    struct pending_epoch *pending = engine->pending;
    engine_let_go(engine);
    ops_for_each(engine, freeze);
    begin_wholes(engine);
    early_clear(engine);
    counters_clear(engine);
    for (struct peer *peer = engine->peers; peer != NULL; peer = peer->next) {
        peer->rank = UINT32_MAX;
        peer->eager_bytes = 0;
        peer->offered = false;
    }
    struct peer **members = calloc(pending->count, sizeof *members);
    struct roster *roster = roster_new(engine, pending);
    if (members == NULL || roster == NULL || !build_report(engine, report)) {
        free(members);
        roster_put(roster);
        engine_fail(engine);
        return false;
    }
    free(engine->members);
    engine->members = members;
    roster_put(engine->roster);
    engine->roster = roster;
    for (uint32_t i = 0; i < pending->count; i++)
        if ((members[i] = pending->members[i]) != NULL) members[i]->rank = i;
    engine->run = pending->run;
    engine->generation = pending->generation;
    engine->epoch = pending->epoch;
    engine->latency_us = pending->latency_us;
    engine->megabytes_per_s = pending->megabytes_per_s;
    engine->rank = pending->rank;
    engine->count = pending->count;
    engine->ready = pending->ready;
    engine->pending = NULL;
    free(pending);
    ops_for_each(engine, end_if_lost);
    for (struct peer *peer = engine->peers; peer != NULL; peer = peer->next)
        if (peer->rank == UINT32_MAX) service_peer_gone(engine, peer);
    peers_free_dropped(engine);
    if (engine->ready) links_are_ready(engine);
    return true;
}
