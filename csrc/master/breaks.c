#include "master/breaks.h"

#include <stdlib.h>

#include "base/grow.h"
#include "base/platform.h"

enum {
    FIRST_PAIRS = 8,
    FAILURES_MAX = 2, // of one pair's links, then one of the two is expelled
    // heartbeat limits for which a pair's silence is remembered, also if the links were made again
    SILENCE_LIMITS = 4,
};

// NULL: memory was refused, and the desk starves.
static struct breaks_pair *pair_of(struct breaks *breaks, struct desk *desk, uint16_t from, uint16_t to) {
    uint16_t a = from < to ? from : to, b = from < to ? to : from;
    for (uint32_t i = 0; i < breaks->count; i++)
        if (breaks->pairs[i].a == a && breaks->pairs[i].b == b) return &breaks->pairs[i];
    if (!GROW(breaks->pairs, breaks->capacity, breaks->count, FIRST_PAIRS)) {
        desk->out_of_memory = true;
        return NULL;
    }
    struct breaks_pair *pair = &breaks->pairs[breaks->count++];
    *pair = (struct breaks_pair){.a = a, .b = b};
    return pair;
}

static bool is_recently_silent(const struct desk *desk, const struct breaks_pair *pair) {
    return pair->silent_at != 0 && desk->now_ns < pair->silent_at + SILENCE_LIMITS * desk->limit_ns;
}

static bool is_disputed(const struct desk *desk, const struct breaks_pair *pair) {
    return pair->malformed > 0 && desk->now_ns < pair->malformed_at_ns + BREAKS_DISPUTE_LIMITS * desk->limit_ns;
}

static void remove_pair(struct breaks *breaks, uint32_t index) {
    breaks->pairs[index] = breaks->pairs[--breaks->count];
}

// When the broken pairs of a group are looked at. Before somebody is expelled all have the time to say whose links they
// miss.
static void hear(struct breaks *breaks, const struct desk *desk, bool first) {
    int64_t grace = BREAKS_GRACE_MS * MS_NS, hearing = platform_later(grace, desk->limit_ns / BREAKS_HEARING_OF);
    if (breaks->due_ns == INT64_MAX || (!first && breaks->hearing_ns == 0))
        breaks->due_ns = desk->now_ns + (first ? grace : hearing);
    if (!first && breaks->hearing_ns == 0) breaks->hearing_ns = desk->now_ns;
}

void breaks_add(struct breaks *breaks, struct desk *desk, struct desk_peer *reporter, struct desk_peer *reported,
                enum wire_link_reason reason) {
    bool silent = reason == WIRE_LINK_SILENT;
    uint16_t from = (uint16_t)desk_slot(desk, reporter), to = (uint16_t)desk_slot(desk, reported);
    struct breaks_pair *pair = pair_of(breaks, desk, from, to);
    if (pair == NULL) return;
    bool *reports = from < to ? &pair->a_reports : &pair->b_reports;
    if (!pair->pending) {
        actions_log(&desk->actions, LOG_WARN, "the link between %s and %s is down", desk_name(reporter).chars,
                    desk_name(reported).chars);
        // The first word of each side may be about the same break: one that was stopped meanwhile sees it after the
        // epoch that mends it.
        bool told = pair->failures > 0 && !*reports && !silent;
        if (!told) pair->failures++;
        if (silent) {
            // Links to a hung thread can be made again, and look well until they are silent again.
            if (is_recently_silent(desk, pair)) pair->failures = FAILURES_MAX;
            pair->silent_at = desk->now_ns;
        }
    }
    pair->pending = true;
    *reports = true;
    reporter->linked = false;
    hear(breaks, desk, pair->failures < FAILURES_MAX);
}

void breaks_malformed(struct breaks *breaks, struct desk *desk, struct desk_peer *reporter,
                      struct desk_peer *reported) {
    struct breaks_pair *pair =
        pair_of(breaks, desk, (uint16_t)desk_slot(desk, reporter), (uint16_t)desk_slot(desk, reported));
    if (pair == NULL || pair->contested) return;
    if (!is_disputed(desk, pair)) pair->malformed = 0;
    pair->contested = true;
    pair->malformed_at_ns = desk->now_ns;
    if (pair->malformed < BREAKS_MALFORMED_PAIR_MAX) pair->malformed++;
    actions_log(&desk->actions, LOG_WARN, "%s reports malformed data frames of %s", desk_name(reporter).chars,
                desk_name(reported).chars);
    hear(breaks, desk, pair->malformed < BREAKS_MALFORMED_PAIR_MAX);
}

void breaks_linked(struct breaks *breaks, struct desk *desk, struct desk_peer *peer) {
    peer->linked = true;
    for (uint32_t i = breaks->count; i-- > 0;) {
        struct breaks_pair *pair = &breaks->pairs[i];
        if (pair->pending || !desk->peers[pair->a].linked || !desk->peers[pair->b].linked) continue;
        if (is_recently_silent(desk, pair) || is_disputed(desk, pair)) {
            pair->failures = 0;
            pair->a_reports = pair->b_reports = false;
        } else {
            remove_pair(breaks, i);
        }
    }
}

// ---- after the grace ----

static bool is_living(const struct desk *desk, const struct breaks_pair *pair) {
    return !desk->peers[pair->a].gone && !desk->peers[pair->b].gone;
}

struct blame {
    struct desk_peer *peer; // NULL: nobody
    uint32_t broken, reporters;
};

static struct blame blame_of(const struct breaks *breaks, struct desk *desk, uint16_t slot) {
    struct blame blame = {.peer = &desk->peers[slot]};
    for (uint32_t i = 0; i < breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        if ((pair->a != slot && pair->b != slot) || !is_living(desk, pair) || pair->contested) continue;
        blame.broken += pair->pending;
        blame.reporters += pair->a == slot ? pair->b_reports : pair->a_reports;
    }
    return blame;
}

static bool is_worse(const struct blame *a, const struct blame *b) {
    if (b->peer == NULL || a->broken != b->broken) return b->peer == NULL || a->broken > b->broken;
    if (a->reporters != b->reporters) return a->reporters > b->reporters;
    return a->peer->member.join_number > b->peer->member.join_number;
}

// Returns the culprit among all members with a hopeless link.
static struct blame find_culprit(const struct breaks *breaks, struct desk *desk) {
    struct blame worst = {0};
    for (uint32_t i = 0; i < breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        if (!pair->pending || pair->failures < FAILURES_MAX || !is_living(desk, pair) || pair->contested) continue;
        struct blame ends[2] = {blame_of(breaks, desk, pair->a), blame_of(breaks, desk, pair->b)};
        for (uint32_t k = 0; k < 2; k++)
            if (is_worse(&ends[k], &worst)) worst = ends[k];
    }
    return worst;
}

// ---- disputes about malformed frames ----

struct disputes {
    uint32_t others, reports;
};

static struct disputes disputes_of(const struct breaks *breaks, const struct desk *desk, uint16_t slot) {
    const struct desk_peer *peer = &desk->peers[slot];
    struct disputes disputes = {0};
    bool settled = false;
    for (uint32_t i = 0; i < breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        if ((pair->a != slot && pair->b != slot) || !is_living(desk, pair) || !is_disputed(desk, pair)) continue;
        disputes.others++;
        disputes.reports += pair->malformed;
        const struct desk_peer *other = &desk->peers[pair->a == slot ? pair->b : pair->a];
        settled |= desk->now_ns < peer->settled_until_ns && other->member.join_number <= peer->settled_join;
    }
    if (!settled) return disputes;
    disputes.others++;
    disputes.reports += BREAKS_MALFORMED_PAIR_MAX;
    return disputes;
}

// The member with most disputes, of those with two or more; at a tie the one that joined later. NULL: nobody has.
static struct desk_peer *find_disputed(const struct breaks *breaks, struct desk *desk, uint32_t *others) {
    struct desk_peer *worst = NULL;
    *others = 1;
    for (uint32_t i = 0; i < 2 * breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i / 2];
        if (!is_living(desk, pair) || !is_disputed(desk, pair)) continue;
        uint16_t slot = i % 2 == 0 ? pair->a : pair->b;
        struct disputes disputes = disputes_of(breaks, desk, slot);
        struct desk_peer *peer = &desk->peers[slot];
        if (disputes.reports < BREAKS_MALFORMED_MAX || disputes.others < *others || disputes.others < 2) continue;
        if (disputes.others == *others && worst != NULL && peer->member.join_number <= worst->member.join_number)
            continue;
        worst = peer;
        *others = disputes.others;
    }
    return worst;
}

// Nobody knows which of the two is at fault. If the one that stays has another dispute, with a member that was here
// already, that counts as its second.
static void expel_later(struct desk *desk, const struct breaks_pair *pair) {
    struct desk_peer *a = &desk->peers[pair->a], *b = &desk->peers[pair->b];
    struct desk_peer *later = a->member.join_number > b->member.join_number ? a : b, *stays = later == a ? b : a;
    stays->settled_until_ns = desk->now_ns + BREAKS_DISPUTE_LIMITS * desk->limit_ns;
    for (uint32_t i = 0; i < desk->count; i++)
        if (desk->order[i]->member.join_number > stays->settled_join)
            stays->settled_join = desk->order[i]->member.join_number;
    desk_expel(desk, later, "malformed data frames broke its links with %s %u times, and it joined later",
               desk_name(stays).chars, pair->malformed);
}

static void expel_disputed(const struct breaks *breaks, struct desk *desk, const struct desk_group *group) {
    uint32_t others;
    for (struct desk_peer *peer; (peer = find_disputed(breaks, desk, &others)) != NULL;)
        desk_expel(desk, peer, "malformed data frames on its links with %u of the %u other members", others,
                   group->count - 1);
    for (uint32_t i = 0; i < breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        if (is_living(desk, pair) && is_disputed(desk, pair) && pair->malformed >= BREAKS_MALFORMED_PAIR_MAX)
            expel_later(desk, pair);
    }
}

// A member that nothing was heard of since may be dead, and its broken pairs speak against those who live. It will be
// heard soon, or lost.
static bool waits_for_word(const struct breaks *breaks, const struct desk *desk) {
    bool waits = false;
    for (uint32_t i = 0; i < breaks->count && breaks->hearing_ns != 0; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        waits |= pair->pending && is_living(desk, pair) &&
                 (desk->peers[pair->a].heard.at_ns < breaks->hearing_ns ||
                  desk->peers[pair->b].heard.at_ns < breaks->hearing_ns);
    }
    return waits;
}

void breaks_tick(struct breaks *breaks, struct desk *desk, struct desk_group *group) {
    if (waits_for_word(breaks, desk)) {
        breaks->due_ns = desk->now_ns + BREAKS_GRACE_MS * MS_NS;
        return;
    }
    breaks->due_ns = INT64_MAX;
    breaks->hearing_ns = 0;
    for (struct blame culprit; (culprit = find_culprit(breaks, desk)).peer != NULL;)
        desk_expel(desk, culprit.peer, "its links failed twice: with %u of the %u other members, reported by %u",
                   culprit.broken, group->count - 1, culprit.reporters);
    expel_disputed(breaks, desk, group);
    bool down = false; // not so if a malformed frame of an older group epoch was reported
    for (uint32_t i = 0; i < breaks->count; i++) down |= breaks->pairs[i].pending;
    if (down) desk_change(desk, group); // where somebody was expelled, the loss makes the new epoch
}

void breaks_begin(struct breaks *breaks) {
    breaks->due_ns = INT64_MAX;
    breaks->hearing_ns = 0;
    for (uint32_t i = 0; i < breaks->count; i++) breaks->pairs[i].pending = breaks->pairs[i].contested = false;
}

void breaks_forget(struct breaks *breaks, uint32_t slot) {
    for (uint32_t i = breaks->count; i-- > 0;)
        if (breaks->pairs[i].a == slot || breaks->pairs[i].b == slot) remove_pair(breaks, i);
}

void breaks_fini(struct breaks *breaks) {
    free(breaks->pairs);
    *breaks = (struct breaks){0};
}
