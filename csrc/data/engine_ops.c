// Ops as callers see them: posted, begun under a name as soon as the links are there, awaited and taken.
#define _GNU_SOURCE
#include <stdlib.h>

#include "base/log.h"
#include "compute/kernels.h"
#include "data/engine.h"
#include "data/op.h"

enum {
    TELL_FIRST_MS = 10000, // of a wait; then again after twice as long
    TELL_MOST_MS = 600000
};

// ---- beginning ----
uint64_t engine_first_loss(const struct engine *engine, uint64_t adopted) {
    for (uint32_t i = 0; i < engine->lost_count; i++)
        if (engine->lost[i] > adopted) return engine->lost[i];
    return 0;
}

void engine_end_lost(struct engine *engine, struct op *op) {
    uint64_t epoch = op->reduce.retry ? 0 : engine_first_loss(engine, op->adopted);
    op->outcome.epoch = epoch != 0 ? epoch : engine->epoch;
    op_end(engine, op, ENGINE_LOST);
}

// False: no memory.
static bool make_backup(struct engine *engine, struct op *op) {
    bool in_place = op->reduce.send == op->reduce.recv;
    return !in_place || op->backup.bytes != NULL || backup_begin(&engine->backups, &op->backup, op->bytes);
}

static void begin(struct engine *engine, struct op *op) {
    if (counter_is_spent(engine, op->reduce.tag)) {
        // of the fresh epoch, which was asked for long ago; the others wait at the same op
        engine_wait_for_links(engine, op);
        return;
    }
    bool named =
        op->whole != NULL ? segments_name(engine, op) : counter_take(engine, op->reduce.tag, &op->name.sequence);
    if (!named) {
        op_end_refused(engine, op);
        return;
    }
    if (engine->roll_wanted && !engine->roll_asked) engine_wake(engine);
    op->name.epoch = engine->epoch;
    op->name.tag = op->reduce.tag;
    op->contributors = engine->count;
    if (op->reduce.tell && op->roster != engine->roster) {
        roster_put(op->roster);
        op->roster = engine->roster;
        op->roster->references++;
    }
    op->accused = op->mismatched = false;
    op->path = plan_choose(op->bytes, op->reduce.fingerprint.algorithm != 0, engine->count, engine->latency_us,
                           engine->megabytes_per_s);
    if (engine->count < 2) {
        engine_end_lost(engine, op); // alone: only a loss leads here
        return;
    }
    if (op->path != PLAN_SMALL && !make_backup(engine, op)) {
        op_end_refused(engine, op);
        return;
    }
    early_compare(engine, op);
    if (op->path == PLAN_SMALL) {
        if (op->restart) backup_restore(&op->backup, op->reduce.recv); // it was large among more members
        op->restart = false;
        op->phase = OP_RUNNING;
        small_begin(engine, op);
        return;
    }
    op->phase = OP_QUEUED;
    op_list_append(&engine->posted, op);
    engine_wake(engine);
}

void engine_wait_for_links(struct engine *engine, struct op *op) {
    op->phase = OP_WAITING;
    op_list_append(&engine->waiting, op);
}

void engine_begin(struct engine *engine, struct op *op) {
    if (engine_may_begin(engine))
        begin(engine, op);
    else
        engine_wait_for_links(engine, op);
}

void engine_begin_waiting(struct engine *engine) {
    struct op_list waiting = engine->waiting;
    engine->waiting.first = NULL;
    for (struct op *op; (op = op_list_pop(&waiting)) != NULL;) engine_begin(engine, op);
}

// ---- callers ----
static enum engine_result may_post(struct engine *engine, uint64_t tag) {
    if (engine->dead || engine->stopping) return ENGINE_DEAD;
    if (op_find(engine, tag) != NULL) return ENGINE_TAG_LIVE;
    return engine->live + engine->extra < WIRE_MAX_LIVE_OPS ? ENGINE_OK : ENGINE_TOO_MANY;
}

static void start(struct engine *engine, struct op *op) {
    uint64_t loss = op->reduce.retry ? 0 : engine_first_loss(engine, op->adopted); // in retry mode it ends nothing
    uint32_t segments = op->reduce.retry ? plan_segments(op->count, op->element) : 1;
    if (poison_take(engine, op, loss))
        op_end(engine, op, ENGINE_MISMATCH);
    else if (loss != 0)
        engine_end_lost(engine, op);
    else if (segments == 1)
        engine_begin(engine, op);
    else if (segments_new(op))
        segments_begin(engine, op);
    else
        op_end_refused(engine, op);
}

enum engine_result engine_post(struct engine *engine, const struct engine_reduce *reduce, uint64_t adopted) {
    pthread_mutex_lock(&engine->lock);
    enum engine_result result = may_post(engine, reduce->tag);
    struct op *op = result == ENGINE_OK ? op_new(engine, reduce->tag) : NULL;
    if (op != NULL) {
        op->reduce = *reduce;
        op->posted_ns = platform_now_ns();
        op->tell_ns = op->posted_ns + TELL_FIRST_MS * MS_NS;
        op->adopted = adopted;
        op->element = dtype_size(reduce->fingerprint.dtype);
        op->count = reduce->fingerprint.count;
        op->bytes = op->count * op->element;
        engine->live++;
        start(engine, op);
    } else if (result == ENGINE_OK) {
        engine_fail(engine);
        result = ENGINE_NO_MEMORY;
    }
    pthread_mutex_unlock(&engine->lock);
    return result;
}

// Lock held, but let go of: nobody else looks at an ended op, and putting a large input back takes its time.
static void restore(struct engine *engine, struct op *op) {
    bool needed = op->segments != NULL ? segments_must_restore(op)
                                       : op->outcome.result != ENGINE_OK && op->backup.saved.count > 0;
    if (!needed) return;
    pthread_mutex_unlock(&engine->lock);
    if (op->segments != NULL)
        segments_restore(op);
    else
        backup_restore(&op->backup, op->reduce.recv);
    pthread_mutex_lock(&engine->lock);
}

static void take_outcome(struct engine *engine, struct op *op, struct engine_outcome *out) {
    restore(engine, op);
    *out = op->outcome;
    if (out->result == ENGINE_OK && op->segments == NULL && op->reduce.retry) out->epoch = op->name.epoch;
    out->retry = op->reduce.retry;
    if (op->reduce.tell) out->contributors = segments_contributors(op);
    if (op->segments != NULL) segments_free(engine, op);
    backup_end(&engine->backups, &op->backup);
    engine->live--;
    op_free(engine, op);
}

// Lets go of the lock while it writes. The op stays: somebody waits for it.
static void tell_wait(struct engine *engine, struct op *op, int64_t now_ns) {
    char why[160];
    int64_t waited_ns = now_ns - op->posted_ns, most_ns = TELL_MOST_MS * MS_NS;
    uint64_t tag = op->reduce.tag;
    op_waits_for(engine, op, why, sizeof why);
    op->tell_ns = now_ns + (waited_ns < most_ns ? waited_ns : most_ns);
    pthread_mutex_unlock(&engine->lock);
    LOG(LOG_NOTICE, "the reduce with tag %llu has waited for %u s: %s", (unsigned long long)tag,
        (unsigned)(waited_ns / SECOND_NS), why);
    pthread_mutex_lock(&engine->lock);
}

// False: the deadline has passed before it ended.
static bool wait_for_end(struct engine *engine, struct op *op, int64_t deadline_ns) {
    while (op->phase != OP_ENDED) {
        int64_t until_ns = op->tell_ns < deadline_ns ? op->tell_ns : deadline_ns;
        if (platform_cond_wait(&op->ended, &engine->lock, until_ns) || op->phase == OP_ENDED) continue;
        int64_t now_ns = platform_now_ns();
        if (now_ns >= op->tell_ns) tell_wait(engine, op, now_ns);
        if (op->phase != OP_ENDED && now_ns >= deadline_ns) return false;
    }
    return true;
}

void engine_wait(struct engine *engine, uint64_t tag, int64_t deadline_ns, struct engine_outcome *out) {
    *out = (struct engine_outcome){.result = ENGINE_UNKNOWN};
    pthread_mutex_lock(&engine->lock);
    struct op *op = op_find(engine, tag);
    if (op == NULL || op->waited) {
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    op->waited = true;
    engine->waiters++;
    if (!wait_for_end(engine, op, deadline_ns)) {
        out->result = ENGINE_IN_PROGRESS;
        op_waits_for(engine, op, out->text, sizeof out->text);
        op->waited = false;
    } else {
        take_outcome(engine, op, out);
    }
    if (--engine->waiters == 0) pthread_cond_broadcast(&engine->no_waiters);
    pthread_mutex_unlock(&engine->lock);
}

size_t engine_live_ops(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    size_t live = engine->live;
    pthread_mutex_unlock(&engine->lock);
    return live;
}
