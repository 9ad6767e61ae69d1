#include "peer/vote.h"

#include <stdlib.h>

#include "base/detail.h"
#include "peer/master_link.h"

struct vote *vote_new(void) { return calloc(1, sizeof(struct vote)); }

static const char *name_of(uint8_t kind) {
    switch (kind) {
    case WIRE_VOTE_UPDATE: return "update_topology";
    case WIRE_VOTE_PENDING: return "are_peers_pending";
    case WIRE_VOTE_SYNC: return "sync_shared_state";
    default: return "optimize_topology";
    }
}

pcclResult_t vote_check_none(const struct communicator *c) {
    if (c->vote->kind == 0) return pcclSuccess;
    return detail_fail(pcclInvalidUsage,
                       "%s of this communicator has not ended: wait for it, or call it again if its wait was cut short",
                       name_of(c->vote->kind));
}

bool vote_is_left(const struct communicator *c, enum wire_vote_kind kind) {
    return c->vote->kind == kind && !c->vote->waited;
}

void vote_open(struct communicator *c, enum wire_vote_kind kind) {
    *c->vote = (struct vote){.kind = (uint8_t)kind, .waited = true};
    c->waits_why[0] = 0;
}

void vote_end(struct communicator *c, int code, uint64_t value, const struct member_view *view) {
    struct vote *vote = c->vote;
    vote->done = true;
    vote->code = code;
    vote->value = value;
    vote->view = *view;
    pthread_cond_broadcast(&c->changed);
}

static pcclResult_t begin(struct communicator *c, enum wire_vote_kind kind) {
    RETURN_IF_FAILED(vote_check_none(c));
    if (kind == WIRE_VOTE_OPTIMIZE && member_adopted(c->mind)->global_world < 2)
        return detail_fail(pcclInvalidUsage, "optimize_topology needs at least two accepted peers in the run");
    if (kind != WIRE_VOTE_PENDING) RETURN_IF_FAILED(communicator_check_no_ops(c));
    vote_open(c, kind);
    struct member_output out = {0};
    member_vote(c->mind, kind, &out);
    pthread_mutex_unlock(&c->lock);
    master_link_send(c->master, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&c->lock);
    return pcclSuccess;
}

static pcclResult_t collect(struct communicator *c, bool *value) {
    const struct vote ended = *c->vote;
    c->vote->kind = 0;
    if (!ended.done)
        return detail_fail(pcclMasterConnectionFailed, "the communicator was destroyed while it waited in %s",
                           name_of(ended.kind));
    if (ended.code == pcclSuccess) {
        if (value != NULL) *value = ended.value != 0;
        if (ended.kind != WIRE_VOTE_PENDING) member_adopt(c->mind, &ended.view);
        return pcclSuccess;
    }
    if (communicator_is_dead(c))
        return detail_fail(ended.code,
                           "the communicator died in %s: %s: destroy it and create a new one (in Python: call "
                           "reconnect())",
                           name_of(ended.kind), communicator_why_dead(c));
    return detail_fail(ended.code, "%s passed, but no new epoch came of it: the old one stands, call it again",
                       name_of(ended.kind));
}

static pcclResult_t call_locked(struct communicator *c, enum wire_vote_kind kind, int64_t deadline, bool *value) {
    RETURN_IF_FAILED(communicator_check_usable(c));
    if (!vote_is_left(c, kind)) RETURN_IF_FAILED(begin(c, kind));
    c->vote->waited = true;
    bool ended = communicator_wait(c, &c->vote->done, deadline);
    c->vote->waited = false;
    return ended ? collect(c, value) : communicator_timed_out(c);
}

pcclResult_t vote_call(struct communicator *c, enum wire_vote_kind kind, int64_t deadline, bool *value) {
    communicator_begin(c);
    return communicator_finish(c, call_locked(c, kind, deadline, value));
}
