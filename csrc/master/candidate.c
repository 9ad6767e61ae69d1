#include "master/candidate.h"

#include <stdio.h>
#include <string.h>

#include "base/platform.h"
#include "net/socket.h"
#include "topology/topology.h"

enum {
    ADMITTED_LINES = 16, // of the log
    DIAL_BYTES = 160,
};

static const char CLOSED[] = ": neither can be dialled; start a member that can be, or a relay (docs/addresses.md)";
static const char APART[] = ": neither can be dialled, and they did not meet at PCCL_RELAY; their logs say why";
static const char NARROW[] = ": small packets pass, but large ones are lost; set one MTU on the whole path, or "
                             "net.ipv4.tcp_mtu_probing=1 on both hosts";

// Newcomers go to the end of their group, in the order in which they came.
static void insert(struct candidate *candidate, struct peer_record *newcomer) {
    uint32_t at = candidate->count++;
    for (; at > 0; at--) {
        struct peer_record *before = candidate->order[at - 1];
        if (before->member.group < newcomer->member.group) break;
        if (before->member.group == newcomer->member.group &&
            (before->accepted || before->member.join_number < newcomer->member.join_number))
            break;
        candidate->order[at] = before;
    }
    candidate->order[at] = newcomer;
}

bool candidate_form(struct candidate *candidate, struct membership *table) {
    memcpy(candidate->order, table->order, table->count * sizeof table->order[0]);
    candidate->count = table->count;
    for (uint32_t slot = 0; slot < table->slots; slot++) {
        struct peer_record *peer = &table->peers[slot];
        if (peer->used && !peer->accepted && peer->invited) insert(candidate, peer);
    }
    candidate_keep_weights(candidate);
    return candidate->count > table->count;
}

static uint32_t group_end(const struct candidate *candidate, uint32_t begin) {
    uint32_t end = begin, id = candidate->order[begin]->member.group;
    while (end < candidate->count && candidate->order[end]->member.group == id) end++;
    return end;
}

void candidate_keep_weights(struct candidate *candidate) {
    for (uint32_t start = 0, end; start < candidate->count; start = end) {
        uint32_t sum = 0, sharing = 0;
        end = group_end(candidate, start);
        for (uint32_t i = start; i < end; i++) {
            const struct peer_record *peer = candidate->order[i];
            bool keeps = peer->accepted && end - start <= WEIGHTS_MOST; // more go back to the ring
            candidate->weight[i] = keeps ? peer->member.weight : 0;
            candidate->site[i] = keeps ? peer->member.site : 0;
            sum += candidate->weight[i];
            sharing += candidate->weight[i] > 0;
        }
        for (uint32_t i = start; i < end && sharing > 0; i++)
            if (!candidate->order[i]->accepted) candidate->weight[i] = (uint16_t)(sum / sharing);
    }
}

// Newcomers, or another order or other weights than the one in force.
static bool differs(const struct candidate *candidate, uint32_t start, uint32_t end) {
    for (uint32_t i = start; i < end; i++) {
        const struct peer_record *peer = candidate->order[i];
        if (!peer->accepted || peer->group->members[i - start] != peer) return true;
        if (peer->member.weight != candidate->weight[i] || peer->member.site != candidate->site[i]) return true;
    }
    return false;
}

void candidate_propose(struct candidate *candidate, struct membership *table, uint8_t kind) {
    candidate->kind = kind;
    candidate->stale = candidate->lingers = candidate->judged = false;
    candidate->attempt++;
    candidate->unanswered = candidate->count;
    candidate->accepted_unanswered = table->count;
    candidate->hopeless = 0;
    // The peers' own limit for making links ends before, so that they can tell whom they could not reach.
    candidate->deadline_ns = table->now_ns + table->limit_ns + table->limit_ns / 4;
    struct wire_candidate message = {
        .attempt = candidate->attempt,
        .epoch = membership_epoch(table, table->number + 1, candidate->order, candidate->count)};
    for (uint32_t i = 0; i < candidate->count; i++) {
        message.epoch.members[i].weight = candidate->weight[i];
        message.epoch.members[i].site = candidate->site[i];
    }
    for (uint32_t start = 0; start < candidate->count;) {
        uint32_t end = group_end(candidate, start);
        const struct peer_group *group = candidate->order[start]->group;
        bool changes = differs(candidate, start, end);
        message.epoch.group_epoch = changes ? table->number + 1 : group->group_epoch;
        message.epoch.latency_us = changes ? MEMBERSHIP_LATENCY_US : group->latency_us;
        message.epoch.megabytes_per_s = changes ? MEMBERSHIP_MEGABYTES_PER_S : group->megabytes_per_s;
        wire_encode_candidate(membership_frame(table), membership_header(table), &message);
        for (; start < end; start++) {
            struct peer_record *peer = candidate->order[start];
            peer->listed = true;
            peer->regrouped = changes;
            peer->answered = peer->hopeless = false;
            memset(candidate->unreachable[membership_slot(table, peer)], 0, sizeof candidate->unreachable[0]);
            memset(candidate->narrow[membership_slot(table, peer)], 0, sizeof candidate->narrow[0]);
            if (candidate->count > 1) membership_send(table, peer);
        }
    }
}

// ---- answers ----

static bool reaches(const struct candidate *candidate, const struct membership *table, const struct peer_record *from,
                    const struct peer_record *to) {
    uint32_t slot = membership_slot(table, to);
    return !(candidate->unreachable[membership_slot(table, from)][slot / 64] >> (slot % 64) & 1);
}

// Whether one of two peers has told that large packets are lost between them.
static bool is_narrow(const struct candidate *candidate, const struct membership *table, const struct peer_record *a,
                      const struct peer_record *b) {
    uint32_t from = membership_slot(table, a), to = membership_slot(table, b);
    return (candidate->narrow[from][to / 64] >> (to % 64) & 1) || (candidate->narrow[to][from / 64] >> (from % 64) & 1);
}

// The longest-standing peer of the candidate that this newcomer has no links to and that has a better right to stay, or
// NULL.
static const struct peer_record *obstacle_of(const struct candidate *candidate, const struct membership *table,
                                             const struct peer_record *newcomer) {
    const struct peer_record *found = NULL;
    for (uint32_t i = 0; i < candidate->count; i++) {
        const struct peer_record *other = candidate->order[i];
        bool first = other->accepted || other->member.join_number < newcomer->member.join_number;
        if (other == newcomer || other->gone || !first ||
            (reaches(candidate, table, newcomer, other) && reaches(candidate, table, other, newcomer)))
            continue;
        if (found == NULL || other->member.join_number < found->member.join_number) found = other;
    }
    return found;
}

// Whether a newcomer would be left out for a link that is missing.
static bool leaves_out(const struct candidate *candidate, const struct membership *table) {
    uint32_t i = 0;
    while (i < candidate->count &&
           (candidate->order[i]->accepted || obstacle_of(candidate, table, candidate->order[i]) == NULL))
        i++;
    return i < candidate->count;
}

// All accepted peers have answered, and wait for newcomers alone. Those to whom one of them has no link are left out,
// whatever they say, and the others' own limit is over soon.
static void hurry_newcomers(struct candidate *candidate, struct membership *table) {
    for (uint32_t i = 0; i < candidate->count; i++) {
        struct peer_record *newcomer = candidate->order[i];
        bool late = !newcomer->accepted && !newcomer->answered;
        for (uint32_t k = 0; k < table->count && late && !newcomer->hopeless; k++)
            newcomer->hopeless = !reaches(candidate, table, table->order[k], newcomer);
        candidate->hopeless += newcomer->hopeless;
    }
    candidate->deadline_ns -= table->limit_ns * 3 / 8;
}

void candidate_linked(struct candidate *candidate, struct membership *table, struct peer_record *peer,
                      const struct wire_linked *linked) {
    if (linked->attempt != candidate->attempt || !peer->listed || peer->answered) return;
    for (uint32_t i = 0; i < linked->count; i++) {
        const struct peer_record *other = membership_by_id(table, &linked->unreachable[i]);
        if (other == NULL || other == peer || !other->listed || other->member.group != peer->member.group) continue;
        uint32_t slot = membership_slot(table, other);
        candidate->unreachable[membership_slot(table, peer)][slot / 64] |= UINT64_C(1) << (slot % 64);
        candidate->narrow[membership_slot(table, peer)][slot / 64] |= (uint64_t)linked->narrow[i] << (slot % 64);
    }
    peer->answered = true;
    if (candidate->lingers) return;
    candidate->unanswered--;
    candidate->hopeless -= peer->hopeless;
    if (peer->accepted && --candidate->accepted_unanswered == 0) hurry_newcomers(candidate, table);
    if (candidate->accepted_unanswered > 0 || candidate->unanswered > candidate->hopeless) return;
    candidate->unanswered = 0;
    if (candidate->kind != WIRE_VOTE_UPDATE || !leaves_out(candidate, table)) return;
    candidate->lingers = true;
    candidate->deadline_ns = platform_earlier(candidate->deadline_ns, table->now_ns + BREAKS_GRACE_MS * MS_NS);
}

bool candidate_is_due(const struct candidate *candidate) {
    return candidate->unanswered == 0 && !candidate->lingers && !candidate->judged;
}

void candidate_time_out(struct candidate *candidate) {
    candidate->unanswered = 0;
    candidate->lingers = false;
}

// ---- judgement ----

// Have all answered, and missed nobody?
static bool all_reached(const struct candidate *candidate, const struct membership *table) {
    bool reached = true;
    for (uint32_t i = 0; i < candidate->count; i++) {
        const uint64_t *unreachable = candidate->unreachable[membership_slot(table, candidate->order[i])];
        for (uint32_t w = 0; w < CANDIDATE_WORDS; w++) reached &= unreachable[w] == 0;
        reached &= candidate->order[i]->answered;
    }
    return reached;
}

// By join number, since the longer-standing of two newcomers stays; NULL: there is no further one.
static struct peer_record *next_newcomer(const struct candidate *candidate, uint64_t joined) {
    struct peer_record *next = NULL;
    for (uint32_t i = 0; i < candidate->count; i++) {
        struct peer_record *peer = candidate->order[i];
        if (!peer->accepted && peer->member.join_number > joined &&
            (next == NULL || peer->member.join_number < next->member.join_number))
            next = peer;
    }
    return next;
}

// Says which of the two was dialled in vain, and where.
static const char *describe_dial(const struct peer_record *peer, const struct peer_record *obstacle,
                                 char text[DIAL_BYTES]) {
    const struct wire_member *own = &peer->member, *other = &obstacle->member;
    bool dials = wire_dials(own->reach.closed, own->join_number, other->reach.closed, other->join_number);
    const struct wire_member *to = dials ? other : own;
    char address[64];
    snprintf(
        text, DIAL_BYTES, "; %s is dialled at %s: open this port there, or correct its PCCL_ADDRESS",
        dials ? "that one" : "this peer",
        socket_address_format(address, sizeof address, to->reach.count > 0 ? &to->reach.addresses[0] : &to->address));
    return text;
}

// Leaves out every newcomer that is late or has no links to those that stay. True when there was one.
static bool exclude_newcomers(struct candidate *candidate, struct membership *table) {
    uint32_t before = table->gone_count;
    uint64_t joined = 0;
    for (struct peer_record *peer; (peer = next_newcomer(candidate, joined)) != NULL;) {
        const struct peer_record *obstacle = obstacle_of(candidate, table, peer);
        char dial[DIAL_BYTES];
        bool closed = obstacle != NULL && peer->member.reach.closed && obstacle->member.reach.closed;
        joined = peer->member.join_number;
        if (!peer->answered || (obstacle != NULL && obstacle->accepted))
            membership_host_failed(table, &peer->member.address);
        if (obstacle != NULL)
            membership_expel(
                table, peer, "no data connection between this peer and %s%s", membership_label(obstacle).chars,
                is_narrow(candidate, table, peer, obstacle) ? NARROW
                : !closed                                   ? describe_dial(peer, obstacle, dial)
                : peer->member.reach.relays & obstacle->member.reach.relays & WIRE_RELAYS_OUTSIDE ? APART
                                                                                                  : CLOSED);
        else if (!peer->answered)
            membership_expel(table, peer, "it did not report its links in time");
    }
    return table->gone_count > before;
}

static void blame_accepted(struct candidate *candidate, struct membership *table, struct breaks *breaks) {
    for (uint32_t i = 0; i < candidate->count; i++)
        for (uint32_t k = 0; k < candidate->count; k++) {
            struct peer_record *from = candidate->order[i], *to = candidate->order[k];
            if (!reaches(candidate, table, from, to))
                breaks_add(&breaks[membership_group_slot(table, from->group)], table, from, to, WIRE_LINK_BROKEN);
        }
}

enum candidate_verdict candidate_judge(struct candidate *candidate, struct membership *table, struct breaks *breaks) {
    candidate->deadline_ns = INT64_MAX;
    if (all_reached(candidate, table)) {
        candidate->judged = candidate->kind == WIRE_VOTE_UPDATE;
        return CANDIDATE_PASSES;
    }
    if (candidate->kind != WIRE_VOTE_UPDATE || candidate->count == table->count) return CANDIDATE_FAILS;
    if (exclude_newcomers(candidate, table)) return CANDIDATE_REPAIRS;
    for (uint32_t i = 0; i < candidate->count; i++)
        if (!candidate->order[i]->answered)
            membership_expel_for(table, candidate->order[i], WIRE_LOSS_UNREACHABLE,
                                 "it did not report its links in time");
    candidate->judged = true;
    if (table->gone_count == 0) blame_accepted(candidate, table, breaks);
    return CANDIDATE_REPAIRS;
}

static void log_admitted(const struct candidate *candidate, struct membership *table) {
    uint32_t admitted = 0;
    for (uint32_t i = 0; i < candidate->count; i++) {
        const struct peer_record *peer = candidate->order[i];
        if (!peer->accepted)
            actions_event(&table->actions, RECORDER_JOINED, table->number + 1, 0, &peer->member.id,
                          peer->member.name.chars);
        if (!peer->accepted && ++admitted <= ADMITTED_LINES)
            actions_log(&table->actions, LOG_NOTICE, "admitted %s, group %u", membership_label_at(peer).chars,
                        peer->member.group);
    }
    if (admitted > ADMITTED_LINES)
        actions_log(&table->actions, LOG_NOTICE, "admitted %u more", admitted - ADMITTED_LINES);
}

uint64_t candidate_commit(struct candidate *candidate, struct membership *table) {
    uint64_t newer = UINT64_MAX;
    log_admitted(candidate, table);
    for (uint32_t i = 0; i < candidate->count; i++) {
        struct peer_record *peer = candidate->order[i];
        if (!peer->accepted) {
            if (peer->member.join_number < newer) newer = peer->member.join_number;
            peer->group = membership_ensure_group(table, peer->member.group);
            membership_host_admitted(table, &peer->member.address);
        }
        if (peer->regrouped) peer->group->changed = true;
        peer->member.weight = candidate->weight[i];
        peer->member.site = candidate->site[i];
        peer->accepted = true;
        peer->invited = peer->listed = false;
    }
    memcpy(table->order, candidate->order, candidate->count * sizeof table->order[0]);
    table->count = candidate->count;
    membership_rank(table);
    return newer;
}
