#define _GNU_SOURCE
#include "peer/share.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/detail.h"
#include "base/log.h"
#include "base/platform.h"
#include "compute/kernels.h"
#include "peer/master_link.h"
#include "peer/ticket.h"
#include "state/content.h"
#include "state/unfinished.h"

// Guarded by the communicator's lock.
struct share {
    struct content *content;        // of the open round; belongs to the caller inside, or to nobody
    const pcclSharedState_t *state; // likewise; its names are told in errors
    bool voted;                     // the state is hashed, the engine takes part
    int strategy;
    uint64_t revision, tx_bytes;
    int64_t began_at, hashed_at, planned_at; // 0 = not yet
    bool restarting;                         // the control thread is at it; nobody ends the round meanwhile
    struct sync_report before;               // what moved before it began again
    char text[WIRE_MAX_TEXT + 1];            // of SYNC_END
    struct share_report report;              // when it is over
};

static void add_report(struct sync_report *sum, const struct sync_report *part) {
    sum->wrote |= part->wrote;
    sum->rx_bytes += part->rx_bytes;
    sum->rx_leaves += part->rx_leaves;
    sum->wire_bytes += part->wire_bytes;
    sum->donors += part->donors;
}

// `end` is when the round is over, or now.
static struct share_report report_of(const struct share *share, const struct sync_report *moved, int64_t end) {
    int64_t hashed = share->hashed_at != 0 ? share->hashed_at : end;
    return (struct share_report){
        .moved = *moved,
        .tx_bytes = share->tx_bytes,
        .seconds = (double)(end - share->began_at) * 1e-9,
        .hash_seconds = (double)(hashed - share->began_at) * 1e-9,
        .transfer_seconds = share->planned_at == 0 ? 0 : (double)(end - share->planned_at) * 1e-9,
        .hashing = share->hashed_at == 0,
    };
}

void share_look(struct communicator *c, struct share_report *out) {
    communicator_begin(c);
    *out = c->share->report;
    if (c->share->content != NULL) {
        struct sync_report live;
        sync_look(c->engine, &live);
        add_report(&live, &c->share->before);
        *out = report_of(c->share, &live, platform_now_ns());
    }
    communicator_finish(c, pcclSuccess);
}

// Ends the caller's part of the round.
static pcclResult_t drop(struct communicator *c, pcclResult_t code) {
    content_free(c->share->content);
    c->share->content = NULL;
    return code;
}

// The state is hashed: tells the engine and the master.
static pcclResult_t vote(struct communicator *c) {
    pcclResult_t code = communicator_check_usable(c);
    if (code != pcclSuccess) return drop(c, code);
    const struct content *content = c->share->content;
    struct wire_sync_vote vote = {
        .strategy = (uint8_t)c->share->strategy,
        .incomplete = unfinished_has(&content->layout),
        .revision = c->share->revision,
        .mask = content->mask,
        .content = content->hash,
        .outline = content->outline,
    };
    if (vote.incomplete)
        LOG(LOG_WARN,
            "shared state: a transfer into this memory was cut short: it can only receive until a sync has succeeded");
    // Before the vote is sent: the plan may be here at once.
    if (!sync_begin(c->engine, c->share->content, (int64_t)member_welcome(c->core)->heartbeat_limit_ms * MS_NS))
        return drop(c, detail_fail(pcclInternalError, "the system refused memory for a round of shared state"));
    c->share->voted = true;
    c->share->hashed_at = platform_now_ns();
    struct member_output out = {0};
    member_sync(c->core, &vote, &out);
    pthread_mutex_unlock(&c->lock);
    master_link_send(c->master, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&c->lock);
    return pcclSuccess;
}

static pcclResult_t hash_and_vote(struct communicator *c, int64_t deadline) {
    struct content *content = c->share->content;
    if (c->share->voted) return pcclSuccess;
    pthread_mutex_unlock(&c->lock);
    bool hashed = content_hash(content, deadline);
    pthread_mutex_lock(&c->lock);
    if (!hashed) return detail_fail(pcclTimedOut, "the state is still being hashed here");
    if (content_error(content) != NULL)
        return drop(
            c, detail_fail(pcclInternalError, "the tensors of the state cannot be read: %s", content_error(content)));
    return vote(c);
}

// Not locked. Afterwards no tensor is touched any more, and the process knows what they hold.
static void end_transfers(struct communicator *c, bool success, struct sync_report *report) {
    sync_end(c->engine, report);
    add_report(report, &c->share->before);
    if (success)
        unfinished_remove(&c->share->content->layout);
    else if (report->wrote)
        unfinished_add(&c->share->content->layout);
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

static pcclResult_t collect(struct communicator *c, uint64_t *revision) {
    const pcclSharedState_t *state = c->share->state;
    struct sync_report report;
    while (c->share->restarting) platform_cond_wait(&c->changed, &c->lock, INT64_MAX);
    bool success = c->ticket.done && c->ticket.code == pcclSuccess;
    pthread_mutex_unlock(&c->lock);
    end_transfers(c, success, &report);
    pthread_mutex_lock(&c->lock);
    c->share->report = report_of(c->share, &report, platform_now_ns());
    const char *read_only = report.read_only == NULL ? NULL : state->infos[report.read_only->info].name;
    drop(c, pcclSuccess);
    if (success) {
        *revision = c->ticket.value;
        return pcclSuccess;
    }
    if (!c->ticket.done)
        return detail_fail(pcclMasterConnectionFailed,
                           "the communicator was destroyed while it waited in sync_shared_state");
    bool ended = c->ticket.code == pcclNoSharedStateAvailable; // the round, for all; this peer may have died after it
    if (c->phase == COMMUNICATOR_DEAD && !ended && read_only != NULL)
        return detail_fail(c->ticket.code, "the communicator died in sync_shared_state: %s (entry \"%s\")", c->reason,
                           read_only);
    if (c->phase == COMMUNICATOR_DEAD && !ended) {
        char entries[300];
        const struct wire_sync_differs *differs =
            c->ticket.code == pcclInvalidUsage ? member_sync_differs(c->core) : NULL;
        return detail_fail(c->ticket.code, "the communicator died in sync_shared_state: %s%s", c->reason,
                           name_difference(entries, sizeof entries, state, differs));
    }
    return detail_fail(c->ticket.code, "no shared state is available: %s", c->share->text);
}

static const struct ticket_type sync_type = {.name = "sync_shared_state", .prepare = hash_and_vote, .collect = collect};

static pcclResult_t take_up(struct communicator *c, const pcclSharedState_t *state, const bool *read_only, int strategy,
                            uint64_t *ticket) {
    struct share *share = c->share;
    if (share->strategy != strategy || share->revision != state->revision ||
        !content_is_of(share->content, state, read_only))
        return detail_fail(pcclInvalidUsage,
                           "sync_shared_state of another state or revision has not ended: call it again as before");
    share->state = state;
    return ticket_begun(c, pcclSuccess, ticket);
}

static pcclResult_t make_content(struct communicator *c, const bool *read_only) {
    const pcclSharedState_t *state = c->share->state;
    pthread_mutex_unlock(&c->lock);
    struct content *content = NULL;
    pcclResult_t code = content_new(state, read_only, &content);
    pthread_mutex_lock(&c->lock);
    c->share->content = content;
    return code;
}

static pcclResult_t begin(struct communicator *c, const pcclSharedState_t *state, const bool *read_only, int strategy,
                          uint64_t *ticket) {
    if (ticket_is_left(c, &sync_type)) return take_up(c, state, read_only, strategy, ticket);
    RETURN_IF_FAILED(communicator_check_usable(c));
    RETURN_IF_FAILED(ticket_check_none(c));
    RETURN_IF_FAILED(communicator_check_no_ops(c));
    ticket_open(c, &sync_type);
    *c->share = (struct share){
        .state = state, .strategy = strategy, .revision = state->revision, .began_at = platform_now_ns()};
    return ticket_begun(c, make_content(c, read_only), ticket);
}

pcclResult_t share_begin(struct communicator *c, const pcclSharedState_t *state, const bool *read_only, int strategy,
                         uint64_t *ticket) {
    communicator_begin(c);
    return communicator_finish(c, begin(c, state, read_only, strategy, ticket));
}

bool share_is_left(struct communicator *c) {
    communicator_begin(c);
    bool left = ticket_is_left(c, &sync_type);
    communicator_finish(c, pcclSuccess);
    return left;
}

// ---- control thread ----

void share_planned(struct communicator *c, const struct wire_sync_plan *plan, int64_t now) {
    pthread_mutex_lock(&c->lock);
    c->share->planned_at = now;
    pthread_mutex_unlock(&c->lock);
    sync_plan(c->engine, plan);
}

void share_ended(struct communicator *c, const struct wire_sync_end *end) {
    communicator_assert_locked(c);
    sync_over(c->engine);
    c->share->tx_bytes = end->tx_bytes;
    snprintf(c->share->text, sizeof c->share->text, "%.*s", (int)end->text.length, end->text.chars);
}

bool share_restart(struct communicator *c, enum member_tensors *tensors, struct wire_hash *content) {
    struct share *share = c->share;
    pthread_mutex_lock(&c->lock);
    bool open = share->content != NULL && share->voted && !c->ticket.done && !c->closing;
    share->restarting = open;
    pthread_mutex_unlock(&c->lock);
    *tensors = MEMBER_TENSORS_AS_VOTED;
    if (!open) return true;
    struct sync_report report = {0};
    bool torn = false, goes_on = sync_restart(c->engine, &report, &torn);
    pthread_mutex_lock(&c->lock);
    share->restarting = false;
    share->planned_at = 0;
    add_report(&share->before, &report);
    *content = share->content->hash;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (report.wrote) *tensors = torn ? MEMBER_TENSORS_TORN : MEMBER_TENSORS_RECEIVED;
    return goes_on;
}

struct share *share_new(void) { return calloc(1, sizeof(struct share)); }

void share_free(struct communicator *c) {
    struct sync_report report;
    if (c->share == NULL) return;
    if (c->engine != NULL && c->share->content != NULL) end_transfers(c, false, &report);
    content_free(c->share->content);
    free(c->share);
}
