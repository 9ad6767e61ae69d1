// The engine: posts and waits of callers, epochs and verdicts from the control side, and the thread that drives the lanes.
//
// The thread is the only one that enters an epoch, so between two of its steps the members, their order and the running ops
// stand still for it without a lock. Callers begin and end small ops themselves, under the lock: the member that comes last
// finds all inputs waiting and needs no other thread at all.
#define _GNU_SOURCE
#include "data/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "compute/kernels.h"
#include "data/engine_private.h"

enum { EVENTS = 64,
       POISONS_MAX = WIRE_MAX_LIVE_OPS };

void engine_wake(struct engine *engine) {
    if (engine->wake_pending) return;
    engine->wake_pending = true;
    wake_signal(engine->wake);
}

// ---- peers and lanes ----
static struct peer *peer_find(struct engine *engine, const struct wire_id *id) {
    struct peer *peer = engine->peers;
    while (peer != NULL && !wire_id_equal(&peer->id, id)) peer = peer->next;
    return peer;
}

static struct peer *peer_get(struct engine *engine, const struct wire_id *id) {
    struct peer *peer = peer_find(engine, id);
    if (peer != NULL) {
        peer->dropped = false;
        return peer;
    }
    peer = calloc(1, sizeof *peer);
    if (peer == NULL) return NULL;
    peer->id = *id;
    peer->rank = UINT32_MAX;
    peer->next = engine->peers;
    engine->peers = peer;
    return peer;
}

static bool peer_in_pending(const struct engine *engine, const struct peer *peer) {
    const struct pending_epoch *pending = engine->pending;
    for (uint32_t i = 0; pending != NULL && i < pending->count; i++)
        if (pending->members[i] == peer) return true;
    return false;
}

static void free_dropped_peers(struct engine *engine) {
    for (struct peer **at = &engine->peers; *at != NULL;) {
        struct peer *peer = *at;
        if (peer->dropped && peer->rank == UINT32_MAX && peer->lane_count == 0 && !peer_in_pending(engine, peer)) {
            *at = peer->next;
            small_forget(engine, peer);
            sync_forget(engine, peer);
            free(peer);
        } else {
            at = &peer->next;
        }
    }
}

struct lane *engine_lane(struct peer *peer, uint32_t index) {
    if (index <= WIRE_MAX_LANES && peer->lanes[index] != NULL) return peer->lanes[index];
    uint32_t lanes = 0;
    while (lanes < WIRE_MAX_LANES && peer->lanes[lanes + 1] != NULL) lanes++;
    return lanes == 0 ? peer->lanes[0] : peer->lanes[1 + (index - 1) % lanes];
}

static void retire(struct peer *peer, uint32_t index) {
    struct lane *lane = peer->lanes[index];
    if (lane == NULL) return;
    peer->lanes[index] = NULL;
    lane->retired = true;
    shutdown(lane->fd, SHUT_RDWR); // the thread sees the end of the stream and closes
}

void engine_add_link(struct engine *engine, const struct wire_id *id, uint32_t index, int fd) {
    pthread_mutex_lock(&engine->lock);
    struct peer *peer = index <= WIRE_MAX_LANES && !engine->stopping && !engine->dead ? peer_get(engine, id) : NULL;
    struct lane *lane = peer == NULL ? NULL : lane_new(engine, peer, index, fd);
    if (lane == NULL) {
        close(fd);
    } else {
        retire(peer, index);
        peer->lanes[index] = lane;
        peer->lane_count++;
        lane->next = engine->arriving;
        engine->arriving = lane;
        engine_wake(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

bool engine_has_link(struct engine *engine, const struct wire_id *id, uint32_t index) {
    pthread_mutex_lock(&engine->lock);
    struct peer *peer = peer_find(engine, id);
    bool has = peer != NULL && index <= WIRE_MAX_LANES && peer->lanes[index] != NULL;
    pthread_mutex_unlock(&engine->lock);
    return has;
}

void engine_drop_peer(struct engine *engine, const struct wire_id *id) {
    pthread_mutex_lock(&engine->lock);
    struct peer *peer = peer_find(engine, id);
    if (peer != NULL) {
        for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) retire(peer, i);
        peer->dropped = true;
        engine_wake(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

// ---- what comes early ----
static struct early **early_slot(struct engine *engine, uint64_t tag) {
    return &engine->early[table_slot(tag)];
}

bool early_add(struct engine *engine, struct peer *from, uint16_t type, const struct wire_op *head, struct block *block) {
    struct early *early = from->early_count >= EARLY_MAX ? NULL : malloc(sizeof *early);
    if (early == NULL) return false;
    struct early **slot = early_slot(engine, head->tag);
    *early = (struct early){.next = *slot, .from = from, .type = type, .head = *head, .block = block};
    *slot = early;
    from->early_count++;
    return true;
}

static bool same_op(const struct wire_op *a, const struct wire_op *b) {
    return a->tag == b->tag && a->sequence == b->sequence && a->segment == b->segment;
}

struct early *early_take(struct engine *engine, const struct peer *from, const struct wire_op *head, uint16_t type) {
    for (struct early **at = early_slot(engine, head->tag); *at != NULL; at = &(*at)->next) {
        struct early *early = *at;
        if (early->from != from || !same_op(&early->head, head) || early->type != type) continue;
        *at = early->next;
        early->from->early_count--;
        return early;
    }
    return NULL;
}

void early_free(struct engine *engine, struct early *early) {
    block_put(engine, early->block);
    free(early);
}

static void early_clear(struct engine *engine) {
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        while (engine->early[i] != NULL) {
            struct early *early = engine->early[i];
            engine->early[i] = early->next;
            early->from->early_count--;
            early_free(engine, early);
        }
}

// Another path than ours, so nobody else looks at it: any early signal whose arguments differ accuses.
static void compare_early(struct engine *engine, struct op *op) {
    struct wire_op head;
    op_head(op, &head);
    for (struct early *early = *early_slot(engine, op->reduce.tag); early != NULL; early = early->next)
        if (same_op(&early->head, &head) && !wire_fingerprint_equal(&early->head.fingerprint, &op->reduce.fingerprint))
            engine_accuse(engine, op, early->from, &early->head.fingerprint);
}

void engine_accuse(struct engine *engine, struct op *op, const struct peer *other, const struct wire_fingerprint *theirs) {
    struct accusation *accusation = op->accused ? NULL : malloc(sizeof *accusation);
    if (accusation == NULL) return;
    op->accused = true;
    accusation->mismatch = (struct wire_mismatch){op->name, op->reduce.fingerprint, other->id, *theirs};
    accusation->next = engine->accusations;
    engine->accusations = accusation;
    engine_wake(engine);
}

// ---- beginning ops ----
uint64_t engine_first_loss(const struct engine *engine, uint64_t adopted) {
    for (uint32_t i = 0; i < engine->lost_count; i++)
        if (engine->lost[i] > adopted) return engine->lost[i];
    return 0;
}

static void end_lost(struct engine *engine, struct op *op) {
    uint64_t epoch = op->reduce.retry ? 0 : engine_first_loss(engine, op->adopted);
    op->outcome.epoch = epoch != 0 ? epoch : engine->epoch;
    op_end(engine, op, ENGINE_LOST);
}

static void begin(struct engine *engine, struct op *op) {
    bool named = op->whole != NULL ? segments_name(engine, op) : counter_take(engine, op->reduce.tag, &op->name.sequence);
    if (!named) {
        op_end(engine, op, ENGINE_NO_MEMORY);
        return;
    }
    if (engine->counter_count > TAG_COUNTERS_MAX && !engine->roll_asked) engine_wake(engine);
    op->name.epoch = engine->epoch;
    op->name.tag = op->reduce.tag;
    op->contributors = engine->count;
    if (op->reduce.tell && op->roster != engine->roster) {
        roster_put(op->roster);
        op->roster = engine->roster;
        op->roster->references++;
    }
    op->accused = op->mismatched = false;
    op->path = plan_choose(op->bytes, op->reduce.fingerprint.algorithm != 0, engine->count, engine->latency_us, engine->megabytes_per_s);
    if (engine->count < 2) {
        end_lost(engine, op); // alone: only a loss leads here
        return;
    }
    if (op->path != PLAN_SMALL && op->backup.bytes == NULL && !backup_begin(engine, op)) {
        op_end(engine, op, ENGINE_NO_MEMORY);
        return;
    }
    compare_early(engine, op);
    if (op->path == PLAN_SMALL) {
        if (op->restart) backup_restore(op); // it was large among more members
        op->restart = false;
        op->phase = OP_RUNNING;
        small_begin(engine, op);
        return;
    }
    op->phase = OP_QUEUED;
    struct op **last = &engine->posted;
    while (*last != NULL) last = &(*last)->next;
    op->next = NULL;
    *last = op;
    engine_wake(engine);
}

static bool may_begin(const struct engine *engine) { return engine->ready && engine->pending == NULL; }

static void wait_for_links(struct engine *engine, struct op *op) {
    op->phase = OP_WAITING;
    op->next = NULL;
    struct op **last = &engine->waiting;
    while (*last != NULL) last = &(*last)->next;
    *last = op;
}

void engine_begin(struct engine *engine, struct op *op) {
    if (may_begin(engine))
        begin(engine, op);
    else
        wait_for_links(engine, op);
}

static void begin_waiting(struct engine *engine) {
    while (engine->waiting != NULL && may_begin(engine)) {
        struct op *op = engine->waiting;
        engine->waiting = op->next;
        begin(engine, op);
    }
}

static void list_remove(struct op **list, struct op *op) {
    while (*list != NULL && *list != op) list = &(*list)->next;
    if (*list != NULL) *list = op->next;
}

// Whichever came first for those that had begun the op: `loss`, the first since the caller's epoch (0: none), or the mismatch.
static bool take_poison(struct engine *engine, struct op *op, uint64_t loss) {
    for (struct poison **at = &engine->poisons; *at != NULL; at = &(*at)->next) {
        struct poison *poison = *at;
        if (poison->tag != op->reduce.tag || (loss != 0 && loss <= poison->epoch)) continue;
        *at = poison->next;
        engine->poison_count--;
        memcpy(op->outcome.text, poison->text, sizeof op->outcome.text);
        free(poison);
        return true;
    }
    return false;
}

enum engine_result engine_post(struct engine *engine, const struct engine_reduce *reduce, uint64_t adopted) {
    enum engine_result result = ENGINE_OK;
    size_t element = dtype_size(reduce->fingerprint.dtype);
    uint32_t segments = reduce->retry ? plan_segments(reduce->fingerprint.count, element) : 1;
    pthread_mutex_lock(&engine->lock);
    struct op *op = NULL;
    if (engine->dead || engine->stopping)
        result = ENGINE_DEAD;
    else if (op_find(engine, reduce->tag) != NULL)
        result = ENGINE_TAG_LIVE;
    else if (engine->live + engine->extra >= WIRE_MAX_LIVE_OPS)
        result = ENGINE_TOO_MANY;
    else if ((op = op_new(engine, reduce->tag)) == NULL)
        result = ENGINE_NO_MEMORY;
    if (op != NULL) {
        op->reduce = *reduce;
        op->adopted = adopted;
        op->element = element;
        op->count = reduce->fingerprint.count;
        op->bytes = op->count * element;
        engine->live++;
        uint64_t loss = reduce->retry ? 0 : engine_first_loss(engine, adopted); // in retry mode it ends nothing
        if (take_poison(engine, op, loss))
            op_end(engine, op, ENGINE_MISMATCH);
        else if (loss != 0)
            end_lost(engine, op);
        else if (segments == 1)
            engine_begin(engine, op);
        else if (segments_new(op))
            segments_begin(engine, op);
        else
            op_end(engine, op, ENGINE_NO_MEMORY);
    }
    pthread_mutex_unlock(&engine->lock);
    return result;
}

// Lock held, but let go of: nobody else looks at an ended op, and putting a large input back takes its time.
static void restore(struct engine *engine, struct op *op) {
    bool needed = op->segments != NULL ? segments_must_restore(op) : op->outcome.result != ENGINE_OK && op->backup.count > 0;
    if (!needed) return;
    pthread_mutex_unlock(&engine->lock);
    if (op->segments != NULL)
        segments_restore(op);
    else
        backup_restore(op);
    pthread_mutex_lock(&engine->lock);
}

static void take_outcome(struct engine *engine, struct op *op, struct engine_outcome *out) {
    restore(engine, op);
    *out = op->outcome;
    if (out->result == ENGINE_OK && op->segments == NULL && op->reduce.retry) out->epoch = op->name.epoch;
    out->retry = op->reduce.retry;
    if (op->reduce.tell) out->contributors = segments_contributors(op);
    if (op->segments != NULL) segments_free(engine, op);
    backup_end(engine, op);
    engine->live--;
    op_free(engine, op);
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
    uint64_t wakes = engine->wakes;
    bool in_time = true;
    while (op->phase != OP_ENDED && wakes == engine->wakes && in_time) in_time = platform_cond_wait(&op->ended, &engine->lock, deadline_ns);
    if (op->phase != OP_ENDED) {
        out->result = ENGINE_IN_PROGRESS;
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

static void for_each_op(struct engine *engine, void (*act)(struct engine *, struct op *)) {
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct op *op = engine->table[i]; op != NULL; op = op->chain) act(engine, op);
}

static void wake_one(struct engine *engine, struct op *op) {
    (void)engine;
    pthread_cond_broadcast(&op->ended);
}

void engine_wake_waiters(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->wakes++;
    for_each_op(engine, wake_one);
    pthread_mutex_unlock(&engine->lock);
}

// ---- epochs ----

static void note_loss(struct engine *engine, uint64_t group_epoch) {
    if (engine->lost_count == LOST_EPOCHS_MAX) memmove(engine->lost, engine->lost + 1, --engine->lost_count * sizeof engine->lost[0]);
    engine->lost[engine->lost_count++] = group_epoch;
}

void engine_missed_loss(struct engine *engine, uint64_t group_epoch) {
    pthread_mutex_lock(&engine->lock);
    note_loss(engine, group_epoch);
    pthread_mutex_unlock(&engine->lock);
}

void engine_enter_epoch(struct engine *engine, const struct engine_epoch *epoch) {
    struct pending_epoch *pending = calloc(1, sizeof *pending + epoch->count * sizeof(struct peer *));
    pthread_mutex_lock(&engine->lock);
    bool complete = pending != NULL;
    for (uint32_t i = 0; complete && i < epoch->count; i++)
        if (i != epoch->rank) complete = (pending->members[i] = peer_get(engine, &epoch->members[i].id)) != NULL;
    if (!complete) {
        // Without the memory for its own membership this peer cannot go on; it ends alone, and the others by its loss.
        free(pending);
        engine->dead = engine->killing = true;
        engine_wake(engine);
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    pending->run = epoch->run;
    pending->generation = epoch->generation;
    pending->epoch = epoch->group_epoch;
    pending->latency_us = epoch->latency_us == 0 ? 1 : epoch->latency_us;
    pending->megabytes_per_s = epoch->megabytes_per_s == 0 ? 1 : epoch->megabytes_per_s;
    pending->rank = epoch->rank;
    pending->count = epoch->count;
    pending->lost = epoch->lost || (engine->pending != NULL && engine->pending->lost);
    free(engine->pending);
    engine->pending = pending;
    engine->ready = false;
    if (epoch->lost) note_loss(engine, epoch->group_epoch);
    engine_wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

static void links_are_ready(struct engine *engine) {
    struct wire_op head = {0};
    struct block *offer = block_new(engine, MEMORY_OFFER_BYTES);
    if (offer != NULL) memory_offer(offer->bytes);
    for (uint32_t i = 0; offer != NULL && i < engine->count; i++)
        if (engine->members[i] != NULL) signal_send(engine, engine->members[i], WIRE_MEMORY, &head, offer);
    block_put(engine, offer);
    small_send_supplies(engine);
    begin_waiting(engine);
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

static void freeze(struct engine *engine, struct op *op) {
    bool begun = op->phase == OP_QUEUED || op->phase == OP_RUNNING || op->phase == OP_COMPLETE;
    if (begun && op->mismatched) {
        op_end(engine, op, ENGINE_MISMATCH);
    } else if (op->phase == OP_QUEUED) {
        // Nobody has heard of it: it simply begins later.
        wait_for_links(engine, op);
    } else if (op->phase == OP_RUNNING || op->phase == OP_COMPLETE) {
        op->frozen = true;
        small_release(engine, op);
        ring_release(op);
        sharded_release(engine, op);
    }
}

static void end_if_lost(struct engine *engine, struct op *op) {
    if (op->phase != OP_WAITING || op->reduce.retry || engine_first_loss(engine, op->adopted) == 0) return;
    list_remove(&engine->waiting, op);
    end_lost(engine, op);
}

static void report_add(struct wire_report *report, const struct wire_op_name *name, enum wire_op_state state, bool small) {
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
                report_add(report, &op->name, op->phase == OP_COMPLETE ? WIRE_OP_DONE : WIRE_OP_OPEN, op->path == PLAN_SMALL);
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct kept *kept = engine->kept[i]; kept != NULL; kept = kept->next) report_add(report, &kept->name, WIRE_OP_KEPT, true);
    return true;
}

static void let_go_of_all(struct engine *engine) {
    for (size_t i = 0; i < engine->lane_count; i++) {
        lane_let_go(engine->lanes[i]);
        lane_heat(engine->lanes[i]);
    }
    engine->running = NULL;
    engine->posted = NULL;
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
    for (uint32_t i = 0; i < pending->count; i++) roster->ids[i] = pending->members[i] == NULL ? engine->self : pending->members[i]->id;
    return roster;
}

// Thread, lock held. The report to make, if any.
static bool enter_pending(struct engine *engine, struct wire_report *report) {
    struct pending_epoch *pending = engine->pending;
    let_go_of_all(engine);
    for_each_op(engine, freeze);
    begin_wholes(engine);
    early_clear(engine);
    counters_clear(engine);
    for (struct peer *peer = engine->peers; peer != NULL; peer = peer->next) {
        peer->rank = UINT32_MAX;
        peer->eager_bytes = 0;
        peer->memory = 0;
    }
    struct peer **members = calloc(pending->count, sizeof *members);
    struct roster *roster = roster_new(engine, pending);
    if (members == NULL || roster == NULL || !build_report(engine, report)) {
        free(members);
        roster_put(roster);
        engine->dead = engine->killing = true;
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
    for_each_op(engine, end_if_lost);
    sync_members_changed(engine);
    free_dropped_peers(engine);
    if (engine->ready) links_are_ready(engine);
    return true;
}

// ---- verdicts ----
void engine_forget(struct engine *engine, struct op *op) {
    if (op->phase == OP_WAITING) list_remove(&engine->waiting, op);
}

// Ends an op that was found to differ: now, or when the epoch that follows freezes it.
static void end_mismatched(struct engine *engine, struct op *op) {
    bool waiting = op->phase == OP_WAITING;
    engine_forget(engine, op);
    if (waiting || op->frozen)
        op_end(engine, op, ENGINE_MISMATCH);
    else
        op->mismatched = true;
}

static void end_call_mismatched(struct engine *engine, struct op *op) {
    if (op->segments != NULL)
        segments_for_each(engine, op, end_mismatched);
    else
        end_mismatched(engine, op);
}

static void redo(struct engine *engine, struct op *op) {
    // The others have begun this call in a later epoch only, under the name that was found to be mismatched.
    struct op *call = op->whole != NULL ? op->whole : op;
    if (take_poison(engine, call, 0)) {
        end_call_mismatched(engine, call);
        return;
    }
    op->frozen = false;
    op->restart = true;
    engine_begin(engine, op);
}

// Whether a verdict of a mismatch means this op, or one that it would be once it is begun.
static bool is_meant(const struct engine *engine, const struct op *op, const struct wire_op_name *name) {
    if (op->segments != NULL) return segments_are_meant(op, name);
    if (op->phase == OP_WAITING) {
        // It is the call that was mismatched, unless the others have lost that one before and made it again.
        uint64_t loss = op->reduce.retry ? 0 : engine_first_loss(engine, op->adopted);
        return loss == 0 || loss > name->epoch;
    }
    bool begun = op->phase == OP_QUEUED || op->phase == OP_RUNNING || op->phase == OP_COMPLETE;
    return begun && op->name.epoch == name->epoch && op->name.sequence == name->sequence;
}

// The verdict comes before the epoch that freezes the op. A member that has not begun this op yet must hear of it before that
// epoch too: what it begins afterwards would meet what the others launch next under this tag.
static void mismatch(struct engine *engine, const struct wire_verdict *verdict) {
    char text[WIRE_MAX_TEXT + 1] = {0};
    memcpy(text, verdict->text.chars, verdict->text.length <= WIRE_MAX_TEXT ? verdict->text.length : WIRE_MAX_TEXT);
    struct op *op = op_find(engine, verdict->name.tag);
    if (op != NULL && is_meant(engine, op, &verdict->name)) {
        memcpy(op->outcome.text, text, sizeof text);
        end_call_mismatched(engine, op);
        return;
    }
    struct poison *poison = engine->poison_count >= POISONS_MAX ? NULL : calloc(1, sizeof *poison);
    if (poison == NULL) return;
    poison->tag = verdict->name.tag;
    poison->epoch = verdict->name.epoch;
    memcpy(poison->text, text, sizeof text);
    struct poison **last = &engine->poisons; // in the order in which the others ended their calls
    while (*last != NULL) last = &(*last)->next;
    *last = poison;
    engine->poison_count++;
}

void engine_verdict(struct engine *engine, const struct wire_verdict *verdict) {
    static const struct wire_id nobody;
    pthread_mutex_lock(&engine->lock);
    struct op *op = op_find_named(engine, &verdict->name), *seen;
    switch (verdict->kind) {
    case WIRE_VERDICT_COMMIT:
        if (!wire_id_equal(&verdict->supplier, &nobody))
            small_supply(engine, verdict);
        else if (op != NULL && op->phase == OP_COMPLETE)
            op_end(engine, op, ENGINE_OK);
        break;
    case WIRE_VERDICT_ABORT:
        if (op == NULL || !op->frozen) break;
        if (op->reduce.retry)
            redo(engine, op);
        else if (take_poison(engine, op, engine_first_loss(engine, op->adopted)))
            op_end(engine, op, ENGINE_MISMATCH); // as for those that had begun this call under a later name, before the loss
        else
            end_lost(engine, op);
        break;
    case WIRE_VERDICT_REDO:
        if (op != NULL && op->frozen) redo(engine, op);
        break;
    case WIRE_VERDICT_MISMATCH:
        mismatch(engine, verdict);
        break;
    case WIRE_VERDICT_WHOLE:
        seen = op_find(engine, verdict->name.tag);
        if (seen != NULL && seen->segments != NULL) segments_turn_whole(seen, &verdict->name);
        break;
    default:
        break;
    }
    pthread_mutex_unlock(&engine->lock);
}

void engine_complete(struct engine *engine, struct op *op) {
    struct wire_op_name name = op->name;
    list_remove(&engine->running, op);
    pthread_mutex_lock(&engine->lock);
    bool done = op->phase == OP_RUNNING && !op->accused;
    if (done) op->phase = OP_COMPLETE;
    pthread_mutex_unlock(&engine->lock);
    if (done) engine->callbacks.done(engine->callbacks.context, &name);
}

// ---- the thread ----
static bool poll_arriving(struct engine *engine) {
    while (engine->arriving != NULL) {
        struct lane *lane = engine->arriving;
        engine->arriving = lane->next;
        if (engine->lane_count == engine->lane_room) {
            size_t room = engine->lane_room == 0 ? 16 : engine->lane_room * 2;
            struct lane **lanes = realloc(engine->lanes, room * sizeof *lanes);
            if (lanes != NULL) engine->lanes = lanes;
            struct lane **hot = realloc(engine->hot, room * sizeof *hot);
            if (hot != NULL) engine->hot = hot;
            if (lanes == NULL || hot == NULL) return false;
            engine->lane_room = room;
        }
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = lane};
        if (epoll_ctl(engine->epoll, EPOLL_CTL_ADD, lane->fd, &event) != 0) return false;
        lane->polled = true;
        engine->lanes[engine->lane_count++] = lane;
        lane_heat(lane);
        sync_lane_came(lane);
    }
    return true;
}

static void end_dead(struct engine *engine, struct op *op) {
    if (op->phase != OP_ENDED) op_end(engine, op, ENGINE_DEAD);
}

// Before callers get their memory back: neighbours may be reading it, and believe what they read while the link stands.
static void hang_up(struct engine *engine) {
    for (size_t i = 0; i < engine->lane_count; i++) shutdown(engine->lanes[i]->fd, SHUT_RDWR);
}

static void end_all(struct engine *engine) {
    engine->waiting = engine->posted = engine->running = NULL;
    for_each_op(engine, end_dead);
}

static void begin_posted(struct engine *engine) {
    for (;;) {
        pthread_mutex_lock(&engine->lock);
        struct op *op = engine->posted;
        if (op != NULL) {
            engine->posted = op->next;
            op->phase = OP_RUNNING;
        }
        pthread_mutex_unlock(&engine->lock);
        if (op == NULL) return;
        if (op->restart) backup_restore(op);
        op->restart = false;
        struct op **last = &engine->running;
        while (*last != NULL) last = &(*last)->next;
        op->next = NULL;
        *last = op;
        if (op->path == PLAN_RING) {
            ring_begin(engine, op);
        } else if (!sharded_begin(engine, op)) {
            pthread_mutex_lock(&engine->lock);
            list_remove(&engine->running, op);
            op_end(engine, op, ENGINE_NO_MEMORY);
            pthread_mutex_unlock(&engine->lock);
        }
    }
}

static void report_accusations(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    struct accusation *accusations = engine->accusations;
    engine->accusations = NULL;
    bool roll = engine->counter_count > TAG_COUNTERS_MAX && !engine->roll_asked;
    engine->roll_asked |= roll;
    pthread_mutex_unlock(&engine->lock);
    while (accusations != NULL) {
        struct accusation *accusation = accusations;
        accusations = accusation->next;
        engine->callbacks.mismatch(engine->callbacks.context, &accusation->mismatch);
        free(accusation);
    }
    if (roll) engine->callbacks.link_down(engine->callbacks.context, &engine->self, 0, false);
}

// What others have asked of the thread. False: it is to end.
static bool obey(struct engine *engine) {
    struct wire_report report = {0};
    bool entered = false;
    uint64_t epoch = 0;
    pthread_mutex_lock(&engine->lock);
    engine->wake_pending = false;
    bool go_on = !engine->stopping;
    if (!poll_arriving(engine)) engine->dead = engine->killing = true;
    if (engine->pending != NULL && !engine->dead) {
        entered = enter_pending(engine, &report);
        epoch = engine->epoch;
    }
    if (engine->killing || !go_on) {
        engine->killing = false;
        let_go_of_all(engine);
        hang_up(engine);
        end_all(engine);
    }
    sync_obey(engine);
    if (!go_on) sync_stop(engine);
    pthread_mutex_unlock(&engine->lock);
    if (entered) engine->callbacks.frozen(engine->callbacks.context, epoch, &report);
    free(report.ops);
    if (go_on) {
        report_accusations(engine);
        begin_posted(engine);
    }
    return go_on;
}

static bool step_hot_lanes(struct engine *engine) {
    for (size_t i = 0; i < engine->hot_count;) {
        struct lane *lane = engine->hot[i];
        if (lane_step(lane)) {
            i++;
        } else {
            lane->hot = false;
            engine->hot[i] = engine->hot[--engine->hot_count];
        }
    }
    return engine->hot_count > 0;
}

static void free_broken_lanes(struct engine *engine) {
    for (size_t i = 0; i < engine->lane_count;) {
        struct lane *lane = engine->lanes[i];
        if (!lane->broken) {
            i++;
            continue;
        }
        pthread_mutex_lock(&engine->lock);
        lane->peer->lane_count--;
        lane_free(lane);
        engine->lanes[i] = engine->lanes[--engine->lane_count];
        free_dropped_peers(engine);
        pthread_mutex_unlock(&engine->lock);
    }
}

static void *run(void *argument) {
    struct engine *engine = argument;
    struct epoll_event events[EVENTS];
    bool woken = true, busy = false;
    kernels_enter();
    for (;;) {
        if (woken && !obey(engine)) return NULL;
        sync_step(engine);
        silence_check(engine);
        busy = step_hot_lanes(engine);
        free_broken_lanes(engine);
        int count = epoll_wait(engine->epoll, events, EVENTS, busy ? 0 : silence_timeout_ms(engine, sync_timeout_ms(engine)));
        woken = false;
        for (int i = 0; i < count; i++) {
            struct lane *lane = events[i].data.ptr;
            if (lane == NULL) {
                wake_clear(engine->wake);
                woken = true;
                continue;
            }
            if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->readable = true;
            if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->ending = true;
            if (events[i].events & EPOLLOUT) {
                pthread_mutex_lock(&engine->lock);
                lane->writable = true;
                pthread_mutex_unlock(&engine->lock);
            }
            lane_heat(lane);
        }
    }
}

// ---- life ----
struct engine *engine_new(const struct wire_id *self, const struct engine_callbacks *callbacks) {
    struct engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) return NULL;
    engine->self = *self;
    engine->callbacks = *callbacks;
    pthread_mutex_init(&engine->lock, NULL);
    platform_cond_init(&engine->no_waiters);
    platform_cond_init(&engine->settled);
    platform_cond_init(&engine->sync_let_go);
    engine->epoll = epoll_create1(EPOLL_CLOEXEC);
    engine->wake = wake_open();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    bool made = engine->epoll >= 0 && engine->wake >= 0 && epoll_ctl(engine->epoll, EPOLL_CTL_ADD, engine->wake, &event) == 0;
    engine->started = made && platform_thread_start(&engine->thread, "pccl:data", run, engine);
    if (engine->started) return engine;
    engine_free(engine);
    return NULL;
}

void engine_kill(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->dead = engine->killing = true;
    pthread_cond_broadcast(&engine->settled);
    engine_wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

void engine_settle(struct engine *engine, int64_t deadline_ns) {
    pthread_mutex_lock(&engine->lock);
    if (may_begin(engine)) small_settle(engine);
    while (engine->kept_count > 0 && engine->count > 1 && !engine->dead && !engine->stopping)
        if (!platform_cond_wait(&engine->settled, &engine->lock, deadline_ns)) break;
    pthread_mutex_unlock(&engine->lock);
}

void engine_stop(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    bool first = !engine->stopping;
    engine->stopping = true;
    engine_wake(engine);
    pthread_mutex_unlock(&engine->lock);
    if (first && engine->started) pthread_join(engine->thread, NULL);
    pthread_mutex_lock(&engine->lock);
    if (first) {
        engine->wakes++;
        end_all(engine);
        for (struct peer *peer = engine->peers; peer != NULL; peer = peer->next) memset(peer->lanes, 0, sizeof peer->lanes);
        for (size_t i = 0; i < engine->lane_count; i++) lane_free(engine->lanes[i]);
        engine->lane_count = engine->hot_count = 0;
        while (engine->arriving != NULL) {
            struct lane *lane = engine->arriving;
            engine->arriving = lane->next;
            lane_free(lane);
        }
    }
    while (engine->waiters > 0) pthread_cond_wait(&engine->no_waiters, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
}

static void free_op_list(struct op *op) {
    while (op != NULL) {
        struct op *next = op->chain;
        if (op->backup.bytes != NULL) munmap(op->backup.bytes, op->backup.capacity);
        free(op->backup.ranges);
        roster_put(op->roster);
        pthread_cond_destroy(&op->ended);
        free(op);
        op = next;
    }
}

void engine_free(struct engine *engine) {
    if (engine == NULL) return;
    engine_stop(engine);
    early_clear(engine);
    kept_clear(engine);
    counters_clear(engine);
    for (size_t i = 0; i < TABLE_SLOTS; i++) {
        // An op that nobody took: its in-place input is put back, as after any error. Segments lie in the slot of their whole.
        for (struct op *op = engine->table[i]; op != NULL; op = op->chain)
            if (op->outcome.result != ENGINE_OK) backup_restore(op);
        for (struct op *op = engine->table[i]; op != NULL; op = op->chain)
            if (op->segments != NULL) segments_free(engine, op);
        free_op_list(engine->table[i]);
    }
    free_op_list(engine->free_ops);
    for (int i = 0; i < BACKUP_CACHE_COUNT; i++) {
        if (engine->backup_cache[i].bytes != NULL) munmap(engine->backup_cache[i].bytes, engine->backup_cache[i].capacity);
        free(engine->backup_cache[i].ranges);
    }
    while (engine->peers != NULL) {
        struct peer *peer = engine->peers;
        engine->peers = peer->next;
        free(peer);
    }
    while (engine->poisons != NULL) {
        struct poison *poison = engine->poisons;
        engine->poisons = poison->next;
        free(poison);
    }
    while (engine->accusations != NULL) {
        struct accusation *accusation = engine->accusations;
        engine->accusations = accusation->next;
        free(accusation);
    }
    while (engine->free_frames != NULL) {
        struct frame *frame = engine->free_frames;
        engine->free_frames = frame->next;
        free(frame);
    }
    for (size_t i = 0; i < sizeof engine->block_cache / sizeof engine->block_cache[0]; i++)
        while (engine->block_cache[i] != NULL) {
            struct block *block = engine->block_cache[i];
            engine->block_cache[i] = block->next;
            free(block);
        }
    free(engine->pending);
    free(engine->members);
    roster_put(engine->roster);
    free(engine->lanes);
    free(engine->hot);
    free(engine->wide);
    free(engine->wide_input);
    if (engine->epoll >= 0) close(engine->epoll);
    if (engine->wake >= 0) close(engine->wake);
    pthread_cond_destroy(&engine->no_waiters);
    pthread_cond_destroy(&engine->settled);
    pthread_cond_destroy(&engine->sync_let_go);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}
