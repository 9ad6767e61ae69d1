#include "peer/ticket.h"

#include "base/detail.h"
#include "base/platform.h"
#include "peer/master_link.h"

pcclResult_t ticket_check_none(const struct communicator *c) {
    communicator_assert_locked(c);
    if (c->ticket.type == NULL) return pcclSuccess;
    return detail_fail(pcclInvalidUsage,
                       "a call of %s has not ended; wait for it, or repeat it if it timed out or was interrupted",
                       c->ticket.type->name);
}

bool ticket_is_left(const struct communicator *c, const struct ticket_type *type) {
    communicator_assert_locked(c);
    return c->ticket.type == type && !c->ticket.inside;
}

void ticket_open(struct communicator *c, const struct ticket_type *type) {
    communicator_assert_locked(c);
    c->ticket = (struct ticket){.type = type, .number = c->ticket.number, .inside = true};
    c->waits_why[0] = 0;
}

pcclResult_t ticket_begun(struct communicator *c, pcclResult_t code, uint64_t *ticket) {
    communicator_assert_locked(c);
    c->ticket.inside = false;
    if (code == pcclSuccess)
        *ticket = ++c->ticket.number;
    else
        c->ticket.type = NULL;
    return code;
}

void ticket_end(struct communicator *c, pcclResult_t code, uint64_t value, const struct member_view *view) {
    communicator_assert_locked(c);
    c->ticket.done = true;
    c->ticket.code = code;
    c->ticket.value = value;
    if (view != NULL) c->ticket.view = *view;
    pthread_cond_broadcast(&c->changed);
    wake_signal(atomic_load(&c->events));
}

static bool is_unanswered(const struct communicator *c) {
    return c->phase == COMMUNICATOR_CONNECTING && c->core != NULL && member_phase(c->core) <= MEMBER_JOINING;
}

static pcclResult_t timed_out(const struct communicator *c) {
    if (is_unanswered(c) && c->waits_why[0] == 0) return detail_fail(pcclTimedOut, "no master has answered yet");
    if (c->core != NULL && member_is_seeking(c->core) && c->waits_why[0] == 0)
        return detail_fail(pcclTimedOut, "the master is lost (%s), and this peer seeks another one",
                           member_lost_why(c->core));
    return detail_fail(pcclTimedOut, "%s", c->waits_why);
}

static pcclResult_t wait_inside(struct communicator *c, int64_t deadline, uint64_t *value) {
    const struct ticket_type *type = c->ticket.type;
    if (type->prepare != NULL) RETURN_IF_FAILED(type->prepare(c, deadline));
    while (!c->ticket.done && !c->closing)
        if (!platform_cond_wait(&c->changed, &c->lock, deadline) && !c->ticket.done && !c->closing) return timed_out(c);
    return type->collect(c, value);
}

static pcclResult_t wait_locked(struct communicator *c, uint64_t ticket, int64_t deadline, uint64_t *value) {
    if (c->ticket.type == NULL || c->ticket.number != ticket)
        return detail_fail(pcclInvalidUsage, "this call has ended, or a later call continued it");
    if (c->ticket.inside) return detail_fail(pcclInvalidUsage, "another thread is waiting in %s", c->ticket.type->name);
    c->ticket.inside = true;
    pcclResult_t code = wait_inside(c, deadline, value);
    c->ticket.inside = false;
    if (code != pcclTimedOut) c->ticket.type = NULL;
    return code;
}

pcclResult_t ticket_wait(struct communicator *c, uint64_t ticket, int64_t deadline, uint64_t *value) {
    communicator_begin(c);
    return communicator_finish(c, wait_locked(c, ticket, deadline, value));
}

// ---- votes ----
static pcclResult_t ticket_collect_vote(struct communicator *c, uint64_t *value);

static const struct ticket_type votes[] = {
    [WIRE_VOTE_UPDATE] = {.name = "update_topology", .collect = ticket_collect_vote},
    [WIRE_VOTE_PENDING] = {.name = "are_peers_pending", .collect = ticket_collect_vote},
    [WIRE_VOTE_OPTIMIZE] = {.name = "optimize_topology", .collect = ticket_collect_vote},
};

bool ticket_is_peers_pending(const struct communicator *c) {
    communicator_assert_locked(c);
    return c->ticket.type == &votes[WIRE_VOTE_PENDING];
}

static pcclResult_t ticket_collect_vote(struct communicator *c, uint64_t *value) {
    const char *name = c->ticket.type->name;
    if (!c->ticket.done)
        return detail_fail(pcclMasterConnectionFailed, "the communicator was destroyed during %s", name);
    if (c->ticket.code == pcclSuccess) {
        *value = c->ticket.value;
        if (ticket_is_peers_pending(c)) return pcclSuccess;
        member_adopt(c->core, &c->ticket.view);
        engine_voted(c->engine, c->ticket.view.group_epoch);
        return pcclSuccess;
    }
    if (communicator_is_dead(c))
        return detail_fail(c->ticket.code,
                           "the communicator died in %s: %s; destroy it and create a new one (in Python: call "
                           "reconnect())",
                           name, communicator_why_dead(c));
    return detail_fail(c->ticket.code, "%s ended without a new epoch, and the membership is unchanged; call it again",
                       name);
}

static pcclResult_t begin_vote(struct communicator *c, enum wire_vote_kind kind, uint64_t *ticket) {
    RETURN_IF_FAILED(communicator_check_usable(c));
    if (ticket_is_left(c, &votes[kind])) return ticket_begun(c, pcclSuccess, ticket);
    RETURN_IF_FAILED(ticket_check_none(c));
    if (kind == WIRE_VOTE_OPTIMIZE && member_adopted(c->core)->global_world < 2)
        return detail_fail(pcclInvalidUsage, "optimize_topology needs at least two members in the run");
    if (kind != WIRE_VOTE_PENDING) RETURN_IF_FAILED(communicator_check_no_ops(c));
    ticket_open(c, &votes[kind]);
    struct member_output out = {0};
    member_vote(c->core, kind, &out);
    pthread_mutex_unlock(&c->lock);
    master_link_send(c->master, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&c->lock);
    return ticket_begun(c, pcclSuccess, ticket);
}

pcclResult_t ticket_begin_vote(struct communicator *c, enum wire_vote_kind kind, uint64_t *ticket) {
    communicator_begin(c);
    return communicator_finish(c, begin_vote(c, kind, ticket));
}
