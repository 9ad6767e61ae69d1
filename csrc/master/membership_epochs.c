// Epochs and candidates: what a membership looks like, when it comes into force, and who is left out on the way.
#include <stdlib.h>
#include <string.h>

#include "master/membership_private.h"

enum { ADMITTED_LINES = 16 }; // of the log

// ---- groups and their places in an order ----

static uint32_t group_end(struct peer *const *peers, uint32_t count, uint32_t begin) {
    uint32_t end = begin;
    while (end < count && peers[end]->member.group == peers[begin]->member.group) end++;
    return end;
}

void membership_group_fini(struct group *group) {
    membership_ops_fini(group);
    membership_links_fini(group);
    *group = (struct group){.relink_at = INT64_MAX};
}

struct group *membership_group_for(struct membership *m, uint32_t id) {
    struct group *unused = NULL;
    for (uint32_t i = 0; i < m->group_slots; i++) {
        struct group *group = &m->groups[i];
        if (group->count > 0 && group->id == id) return group;
        if (group->count == 0 && unused == NULL) unused = group;
    }
    // As many groups as peers, so one is unused.
    if (unused == NULL) {
        unused = &m->groups[m->group_slots++];
        *unused = (struct group){.relink_at = INT64_MAX};
    }
    // Its count is set here already, for the next newcomer of this group to find it.
    unused->id = id;
    unused->count = 1;
    return unused;
}

// Sets every member's rank and every group's range from `order`.
void membership_place(struct membership *m) {
    for (uint32_t begin = 0; begin < m->count;) {
        struct group *group = m->order[begin]->group;
        group->begin = begin;
        group->count = group_end(m->order, m->count, begin) - begin;
        for (uint32_t rank = 0; rank < group->count; rank++) m->order[begin + rank]->rank = rank;
        begin += group->count;
    }
}

struct peer *membership_member(struct membership *m, const struct group *group, const struct wire_id *id) {
    struct peer *peer = membership_peer_of_id(m, id);
    return peer != NULL && peer->accepted && peer->group == group ? peer : NULL;
}

void membership_change(struct membership *m, struct group *group) {
    group->changed = true;
    m->changed = true;
}

// ---- epochs ----

static struct wire_epoch describe(struct membership *m, struct peer *const *peers, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) m->members[i] = peers[i]->member;
    return (struct wire_epoch){.count = count, .members = m->members};
}

static void send_candidate(struct membership *m) {
    struct wire_candidate message = {.attempt = m->attempt, .epoch = describe(m, m->candidate, m->candidate_count)};
    message.epoch.number = m->number + 1;
    for (uint32_t start = 0; start < m->candidate_count;) {
        uint32_t end = group_end(m->candidate, m->candidate_count, start);
        const struct group *group = m->candidate[start]->group;
        bool changes = m->candidate[start]->regrouped;
        message.epoch.group_epoch = changes ? m->number + 1 : group->group_epoch;
        message.epoch.latency_us = changes ? DEFAULT_LATENCY_US : group->latency_us;
        message.epoch.megabytes_per_s = changes ? DEFAULT_MEGABYTES_PER_S : group->megabytes_per_s;
        size_t begin = membership_frame_begin(m), length;
        wire_encode_candidate(&m->actions.bytes, membership_header(m), &message);
        membership_frame_end(m, begin, &length);
        for (; start < end; start++) membership_send(m, m->candidate[start], begin, length);
    }
}

static void send_epoch(struct membership *m, uint8_t reason) {
    struct wire_epoch_commit message = {.reason = reason, .epoch = describe(m, m->order, m->count)};
    message.epoch.number = m->number;
    message.quorum = membership_quorum(m);
    for (uint32_t start = 0; start < m->count;) {
        const struct group *group = m->order[start]->group;
        message.epoch.group_epoch = group->group_epoch;
        message.epoch.lost_epoch = group->lost_epoch;
        message.epoch.barrier = m->barrier;
        message.epoch.sync_round = group->sync.last.round;
        message.epoch.sync_expected = group->sync.committed ? group->sync.expected : 0;
        message.epoch.latency_us = group->latency_us;
        message.epoch.megabytes_per_s = group->megabytes_per_s;
        size_t begin = membership_frame_begin(m), length;
        wire_encode_epoch_commit(&m->actions.bytes, membership_header(m), &message);
        membership_frame_end(m, begin, &length);
        for (uint32_t end = start + group->count; start < end; start++)
            membership_send(m, m->order[start], begin, length);
    }
}

static void enter_group_epoch(struct membership *m, struct group *group, bool lost) {
    group->group_epoch = m->number;
    if (lost) group->lost_epoch = m->number;
    group->changed = group->lost = false;
    group->latency_us = 0;
    for (uint32_t i = group->begin; i < group->begin + group->count; i++) {
        struct peer *peer = m->order[i];
        peer->linked = peer->reported = false;
        if (peer->latency_us > group->latency_us) group->latency_us = peer->latency_us;
    }
    if (group->latency_us == 0) group->latency_us = DEFAULT_LATENCY_US;
    group->megabytes_per_s = membership_group_rate(m, group);
    membership_ops_begin(m, group);
    membership_links_begin(group);
}

// The next number; a LOSS epoch is a new group epoch for groups that lost members, any other one for groups that
// changed.
void membership_enter_epoch(struct membership *m, uint8_t reason) {
    bool lost = reason == WIRE_REASON_LOSS;
    m->number++;
    for (uint32_t i = 0; i < m->count; i += m->order[i]->group->count) {
        struct group *group = m->order[i]->group;
        if (lost ? group->lost : group->changed) enter_group_epoch(m, group, lost);
    }
    if (lost) m->lost_number = m->number;
    if (lost) m->lost = false;
    m->changed = false;
    for (uint32_t i = 0; i < m->count; i += m->order[i]->group->count) m->changed |= m->order[i]->group->changed;
    if (m->phase == PHASE_CANDIDATE) m->candidate_stale = true;
    send_epoch(m, reason);
    static const char *const reasons[] = {"?", "update", "loss", "relink", "order"};
    membership_log(m, LOG_NOTICE, "epoch %llu (%s): %u peers", (unsigned long long)m->number, reasons[reason],
                   m->count);
}

void membership_enter_resumed(struct membership *m) {
    bool lost = false;
    m->number++;
    for (uint32_t i = 0; i < m->count; i += m->order[i]->group->count) {
        struct group *group = m->order[i]->group;
        lost |= group->lost;
        enter_group_epoch(m, group, group->lost);
    }
    if (lost) m->lost_number = m->number;
    send_epoch(m, lost ? WIRE_REASON_LOSS : WIRE_REASON_RELINK);
    membership_log(m, LOG_NOTICE, "epoch %llu (resumed): %u peers", (unsigned long long)m->number, m->count);
}

// ---- candidates ----

// Newcomers, or another order than the one in force.
static bool candidate_changes(const struct membership *m, uint32_t start, uint32_t end) {
    for (uint32_t i = start; i < end; i++)
        if (!m->candidate[i]->accepted || m->order[m->candidate[i]->group->begin + i - start] != m->candidate[i])
            return true;
    return false;
}

static void log_admitted(struct membership *m) {
    uint32_t admitted = 0;
    for (uint32_t i = 0; i < m->candidate_count; i++) {
        const struct peer *peer = m->candidate[i];
        char name[128];
        if (!peer->accepted && ++admitted <= ADMITTED_LINES)
            membership_log(m, LOG_NOTICE, "admitted %s, group %u", membership_name_and_address(name, peer),
                           peer->member.group);
    }
    if (admitted > ADMITTED_LINES) membership_log(m, LOG_NOTICE, "admitted %u more", admitted - ADMITTED_LINES);
}

static void commit_candidate(struct membership *m) {
    uint32_t before = m->count;
    log_admitted(m);
    uint64_t newer = UINT64_MAX;
    for (uint32_t i = 0; i < m->candidate_count; i++) {
        struct peer *peer = m->candidate[i];
        if (!peer->accepted && peer->member.join_number < newer) newer = peer->member.join_number;
        if (!peer->accepted) peer->group = membership_group_for(m, peer->member.group);
        if (!peer->accepted) membership_forgive(m, &peer->member.address);
        if (peer->regrouped) peer->group->changed = true;
        peer->accepted = true;
        peer->invited = peer->candidate = false;
        peer->vote = 0;
    }
    memcpy(m->order, m->candidate, m->candidate_count * sizeof m->order[0]);
    m->count = m->candidate_count;
    membership_place(m);
    if (m->count > before) membership_admits(m, before, newer);
    m->open_votes[m->candidate_kind] = 0;
    m->barrier++;
    m->phase = PHASE_IDLE;
    membership_enter_epoch(m, m->candidate_kind == WIRE_VOTE_UPDATE ? WIRE_REASON_UPDATE : WIRE_REASON_ORDER);
}

void membership_start_candidate(struct membership *m, uint8_t kind) {
    m->phase = PHASE_CANDIDATE;
    m->candidate_kind = kind;
    m->candidate_stale = m->candidate_judged = false;
    m->attempt++;
    m->unanswered = m->candidate_count;
    m->accepted_unanswered = m->count;
    m->hopeless = 0;
    // The peers' own limit for making links ends before, so that they can tell whom they could not reach.
    m->phase_deadline = m->now_ns + m->limit_ns + m->limit_ns / 4;
    for (uint32_t start = 0; start < m->candidate_count;) {
        uint32_t end = group_end(m->candidate, m->candidate_count, start);
        bool changes = candidate_changes(m, start, end);
        for (; start < end; start++) {
            struct peer *peer = m->candidate[start];
            peer->candidate = true;
            peer->regrouped = changes;
            peer->answered = peer->hopeless = false;
            memset(peer->unreachable, 0, sizeof peer->unreachable);
        }
    }
    if (m->candidate_count == 1)
        commit_candidate(m); // nobody to make links to
    else
        send_candidate(m);
}

// Newcomers go to the end of their group, in the order in which they came.
static void insert_candidate(struct membership *m, struct peer *newcomer) {
    uint32_t at = m->candidate_count++;
    for (; at > 0; at--) {
        const struct peer *before = m->candidate[at - 1];
        if (before->member.group < newcomer->member.group) break;
        if (before->member.group == newcomer->member.group &&
            (before->accepted || before->member.join_number < newcomer->member.join_number))
            break;
        m->candidate[at] = m->candidate[at - 1];
    }
    m->candidate[at] = newcomer;
}

void membership_form_update(struct membership *m) {
    memcpy(m->candidate, m->order, m->count * sizeof m->order[0]);
    m->candidate_count = m->count;
    for (uint32_t i = 0; i < m->slots; i++) {
        struct peer *peer = &m->peers[i];
        if (!peer->used || peer->accepted) continue;
        if (m->count == 0) peer->invited = true;
        if (peer->invited) insert_candidate(m, peer);
    }
    if (m->candidate_count > m->count)
        membership_start_candidate(m, WIRE_VOTE_UPDATE);
    else
        membership_outcome(m, WIRE_VOTE_UPDATE, CODE_SUCCESS, 0);
}

static bool reaches(const struct membership *m, const struct peer *from, const struct peer *to) {
    size_t slot = (size_t)(to - m->peers);
    return !(from->unreachable[slot / 64] >> (slot % 64) & 1);
}

// Have all answered, and missed nobody?
static bool all_reached(const struct membership *m) {
    bool reached = true;
    for (uint32_t i = 0; i < m->candidate_count; i++) {
        const struct peer *peer = m->candidate[i];
        for (uint32_t w = 0; w < PEER_WORDS; w++) reached &= peer->unreachable[w] == 0;
        reached &= peer->answered;
    }
    return reached;
}

// The longest-standing peer of the candidate that this newcomer has no links to and that has a better right to stay, or
// NULL.
static const struct peer *candidate_obstacle(const struct membership *m, const struct peer *newcomer) {
    const struct peer *found = NULL;
    for (uint32_t i = 0; i < m->candidate_count; i++) {
        const struct peer *other = m->candidate[i];
        bool first = other->accepted || other->member.join_number < newcomer->member.join_number;
        if (other == newcomer || other->gone || !first || (reaches(m, newcomer, other) && reaches(m, other, newcomer)))
            continue;
        if (found == NULL || other->member.join_number < found->member.join_number) found = other;
    }
    return found;
}

// Leaves out every newcomer that is late or has no links to those that stay. True when there was one.
static bool exclude_newcomers(struct membership *m) {
    uint32_t before = m->gone_count;
    uint64_t joined = 0;
    if (all_reached(m)) return false;
    for (;;) {
        struct peer *next = NULL; // by join number, since the longer-standing of two newcomers stays
        for (uint32_t i = 0; i < m->candidate_count; i++) {
            struct peer *peer = m->candidate[i];
            if (!peer->accepted && peer->member.join_number > joined &&
                (next == NULL || peer->member.join_number < next->member.join_number))
                next = peer;
        }
        if (next == NULL) return m->gone_count > before;
        joined = next->member.join_number;
        char name[64];
        const struct peer *obstacle = candidate_obstacle(m, next);
        if (!next->answered || (obstacle != NULL && obstacle->accepted)) membership_strike(m, &next->member.address);
        if (obstacle != NULL)
            membership_expel(m, next, "no data connection between this peer and %s", membership_name(name, obstacle));
        else if (!next->answered)
            membership_expel(m, next, "did not report its links in time");
    }
}

static bool blame_accepted(struct membership *m) {
    bool broken = false;
    if (all_reached(m)) return false;
    for (uint32_t i = 0; i < m->candidate_count; i++)
        for (uint32_t k = 0; k < m->candidate_count; k++)
            if (!reaches(m, m->candidate[i], m->candidate[k])) {
                membership_link_failed(m, m->candidate[i], m->candidate[k], false);
                broken = true;
            }
    return broken;
}

// All have answered, or the time for it is over.
static void judge_update(struct membership *m) {
    if (exclude_newcomers(m)) return;
    for (uint32_t i = 0; i < m->candidate_count; i++)
        if (!m->candidate[i]->answered) membership_expel(m, m->candidate[i], "did not report its links in time");
    m->candidate_judged = true;
    if (m->gone_count == 0 && !blame_accepted(m)) commit_candidate(m);
}

static void judge_order(struct membership *m) {
    if (all_reached(m))
        commit_candidate(m);
    else
        membership_outcome(m, WIRE_VOTE_OPTIMIZE, CODE_OPTIMIZATION_FAILED, 0);
}

void membership_judge_candidate(struct membership *m) {
    m->phase_deadline = INT64_MAX;
    if (m->candidate_kind == WIRE_VOTE_UPDATE)
        judge_update(m);
    else
        judge_order(m);
}

// All accepted peers have answered, and wait for newcomers alone. Those to whom one of them has no link are left out,
// whatever they say, and the others' own limit is over soon.
static void hurry_newcomers(struct membership *m) {
    for (uint32_t i = 0; i < m->candidate_count; i++) {
        struct peer *newcomer = m->candidate[i];
        for (uint32_t k = 0; k < m->count && !newcomer->accepted && !newcomer->answered && !newcomer->hopeless; k++)
            newcomer->hopeless = !reaches(m, m->order[k], newcomer);
        m->hopeless += newcomer->hopeless;
    }
    m->phase_deadline -= m->limit_ns * 3 / 8;
}

void membership_on_candidate_linked(struct membership *m, struct peer *peer, const struct wire_linked *linked) {
    if (m->phase != PHASE_CANDIDATE || linked->attempt != m->attempt || !peer->candidate || peer->answered) return;
    for (uint32_t i = 0; i < linked->count; i++) {
        const struct peer *other = membership_peer_of_id(m, &linked->unreachable[i]);
        if (other == NULL || other == peer || !other->candidate || other->member.group != peer->member.group) continue;
        size_t slot = (size_t)(other - m->peers);
        peer->unreachable[slot / 64] |= UINT64_C(1) << (slot % 64);
    }
    peer->answered = true;
    m->unanswered--;
    m->hopeless -= peer->hopeless;
    if (peer->accepted && --m->accepted_unanswered == 0) hurry_newcomers(m);
    if (m->accepted_unanswered == 0 && m->unanswered == m->hopeless) m->unanswered = 0;
}
