// A communicator's life, connect, votes, and what callers ask of it.
#define _GNU_SOURCE
#include "peer/peer_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/descriptor.h"
#include "net/socket.h"

enum { SETTLE_MS = 500 }; // what a leaving peer waits at most for others to complete what it has

void peer_begin(struct peer *p) {
    pthread_mutex_lock(&p->lock);
    p->users++;
}

pcclResult_t peer_finish(struct peer *p, pcclResult_t code) {
    p->users--;
    if (p->closing) pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return code;
}

void peer_enter(struct peer *p) {
    peer_begin(p);
    pthread_mutex_unlock(&p->lock);
}

void peer_exit(struct peer *p) {
    pthread_mutex_lock(&p->lock);
    peer_finish(p, pcclSuccess);
}

bool peer_is_dead(const struct peer *p) {
    return p->phase == PHASE_DEAD || (p->phase == PHASE_CONNECTED && member_phase(p->member) == MEMBER_DEAD);
}

const char *peer_why_dead(const struct peer *p) { return p->phase == PHASE_DEAD ? p->reason : member_text(p->member); }

pcclResult_t peer_check_usable(const struct peer *p) {
    if (peer_is_dead(p))
        return detail_fail(
            pcclMasterConnectionFailed,
            "the communicator is dead (%s): destroy it and create a new one (in Python: call reconnect())",
            peer_why_dead(p));
    if (p->phase != PHASE_CONNECTED)
        return detail_fail(pcclInvalidUsage, "the communicator is not connected: call connect first");
    if (p->closing) return detail_fail(pcclMasterConnectionFailed, "the communicator is being destroyed");
    return pcclSuccess;
}

bool peer_wait_for(struct peer *p, const bool *done, int64_t deadline) {
    while (!*done && !p->closing)
        if (!platform_cond_wait(&p->changed, &p->lock, deadline) && !*done && !p->closing) return false;
    return true;
}

// ---- connect ----

struct member *peer_new_member(const struct peer *p, const struct wire_id *id) {
    struct member *member = member_new(id, p->params.group, p->params.lanes);
    if (member != NULL) member_set_recovery(member, p->params.recovery_limit_ms, p->params.master_count);
    return member;
}

pcclResult_t peer_timed_out(const struct peer *p) {
    if (p->member != NULL && member_is_seeking(p->member) && p->waits_why[0] == 0)
        return detail_fail(pcclTimedOut, "the master is lost (%s), and another one is looked for",
                           member_lost_why(p->member));
    return detail_fail(pcclTimedOut, "%s", p->waits_why);
}

// A fresh id, mind and engine; those of the attempt before end here. Called without the lock, under `renewing`, while
// the control thread has no connection.
static bool renew(struct peer *p) {
    struct wire_id id;
    engine_free(p->engine);
    p->engine = NULL;
    member_free(p->member);
    p->member = NULL;
    if (!platform_random(id.bytes, sizeof id.bytes)) return false;
    struct engine_callbacks callbacks = peer_engine_callbacks(p);
    p->member = peer_new_member(p, &id);
    p->engine = p->member == NULL ? NULL : engine_new(&id, &callbacks);
    if (p->engine == NULL) return false;
    if (!p->thread_runs) p->thread_runs = platform_thread_start(&p->thread, "pccl:control", peer_control, p);
    return p->thread_runs;
}

static pcclResult_t begin_attempt(struct peer *p) {
    if (p->closing) return detail_fail(pcclMasterConnectionFailed, "the communicator is being destroyed");
    p->phase = PHASE_CONNECTING;
    memset(&p->attempt, 0, sizeof p->attempt);
    p->waits_why[0] = 0;
    p->attempt.waiter = p->renewing = true;
    pthread_mutex_unlock(&p->lock);
    bool renewed = renew(p);
    pthread_mutex_lock(&p->lock);
    p->renewing = false;
    if (p->closing) pthread_cond_broadcast(&p->changed);
    if (!renewed) {
        p->phase = PHASE_IDLE;
        return detail_fail(pcclInternalError, "the system refused memory or a thread for a connection");
    }
    p->dial_wanted = true;
    wake_signal(p->wake);
    return pcclSuccess;
}

static pcclResult_t end_connect(struct peer *p) {
    if (!p->attempt.done)
        return detail_fail(pcclMasterConnectionFailed, "the communicator was destroyed while it connected");
    if (p->attempt.code != pcclSuccess) {
        p->phase = PHASE_IDLE;
        return detail_fail(p->attempt.code, "%s", p->reason);
    }
    p->phase = PHASE_CONNECTED;
    member_adopt(p->member, &p->attempt.view);
    return pcclSuccess;
}

static pcclResult_t connect_locked(struct peer *p, int64_t deadline) {
    if (peer_is_dead(p))
        return detail_fail(
            pcclInvalidUsage,
            "the communicator is dead (%s): destroy it and create a new one (in Python: call reconnect())",
            peer_why_dead(p));
    if (p->phase == PHASE_CONNECTED) return detail_fail(pcclInvalidUsage, "the communicator is connected already");
    if (p->phase == PHASE_CONNECTING && p->attempt.waiter)
        return detail_fail(pcclInvalidUsage, "another thread is connecting this communicator");
    if (p->phase == PHASE_IDLE) RETURN_IF_FAILED(begin_attempt(p));
    p->attempt.waiter = true;
    bool ended = peer_wait_for(p, &p->attempt.done, deadline);
    p->attempt.waiter = false;
    return ended ? end_connect(p) : peer_timed_out(p);
}

pcclResult_t peer_connect(struct peer *p, int64_t deadline) {
    peer_begin(p);
    return peer_finish(p, connect_locked(p, deadline));
}

// ---- votes ----

static const char *vote_name(uint8_t kind) {
    switch (kind) {
    case WIRE_VOTE_UPDATE: return "update_topology";
    case WIRE_VOTE_PENDING: return "are_peers_pending";
    case WIRE_VOTE_SYNC: return "sync_shared_state";
    default: return "optimize_topology";
    }
}

pcclResult_t peer_check_vote(const struct peer *p) {
    if (p->vote.kind == 0) return pcclSuccess;
    return detail_fail(pcclInvalidUsage,
                       "%s of this communicator has not ended: wait for it, or call it again if its wait was cut short",
                       vote_name(p->vote.kind));
}

static pcclResult_t begin_vote(struct peer *p, enum wire_vote_kind kind) {
    RETURN_IF_FAILED(peer_check_vote(p));
    if (kind == WIRE_VOTE_OPTIMIZE && member_adopted(p->member)->global_world < 2)
        return detail_fail(pcclInvalidUsage, "optimize_topology needs at least two accepted peers in the run");
    if (kind != WIRE_VOTE_PENDING) RETURN_IF_FAILED(peer_check_ops(p));
    memset(&p->vote, 0, sizeof p->vote);
    p->waits_why[0] = 0;
    p->vote.kind = (uint8_t)kind;
    p->vote.waiter = true;
    struct member_output out = {0};
    member_vote(p->member, kind, &out);
    pthread_mutex_unlock(&p->lock);
    peer_send(p, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&p->lock);
    return pcclSuccess;
}

static pcclResult_t collect_vote(struct peer *p, bool *value) {
    uint8_t kind = p->vote.kind;
    p->vote.kind = 0;
    if (!p->vote.done)
        return detail_fail(pcclMasterConnectionFailed, "the communicator was destroyed while it waited in %s",
                           vote_name(kind));
    if (p->vote.code == pcclSuccess) {
        if (value != NULL) *value = p->vote.value != 0;
        if (kind != WIRE_VOTE_PENDING) member_adopt(p->member, &p->vote.view);
        return pcclSuccess;
    }
    if (peer_is_dead(p))
        return detail_fail(p->vote.code, "the communicator died in %s: %s", vote_name(kind), peer_why_dead(p));
    return detail_fail(p->vote.code, "%s passed, but no new epoch came of it: the old one stands, call it again",
                       vote_name(kind));
}

static pcclResult_t vote_locked(struct peer *p, enum wire_vote_kind kind, int64_t deadline, bool *value) {
    RETURN_IF_FAILED(peer_check_usable(p));
    bool resumed = p->vote.kind == kind && !p->vote.waiter;
    if (!resumed) RETURN_IF_FAILED(begin_vote(p, kind));
    p->vote.waiter = true;
    bool ended = peer_wait_for(p, &p->vote.done, deadline);
    p->vote.waiter = false;
    return ended ? collect_vote(p, value) : peer_timed_out(p);
}

pcclResult_t peer_vote(struct peer *p, enum wire_vote_kind kind, int64_t deadline, bool *value) {
    peer_begin(p);
    return peer_finish(p, vote_locked(p, kind, deadline, value));
}

// ---- state ----

pcclResult_t peer_usable(struct peer *p) {
    peer_begin(p);
    return peer_finish(p, peer_check_usable(p));
}

pcclResult_t peer_view(struct peer *p, struct member_view *out) {
    peer_begin(p);
    static const struct member_view alone = {.global_world = 1, .group_world = 1, .groups = 1, .largest_group = 1};
    bool dead = peer_is_dead(p);
    pcclResult_t code = dead ? pcclSuccess : peer_check_usable(p);
    if (code == pcclSuccess) *out = dead ? alone : *member_adopted(p->member);
    return peer_finish(p, code);
}

struct wire_id peer_id(struct peer *p) {
    struct wire_id id = {{0}};
    peer_begin(p);
    if (p->member != NULL && !p->renewing) id = *member_id(p->member);
    peer_finish(p, pcclSuccess);
    return id;
}

void peer_state(struct peer *p, char *out, size_t capacity) {
    peer_begin(p);
    // The mind knows of its death a moment before the thread has ended everything else.
    if (peer_is_dead(p))
        snprintf(out, capacity, "dead: %s", peer_why_dead(p));
    else if (p->phase == PHASE_CONNECTED && member_is_seeking(p->member))
        snprintf(out, capacity, "looking for a master: %s", member_lost_why(p->member));
    else if (p->phase == PHASE_CONNECTED)
        snprintf(out, capacity, "accepted epoch %llu", (unsigned long long)member_adopted(p->member)->number);
    else if (p->phase == PHASE_CONNECTING && !p->renewing && member_phase(p->member) == MEMBER_REGISTERED)
        snprintf(out, capacity, "registered");
    else
        snprintf(out, capacity, "%s", p->phase == PHASE_CONNECTING ? "connecting" : "idle");
    peer_finish(p, pcclSuccess);
}

// ---- life ----

struct peer *peer_new(const struct peer_params *params) {
    struct peer *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->params = *params;
    p->master_fd = p->dial_fd = -1;
    p->waiting_log = (struct log_limit){.lines = 3, .seconds = 10};
    p->dial_deadline = INT64_MAX;
    p->seek.masters = p->params.masters;
    p->seek.count = params->master_count;
    p->wake = wake_open();
    p->epoll = descriptor_epoll();
    p->input = malloc(INPUT_BYTES);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = DATA_WAKE};
    bool opened =
        p->wake >= 0 && p->epoll >= 0 && p->input != NULL && epoll_ctl(p->epoll, EPOLL_CTL_ADD, p->wake, &event) == 0;
    if (!opened || !platform_cond_init(&p->changed)) {
        descriptor_close(p->wake);
        descriptor_close(p->epoll);
        free(p->input);
        free(p);
        return NULL;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->out_lock, NULL);
    return p;
}

bool peer_set_masters(struct peer *p, const struct wire_address *masters, uint32_t count) {
    peer_begin(p);
    bool may = p->phase == PHASE_IDLE && count >= 1 && count <= WIRE_MAX_MASTERS;
    if (may) {
        memcpy(p->params.masters, masters, count * sizeof *masters);
        p->params.master_count = p->seek.count = count;
    }
    peer_finish(p, pcclSuccess);
    return may;
}

bool peer_set_recovery(struct peer *p, uint32_t limit_ms) {
    peer_begin(p);
    bool may = p->phase == PHASE_IDLE;
    if (may) p->params.recovery_limit_ms = limit_ms;
    peer_finish(p, pcclSuccess);
    return may;
}

void peer_free(struct peer *p) {
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    struct engine *engine = p->phase == PHASE_CONNECTED ? p->engine : NULL; // stays while connected
    pthread_mutex_unlock(&p->lock);
    if (engine != NULL) engine_settle(engine, platform_now_ns() + SETTLE_MS * MS_NS);
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->changed);
    while (p->renewing) platform_cond_wait(&p->changed, &p->lock, INT64_MAX);
    pthread_mutex_unlock(&p->lock);
    wake_signal(p->wake);
    // LEAVE first, links after it: then nobody wonders why they broke.
    if (p->thread_runs) pthread_join(p->thread, NULL);
    if (p->engine != NULL) engine_stop(p->engine);
    pthread_mutex_lock(&p->lock);
    while (p->users > 0) platform_cond_wait(&p->changed, &p->lock, INT64_MAX);
    pthread_mutex_unlock(&p->lock);
    // No call is inside, both threads have ended: nobody else can hold this peer.
    peer_sync_discard(p);
    engine_free(p->engine);
    member_free(p->member);
    member_output_fini(&p->actions);
    wire_buffer_fini(&p->out);
    for (size_t i = 0; p->told != NULL && i < PEER_TOLD_MAX; i++) free(p->told[i].contributors);
    free(p->told);
    free(p->lost);
    free(p->input);
    descriptor_close(p->wake);
    descriptor_close(p->epoll);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->out_lock);
    free(p);
}
