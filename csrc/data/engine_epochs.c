// What the control side tells: group epochs, that their links are there, and verdicts. The thread enters an epoch.
#define _GNU_SOURCE
#include <stdlib.h>

#include "data/engine.h"
#include "data/op.h"
#include "data/service.h"

// ---- the control side ----
void engine_missed_loss(struct engine *engine, uint64_t group_epoch) {
    pthread_mutex_lock(&engine->lock);
    book_note_loss(&engine->book, group_epoch);
    pthread_mutex_unlock(&engine->lock);
}

void pending_free(struct pending_epoch *pending) {
    if (pending == NULL) return;
    free(pending->ops.members);
    free(pending);
}

static struct pending_epoch *pending_new(struct engine *engine, const struct engine_epoch *epoch) {
    struct pending_epoch *pending = calloc(1, sizeof *pending);
    if (pending == NULL) return NULL;
    pending->run = epoch->run;
    pending->generation = epoch->generation;
    pending->ops = (struct book_epoch){
        .epoch = epoch->group_epoch,
        .latency_us = epoch->latency_us == 0 ? 1 : epoch->latency_us,
        .megabytes_per_s = epoch->megabytes_per_s == 0 ? 1 : epoch->megabytes_per_s,
        .rank = epoch->rank,
        .count = epoch->count,
        .members = calloc(epoch->count, sizeof(struct op_member *)),
    };
    bool made = pending->ops.members != NULL;
    for (uint32_t i = 0; i < epoch->count && made; i++) {
        struct peer *peer = i == epoch->rank ? NULL : peer_get(engine, &epoch->members[i].id);
        pending->ops.members[i] = peer == NULL ? NULL : &peer->member;
        made = i == epoch->rank || peer != NULL;
    }
    if (made) return pending;
    pending_free(pending);
    return NULL;
}

void engine_enter_epoch(struct engine *engine, const struct engine_epoch *epoch) {
    pthread_mutex_lock(&engine->lock);
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
    pthread_mutex_unlock(&engine->lock);
}

static void links_are_ready(struct engine *engine) {
    engine->book.ready = true;
    same_host_offer(engine);
    book_links_ready(&engine->book);
}

void engine_links_ready(struct engine *engine, uint64_t group_epoch) {
    pthread_mutex_lock(&engine->lock);
    if (engine->pending != NULL) {
        if (engine->pending->ops.epoch == group_epoch) engine->pending->ready = true;
    } else if (engine->epoch == group_epoch) {
        links_are_ready(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

void engine_verdict(struct engine *engine, const struct wire_verdict *verdict) {
    pthread_mutex_lock(&engine->lock);
    book_verdict(&engine->book, verdict);
    pthread_mutex_unlock(&engine->lock);
}

// ---- the thread ----
void engine_let_go(struct engine *engine) {
    for (size_t i = 0; i < engine->lane_count; i++) {
        lane_let_go(engine->lanes[i]);
        lane_heat(engine->lanes[i]);
    }
    engine->running.first = engine->posted.first = NULL;
    engine->under_way = 0;
}

bool engine_enter_pending(struct engine *engine, struct wire_report *report) {
    struct pending_epoch *pending = engine->pending;
    engine_let_go(engine);
    engine->roll = false;
    if (!book_enter(&engine->book, &pending->ops, report)) {
        engine_fail(engine);
        return false;
    }
    for (struct peer *peer = engine->peers; peer != NULL; peer = peer->next) {
        peer->eager_bytes = 0;
        peer->offered = false;
    }
    engine->run = pending->run;
    engine->generation = pending->generation;
    engine->epoch = pending->ops.epoch;
    engine->latency_us = pending->ops.latency_us;
    engine->megabytes_per_s = pending->ops.megabytes_per_s;
    engine->rank = pending->ops.rank;
    engine->count = pending->ops.count;
    bool ready = pending->ready;
    engine->pending = NULL;
    free(pending);
    for (struct peer *peer = engine->peers; peer != NULL; peer = peer->next)
        if (peer->member.rank == UINT32_MAX) service_peer_gone(engine, peer);
    peers_free_dropped(engine);
    if (ready) links_are_ready(engine);
    return true;
}

void engine_complete(struct engine *engine, struct op *op) {
    struct wire_op_name name = op->name;
    op_list_remove(&engine->running, op);
    pthread_mutex_lock(&engine->lock);
    bool done = book_complete(&engine->book, op);
    pthread_mutex_unlock(&engine->lock);
    if (done) engine->callbacks.done(engine->callbacks.context, &name);
}
