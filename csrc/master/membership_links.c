// Links that break between living members. A break that comes from a death is explained by the control socket within
// moments, so it is acted on after a short grace only: the first time the group gets a new epoch in which both sides
// make the link again; if it fails once more before both have had all their links complete, one of the two is expelled:
// the one with more broken pairs, whichever side of them told; else the one that more members accuse, else the one that
// joined later. That judgement waits until all have had the time to speak, for the first report alone says nothing of
// which end is at fault.
#include "master/membership_private.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_PAIRS = 8 };

static int64_t longer(int64_t a, int64_t b) { return a > b ? a : b; }

static struct link_pair *pair_of(struct group *group, uint16_t a, uint16_t b) {
    for (uint32_t i = 0; i < group->pair_count; i++)
        if (group->pairs[i].a == a && group->pairs[i].b == b) return &group->pairs[i];
    if (group->pair_count == group->pair_capacity) {
        uint32_t capacity = group->pair_capacity == 0 ? FIRST_PAIRS : 2 * group->pair_capacity;
        struct link_pair *pairs = realloc(group->pairs, capacity * sizeof *pairs);
        if (pairs == NULL) return NULL;
        group->pairs = pairs;
        group->pair_capacity = capacity;
    }
    struct link_pair *pair = &group->pairs[group->pair_count++];
    *pair = (struct link_pair){.a = a, .b = b};
    return pair;
}

static bool is_recently_silent(const struct membership *m, const struct link_pair *pair) {
    return pair->silent_at != 0 && m->now_ns < pair->silent_at + SILENCE_LIMITS * m->limit_ns;
}

static void remove_pair(struct group *group, uint32_t index) {
    group->pairs[index] = group->pairs[--group->pair_count];
}

// When the broken pairs of a group are looked at. Before somebody is expelled all have the time to say whose links they
// miss.
static void hear(struct membership *m, struct group *group, bool first) {
    int64_t grace = MEMBERSHIP_GRACE_MS * MS_NS, hearing = longer(grace, m->limit_ns / MEMBERSHIP_HEARING_OF);
    if (group->relink_at == INT64_MAX || (!first && group->hearing_since == 0))
        group->relink_at = m->now_ns + (first ? grace : hearing);
    if (!first && group->hearing_since == 0) group->hearing_since = m->now_ns;
}

void membership_link_failed(struct membership *m, struct peer *accuser, struct peer *accused, bool silent) {
    struct group *group = accuser->group;
    uint16_t from = (uint16_t)(accuser - m->peers), to = (uint16_t)(accused - m->peers);
    struct link_pair *pair = pair_of(group, from < to ? from : to, from < to ? to : from);
    if (pair == NULL) {
        membership_starve(m);
        return;
    }
    bool *accuses = from < to ? &pair->a_accuses : &pair->b_accuses;
    if (!pair->pending) {
        char one[64], other[64];
        membership_log(m, LOG_WARN, "the link between %s and %s is down", membership_name(one, accuser),
                       membership_name(other, accused));
        // The first word of each side may be about the same break: one that was stopped meanwhile sees it after the
        // epoch that mends it.
        bool told = pair->failures > 0 && !*accuses && !silent;
        if (!told) pair->failures++;
        if (silent) {
            // Links to a hung thread can be made again, and look well until they are silent again.
            if (is_recently_silent(m, pair)) pair->failures = FAILURES_MAX;
            pair->silent_at = m->now_ns;
        }
    }
    pair->pending = true;
    *accuses = true;
    accuser->linked = false;
    hear(m, group, pair->failures < FAILURES_MAX);
}

void membership_on_link_down(struct membership *m, struct peer *peer, const struct wire_header *header,
                             const uint8_t *body) {
    struct wire_link_down down;
    struct group *group = peer->group;
    if (!wire_decode_link_down(body, header->length, &down)) {
        membership_expel(m, peer, "malformed LINK_DOWN");
        return;
    }
    if (header->epoch < group->group_epoch) return; // the links have been made again since
    struct peer *accused = membership_member(m, group, &down.id);
    if (accused == peer)
        membership_change(m, group);
    else if (accused != NULL)
        membership_link_failed(m, peer, accused, down.silent == 1);
}

void membership_on_linked(struct membership *m, struct peer *peer) {
    struct group *group = peer->group;
    peer->linked = true;
    for (uint32_t i = group->pair_count; i-- > 0;) {
        struct link_pair *pair = &group->pairs[i];
        if (pair->pending || !m->peers[pair->a].linked || !m->peers[pair->b].linked) continue;
        if (is_recently_silent(m, pair)) {
            pair->failures = 0;
            pair->a_accuses = pair->b_accuses = false;
        } else {
            remove_pair(group, i);
        }
    }
}

// ---- after the grace ----

static uint32_t accusers_of(const struct membership *m, const struct group *group, uint16_t slot) {
    uint32_t accusers = 0;
    for (uint32_t i = 0; i < group->pair_count; i++) {
        const struct link_pair *pair = &group->pairs[i];
        if (m->peers[pair->a].gone || m->peers[pair->b].gone) continue;
        accusers += (pair->a == slot && pair->b_accuses) || (pair->b == slot && pair->a_accuses);
    }
    return accusers;
}

static bool is_hopeless(const struct membership *m, const struct link_pair *pair) {
    return pair->pending && pair->failures >= FAILURES_MAX && !m->peers[pair->a].gone && !m->peers[pair->b].gone;
}

static uint32_t broken_pairs_of(const struct membership *m, const struct group *group, uint16_t slot) {
    uint32_t broken = 0;
    for (uint32_t i = 0; i < group->pair_count; i++) {
        const struct link_pair *pair = &group->pairs[i];
        broken +=
            pair->pending && (pair->a == slot || pair->b == slot) && !m->peers[pair->a].gone && !m->peers[pair->b].gone;
    }
    return broken;
}

struct blame {
    struct peer *peer; // NULL: nobody
    uint32_t broken, accusers;
};

static bool is_worse(const struct blame *a, const struct blame *b) {
    if (b->peer == NULL || a->broken != b->broken) return b->peer == NULL || a->broken > b->broken;
    if (a->accusers != b->accusers) return a->accusers > b->accusers;
    return a->peer->member.join_number > b->peer->member.join_number;
}

// Of all members with a hopeless link.
static struct blame find_culprit(struct membership *m, const struct group *group) {
    struct blame worst = {0};
    for (uint32_t i = 0; i < group->pair_count; i++) {
        if (!is_hopeless(m, &group->pairs[i])) continue;
        uint16_t slots[2] = {group->pairs[i].a, group->pairs[i].b};
        for (uint32_t k = 0; k < 2; k++) {
            struct blame blame = {&m->peers[slots[k]], broken_pairs_of(m, group, slots[k]),
                                  accusers_of(m, group, slots[k])};
            if (is_worse(&blame, &worst)) worst = blame;
        }
    }
    return worst;
}

// A member that nothing was heard of since may be dead, and its broken pairs speak against those who live. It will be
// heard soon, or lost.
static bool waits_for_word(const struct membership *m, const struct group *group) {
    bool waits = false;
    for (uint32_t i = 0; i < group->pair_count && group->hearing_since != 0; i++) {
        const struct link_pair *pair = &group->pairs[i];
        const struct peer *a = &m->peers[pair->a], *b = &m->peers[pair->b];
        waits |= pair->pending && !a->gone && !b->gone &&
                 (a->heard.at_ns < group->hearing_since || b->heard.at_ns < group->hearing_since);
    }
    return waits;
}

void membership_links_tick(struct membership *m, struct group *group) {
    if (waits_for_word(m, group)) {
        group->relink_at = m->now_ns + MEMBERSHIP_GRACE_MS * MS_NS;
        return;
    }
    group->relink_at = INT64_MAX;
    group->hearing_since = 0;
    for (struct blame culprit; (culprit = find_culprit(m, group)).peer != NULL;)
        membership_expel(m, culprit.peer, "its links failed twice: with %u of the %u other members, accused by %u",
                         culprit.broken, group->count - 1, culprit.accusers);
    membership_change(m, group); // where somebody was expelled, the loss makes the new epoch
}

void membership_links_begin(struct group *group) {
    group->relink_at = INT64_MAX;
    group->hearing_since = 0;
    for (uint32_t i = 0; i < group->pair_count; i++) group->pairs[i].pending = false;
}

void membership_links_forget(struct membership *m, struct group *group, const struct peer *peer) {
    uint16_t slot = (uint16_t)(peer - m->peers);
    for (uint32_t i = group->pair_count; i-- > 0;)
        if (group->pairs[i].a == slot || group->pairs[i].b == slot) remove_pair(group, i);
}

void membership_links_fini(struct group *group) {
    free(group->pairs);
    group->pairs = NULL;
    group->pair_count = group->pair_capacity = 0;
    group->relink_at = INT64_MAX;
    group->hearing_since = 0;
}
