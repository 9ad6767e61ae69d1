// All-reduces, as callers post and await them.
#define _GNU_SOURCE
#include "peer/peer_private.h"

#include <stdlib.h>
#include <string.h>

pcclResult_t peer_check_ops(struct peer *p) {
    size_t live = engine_live_ops(p->engine);
    if (live == 0 && p->launches == 0 && p->holds == 0) return pcclSuccess;
    return detail_fail(pcclPendingAsyncOps, "%zu un-awaited ops: await them first", live > 0 ? live : (size_t)1);
}

void peer_hold(struct peer *p) {
    peer_begin(p);
    p->holds++;
    peer_finish(p, pcclSuccess);
}

void peer_release(struct peer *p) {
    peer_begin(p);
    p->holds--;
    peer_finish(p, pcclSuccess);
}

static pcclResult_t posted(enum engine_result result, uint64_t tag) {
    switch (result) {
    case ENGINE_OK: return pcclSuccess;
    case ENGINE_TAG_LIVE:
        return detail_fail(pcclInvalidArgument, "tag %llu is live: await its op first, or use another tag",
                           (unsigned long long)tag);
    case ENGINE_TOO_MANY:
        return detail_fail(pcclInternalError, "%d ops are live, the most there can be: await some", WIRE_MAX_LIVE_OPS);
    case ENGINE_DEAD:
        return detail_fail(
            pcclMasterConnectionFailed,
            "the communicator has just died: destroy it and create a new one (in Python: call reconnect())");
    default: return detail_fail(pcclInternalError, "the system refused memory for an op");
    }
}

static pcclResult_t launch_locked(struct peer *p, const struct engine_reduce *reduce) {
    RETURN_IF_FAILED(peer_check_usable(p));
    if (p->vote.kind != WIRE_VOTE_PENDING) RETURN_IF_FAILED(peer_check_vote(p));
    if (member_adopted(p->member)->group_world < 2)
        return detail_fail(pcclTooFewPeers, "this peer is alone in its group: admit newcomers with update_topology");
    uint64_t adopted = member_adopted(p->member)->group_epoch;
    p->launches++; // keeps a topology call from beginning between the check and the post
    pthread_mutex_unlock(&p->lock);
    enum engine_result result = engine_post(p->engine, reduce, adopted);
    pthread_mutex_lock(&p->lock);
    p->launches--;
    return posted(result, reduce->tag);
}

pcclResult_t peer_launch(struct peer *p, const struct engine_reduce *reduce) {
    peer_begin(p);
    return peer_finish(p, launch_locked(p, reduce));
}

static struct told *find_told(const struct peer *p, uint64_t tag) {
    for (size_t i = 0; p->told != NULL && i < PEER_TOLD_MAX; i++)
        if (p->told[i].contributors != NULL && p->told[i].tag == tag) return &p->told[i];
    return NULL;
}

// Keeps what an outcome tells. Without the memory for it nothing is told: the op has ended all the same.
static void keep_told(struct peer *p, uint64_t tag, struct engine_contributors *contributors) {
    if (p->told == NULL) p->told = calloc(PEER_TOLD_MAX, sizeof *p->told);
    if (p->told == NULL) {
        free(contributors);
        return;
    }
    struct told *told = find_told(p, tag);
    if (told == NULL) {
        told = &p->told[p->told_at];
        p->told_at = (p->told_at + 1) % PEER_TOLD_MAX;
    }
    free(told->contributors);
    *told = (struct told){tag, contributors};
}

bool peer_contributors(struct peer *p, uint64_t tag, size_t index, struct engine_range *range_out,
                       struct wire_id *ids_out, size_t capacity, size_t *ranges_out) {
    peer_begin(p);
    const struct told *told = find_told(p, tag);
    bool found = told != NULL && index < told->contributors->count;
    if (found) {
        const struct engine_range *range = &told->contributors->ranges[index];
        *range_out = (struct engine_range){.begin = range->begin, .end = range->end, .count = range->count};
        *ranges_out = told->contributors->count;
        if (capacity > range->count) capacity = range->count;
        if (capacity > 0) memcpy(ids_out, range->ids, capacity * sizeof *ids_out);
    }
    peer_finish(p, pcclSuccess);
    return found;
}

static pcclResult_t awaited(struct peer *p, uint64_t tag, const struct engine_outcome *outcome,
                            struct engine_info *out) {
    // In retry mode every end names an epoch, and all members the same.
    if (outcome->epoch != 0) member_adopt_loss(p->member, outcome->epoch);
    if (outcome->contributors != NULL) keep_told(p, tag, outcome->contributors);
    switch (outcome->result) {
    case ENGINE_OK: *out = outcome->info; return pcclSuccess;
    case ENGINE_IN_PROGRESS: return detail_fail(pcclTimedOut, "%s", outcome->text);
    case ENGINE_LOST:
        if (outcome->retry)
            return detail_fail(pcclTooFewPeers,
                               "no other member of the group is left: admit newcomers with update_topology");
        return detail_fail(pcclRankConnectionLost,
                           "a member of the group was lost: the input is unchanged, launch the op again");
    case ENGINE_MISMATCH: return detail_fail(pcclInvalidArgument, "%s", outcome->text);
    case ENGINE_DEAD:
        return detail_fail(
            outcome->retry ? pcclMasterConnectionFailed : pcclRankConnectionLost,
            "the communicator is dead (%s): destroy it and create a new one (in Python: call reconnect())",
            p->closing ? "destroyed" : peer_why_dead(p));
    case ENGINE_UNKNOWN:
        RETURN_IF_FAILED(peer_check_usable(p));
        return detail_fail(pcclInvalidArgument, "no un-awaited op has tag %llu", (unsigned long long)tag);
    default: return detail_fail(pcclInternalError, "the system refused memory for an op");
    }
}

pcclResult_t peer_await(struct peer *p, uint64_t tag, int64_t deadline, struct engine_info *out) {
    peer_begin(p);
    bool never = p->phase != PHASE_CONNECTED && p->phase != PHASE_DEAD;
    if (never || p->closing) return peer_finish(p, peer_check_usable(p));
    struct engine_outcome outcome;
    pthread_mutex_unlock(&p->lock);
    engine_wait(p->engine, tag, deadline, &outcome);
    pthread_mutex_lock(&p->lock);
    return peer_finish(p, awaited(p, tag, &outcome, out));
}
