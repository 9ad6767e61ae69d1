#include "peer/vote.h"

#include "base/detail.h"
#include "peer/master_link.h"

static pcclResult_t collect(struct communicator *c, uint64_t *value);

static const struct ticket_type types[] = {
    [WIRE_VOTE_UPDATE] = {.name = "update_topology", .collect = collect},
    [WIRE_VOTE_PENDING] = {.name = "are_peers_pending", .collect = collect},
    [WIRE_VOTE_OPTIMIZE] = {.name = "optimize_topology", .collect = collect},
};

bool vote_is_pending(const struct communicator *c) {
    communicator_assert_locked(c);
    return c->ticket.type == &types[WIRE_VOTE_PENDING];
}

static pcclResult_t collect(struct communicator *c, uint64_t *value) {
    const char *name = c->ticket.type->name;
    if (!c->ticket.done)
        return detail_fail(pcclMasterConnectionFailed, "the communicator was destroyed while it waited in %s", name);
    if (c->ticket.code == pcclSuccess) {
        *value = c->ticket.value;
        if (vote_is_pending(c)) return pcclSuccess;
        member_adopt(c->core, &c->ticket.view);
        engine_voted(c->engine, c->ticket.view.group_epoch);
        return pcclSuccess;
    }
    if (communicator_is_dead(c))
        return detail_fail(c->ticket.code,
                           "the communicator died in %s: %s: destroy it and create a new one (in Python: call "
                           "reconnect())",
                           name, communicator_why_dead(c));
    return detail_fail(c->ticket.code, "%s passed, but no new epoch came of it: the old one stands, call it again",
                       name);
}

static pcclResult_t begin(struct communicator *c, enum wire_vote_kind kind, uint64_t *ticket) {
    RETURN_IF_FAILED(communicator_check_usable(c));
    if (ticket_is_left(c, &types[kind])) return ticket_begun(c, pcclSuccess, ticket);
    RETURN_IF_FAILED(ticket_check_none(c));
    if (kind == WIRE_VOTE_OPTIMIZE && member_adopted(c->core)->global_world < 2)
        return detail_fail(pcclInvalidUsage, "optimize_topology needs at least two accepted peers in the run");
    if (kind != WIRE_VOTE_PENDING) RETURN_IF_FAILED(communicator_check_no_ops(c));
    ticket_open(c, &types[kind]);
    struct member_output out = {0};
    member_vote(c->core, kind, &out);
    pthread_mutex_unlock(&c->lock);
    master_link_send(c->master, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&c->lock);
    return ticket_begun(c, pcclSuccess, ticket);
}

pcclResult_t vote_begin(struct communicator *c, enum wire_vote_kind kind, uint64_t *ticket) {
    communicator_begin(c);
    return communicator_finish(c, begin(c, kind, ticket));
}
