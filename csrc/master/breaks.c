#include "master/breaks.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/platform.h"

enum {
    FIRST_PAIRS = 8,
    FAILURES_MAX = 2, // of one pair's links, then one of the two is expelled
    // heartbeat limits for which a pair's silence is remembered, also if the links were made again
    SILENCE_LIMITS = 4,
};

// Returns NULL if memory was refused; the run is then given up.
static struct breaks_pair *pair_of(struct breaks *breaks, struct membership *table, uint16_t from, uint16_t to) {
    uint16_t a = from < to ? from : to, b = from < to ? to : from;
    for (uint32_t i = 0; i < breaks->count; i++)
        if (breaks->pairs[i].a == a && breaks->pairs[i].b == b) return &breaks->pairs[i];
    if (!GROW(breaks->pairs, breaks->capacity, breaks->count, FIRST_PAIRS)) {
        table->out_of_memory = true;
        return NULL;
    }
    struct breaks_pair *pair = &breaks->pairs[breaks->count++];
    *pair = (struct breaks_pair){.a = a, .b = b};
    return pair;
}

static bool is_recently_silent(const struct membership *table, const struct breaks_pair *pair) {
    return pair->silent_at != 0 && table->now_ns < pair->silent_at + SILENCE_LIMITS * table->limit_ns;
}

static bool is_disputed(const struct membership *table, const struct breaks_pair *pair) {
    return pair->malformed > 0 && table->now_ns < pair->malformed_at_ns + BREAKS_DISPUTE_LIMITS * table->limit_ns;
}

static void remove_pair(struct breaks *breaks, uint32_t index) {
    breaks->pairs[index] = breaks->pairs[--breaks->count];
}

// When the broken pairs of a group are looked at. Before somebody is expelled all have the time to say whose links they
// miss.
static void hear(struct breaks *breaks, const struct membership *table, bool first) {
    int64_t grace = BREAKS_GRACE_MS * MS_NS, hearing = platform_later(grace, table->limit_ns / BREAKS_HEARING_OF);
    if (breaks->due_ns == INT64_MAX || (!first && breaks->hearing_ns == 0))
        breaks->due_ns = table->now_ns + (first ? grace : hearing);
    if (!first && breaks->hearing_ns == 0) breaks->hearing_ns = table->now_ns;
}

void breaks_add(struct breaks *breaks, struct membership *table, struct peer_record *reporter,
                struct peer_record *reported, enum wire_link_reason reason) {
    bool silent = reason == WIRE_LINK_SILENT;
    uint16_t from = (uint16_t)membership_slot(table, reporter), to = (uint16_t)membership_slot(table, reported);
    struct breaks_pair *pair = pair_of(breaks, table, from, to);
    if (pair == NULL) return;
    if (reason == WIRE_LINK_CARD) { // new links by other cards cure it, and it speaks against nobody
        pair->pending = true;
        reporter->linked = false;
        hear(breaks, table, true);
        return;
    }
    bool *reports = from < to ? &pair->a_reports : &pair->b_reports;
    if (!pair->pending) {
        // The first word of each side may be about the same break: one that was stopped meanwhile sees it after the
        // epoch that mends it.
        bool told = pair->failures > 0 && !*reports && !silent;
        if (!told) pair->failures++;
        if (silent) {
            // Links to a hung thread can be made again, and look well until they are silent again.
            if (is_recently_silent(table, pair)) pair->failures = FAILURES_MAX;
            pair->silent_at = table->now_ns;
        }
    }
    pair->pending = true;
    *reports = true;
    reporter->linked = false;
    hear(breaks, table, pair->failures < FAILURES_MAX);
}

void breaks_malformed(struct breaks *breaks, struct membership *table, struct peer_record *reporter,
                      struct peer_record *reported) {
    struct breaks_pair *pair =
        pair_of(breaks, table, (uint16_t)membership_slot(table, reporter), (uint16_t)membership_slot(table, reported));
    if (pair == NULL || pair->contested) return;
    if (!is_disputed(table, pair)) pair->malformed = 0;
    pair->contested = true;
    pair->malformed_at_ns = table->now_ns;
    if (pair->malformed < BREAKS_MALFORMED_PAIR_MAX) pair->malformed++;
    actions_log(&table->actions, LOG_WARN, "%s reports malformed data frames from %s", membership_label(reporter).chars,
                membership_label(reported).chars);
    hear(breaks, table, pair->malformed < BREAKS_MALFORMED_PAIR_MAX);
}

void breaks_linked(struct breaks *breaks, struct membership *table, struct peer_record *peer) {
    peer->linked = true;
    for (uint32_t i = breaks->count; i-- > 0;) {
        struct breaks_pair *pair = &breaks->pairs[i];
        if (pair->pending || !table->peers[pair->a].linked || !table->peers[pair->b].linked) continue;
        if (is_recently_silent(table, pair) || is_disputed(table, pair)) {
            pair->failures = 0;
            pair->a_reports = pair->b_reports = false;
        } else {
            remove_pair(breaks, i);
        }
    }
}

// ---- after the grace ----

static bool is_living(const struct membership *table, const struct breaks_pair *pair) {
    return !table->peers[pair->a].gone && !table->peers[pair->b].gone;
}

struct blame {
    struct peer_record *peer; // NULL: nobody
    uint32_t broken, reporters;
};

static struct blame blame_of(const struct breaks *breaks, struct membership *table, uint16_t slot) {
    struct blame blame = {.peer = &table->peers[slot]};
    for (uint32_t i = 0; i < breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        if ((pair->a != slot && pair->b != slot) || !is_living(table, pair) || pair->contested) continue;
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
static struct blame find_culprit(const struct breaks *breaks, struct membership *table) {
    struct blame worst = {0};
    for (uint32_t i = 0; i < breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        if (!pair->pending || pair->failures < FAILURES_MAX || !is_living(table, pair) || pair->contested) continue;
        struct blame ends[2] = {blame_of(breaks, table, pair->a), blame_of(breaks, table, pair->b)};
        for (uint32_t k = 0; k < 2; k++)
            if (is_worse(&ends[k], &worst)) worst = ends[k];
    }
    return worst;
}

// ---- disputes about malformed frames ----

struct disputes {
    uint32_t others, reports;
};

static struct disputes disputes_of(const struct breaks *breaks, const struct membership *table, uint16_t slot) {
    const struct peer_record *peer = &table->peers[slot];
    struct disputes disputes = {0};
    bool settled = false;
    for (uint32_t i = 0; i < breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        if ((pair->a != slot && pair->b != slot) || !is_living(table, pair) || !is_disputed(table, pair)) continue;
        disputes.others++;
        disputes.reports += pair->malformed;
        const struct peer_record *other = &table->peers[pair->a == slot ? pair->b : pair->a];
        settled |= table->now_ns < peer->settled_until_ns && other->member.join_number <= peer->settled_join;
    }
    if (!settled) return disputes;
    disputes.others++;
    disputes.reports += BREAKS_MALFORMED_PAIR_MAX;
    return disputes;
}

// The member with most disputes, of those with two or more; at a tie the one that joined later. NULL: nobody has.
static struct peer_record *find_disputed(const struct breaks *breaks, struct membership *table, uint32_t *others) {
    struct peer_record *worst = NULL;
    *others = 1;
    for (uint32_t i = 0; i < 2 * breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i / 2];
        if (!is_living(table, pair) || !is_disputed(table, pair)) continue;
        uint16_t slot = i % 2 == 0 ? pair->a : pair->b;
        struct disputes disputes = disputes_of(breaks, table, slot);
        struct peer_record *peer = &table->peers[slot];
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
static void expel_later(struct membership *table, const struct breaks_pair *pair) {
    struct peer_record *a = &table->peers[pair->a], *b = &table->peers[pair->b];
    struct peer_record *later = a->member.join_number > b->member.join_number ? a : b, *stays = later == a ? b : a;
    stays->settled_until_ns = table->now_ns + BREAKS_DISPUTE_LIMITS * table->limit_ns;
    for (uint32_t i = 0; i < table->count; i++)
        if (table->order[i]->member.join_number > stays->settled_join)
            stays->settled_join = table->order[i]->member.join_number;
    membership_expel(table, later,
                     "malformed data frames broke its link to %s %u times, and it joined later than that peer",
                     membership_label(stays).chars, pair->malformed);
}

static void expel_disputed(const struct breaks *breaks, struct membership *table, const struct peer_group *group) {
    uint32_t others;
    for (struct peer_record *peer; (peer = find_disputed(breaks, table, &others)) != NULL;)
        membership_expel(table, peer, "malformed data frames broke its links to %u of the %u other members", others,
                         group->count - 1);
    for (uint32_t i = 0; i < breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        if (is_living(table, pair) && is_disputed(table, pair) && pair->malformed >= BREAKS_MALFORMED_PAIR_MAX)
            expel_later(table, pair);
    }
}

// A member that nothing was heard of since may be dead, and its broken pairs speak against those who live. It will be
// heard soon, or lost.
static bool waits_for_word(const struct breaks *breaks, const struct membership *table) {
    bool waits = false;
    for (uint32_t i = 0; i < breaks->count && breaks->hearing_ns != 0; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        waits |= pair->pending && is_living(table, pair) &&
                 (table->peers[pair->a].heard.at_ns < breaks->hearing_ns ||
                  table->peers[pair->b].heard.at_ns < breaks->hearing_ns);
    }
    return waits;
}

void breaks_tick(struct breaks *breaks, struct membership *table, struct peer_group *group) {
    if (waits_for_word(breaks, table)) {
        breaks->due_ns = table->now_ns + BREAKS_GRACE_MS * MS_NS;
        return;
    }
    breaks->due_ns = INT64_MAX;
    breaks->hearing_ns = 0;
    for (struct blame culprit; (culprit = find_culprit(breaks, table)).peer != NULL;)
        membership_expel_for(table, culprit.peer, WIRE_LOSS_UNREACHABLE,
                             "its links failed twice: to %u of the %u other members, reported by %u members",
                             culprit.broken, group->count - 1, culprit.reporters);
    expel_disputed(breaks, table, group);
    bool down = false; // not so if a malformed frame of an older group epoch was reported
    for (uint32_t i = 0; i < breaks->count; i++) {
        const struct breaks_pair *pair = &breaks->pairs[i];
        down |= pair->pending;
        if (pair->pending && (pair->a_reports || pair->b_reports) && is_living(table, pair))
            actions_log(&table->actions, LOG_WARN, "link between %s and %s is down",
                        membership_label(&table->peers[pair->a]).chars, membership_label(&table->peers[pair->b]).chars);
    }
    if (down) membership_change_group(table, group); // where somebody was expelled, the loss makes the new epoch
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
