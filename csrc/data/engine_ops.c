// Ops as callers see them: posted, awaited and taken. And what the book (ops/book) asks for: the data plane is its
// driver.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "compute/kernels.h"
#include "data/engine.h"
#include "data/op.h"
#include "ops/segments.h"

enum {
    TELL_FIRST_MS = 10000, // of a wait; then again after twice as long
    TELL_MOST_MS = 600000
};

struct waiter {
    pthread_cond_t ended;
};

// ---- what the book asks for; lock held ----
static bool start(void *context, struct op *op) {
    struct engine *engine = context;
    if (op->path == PLAN_SMALL) {
        if (op->restart) backup_restore(&op->backup, op->reduce.recv); // it was large among more members
        op->restart = false;
        return small_begin(engine, op);
    }
    bool in_place = op->reduce.send == op->reduce.recv;
    if (in_place && op->backup.bytes == NULL && !backup_begin(&engine->backups, &op->backup, op->bytes)) return false;
    op_list_append(&engine->posted, op);
    engine_wake(engine);
    return true;
}

static void signal_op(void *context, struct op *op, struct op_member *from, uint16_t type, const struct wire_op *head,
                      struct block *block) {
    struct engine *engine = context;
    if (op->path == PLAN_SMALL) {
        small_signal(engine, op, peer_of(from), type, block);
        return;
    }
    block_put(engine, block);
    if (op->path == PLAN_RING && type == WIRE_READY)
        ring_next_ready(engine, op, head->extra == 1);
    else if (op->path == PLAN_SHARDED && (type == WIRE_READY || type == WIRE_GRANT))
        sharded_signal(engine, op, peer_of(from), type, head);
}

static void release(void *context, struct op *op) {
    small_release(context, op);
    ring_release(op);
    sharded_release(context, op);
}

static bool fill(void *context, struct op *op, struct block *result) {
    (void)context;
    if (result->length != op->bytes) return false;
    if (op->bytes > 0) memcpy(op->reduce.recv, result->bytes, op->bytes);
    return true;
}

static void ended(void *context, struct op *op) {
    (void)context;
    if (op->waiter != NULL) pthread_cond_signal(&op->waiter->ended);
}

static void forget(void *context, struct op *op, bool restore) {
    struct engine *engine = context;
    if (restore) backup_restore(&op->backup, op->reduce.recv);
    backup_end(&engine->backups, &op->backup);
}

static void acknowledge(void *context, struct op_member *to, const struct wire_op_name *names, uint32_t count,
                        bool ask) {
    struct engine *engine = context;
    struct wire_op head = {.extra = ask};
    struct block *block = block_new(engine, count * ACK_NAME_BYTES);
    if (block == NULL) return;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *at = block->bytes + i * ACK_NAME_BYTES;
        memcpy(at, &names[i].epoch, 8);
        memcpy(at + 8, &names[i].tag, 8);
        memcpy(at + 16, &names[i].sequence, 4);
        memset(at + 20, 0, 4);
    }
    peer_signal(engine, peer_of(to), WIRE_ACK, &head, block);
    block_put(engine, block);
}

static void supply(void *context, struct op_member *to, const struct wire_op_name *name, struct block *result) {
    struct wire_op head = {.tag = name->tag, .sequence = name->sequence, .offset = name->epoch};
    peer_signal(context, peer_of(to), WIRE_SUPPLY, &head, result);
}

static void settled(void *context) { pthread_cond_broadcast(&((struct engine *)context)->settled); }

static void accuse(void *context, const struct wire_mismatch *mismatch) {
    struct engine *engine = context;
    struct accusation *accusation = malloc(sizeof *accusation);
    if (accusation == NULL) {
        engine_fail(engine);
        return;
    }
    accusation->mismatch = *mismatch;
    accusation->next = engine->accusations;
    engine->accusations = accusation;
    engine_wake(engine);
}

static void roll(void *context) {
    struct engine *engine = context;
    engine->roll = true;
    engine_wake(engine);
}

static void put(void *context, struct block *block) { block_put(context, block); }

static void failed(void *context) { engine_fail(context); }

bool op_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end) {
    bool taken = ranges_take(ranges, begin, end);
    if (!taken && ranges->refused) engine_fail(engine);
    return taken;
}

struct op_driver engine_driver(struct engine *engine) {
    return (struct op_driver){engine,      start,  signal_op, release, fill, ended, forget,
                              acknowledge, supply, settled,   accuse,  roll, put,   failed};
}

// ---- callers ----
enum engine_result engine_post(struct engine *engine, const struct engine_reduce *reduce, uint64_t adopted) {
    struct op *op;
    pthread_mutex_lock(&engine->lock);
    enum engine_result result = ENGINE_DEAD;
    if (!engine->dead && !engine->stopping)
        result = book_post(&engine->book, reduce, dtype_size(reduce->fingerprint.dtype), adopted, &op);
    if (result == ENGINE_OK) {
        op->posted_ns = platform_now_ns();
        op->tell_ns = op->posted_ns + TELL_FIRST_MS * MS_NS;
    }
    pthread_mutex_unlock(&engine->lock);
    return result;
}

// Lock held, but let go of: nobody else looks at an ended op, and putting a large input back takes its time.
static void restore(struct engine *engine, struct op *op) {
    if (op->segments == NULL && op->outcome.result == ENGINE_OK) return;
    bool needed = false;
    for (struct op *part = segments_part(op, NULL); part != NULL; part = segments_part(op, part))
        needed |= part->backup.saved.count > 0;
    if (!needed) return;
    pthread_mutex_unlock(&engine->lock);
    for (struct op *part = segments_part(op, NULL); part != NULL; part = segments_part(op, part))
        backup_restore(&part->backup, part->reduce.recv);
    pthread_mutex_lock(&engine->lock);
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
        if (platform_cond_wait(&op->waiter->ended, &engine->lock, until_ns) || op->phase == OP_ENDED) continue;
        int64_t now_ns = platform_now_ns();
        if (now_ns >= op->tell_ns) tell_wait(engine, op, now_ns);
        if (op->phase != OP_ENDED && now_ns >= deadline_ns) return false;
    }
    return true;
}

void engine_wait(struct engine *engine, uint64_t tag, int64_t deadline_ns, struct engine_outcome *out) {
    struct waiter waiter;
    *out = (struct engine_outcome){.result = ENGINE_UNKNOWN};
    pthread_mutex_lock(&engine->lock);
    struct op *op = book_find(&engine->book, tag);
    if (op == NULL || op->waiter != NULL) {
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    bool waits = op->phase != OP_ENDED;
    if (waits) platform_cond_init(&waiter.ended);
    op->waiter = &waiter;
    engine->waiters++;
    if (!wait_for_end(engine, op, deadline_ns)) {
        out->result = ENGINE_IN_PROGRESS;
        op_waits_for(engine, op, out->text, sizeof out->text);
        op->waiter = NULL;
    } else {
        restore(engine, op);
        book_take(&engine->book, op, out);
    }
    if (waits) pthread_cond_destroy(&waiter.ended);
    if (--engine->waiters == 0) pthread_cond_broadcast(&engine->no_waiters);
    pthread_mutex_unlock(&engine->lock);
}

size_t engine_live_ops(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    size_t live = engine->book.live;
    pthread_mutex_unlock(&engine->lock);
    return live;
}
