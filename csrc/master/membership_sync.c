// Rounds of shared state, one at a time in each group and independent of all other groups: votes, the election, the
// watch over the transfer, the commit. No member can be added during a round, since an update needs the votes of all;
// so a round only ever loses members, and each loss is judged by what is left: who still has to receive, and who can
// give.
#include "master/membership_private.h"

#include <stdio.h>
#include <string.h>

#include "state/outline.h"

static struct election_group describe(const struct membership *m, const struct group *group) {
    struct election_group out = {.state = group->sync.committed ? ELECTION_LOST : ELECTION_NEW,
                                 .expected = group->sync.expected,
                                 .ahead = group->sync.ahead};
    for (uint32_t i = group->begin; i < group->begin + group->count; i++)
        if (group->sync.committed && m->order[i]->sync.committed && !m->order[i]->gone) out.state = ELECTION_EXPECTING;
    return out;
}

static bool all_voted(const struct membership *m, const struct group *group) {
    for (uint32_t i = group->begin; i < group->begin + group->count; i++)
        if (m->order[i]->vote != VOTE_SYNC) return false;
    return true;
}

bool membership_sync_waits(const struct membership *m, const struct group *group) {
    bool some = false;
    for (uint32_t i = group->begin; i < group->begin + group->count; i++) some |= m->order[i]->vote == VOTE_SYNC;
    return some && !all_voted(m, group);
}

// ---- the end of a round ----

static void end_round(struct membership *m, struct group *group, uint8_t code, const char *why) {
    struct group_sync *sync = &group->sync;
    struct wire_sync_end end = {
        .round = sync->round, .code = code, .revision = code == CODE_SUCCESS ? sync->result.revision : 0};
    end.text.length = (uint16_t)strnlen(why, WIRE_MAX_TEXT);
    memcpy(end.text.chars, why, end.text.length);
    for (uint32_t i = group->begin; i < group->begin + group->count; i++) {
        struct peer *peer = m->order[i];
        end.tx_bytes = code == CODE_SUCCESS ? peer->sync.tx_bytes : 0;
        size_t begin = membership_frame_begin(m), length;
        wire_encode_sync_end(&m->actions.bytes, membership_header(m), &end);
        membership_frame_end(m, begin, &length);
        membership_send(m, peer, begin, length);
        membership_close_vote(m, peer);
        peer->sync = (struct peer_sync){.committed = peer->sync.committed || code == CODE_SUCCESS};
    }
    if (code == CODE_SUCCESS) {
        sync->committed = true;
        sync->expected = election_expect(sync->result.revision);
        membership_log(m, LOG_DEBUG, "group %u: shared state is at revision %llu", group->id,
                       (unsigned long long)sync->result.revision);
    } else {
        membership_log(m, LOG_WARN, "group %u: no shared state: %s", group->id, why);
    }
    end.text.length = 0;
    end.tx_bytes = 0;
    *sync = (struct group_sync){.committed = sync->committed, .expected = sync->expected, .last = end};
}

// ---- votes and election ----

void membership_on_sync_vote(struct membership *m, struct peer *peer, const uint8_t *body, size_t length) {
    struct wire_sync_vote vote;
    if (!wire_decode_sync_vote(body, length, &vote)) {
        membership_expel(m, peer, "malformed SYNC_VOTE");
        return;
    }
    if (peer->vote != 0)
        membership_expel(m, peer, "voted while its vote was open");
    else
        membership_take_sync_vote(m, peer, &vote);
}

void membership_take_sync_vote(struct membership *m, struct peer *peer, const struct wire_sync_vote *vote) {
    struct election_group group = describe(m, peer->group);
    if (election_is_ahead(&group, vote->revision)) {
        peer->group->sync.ahead = true;
        membership_expel(m, peer, WIRE_SYNC_RULE "it gave revision %llu, but its group is to be at %llu",
                         (unsigned long long)vote->revision, (unsigned long long)group.expected);
        return;
    }
    membership_open_vote(m, peer, VOTE_SYNC);
    peer->sync.vote = *vote;
    m->sync_due = true;
}

// Right after the election, when the votes lie in `voters`.
static void expel_for_mask(struct membership *m, struct peer *peer) {
    static const char rule[] =
        WIRE_SYNC_RULE "its entries (names, order, data types, sizes or flags) are not those of its group";
    uint32_t elected = 0;
    while (!wire_hash_equal(&m->voters[elected].vote.mask, &peer->group->sync.result.mask)) elected++;
    const struct wire_outline *mine = &peer->sync.vote.outline, *others = &m->voters[elected].vote.outline;
    struct wire_sync_differs differs;
    if (!outline_differ(mine, others, &differs)) {
        membership_expel(m, peer, "%s", rule);
        return;
    }
    size_t begin = membership_frame_begin(m), length;
    wire_encode_sync_differs(&m->actions.bytes, membership_header(m), &differs);
    if (membership_frame_end(m, begin, &length)) membership_send(m, peer, begin, length);
    char at[64];
    unsigned long long first = differs.first, last = differs.last;
    snprintf(at, sizeof at, first == last ? "entry %llu" : "one of entries %llu to %llu", first, last);
    membership_expel(m, peer, "%s: it has %llu, its group %llu, and the first that differs is %s, counted from 0", rule,
                     (unsigned long long)mine->entries, (unsigned long long)others->entries, at);
}

static void expel_by_rule(struct membership *m, struct peer *peer, enum election_fate fate, uint64_t revision) {
    unsigned long long mine = peer->sync.vote.revision, all = revision;
    switch (fate) {
    case ELECTION_KEEPS:
    case ELECTION_RECEIVES: return;
    case ELECTION_STRATEGY:
        membership_expel(m, peer, WIRE_SYNC_RULE "other members enforce the popular state, so all have to");
        return;
    case ELECTION_MASK: expel_for_mask(m, peer); return;
    case ELECTION_BEHIND:
        membership_expel(m, peer, WIRE_SYNC_RULE "it may only send, but is at revision %llu instead of %llu", mine,
                         all);
        return;
    case ELECTION_MINORITY:
        membership_expel(m, peer, WIRE_SYNC_RULE "it may only send, but its content is not the popular one");
        return;
    }
}

static void end_without_candidate(struct membership *m, struct group *group, const struct election_group *as) {
    char why[WIRE_MAX_TEXT + 1];
    unsigned long long expected = as->expected;
    switch (as->state) {
    case ELECTION_NEW:
        snprintf(why, sizeof why, "every member is receive-only, or holds a state whose transfer was cut short");
        break;
    case ELECTION_EXPECTING:
        snprintf(why, sizeof why, "no member that may send has a complete state of revision %llu%s", expected,
                 as->ahead ? ", and one was expelled for a later revision" : "");
        break;
    case ELECTION_LOST:
        snprintf(why, sizeof why,
                 "all members that held the last state (revision %llu) have left; who resumes from a checkpoint has to "
                 "give a revision above 0",
                 expected - 1);
        break;
    }
    end_round(m, group, CODE_NO_STATE, why);
}

static void elect(struct membership *m, struct group *group) {
    struct group_sync *sync = &group->sync;
    struct election_group as = describe(m, group);
    for (uint32_t rank = 0; rank < group->count; rank++) {
        const struct peer *peer = m->order[group->begin + rank];
        m->voters[rank] = (struct election_voter){
            .join_number = peer->member.join_number, .vote = peer->sync.vote, .committed = peer->sync.committed};
    }
    sync->round = ++m->sync_round;
    election_hold(&as, m->voters, group->count, &sync->result);
    if (!sync->result.elected) {
        end_without_candidate(m, group, &as);
        return;
    }
    sync->phase = SYNC_ELECTED;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        struct peer *peer = m->order[group->begin + rank];
        const struct election_voter *voter = &m->voters[rank];
        peer->sync.part = voter->fate == ELECTION_RECEIVES ? SYNC_RECEIVES : voter->donor ? SYNC_GIVES : SYNC_WAITS;
        expel_by_rule(m, peer, voter->fate, sync->result.revision);
    }
}

// ---- transfer ----

static uint32_t count_part(const struct membership *m, const struct group *group, enum sync_part part) {
    uint32_t count = 0;
    for (uint32_t i = group->begin; i < group->begin + group->count; i++) count += m->order[i]->sync.part == part;
    return count;
}

// The longest-standing first, so that the list does not depend on the ring.
static uint32_t list_part(const struct membership *m, const struct group *group, enum sync_part part,
                          struct wire_id ids[WIRE_MAX_MEMBERS]) {
    uint64_t joins[WIRE_MAX_MEMBERS];
    uint32_t count = 0;
    for (uint32_t i = group->begin; i < group->begin + group->count; i++) {
        const struct peer *peer = m->order[i];
        if (peer->sync.part != part) continue;
        uint32_t at = count++;
        for (; at > 0 && joins[at - 1] > peer->member.join_number; at--) {
            joins[at] = joins[at - 1];
            ids[at] = ids[at - 1];
        }
        joins[at] = peer->member.join_number;
        ids[at] = peer->member.id;
    }
    return count;
}

static void send_plan(struct membership *m, struct group *group) {
    const struct group_sync *sync = &group->sync;
    struct wire_sync_plan plan;
    plan.round = sync->round;
    plan.revision = sync->result.revision;
    plan.mask = sync->result.mask;
    plan.content = sync->result.content;
    plan.receiver_count = list_part(m, group, SYNC_RECEIVES, plan.receivers);
    plan.donor_count = list_part(m, group, SYNC_GIVES, plan.donors);
    size_t begin = membership_frame_begin(m), length;
    wire_encode_sync_plan(&m->actions.bytes, membership_header(m), &plan);
    membership_frame_end(m, begin, &length);
    for (uint32_t i = group->begin; i < group->begin + group->count; i++)
        membership_send(m, m->order[i], begin, length);
    group->sync.phase = SYNC_MOVING;
    membership_log(m, LOG_INFO, "group %u: shared state of revision %llu goes from %u to %u peers", group->id,
                   (unsigned long long)plan.revision, plan.donor_count, plan.receiver_count);
}

void membership_on_sync_done(struct membership *m, struct peer *peer, const uint8_t *body, size_t length) {
    struct wire_sync_done done;
    struct group *group = peer->group;
    if (!wire_decode_sync_done(body, length, &done) || done.round > m->sync_round) {
        membership_expel(m, peer, "malformed SYNC_DONE");
        return;
    }
    // the round ended while it was on its way
    if (group->sync.phase != SYNC_MOVING || done.round != group->sync.round) return;
    if (peer->sync.part != SYNC_RECEIVES) {
        membership_expel(m, peer, "SYNC_DONE without anything to receive");
        return;
    }
    for (uint32_t i = 0; i < done.count; i++) {
        struct peer *donor = membership_member(m, group, &done.sources[i].id);
        if (donor != NULL && donor->sync.part == SYNC_GIVES) donor->sync.tx_bytes += done.sources[i].bytes;
    }
    char name[64];
    if (done.complete == WIRE_SYNC_READ_ONLY)
        membership_expel(m, peer, WIRE_SYNC_RULE "it has to receive, but its memory is read-only");
    else if (done.complete == WIRE_SYNC_COMPLETE)
        peer->sync.part = SYNC_RECEIVED;
    else
        snprintf(group->sync.failed, sizeof group->sync.failed, "%s could not get it from any member that holds it",
                 membership_name(name, peer));
    m->sync_due = true;
}

static void advance(struct membership *m, struct group *group) {
    if (group->sync.phase == SYNC_VOTING && all_voted(m, group)) elect(m, group);
    // those expelled have to be out of the group first
    if (group->sync.phase == SYNC_VOTING || m->gone_count > 0) return;
    bool wanted = count_part(m, group, SYNC_RECEIVES) > 0;
    if (group->sync.failed[0] != 0)
        end_round(m, group, CODE_NO_STATE, group->sync.failed);
    else if (wanted && count_part(m, group, SYNC_GIVES) == 0)
        end_round(m, group, CODE_NO_STATE, "all members that held it have left");
    else if (!wanted)
        end_round(m, group, CODE_SUCCESS, "");
    else if (group->sync.phase == SYNC_ELECTED)
        send_plan(m, group);
}

void membership_sync_advance(struct membership *m) {
    if (!m->sync_due) return;
    m->sync_due = false;
    for (uint32_t i = 0; i < m->count && m->gone_count == 0; i += m->order[i]->group->count)
        advance(m, m->order[i]->group);
    if (m->gone_count > 0) m->sync_due = true; // goes on when they are out
}
