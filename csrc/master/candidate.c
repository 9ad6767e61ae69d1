#include "master/candidate.h"

#include <string.h>

#include "master/survey.h"
#include "topology/shares.h"

enum { ADMITTED_LINES = 16 }; // of the log

static const char NARROW[] =
    ": small packets pass, but large ones are lost; set the same MTU on all of the path, or set "
    "net.ipv4.tcp_mtu_probing=1 on both hosts";

void candidate_init(struct candidate *candidate) { memset(candidate, 0, offsetof(struct candidate, order)); }

// Newcomers go to the end of their group, in the order in which they came.
static void insert(struct candidate *candidate, struct desk_peer *newcomer) {
    uint32_t at = candidate->count++;
    for (; at > 0; at--) {
        struct desk_peer *before = candidate->order[at - 1];
        if (before->member.group < newcomer->member.group) break;
        if (before->member.group == newcomer->member.group &&
            (before->accepted || before->member.join_number < newcomer->member.join_number))
            break;
        candidate->order[at] = before;
    }
    candidate->order[at] = newcomer;
}

bool candidate_form(struct candidate *candidate, struct desk *desk) {
    memcpy(candidate->order, desk->order, desk->count * sizeof desk->order[0]);
    candidate->count = desk->count;
    for (uint32_t slot = 0; slot < desk->slots; slot++) {
        struct desk_peer *peer = &desk->peers[slot];
        if (peer->used && !peer->accepted && peer->invited) insert(candidate, peer);
    }
    candidate_keep_shares(candidate);
    return candidate->count > desk->count;
}

static uint32_t group_end(const struct candidate *candidate, uint32_t begin) {
    uint32_t end = begin, id = candidate->order[begin]->member.group;
    while (end < candidate->count && candidate->order[end]->member.group == id) end++;
    return end;
}

void candidate_keep_shares(struct candidate *candidate) {
    for (uint32_t start = 0, end; start < candidate->count; start = end) {
        uint32_t sum = 0, sharing = 0;
        end = group_end(candidate, start);
        for (uint32_t i = start; i < end; i++) {
            const struct desk_peer *peer = candidate->order[i];
            bool keeps = peer->accepted && end - start <= SHARES_MOST; // more go back to the ring
            candidate->share[i] = keeps ? peer->member.share : 0;
            candidate->site[i] = keeps ? peer->member.site : 0;
            sum += candidate->share[i];
            sharing += candidate->share[i] > 0;
        }
        for (uint32_t i = start; i < end && sharing > 0; i++)
            if (!candidate->order[i]->accepted) candidate->share[i] = (uint16_t)(sum / sharing);
    }
}

// Newcomers, or another order or other shares than the one in force.
static bool differs(const struct candidate *candidate, uint32_t start, uint32_t end) {
    for (uint32_t i = start; i < end; i++) {
        const struct desk_peer *peer = candidate->order[i];
        if (!peer->accepted || peer->group->members[i - start] != peer) return true;
        if (peer->member.share != candidate->share[i] || peer->member.site != candidate->site[i]) return true;
    }
    return false;
}

void candidate_propose(struct candidate *candidate, struct desk *desk, uint8_t kind) {
    candidate->kind = kind;
    candidate->stale = candidate->judged = false;
    candidate->attempt++;
    candidate->unanswered = candidate->count;
    candidate->accepted_unanswered = desk->count;
    candidate->hopeless = 0;
    // The peers' own limit for making links ends before, so that they can tell whom they could not reach.
    candidate->deadline_ns = desk->now_ns + desk->limit_ns + desk->limit_ns / 4;
    struct wire_candidate message = {.attempt = candidate->attempt,
                                     .epoch = desk_describe(desk, candidate->order, candidate->count)};
    message.epoch.number = desk->number + 1;
    for (uint32_t i = 0; i < candidate->count; i++) {
        message.epoch.members[i].share = candidate->share[i];
        message.epoch.members[i].site = candidate->site[i];
    }
    for (uint32_t start = 0; start < candidate->count;) {
        uint32_t end = group_end(candidate, start);
        const struct desk_group *group = candidate->order[start]->group;
        bool changes = differs(candidate, start, end);
        message.epoch.group_epoch = changes ? desk->number + 1 : group->group_epoch;
        message.epoch.latency_us = changes ? SURVEY_DEFAULT_LATENCY_US : group->latency_us;
        message.epoch.megabytes_per_s = changes ? SURVEY_DEFAULT_MEGABYTES_PER_S : group->megabytes_per_s;
        wire_encode_candidate(desk_frame(desk), desk_header(desk), &message);
        for (; start < end; start++) {
            struct desk_peer *peer = candidate->order[start];
            peer->listed = true;
            peer->regrouped = changes;
            peer->answered = peer->hopeless = false;
            memset(candidate->unreachable[desk_slot(desk, peer)], 0, sizeof candidate->unreachable[0]);
            memset(candidate->narrow[desk_slot(desk, peer)], 0, sizeof candidate->narrow[0]);
            if (candidate->count > 1) desk_send(desk, peer);
        }
    }
}

// ---- answers ----

static bool reaches(const struct candidate *candidate, const struct desk *desk, const struct desk_peer *from,
                    const struct desk_peer *to) {
    uint32_t slot = desk_slot(desk, to);
    return !(candidate->unreachable[desk_slot(desk, from)][slot / 64] >> (slot % 64) & 1);
}

// Whether one of two peers has told that large packets are lost between them.
static bool is_narrow(const struct candidate *candidate, const struct desk *desk, const struct desk_peer *a,
                      const struct desk_peer *b) {
    uint32_t from = desk_slot(desk, a), to = desk_slot(desk, b);
    return (candidate->narrow[from][to / 64] >> (to % 64) & 1) || (candidate->narrow[to][from / 64] >> (from % 64) & 1);
}

// All accepted peers have answered, and wait for newcomers alone. Those to whom one of them has no link are left out,
// whatever they say, and the others' own limit is over soon.
static void hurry_newcomers(struct candidate *candidate, struct desk *desk) {
    for (uint32_t i = 0; i < candidate->count; i++) {
        struct desk_peer *newcomer = candidate->order[i];
        bool late = !newcomer->accepted && !newcomer->answered;
        for (uint32_t k = 0; k < desk->count && late && !newcomer->hopeless; k++)
            newcomer->hopeless = !reaches(candidate, desk, desk->order[k], newcomer);
        candidate->hopeless += newcomer->hopeless;
    }
    candidate->deadline_ns -= desk->limit_ns * 3 / 8;
}

void candidate_linked(struct candidate *candidate, struct desk *desk, struct desk_peer *peer,
                      const struct wire_linked *linked) {
    if (linked->attempt != candidate->attempt || !peer->listed || peer->answered) return;
    for (uint32_t i = 0; i < linked->count; i++) {
        const struct desk_peer *other = desk_of_id(desk, &linked->unreachable[i]);
        if (other == NULL || other == peer || !other->listed || other->member.group != peer->member.group) continue;
        uint32_t slot = desk_slot(desk, other);
        candidate->unreachable[desk_slot(desk, peer)][slot / 64] |= UINT64_C(1) << (slot % 64);
        candidate->narrow[desk_slot(desk, peer)][slot / 64] |= (uint64_t)linked->narrow[i] << (slot % 64);
    }
    peer->answered = true;
    candidate->unanswered--;
    candidate->hopeless -= peer->hopeless;
    if (peer->accepted && --candidate->accepted_unanswered == 0) hurry_newcomers(candidate, desk);
    if (candidate->accepted_unanswered == 0 && candidate->unanswered == candidate->hopeless) candidate->unanswered = 0;
}

// ---- judgement ----

// Have all answered, and missed nobody?
static bool all_reached(const struct candidate *candidate, const struct desk *desk) {
    bool reached = true;
    for (uint32_t i = 0; i < candidate->count; i++) {
        const uint64_t *unreachable = candidate->unreachable[desk_slot(desk, candidate->order[i])];
        for (uint32_t w = 0; w < CANDIDATE_WORDS; w++) reached &= unreachable[w] == 0;
        reached &= candidate->order[i]->answered;
    }
    return reached;
}

// The longest-standing peer of the candidate that this newcomer has no links to and that has a better right to stay, or
// NULL.
static const struct desk_peer *obstacle_of(const struct candidate *candidate, const struct desk *desk,
                                           const struct desk_peer *newcomer) {
    const struct desk_peer *found = NULL;
    for (uint32_t i = 0; i < candidate->count; i++) {
        const struct desk_peer *other = candidate->order[i];
        bool first = other->accepted || other->member.join_number < newcomer->member.join_number;
        if (other == newcomer || other->gone || !first ||
            (reaches(candidate, desk, newcomer, other) && reaches(candidate, desk, other, newcomer)))
            continue;
        if (found == NULL || other->member.join_number < found->member.join_number) found = other;
    }
    return found;
}

// By join number, since the longer-standing of two newcomers stays; NULL: there is no further one.
static struct desk_peer *next_newcomer(const struct candidate *candidate, uint64_t joined) {
    struct desk_peer *next = NULL;
    for (uint32_t i = 0; i < candidate->count; i++) {
        struct desk_peer *peer = candidate->order[i];
        if (!peer->accepted && peer->member.join_number > joined &&
            (next == NULL || peer->member.join_number < next->member.join_number))
            next = peer;
    }
    return next;
}

// Leaves out every newcomer that is late or has no links to those that stay. True when there was one.
static bool exclude_newcomers(struct candidate *candidate, struct desk *desk, struct failure_counts *failure_counts) {
    uint32_t before = desk->gone_count;
    uint64_t joined = 0;
    for (struct desk_peer *peer; (peer = next_newcomer(candidate, joined)) != NULL;) {
        const struct desk_peer *obstacle = obstacle_of(candidate, desk, peer);
        joined = peer->member.join_number;
        if (!peer->answered || (obstacle != NULL && obstacle->accepted))
            failure_counts_add(failure_counts, &peer->member.address, desk->now_ns);
        if (obstacle != NULL)
            desk_expel(desk, peer, "no data connection between this peer and %s%s", desk_name(obstacle).chars,
                       is_narrow(candidate, desk, peer, obstacle) ? NARROW : "");
        else if (!peer->answered)
            desk_expel(desk, peer, "did not report its links in time");
    }
    return desk->gone_count > before;
}

static void blame_accepted(struct candidate *candidate, struct desk *desk, struct breaks *breaks) {
    for (uint32_t i = 0; i < candidate->count; i++)
        for (uint32_t k = 0; k < candidate->count; k++) {
            struct desk_peer *from = candidate->order[i], *to = candidate->order[k];
            if (!reaches(candidate, desk, from, to))
                breaks_add(&breaks[desk_group_slot(desk, from->group)], desk, from, to, WIRE_LINK_BROKEN);
        }
}

enum candidate_verdict candidate_judge(struct candidate *candidate, struct desk *desk,
                                       struct failure_counts *failure_counts, struct breaks *breaks) {
    candidate->deadline_ns = INT64_MAX;
    if (all_reached(candidate, desk)) {
        candidate->judged = candidate->kind == WIRE_VOTE_UPDATE;
        return CANDIDATE_PASSES;
    }
    if (candidate->kind != WIRE_VOTE_UPDATE || candidate->count == desk->count) return CANDIDATE_FAILS;
    if (exclude_newcomers(candidate, desk, failure_counts)) return CANDIDATE_REPAIRS;
    for (uint32_t i = 0; i < candidate->count; i++)
        if (!candidate->order[i]->answered) desk_expel(desk, candidate->order[i], "did not report its links in time");
    candidate->judged = true;
    if (desk->gone_count == 0) blame_accepted(candidate, desk, breaks);
    return CANDIDATE_REPAIRS;
}

static void log_admitted(const struct candidate *candidate, struct desk *desk) {
    uint32_t admitted = 0;
    for (uint32_t i = 0; i < candidate->count; i++) {
        const struct desk_peer *peer = candidate->order[i];
        if (!peer->accepted && ++admitted <= ADMITTED_LINES)
            actions_log(&desk->actions, LOG_NOTICE, "admitted %s, group %u", desk_place(peer).chars,
                        peer->member.group);
    }
    if (admitted > ADMITTED_LINES)
        actions_log(&desk->actions, LOG_NOTICE, "admitted %u more", admitted - ADMITTED_LINES);
}

uint64_t candidate_commit(struct candidate *candidate, struct desk *desk, struct failure_counts *failure_counts) {
    uint64_t newer = UINT64_MAX;
    log_admitted(candidate, desk);
    for (uint32_t i = 0; i < candidate->count; i++) {
        struct desk_peer *peer = candidate->order[i];
        if (!peer->accepted) {
            if (peer->member.join_number < newer) newer = peer->member.join_number;
            peer->group = desk_group_for(desk, peer->member.group);
            failure_counts_forgive(failure_counts, &peer->member.address, desk->now_ns);
        }
        if (peer->regrouped) peer->group->changed = true;
        peer->member.share = candidate->share[i];
        peer->member.site = candidate->site[i];
        peer->accepted = true;
        peer->invited = peer->listed = false;
    }
    memcpy(desk->order, candidate->order, candidate->count * sizeof desk->order[0]);
    desk->count = candidate->count;
    desk_rank(desk);
    return newer;
}
