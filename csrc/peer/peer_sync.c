// Rounds of shared state: hashing, voting and the end, on the caller's thread; what the master says meanwhile, on the
// control thread.
#define _GNU_SOURCE
#include "peer/peer_private.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "compute/kernels.h"
#include "state/unfinished.h"

static void add_report(struct sync_report *sum, const struct sync_report *part) {
    sum->wrote |= part->wrote;
    sum->rx_bytes += part->rx_bytes;
    sum->rx_leaves += part->rx_leaves;
    sum->wire_bytes += part->wire_bytes;
    sum->donors += part->donors;
}

// `end` is when the round is over, or now.
static void fill_sync_report(const struct peer *p, const struct sync_report *from, int64_t end,
                             struct peer_sync_report *out) {
    int64_t hashed = p->sync.hashed_at != 0 ? p->sync.hashed_at : end;
    *out = (struct peer_sync_report){
        .rx_bytes = from->rx_bytes,
        .rx_leaves = from->rx_leaves,
        .wire_bytes = from->wire_bytes,
        .missing_bytes = from->missing_bytes,
        .donors = from->donors,
        .tx_bytes = p->sync.tx_bytes,
        .seconds = (double)(end - p->sync.began_at) * 1e-9,
        .hash_seconds = (double)(hashed - p->sync.began_at) * 1e-9,
        .transfer_seconds = p->sync.planned_at == 0 ? 0 : (double)(end - p->sync.planned_at) * 1e-9,
        .hashing = p->sync.hashed_at == 0,
    };
}

void peer_sync_look(struct peer *p, struct peer_sync_report *out) {
    peer_begin(p);
    *out = p->sync.report;
    if (p->vote.kind == WIRE_VOTE_SYNC && p->sync.content != NULL) {
        struct sync_report live;
        sync_look(p->engine, &live);
        add_report(&live, &p->sync.before);
        fill_sync_report(p, &live, platform_now_ns(), out);
    }
    peer_finish(p, pcclSuccess);
}

bool peer_sync_waits(struct peer *p) {
    peer_begin(p);
    bool waits = p->vote.kind == WIRE_VOTE_SYNC && !p->vote.waiter;
    peer_finish(p, pcclSuccess);
    return waits;
}

// The caller's own round is over without an answer of the master.
static pcclResult_t drop_sync(struct peer *p, pcclResult_t code) {
    content_free(p->sync.content);
    p->sync.content = NULL;
    p->vote.kind = 0;
    return code;
}

static pcclResult_t begin_sync(struct peer *p, const pcclSharedState_t *state, const bool *read_only, int strategy) {
    RETURN_IF_FAILED(peer_check_usable(p));
    RETURN_IF_FAILED(peer_check_vote(p));
    RETURN_IF_FAILED(peer_check_ops(p));
    memset(&p->vote, 0, sizeof p->vote);
    p->waits_why[0] = 0;
    p->vote.kind = WIRE_VOTE_SYNC;
    p->vote.waiter = true;
    memset(&p->sync, 0, sizeof p->sync);
    p->sync.strategy = strategy;
    p->sync.revision = state->revision;
    p->sync.began_at = platform_now_ns();
    pthread_mutex_unlock(&p->lock);
    struct content *content = content_new(state, read_only);
    pthread_mutex_lock(&p->lock);
    p->sync.content = content;
    if (content == NULL)
        return drop_sync(
            p, detail_fail(pcclInternalError, "the system refused memory for the hashes of %zu entries", state->count));
    return pcclSuccess;
}

static pcclResult_t resume_sync(struct peer *p, const pcclSharedState_t *state, int strategy) {
    bool same = p->sync.content != NULL && p->sync.strategy == strategy && p->sync.revision == state->revision &&
                content_is_of(p->sync.content, state);
    if (!same)
        return detail_fail(pcclInvalidUsage,
                           "sync_shared_state of another state or revision has not ended: call it again as before");
    p->vote.waiter = true;
    return pcclSuccess;
}

// The state is hashed: tells the engine and the master.
static pcclResult_t vote_sync(struct peer *p) {
    pcclResult_t code = peer_check_usable(p);
    if (code != pcclSuccess) return drop_sync(p, code);
    const struct content *content = p->sync.content;
    struct wire_sync_vote vote = {
        .strategy = (uint8_t)p->sync.strategy,
        .incomplete = unfinished_has(&content->layout),
        .revision = p->sync.revision,
        .mask = content->mask,
        .content = content->hash,
        .outline = content->outline,
    };
    if (vote.incomplete)
        LOG(LOG_WARN,
            "shared state: a transfer into this memory was cut short: it can only receive until a sync has succeeded");
    // Before the vote is sent: the plan may be here at once.
    if (!sync_begin(p->engine, p->sync.content, (int64_t)member_welcome(p->member)->heartbeat_limit_ms * MS_NS))
        return drop_sync(p, detail_fail(pcclInternalError, "the system refused memory for a round of shared state"));
    p->sync.voted = true;
    p->sync.hashed_at = platform_now_ns();
    struct member_output out = {0};
    member_sync(p->member, &vote, &out);
    pthread_mutex_unlock(&p->lock);
    peer_send(p, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&p->lock);
    return pcclSuccess;
}

static pcclResult_t hash_sync(struct peer *p, int64_t deadline) {
    struct content *content = p->sync.content;
    pthread_mutex_unlock(&p->lock);
    bool hashed = content_hash(content, deadline);
    pthread_mutex_lock(&p->lock);
    return hashed ? vote_sync(p) : detail_fail(pcclTimedOut, "the state is still being hashed here");
}

// Not locked. Afterwards no tensor is touched any more, and the process knows what they hold.
static void end_sync(struct peer *p, bool success, struct sync_report *report) {
    sync_end(p->engine, report);
    add_report(report, &p->sync.before);
    if (success)
        unfinished_remove(&p->sync.content->layout);
    else if (report->wrote)
        unfinished_add(&p->sync.content->layout);
}

// The entries that the master has numbered, by name; "" if it has not.
static const char *name_difference(char *out, size_t capacity, const pcclSharedState_t *state,
                                   const struct wire_sync_differs *differs) {
    out[0] = 0;
    if (differs == NULL || differs->last > state->count) return out;
    const pcclTensorInfo_t *first = &state->infos[differs->first];
    size_t last = differs->last;
    int length;
    if (differs->first == state->count)
        length = snprintf(out, capacity, ": it is missing here, after \"%.100s\"", first[-1].name);
    else if (differs->first == last)
        length =
            snprintf(out, capacity, ": \"%.100s\" (%s, count %zu%s)", first->name, dtype_name((int)first->datatype),
                     first->count, first->allow_content_inequality ? ", allow_content_inequality" : "");
    else if (last < state->count)
        length = snprintf(out, capacity, ": one of \"%.100s\" to \"%.100s\"", first->name, state->infos[last].name);
    else
        length = snprintf(out, capacity, ": one of \"%.100s\" to the last, or missing after it", first->name);
    snprintf(out + length, capacity - (size_t)length, "; give all members the same entries in the same order");
    return out;
}

static pcclResult_t collect_sync(struct peer *p, pcclSharedState_t *state, pcclSharedStateSyncInfo_t *info) {
    struct sync_report report;
    while (p->sync.restarting) platform_cond_wait(&p->changed, &p->lock, INT64_MAX);
    bool success = p->vote.done && p->vote.code == pcclSuccess;
    pthread_mutex_unlock(&p->lock);
    end_sync(p, success, &report);
    pthread_mutex_lock(&p->lock);
    fill_sync_report(p, &report, platform_now_ns(), &p->sync.report);
    const char *read_only = report.read_only == NULL ? NULL : state->infos[report.read_only->info].name;
    drop_sync(p, pcclSuccess);
    if (success) {
        state->revision = p->vote.value;
        if (info != NULL)
            *info = (pcclSharedStateSyncInfo_t){.tx_bytes = p->sync.tx_bytes, .rx_bytes = report.rx_bytes};
        return pcclSuccess;
    }
    if (!p->vote.done)
        return detail_fail(pcclMasterConnectionFailed,
                           "the communicator was destroyed while it waited in sync_shared_state");
    bool ended = p->vote.code == pcclNoSharedStateAvailable; // the round, for all; this peer may have died after it
    if (p->phase == PHASE_DEAD && !ended && read_only != NULL)
        return detail_fail(p->vote.code, "the communicator died in sync_shared_state: %s (entry \"%s\")", p->reason,
                           read_only);
    if (p->phase == PHASE_DEAD && !ended) {
        char entries[300];
        const struct wire_sync_differs *differs =
            p->vote.code == pcclInvalidUsage ? member_sync_differs(p->member) : NULL;
        return detail_fail(p->vote.code, "the communicator died in sync_shared_state: %s%s", p->reason,
                           name_difference(entries, sizeof entries, state, differs));
    }
    return detail_fail(p->vote.code, "no shared state is available: %s", p->sync.text);
}

static pcclResult_t sync_locked(struct peer *p, pcclSharedState_t *state, const bool *read_only, int strategy,
                                int64_t deadline, pcclSharedStateSyncInfo_t *info) {
    bool resumed = p->vote.kind == WIRE_VOTE_SYNC && !p->vote.waiter;
    RETURN_IF_FAILED(resumed ? resume_sync(p, state, strategy) : begin_sync(p, state, read_only, strategy));
    pcclResult_t code = pcclSuccess;
    if (!p->sync.voted) code = hash_sync(p, deadline);
    if (code == pcclSuccess)
        code = peer_wait_for(p, &p->vote.done, deadline) ? collect_sync(p, state, info) : peer_timed_out(p);
    p->vote.waiter = false;
    return code;
}

pcclResult_t peer_sync(struct peer *p, pcclSharedState_t *state, const bool *read_only, int strategy, int64_t deadline,
                       pcclSharedStateSyncInfo_t *out) {
    peer_begin(p);
    return peer_finish(p, sync_locked(p, state, read_only, strategy, deadline, out));
}

// ---- control thread ----

void peer_sync_planned(struct peer *p, const struct wire_sync_plan *plan, int64_t now) {
    pthread_mutex_lock(&p->lock);
    p->sync.planned_at = now;
    pthread_mutex_unlock(&p->lock);
    sync_plan(p->engine, plan);
}

void peer_sync_ended(struct peer *p, const struct wire_sync_end *end) {
    p->sync.tx_bytes = end->tx_bytes;
    snprintf(p->sync.text, sizeof p->sync.text, "%.*s", (int)end->text.length, end->text.chars);
}

enum member_tensors peer_sync_restart(struct peer *p, struct wire_hash *content) {
    pthread_mutex_lock(&p->lock);
    bool open = p->vote.kind == WIRE_VOTE_SYNC && p->sync.voted && !p->vote.done && !p->closing;
    p->sync.restarting = open;
    pthread_mutex_unlock(&p->lock);
    if (!open) return MEMBER_TENSORS_AS_VOTED;
    struct sync_report report = {0};
    bool torn = false, goes_on = sync_restart(p->engine, &report, &torn);
    pthread_mutex_lock(&p->lock);
    p->sync.restarting = false;
    p->sync.planned_at = 0;
    add_report(&p->sync.before, &report);
    *content = p->sync.content->hash;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (!goes_on) peer_engine_failed(p); // memory was refused
    return !report.wrote ? MEMBER_TENSORS_AS_VOTED : torn ? MEMBER_TENSORS_TORN : MEMBER_TENSORS_RECEIVED;
}

void peer_sync_discard(struct peer *p) {
    struct sync_report report;
    if (p->engine != NULL && p->sync.content != NULL) end_sync(p, false, &report);
    content_free(p->sync.content);
}
