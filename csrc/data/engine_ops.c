// Ops as callers see them: posted, awaited and taken. And what the call table (ops/call_table) asks for: the data plane
// is its driver.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <unistd.h>

#include "base/detail.h"
#include "base/log.h"
#include "base/platform.h"
#include "base/recorder.h"
#include "compute/kernels.h"
#include "data/engine.h"
#include "data/algorithm.h"
#include "data/core.h"
#include "link/connection.h"
#include "link/frame.h"
#include "device/device.h"

enum {
    TOLD = 3,              // members, in one text
    TELL_FIRST_MS = 10000, // of a wait in which nothing moves; then again after twice as long
    TELL_MOST_MS = 600000
};

struct waiter {
    pthread_cond_t ended;
};

// ---- what the call table asks for ----
// It was made when the epoch was told, and is not freed while the epoch is awaited.
static struct op_member *member(void *context, const struct wire_id *id) {
    engine_assert_locked((struct engine *)context);
    return &op_peer_of(neighbour_find(((struct engine *)context)->lanes, id))->member;
}

// ---- the flight recorder ----
// Records that a call, or a segment of it, has begun in an epoch.
static void record_begin(struct engine *engine, const struct op *op) {
    const struct op *call = op->parent != NULL ? op->parent : op;
    recorder_begin(engine->callbacks.recorder, call->recorded,
                   &(struct recorder_beginning){.epoch = op->name.epoch,
                                                .sequence = op->name.sequence,
                                                .members = (uint16_t)op->team->count,
                                                .algorithm = (uint8_t)op->algorithm},
                   op->begun_ns);
}

// Records a call that was just posted, and may have begun or ended already.
static void record_post(struct engine *engine, struct op *op) {
    struct recorder *recorder = engine->callbacks.recorder;
    const struct subgroup *subgroup = op->args.subgroup;
    const struct wire_fingerprint *what = &op->args.fingerprint;
    if (recorder == NULL) return;
    struct recorder_operation operation = {.tag = op->args.tag,
                                           .count = op->count,
                                           .bytes = op->bytes,
                                           .subgroup = op_subgroup_hash(op),
                                           .root = op->args.root,
                                           .members = (uint16_t)(subgroup == NULL ? 0 : subgroup->count),
                                           .collective = what->kind,
                                           .dtype = what->dtype,
                                           .op = what->op,
                                           .codec = what->codec,
                                           .retry = op->args.retry,
                                           .background = op->args.background,
                                           .ids = subgroup == NULL ? NULL : &subgroup->ids[0].bytes};
    op->recorded = recorder_add_operation(recorder, &operation, op->posted_ns);
    for (struct op *part = segments_part(op, NULL); part != NULL; part = segments_part(op, part))
        if (part->epoch != NULL && part->team != NULL) record_begin(engine, part);
    if (op->phase == OP_ENDED) recorder_end(recorder, op->recorded, (uint8_t)op->outcome.result, op->posted_ns);
}

// True if the result overwrites the input.
static bool is_in_place(const struct op *op) {
    return op_collective(op)->reduces && op->in_bytes > 0 && op->out_bytes > 0 && op->args.send == op->args.recv;
}

static bool start(void *context, struct op *op) {
    struct engine *engine = context;
    engine_assert_locked(engine);
    struct device_queue *queue = op->args.queue;
    bool direct = algorithm_of(op)->direct;
    op->begun_ns = platform_now_ns();
    record_begin(engine, op);
    if (direct) {
        if (op->restart) backup_restore(&op->backup, queue, op->args.recv); // it was large among more members
        op->restart = false;
        if (queue == NULL) return algorithm_of(op)->begin(engine, op);
    } else if (is_in_place(op) && op->backup.bytes == NULL) {
        if (!backup_begin(&engine->backups, &op->backup, queue, op->bytes)) {
            engine_fail_of(engine, queue);
            return false;
        }
        // All of it, and before the op begins: of a device that fails nobody knows later what it has saved.
        if (queue != NULL && op->bytes > 0) device_copy(queue, op->backup.bytes, op->args.send, op->bytes);
        op->fence = device_mark(queue);
    }
    op_queue_append(&engine->posted, op);
    engine_wake(engine);
    return true;
}

static bool signal_op(void *context, struct op *op, struct op_member *from, uint16_t type, const struct wire_head *head,
                      struct block *block) {
    engine_assert_locked((struct engine *)context);
    algorithm_entered(op, neighbour_of(from), type, from->heard_ns);
    return algorithm_signal(context, op, neighbour_of(from), type, head, block);
}

static void release(void *context, struct op *op) {
    engine_assert_locked((struct engine *)context);
    op->moved = false;
    algorithm_of(op)->release(context, op);
}

static bool fill(void *context, struct op *op, struct block *result) {
    engine_assert_locked((struct engine *)context);
    (void)context;
    return result->length == op->result_bytes && algorithm_write(op, result->bytes);
}

static void ended(void *context, struct op *op) {
    engine_assert_locked((struct engine *)context);
    struct engine *engine = context;
    if (op->parent == NULL) {
        int64_t now_ns = platform_now_ns();
        op_stats_ended(&engine->op_stats, op->posted_ns, now_ns);
        recorder_end(engine->callbacks.recorder, op->recorded, (uint8_t)op->outcome.result, now_ns);
        device_release(op->args.queue);
    }
    if (op->waiter != NULL) pthread_cond_signal(&op->waiter->ended);
    if (op->parent == NULL && engine->callbacks.events != NULL) wake_signal(atomic_load(engine->callbacks.events));
}

static void put_back(struct op *op, struct device_queue *queue) {
    for (struct op *part = segments_part(op, NULL); part != NULL; part = segments_part(op, part))
        backup_restore(&part->backup, queue, part->args.recv);
}

static bool has_saved(struct op *op) {
    for (struct op *part = segments_part(op, NULL); part != NULL; part = segments_part(op, part))
        if (part->backup.saved.count > 0) return true;
    return false;
}

// Puts the input back after the device has failed. A fresh queue may still reach the tensors, and waits for no stream
// of the caller. Returns false if the input is lost.
static bool put_back_after_failure(struct engine *engine, struct op *op) {
    if (!has_saved(op)) return true;
    struct device_queue *fresh;
    bool opened = device_open(op->args.recv, engine->wake, &fresh) && fresh != NULL;
    if (opened) put_back(op, fresh);
    bool good = opened && device_await(fresh);
    if (!good) LOG(LOG_ERR, "the input of an operation is lost: its device failed and cannot restore it");
    if (opened) device_close(fresh);
    return good;
}

// Puts the input back, if that is needed, and waits for the device. False: it has failed; `lost`: and the input with
// it.
static bool end_at_device(struct engine *engine, struct op *op, bool needed, bool *lost) {
    *lost = false;
    if (needed) put_back(op, op->args.queue);
    if (device_await(op->args.queue)) return true;
    *lost = !put_back_after_failure(engine, op);
    return false;
}

static void forget(void *context, struct op *op, bool restore) {
    struct engine *engine = context;
    bool lost;
    if (restore && op->backup.saved.count > 0) end_at_device(engine, op, true, &lost); // before its room is given back
    backup_end(&engine->backups, &op->backup);
    backup_end(&engine->backups, &op->room);
    if (op->parent != NULL) return; // the queue is that of the call, which is forgotten last
    engine->device_calls -= op->args.queue != NULL;
    device_close(op->args.queue);
}

static void acknowledge(void *context, struct op_member *to, const struct wire_op_name *names, uint32_t count,
                        bool ask) {
    struct engine *engine = context;
    struct wire_head head = {.ack = {.leaving = ask}};
    struct block *block = block_new(engine->pool, count * WIRE_ACK_BYTES);
    if (block == NULL) return;
    for (uint32_t i = 0; i < count; i++) wire_ack_encode(block->bytes + i * WIRE_ACK_BYTES, &names[i]);
    lanes_signal(neighbour_of(to), WIRE_ACK, &head, block);
    block_put(engine->pool, block);
}

static void supply(void *context, struct op_member *to, const struct wire_op_name *name, struct block *result) {
    struct wire_head head = {.supply = {*name}};
    algorithm_complete_result(context, result);
    lanes_signal(neighbour_of(to), WIRE_SUPPLY, &head, result);
}

static void drained(void *context) { pthread_cond_broadcast(&((struct engine *)context)->drained); }

static void report_mismatch(void *context, const struct wire_mismatch *mismatch) {
    struct engine *engine = context;
    struct wire_header header = engine_header(engine);
    header.epoch = mismatch->name.epoch;
    wire_encode_mismatch(&engine->for_master, header, mismatch);
    engine_wake(engine);
}

static void cancel(void *context, const struct wire_op_name *name) {
    struct engine *engine = context;
    struct wire_header header = engine_header(engine);
    struct wire_cancel message = {*name};
    header.epoch = name->epoch;
    wire_encode_cancel(&engine->for_master, header, &message);
    engine_wake(engine);
}

static void request_epoch(void *context) {
    struct engine *engine = context;
    engine->request_epoch = true;
    engine_wake(engine);
}

static void put(void *context, struct block *block) { block_put(((struct engine *)context)->pool, block); }

static void failed(void *context) { engine_fail(context); }

struct op_driver engine_driver(struct engine *engine) {
    return (struct op_driver){engine,      member, start,   signal_op,       release,       fill, ended,  forget,
                              acknowledge, supply, drained, report_mismatch, request_epoch, put,  failed, cancel};
}

// ---- callers ----
static bool is_only_caller(struct engine *engine, bool begins) {
    engine_assert_locked(engine);
    static _Thread_local pid_t thread;
    if (thread == 0) thread = gettid();
    if (engine->several_callers || engine->caller == thread || !begins)
        return engine->caller == thread && !engine->several_callers;
    if (engine->caller != 0 && tgkill(getpid(), engine->caller, 0) == 0)
        engine->several_callers = true;
    else
        engine->caller = thread;
    return !engine->several_callers;
}

bool engine_is_only_caller(struct engine *engine, bool begins) {
    engine_lock(engine);
    bool only = is_only_caller(engine, begins);
    engine_unlock(engine);
    return only;
}

enum call_result engine_post(struct engine *engine, const struct call_args *args, uint64_t adopted) {
    struct op *op;
    struct call_args with = *args;
    const void *tensor = args->recv != NULL ? args->recv : args->send;
    bool opened = device_open(tensor, engine->wake, &with.queue);
    if (opened && !device_follow(with.queue, args->stream)) {
        device_close(with.queue);
        return CALL_REFUSED;
    }
    engine_lock(engine);
    enum call_result result = CALL_DEAD;
    if (!opened) {
        engine_fail(engine);
        result = CALL_NO_MEMORY;
    } else if (!engine->dead && !engine->stopping) {
        result = call_table_post(&engine->call_table, &with, dtype_size(args->fingerprint.dtype), adopted, &op);
    }
    if (result == CALL_OK) {
        engine->device_calls += with.queue != NULL;
        is_only_caller(engine, true);
        op->posted_ns = platform_now_ns();
        op->tell_ns = op->posted_ns + TELL_FIRST_MS * MS_NS;
        record_post(engine, op);
        if (op_stats_posted(&engine->op_stats)) engine_wake(engine);
    }
    engine_unlock(engine);
    if (result != CALL_OK) device_close(with.queue);
    return result;
}

// Releases the lock meanwhile: nobody else looks at an ended op, and it takes time to await its device and to restore a
// large input. False: the input is lost.
static bool settle(struct engine *engine, struct op *op) {
    engine_assert_locked(engine);
    struct device_queue *queue = op->args.queue;
    bool needed = (op->segments != NULL || op->outcome.result != CALL_OK) && has_saved(op), lost;
    if (!needed && queue == NULL) return true;
    engine_unlock(engine);
    bool good = end_at_device(engine, op, needed, &lost);
    engine_lock(engine);
    if (good) return true;
    engine_fail_of(engine, queue);
    op->outcome.result = CALL_DEAD;
    return !lost;
}

// Names a participant, with the rank that it has in the epoch of the op: by join numbers.
static struct peer_label label_of(const struct op *op, uint32_t place) {
    const struct neighbour *peer = algorithm_peer(op, place);
    const struct epoch_ring *ring = &op->team->epoch->ring;
    const struct wire_member *member = wire_member_with(ring->members, ring->count, &peer->id);
    char text[32];
    snprintf(text, sizeof text, "rank %u", epoch_ring_rank(ring, member->join_number));
    return peer_label_with(&peer->id, &peer->name, text);
}

// False: nobody is missed.
static bool say_missing(const struct op *op, char *out, size_t capacity) {
    char names[TOLD * PEER_LABEL_BYTES] = "";
    uint32_t missing = 0;
    size_t at = 0;
    for (uint32_t place = 0; place < op->team->count; place++)
        if (algorithm_misses(op, place) && missing++ < TOLD)
            at +=
                (size_t)snprintf(names + at, sizeof names - at, "%s%s", at > 0 ? ", " : "", label_of(op, place).chars);
    if (op->algorithm == PLAN_SMALL)
        snprintf(out, capacity, "%u of %u members have sent nothing for it: %s%s", missing, op->team->count, names,
                 missing > TOLD ? ", ..." : "");
    else
        snprintf(out, capacity, "%s%s not started it", names, missing > 1 ? " have" : " has");
    return missing > 0;
}

// In words, for a caller that has waited long. Only what is known here is told; others may be waiting, too.
static void say_what_for(const struct op *op, char *out, size_t capacity) {
    if (op->phase == OP_WAITING || op->frozen)
        snprintf(out, capacity, "links to the members are being opened, or a new master is being sought");
    else if (op->phase == OP_COMPLETE)
        snprintf(out, capacity, "it is complete on this peer; other members have not completed it");
    else if (op->phase != OP_RUNNING || !say_missing(op, out, capacity))
        snprintf(out, capacity, "other members have not sent their part, or are waiting for others");
}

// An op that gets on is large, or its links are slow: that is no wait. Lets go of the lock while it writes. The op
// stays: somebody waits for it.
static void tell_wait(struct engine *engine, struct op *op, int64_t now_ns) {
    char why[480];
    int64_t waited_ns = now_ns - op->posted_ns, most_ns = TELL_MOST_MS * MS_NS;
    uint64_t tag = op->args.tag;
    const char *name = op_collective(op)->name;
    if (atomic_exchange_explicit(&op->moved_any, false, memory_order_relaxed)) {
        op->tell_ns = now_ns + TELL_FIRST_MS * MS_NS;
        return;
    }
    say_what_for(op, why, sizeof why);
    op->tell_ns = now_ns + (waited_ns < most_ns ? waited_ns : most_ns);
    engine_unlock(engine);
    LOG(LOG_NOTICE, "%s with tag %llu has waited for %u s: %s", name, (unsigned long long)tag,
        (unsigned)(waited_ns / SECOND_NS), why);
    engine_lock(engine);
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

void engine_wait(struct engine *engine, uint64_t tag, int64_t deadline_ns, struct call_outcome *out) {
    struct waiter waiter;
    *out = (struct call_outcome){.result = CALL_UNKNOWN};
    engine_lock(engine);
    struct op *op = call_table_find(&engine->call_table, tag);
    if (op == NULL || op->waiter != NULL) {
        engine_unlock(engine);
        return;
    }
    bool waits = op->phase != OP_ENDED;
    if (waits) platform_cond_init(&waiter.ended);
    op->waiter = &waiter;
    engine->waiters++;
    if (waits) wait_span_enter(&op->wait, platform_now_ns());
    op->caller_waits = is_only_caller(engine, false);
    if (!wait_for_end(engine, op, deadline_ns)) {
        wait_span_leave(&op->wait, platform_now_ns());
        out->result = CALL_IN_PROGRESS;
        say_what_for(op, out->text, sizeof out->text);
        op->waiter = NULL;
    } else {
        bool intact = settle(engine, op);
        while (op->holding > 0) pthread_cond_wait(&engine->not_holding, &engine->lock);
        call_table_take(&engine->call_table, op, out);
        if (out->result == CALL_DEAD)
            snprintf(out->text, sizeof out->text, "%s%s", engine->why, intact ? "" : "; " ENGINE_INPUT_LOST);
    }
    if (waits) pthread_cond_destroy(&waiter.ended);
    if (--engine->waiters == 0) pthread_cond_broadcast(&engine->no_waiters);
    engine_unlock(engine);
}

// Releases the lock meanwhile: the device may block until a stream gets on, which may wait for the end of an op.
static enum call_result hold(struct engine *engine, struct op *op, void *stream) {
    engine_assert_locked(engine);
    struct device_queue *queue = op->args.queue;
    if (queue == NULL || queue->device->hold == NULL) {
        detail_fail(0, "no stream can wait for this operation: its tensors are not on a GPU; wait on the host");
        return CALL_REFUSED;
    }
    op->holding++;
    engine->waiters++;
    engine_unlock(engine);
    bool held = device_hold(queue, stream);
    engine_lock(engine);
    if (held && op->phase == OP_ENDED) device_release(queue); // the device may yet have to write the result
    if (--op->holding == 0) pthread_cond_broadcast(&engine->not_holding);
    if (--engine->waiters == 0) pthread_cond_broadcast(&engine->no_waiters);
    return held ? CALL_OK : CALL_REFUSED;
}

enum call_result engine_hold(struct engine *engine, uint64_t tag, void *stream) {
    engine_lock(engine);
    struct op *op = call_table_find(&engine->call_table, tag);
    enum call_result result = op == NULL ? CALL_UNKNOWN : hold(engine, op, stream);
    engine_unlock(engine);
    return result;
}

enum call_result engine_cancel(struct engine *engine, uint64_t tag) {
    engine_lock(engine);
    struct op *op = call_table_find(&engine->call_table, tag);
    if (op != NULL) call_table_cancel(&engine->call_table, op);
    engine_unlock(engine);
    return op == NULL ? CALL_UNKNOWN : CALL_OK;
}

void engine_voted(struct engine *engine, uint64_t group_epoch) {
    engine_lock(engine);
    call_table_verdicts_voted(&engine->call_table.verdicts, group_epoch);
    engine_unlock(engine);
}

bool engine_has_posted(struct engine *engine, uint64_t tag, const struct wire_id *member) {
    engine_lock(engine);
    bool posted = call_table_has_unexpected(&engine->call_table, tag, member);
    engine_unlock(engine);
    return posted;
}

enum { WAIT_LEAST_US = 1000000 }; // of a wait that is told

static void note_wait(struct call_table *call_table, struct op *op) {
    struct engine *engine = call_table->driver.context;
    struct wire_waits *waits = engine->waits;
    const struct op *call = op->parent != NULL ? op->parent : op;
    // An operation that begins again in a new epoch, or a segment of it, has its whole time.
    int64_t waited_us = (int64_t)wait_span_us(&call->wait, engine->waits_ns);
    int64_t span_us = platform_earlier(waited_us, (engine->waits_ns - op->begun_ns) / US_NS);
    bool moves = (op->phase == OP_RUNNING || op->phase == OP_COMPLETE) && !op->frozen && op->team->count > 1;
    if (!moves || span_us < WAIT_LEAST_US || waits->count == WIRE_MAX_WAITS) return;
    struct wire_wait *wait = &waits->list[waits->count++];
    *wait = (struct wire_wait){.name = op->name, .kind = op->args.fingerprint.kind, .span_us = (uint64_t)span_us};
    if (call->caller_waits) waits->all_us = wait->span_us;
    for (uint32_t place = 0; op->phase == OP_RUNNING && place < op->team->count; place++)
        if (algorithm_misses(op, place) && wait->missing_count < WIRE_MAX_MISSING)
            wait->missing[wait->missing_count++] = algorithm_peer(op, place)->id;
}

bool engine_waits(struct engine *engine, int64_t now_ns, struct wire_waits *out) {
    engine_lock(engine);
    engine->waits = out;
    engine->waits_ns = now_ns;
    if (engine_is_open(engine)) call_table_for_each(&engine->call_table, note_wait);
    if (engine->several_callers) out->all_us = 0; // another thread has made its first call since the wait began
    bool live = engine->call_table.live > 0;
    engine_unlock(engine);
    return live;
}

size_t engine_live_ops(struct engine *engine) {
    engine_lock(engine);
    size_t live = engine->call_table.live;
    engine_unlock(engine);
    return live;
}
