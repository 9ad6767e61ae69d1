#define _GNU_SOURCE
#include "peer/communicator_private.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/detail.h"
#include "base/log.h"
#include "base/platform.h"
#include "compute/kernels.h"
#include "peer/master_link.h"
#include "state/content.h"
#include "state/precopy.h"

// Guarded by the communicator's lock.
struct shared_state {
    struct content *content;        // of the open round; belongs to the caller inside, or to nobody
    const pcclSharedState_t *state; // likewise; its names are told in errors
    bool voted;                     // the state is hashed, the engine takes part
    int strategy;
    uint64_t revision, tx_bytes;
    bool compares;                           // it had synced before, and offers its content of that revision
    int64_t began_at, hashed_at, planned_at; // 0 = not yet
    bool restarting;                         // the control thread is at it; nobody ends the round meanwhile
    struct sync_report before;               // what moved before it began again
    char text[WIRE_MAX_TEXT + 1];            // of SYNC_END
    struct shared_state_report report;       // when it is over
};

static void add_report(struct sync_report *sum, const struct sync_report *part) {
    sum->wrote |= part->wrote;
    sum->rx_bytes += part->rx_bytes;
    sum->rx_leaves += part->rx_leaves;
    sum->wire_bytes += part->wire_bytes;
    sum->donors += part->donors;
    if (part->differing > sum->differing) {
        sum->differs = part->differs;
        sum->differing = part->differing;
    }
}

// `end` is when the round is over, or now.
static struct shared_state_report report_of(const struct shared_state *round, const struct sync_report *moved,
                                            int64_t end) {
    int64_t hashed = round->hashed_at != 0 ? round->hashed_at : end;
    return (struct shared_state_report){
        .moved = *moved,
        .tx_bytes = round->tx_bytes,
        .seconds = (double)(end - round->began_at) * 1e-9,
        .hash_seconds = (double)(hashed - round->began_at) * 1e-9,
        .transfer_seconds = round->planned_at == 0 ? 0 : (double)(end - round->planned_at) * 1e-9,
        .hashing = round->hashed_at == 0,
    };
}

void shared_state_look(struct communicator *c, struct shared_state_report *out) {
    communicator_begin(c);
    *out = c->shared_state->report;
    if (c->shared_state->content != NULL) {
        struct sync_report live;
        sync_look(c->engine, &live);
        add_report(&live, &c->shared_state->before);
        *out = report_of(c->shared_state, &live, platform_now_ns());
    }
    communicator_finish(c, pcclSuccess);
}

// Ends the caller's part of the round.
static pcclResult_t drop(struct communicator *c, pcclResult_t code) {
    content_free(c->shared_state->content);
    c->shared_state->content = NULL;
    return code;
}

// The state is hashed: tells the engine and the master.
static pcclResult_t vote(struct communicator *c) {
    pcclResult_t code = communicator_check_usable(c);
    if (code != pcclSuccess) return drop(c, code);
    const struct content *content = c->shared_state->content;
    struct wire_sync_vote vote = {
        .strategy = (uint8_t)c->shared_state->strategy,
        .incomplete = content_is_torn(&content->layout),
        .revision = c->shared_state->revision,
        .mask = content->mask,
        .content = content->hash,
        .outline = content->outline,
    };
    if (vote.incomplete && !precopy_is_new(c->precopy))
        LOG(LOG_WARN,
            "shared state is incomplete after an interrupted transfer: it only receives until a sync succeeds, or the "
            "program has restored it (SharedState.load_state_dict or mark_restored)");
    // Before the vote is sent: the plan may be here at once.
    if (!sync_begin(c->engine, c->shared_state->content, (int64_t)member_welcome(c->core)->heartbeat_limit_ms * MS_NS))
        return drop(c, detail_fail(pcclInternalError, "the system refused memory for the sync"));
    c->shared_state->voted = true;
    c->shared_state->hashed_at = platform_now_ns();
    c->shared_state->compares = member_has_synced(c->core) && vote.strategy != WIRE_SYNC_RECEIVE_ONLY;
    struct member_output out = {0};
    member_vote(c->core, WIRE_VOTE_SYNC, &vote, &out);
    pthread_mutex_unlock(&c->lock);
    master_link_send(c->master, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&c->lock);
    return pcclSuccess;
}

static pcclResult_t shared_state_hash_and_vote(struct communicator *c, int64_t deadline) {
    struct content *content = c->shared_state->content;
    if (c->shared_state->voted) return pcclSuccess;
    pthread_mutex_unlock(&c->lock);
    bool hashed = content_hash(content, deadline);
    pthread_mutex_lock(&c->lock);
    if (!hashed) return detail_fail(pcclTimedOut, "this peer is still hashing the state");
    if (content_error(content) != NULL)
        return drop(c,
                    detail_fail(pcclInternalError, "cannot read the tensors of the state: %s", content_error(content)));
    return vote(c);
}

// Not locked. Afterwards no tensor is touched any more, and the process knows what they hold.
static void end_transfers(struct communicator *c, bool success, struct sync_report *report) {
    sync_end(c->engine, report);
    add_report(report, &c->shared_state->before);
    if (success)
        content_clear_torn(&c->shared_state->content->layout);
    else if (report->wrote)
        content_mark_torn(&c->shared_state->content->layout);
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
        length = snprintf(out, capacity, ": an entry is missing here after \"%.100s\"", first[-1].name);
    else if (differs->first == last)
        length = snprintf(out, capacity, ": here \"%.100s\" (%s, count %zu%s)", first->name,
                          dtype_name((int)first->datatype), first->count,
                          first->allow_content_inequality ? ", allow_content_inequality" : "");
    else if (last < state->count)
        length =
            snprintf(out, capacity, ": here one of \"%.100s\" to \"%.100s\"", first->name, state->infos[last].name);
    else
        length = snprintf(out, capacity, ": here one of \"%.100s\" to the last, or missing after it", first->name);
    snprintf(out + length, capacity - (size_t)length, "; give all members the same entries in the same order");
    return out;
}

// A member that differs in a revision that its group has, too, has computed something else.
static void log_repair(const struct shared_state *round, const struct sync_report *moved, uint64_t revision) {
    char more[32] = "";
    if (!round->compares || round->revision != revision || moved->differing == 0) return;
    if (moved->differing > 1) snprintf(more, sizeof more, " (and %u more)", moved->differing - 1);
    LOG(LOG_NOTICE,
        "this peer had other content of the shared state than its group, in entry \"%.100s\"%s, repaired at revision "
        "%llu",
        round->state->infos[moved->differs->info].name, more, (unsigned long long)revision);
}

static pcclResult_t shared_state_collect(struct communicator *c, uint64_t *revision) {
    const pcclSharedState_t *state = c->shared_state->state;
    struct sync_report report;
    while (c->shared_state->restarting) platform_cond_wait(&c->changed, &c->lock, INT64_MAX);
    bool success = c->ticket.done && c->ticket.code == pcclSuccess;
    pthread_mutex_unlock(&c->lock);
    end_transfers(c, success, &report);
    if (success) precopy_note_sync(c->precopy, &c->shared_state->content->mask);
    pthread_mutex_lock(&c->lock);
    c->shared_state->report = report_of(c->shared_state, &report, platform_now_ns());
    const char *read_only = report.read_only == NULL ? NULL : state->infos[report.read_only->info].name;
    if (success) log_repair(c->shared_state, &report, c->ticket.value);
    drop(c, pcclSuccess);
    if (success) {
        *revision = c->ticket.value;
        return pcclSuccess;
    }
    if (!c->ticket.done)
        return detail_fail(pcclMasterConnectionFailed, "the communicator was destroyed during sync_shared_state");
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
    if (c->ticket.code == pcclInvalidUsage) return detail_fail(pcclInvalidUsage, "%s", c->waits_why);
    return detail_fail(c->ticket.code, "no shared state is available: %s", c->shared_state->text);
}

static const struct ticket_type sync_type = {
    .name = "sync_shared_state", .prepare = shared_state_hash_and_vote, .collect = shared_state_collect};

static pcclResult_t take_up(struct communicator *c, const pcclSharedState_t *state, const bool *read_only, int strategy,
                            uint64_t *ticket) {
    struct shared_state *round = c->shared_state;
    if (round->strategy != strategy || round->revision != state->revision ||
        !content_is_of(round->content, state, read_only))
        return detail_fail(
            pcclInvalidUsage,
            "a sync_shared_state call with another state or revision has not ended; repeat that call first");
    round->state = state;
    return communicator_ticket_begun(c, pcclSuccess, ticket);
}

static pcclResult_t make_content(struct communicator *c, const bool *read_only) {
    const pcclSharedState_t *state = c->shared_state->state;
    pthread_mutex_unlock(&c->lock);
    struct content *content = NULL;
    pcclResult_t code = content_new(state, read_only, &content);
    pthread_mutex_lock(&c->lock);
    c->shared_state->content = content;
    return code;
}

static pcclResult_t begin(struct communicator *c, const pcclSharedState_t *state, const bool *read_only, int strategy,
                          uint64_t *ticket) {
    if (communicator_ticket_is_left(c, &sync_type)) return take_up(c, state, read_only, strategy, ticket);
    RETURN_IF_FAILED(communicator_check_usable(c));
    RETURN_IF_FAILED(communicator_ticket_check_none(c));
    RETURN_IF_FAILED(communicator_check_no_ops(c));
    communicator_ticket_open(c, &sync_type);
    *c->shared_state = (struct shared_state){
        .state = state, .strategy = strategy, .revision = state->revision, .began_at = platform_now_ns()};
    return communicator_ticket_begun(c, make_content(c, read_only), ticket);
}

pcclResult_t shared_state_begin(struct communicator *c, const pcclSharedState_t *state, const bool *read_only,
                                int strategy, uint64_t *ticket) {
    communicator_begin(c);
    return communicator_finish(c, begin(c, state, read_only, strategy, ticket));
}

pcclResult_t shared_state_set_precopy(struct communicator *c, const pcclSharedState_t *state, const bool *read_only,
                                      int gives) {
    struct content *content = NULL;
    if (state != NULL) RETURN_IF_FAILED(content_new(state, read_only, &content));
    communicator_begin(c);
    if (c->phase == COMMUNICATOR_CONNECTING || c->closing) {
        pcclResult_t code = detail_fail(pcclInvalidUsage, "the communicator is connecting, or being closed");
        content_free(content);
        return communicator_finish(c, code);
    }
    precopy_set_state(c->precopy, content, (enum precopy_gives)gives);
    return communicator_finish(c, pcclSuccess);
}

bool shared_state_is_left(struct communicator *c) {
    communicator_begin(c);
    bool left = communicator_ticket_is_left(c, &sync_type);
    communicator_finish(c, pcclSuccess);
    return left;
}

// ---- control thread ----

void shared_state_planned(struct communicator *c, const struct wire_sync_plan *plan, int64_t now) {
    pthread_mutex_lock(&c->lock);
    c->shared_state->planned_at = now;
    pthread_mutex_unlock(&c->lock);
    sync_plan(c->engine, plan);
}

void shared_state_ended(struct communicator *c, const struct wire_sync_end *end) {
    communicator_assert_locked(c);
    sync_over(c->engine);
    c->shared_state->tx_bytes = end->tx_bytes;
    snprintf(c->shared_state->text, sizeof c->shared_state->text, "%.*s", (int)end->text.length, end->text.chars);
}

bool shared_state_restart(struct communicator *c, enum member_tensors *tensors, struct wire_hash *content) {
    struct shared_state *round = c->shared_state;
    pthread_mutex_lock(&c->lock);
    bool open = round->content != NULL && round->voted && !c->ticket.done && !c->closing;
    round->restarting = open;
    pthread_mutex_unlock(&c->lock);
    *tensors = MEMBER_TENSORS_AS_VOTED;
    if (!open) return true;
    struct sync_report report = {0};
    bool torn = false, goes_on = sync_restart(c->engine, &report, &torn);
    pthread_mutex_lock(&c->lock);
    round->restarting = false;
    round->planned_at = 0;
    add_report(&round->before, &report);
    *content = round->content->hash;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (report.wrote) *tensors = torn ? MEMBER_TENSORS_TORN : MEMBER_TENSORS_RECEIVED;
    return goes_on;
}

struct shared_state *shared_state_new(void) { return calloc(1, sizeof(struct shared_state)); }

void shared_state_free(struct communicator *c) {
    struct sync_report report;
    if (c->shared_state == NULL) return;
    if (c->engine != NULL && c->shared_state->content != NULL) end_transfers(c, false, &report);
    content_free(c->shared_state->content);
    free(c->shared_state);
}
