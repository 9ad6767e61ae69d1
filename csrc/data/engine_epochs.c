// What the control side tells: group epochs, that their links are there, and verdicts. The thread enters an epoch.
#define _GNU_SOURCE
#include <stdlib.h>

#include "data/engine.h"
#include "data/mover.h"
#include "data/core.h"
#include "data/lane.h"
#include "data/pool.h"
#include "data/same_host.h"
#include "data/service.h"

// ---- the control side ----
void engine_missed_loss(struct engine *engine, uint64_t group_epoch) {
    engine_lock(engine);
    book_note_loss(&engine->book, group_epoch);
    engine_unlock(engine);
}

void pending_free(struct pending_epoch *pending) {
    if (pending == NULL) return;
    free(pending->ops.members);
    free(pending);
}

static struct pending_epoch *pending_new(struct engine *engine, const struct epoch *epoch) {
    struct pending_epoch *pending = calloc(1, sizeof *pending);
    if (pending == NULL) return NULL;
    pending->run = epoch->run;
    pending->generation = epoch->generation;
    pending->ops = (struct book_epoch){
        .epoch = epoch->group_epoch,
        .latency_us = epoch->latency_us == 0 ? 1 : epoch->latency_us,
        .megabytes_per_s = epoch->megabytes_per_s == 0 ? 1 : epoch->megabytes_per_s,
        .rank = epoch->ring.rank,
        .count = epoch->ring.count,
        .members = calloc(epoch->ring.count, sizeof(struct op_member *)),
    };
    bool made = pending->ops.members != NULL;
    for (uint32_t i = 0; i < epoch->ring.count && made; i++) {
        struct neighbour *peer = i == epoch->ring.rank ? NULL : neighbour_get(engine, &epoch->ring.members[i].id);
        pending->ops.members[i] = peer == NULL ? NULL : &peer->member;
        made = i == epoch->ring.rank || peer != NULL;
    }
    if (made) return pending;
    pending_free(pending);
    return NULL;
}

void engine_enter_epoch(struct engine *engine, const struct epoch *epoch) {
    engine_lock(engine);
    struct pending_epoch *pending = pending_new(engine, epoch);
    if (pending == NULL) {
        engine_fail(engine);
    } else {
        pending_free(engine->pending);
        engine->pending = pending;
        engine->book.ready = false;
        if (epoch->lost) book_note_loss(&engine->book, epoch->group_epoch);
    }
    engine_wake(engine);
    engine_unlock(engine);
}

static void links_are_ready(struct engine *engine) {
    engine->book.ready = true;
    same_host_offer(engine);
    book_links_ready(&engine->book);
}

void engine_links_ready(struct engine *engine, uint64_t group_epoch) {
    engine_lock(engine);
    if (engine->pending != NULL) {
        if (engine->pending->ops.epoch == group_epoch) engine->pending->ready = true;
    } else if (engine->book.now.epoch == group_epoch) {
        links_are_ready(engine);
    }
    engine_unlock(engine);
}

void engine_verdict(struct engine *engine, const struct wire_verdict *verdict) {
    engine_lock(engine);
    book_verdict(&engine->book, verdict);
    engine_unlock(engine);
}

// ---- the thread ----
void engine_drop_ops(struct engine *engine) {
    lanes_drop_frames(engine, false);
    engine->running.first = engine->posted.first = NULL;
    mover_shared(engine)->under_way = 0;
}

void engine_enter_pending(struct engine *engine) {
    struct pending_epoch *pending = engine->pending;
    struct wire_report report;
    engine_drop_ops(engine);
    engine->roll = false;
    if (!book_enter(&engine->book, &pending->ops, &report)) {
        engine_fail(engine);
        return;
    }
    engine->run = pending->run;
    engine->generation = pending->generation;
    bool ready = pending->ready;
    engine->pending = NULL;
    free(pending);
    wire_encode_report(&engine->for_master, engine_header(engine), &report);
    free(report.ops);
    lanes_enter_epoch(engine);
    if (ready) links_are_ready(engine);
}
