#include "master/deadlock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/verdicts.h"
#include "ops/plan.h"

enum {
    NAMED = 3,            // in one text
    ROOM = 335,           // bytes of a text: the longest name with its call, and the end
    ROUNDS_MOST = 128,    // of one look; a longer chain of members has a slow one at its end, and is no deadlock
    VERDICTS_MOST = 8192, // messages of one look about operations
};

// Returns what the member has told within DEADLOCK_FRESH_MS; without such news, nothing.
static const struct wire_waits *waits_of(const struct membership *table, const struct peer_record *peer) {
    static const struct wire_waits none;
    return table->now_ns - peer->waits_ns <= DEADLOCK_FRESH_MS * MS_NS ? &peer->waits : &none;
}

// Operations of an older epoch begin again.
static bool is_current(const struct peer_record *peer, const struct wire_wait *wait) {
    return wait->name.epoch == peer->group->group_epoch;
}

// Whether all calls that the member is in, at least one, have waited for the limit.
static bool waits_long(const struct membership *table, const struct peer_record *peer) {
    const struct wire_waits *waits = waits_of(table, peer);
    bool votes = peer->vote != 0, all = !votes || table->now_ns - peer->waits_since >= table->deadlock_ns;
    for (uint32_t i = 0; i < waits->count; i++)
        all &= is_current(peer, &waits->list[i]) && (int64_t)waits->list[i].span_us >= table->deadlock_ns / US_NS;
    return all && !peer->gone && (votes || waits->count > 0);
}

// Whether the member can make a call only after one that it waits in has ended: a vote, or with 0 an operation.
static bool is_held(const struct membership *table, const struct peer_record *peer, uint8_t vote) {
    const struct wire_waits *waits = waits_of(table, peer);
    if (!peer->stuck) return false;
    if (peer->vote != 0 && (vote != 0 || peer->vote != WIRE_VOTE_PENDING)) return true;
    if (waits->count > 0 && vote != 0 && vote != WIRE_VOTE_PENDING) return true;
    return (int64_t)waits->all_us >= table->deadlock_ns / US_NS;
}

// Returns whether the member was stuck.
static bool release(struct peer_record *peer) {
    bool was_stuck = peer->stuck;
    peer->stuck = false;
    return was_stuck;
}

// ---- operations: the waits in the same one stand side by side ----

// A wait that a stuck member has told of.
struct told {
    struct peer_record *peer;
    const struct wire_wait *wait;
    struct peer_record *missing[WIRE_MAX_MISSING]; // of its group
    uint32_t count;
};

struct look {
    struct membership *table;
    struct told *list;
    size_t count;
};

static int by_op(const void *one, const void *other) {
    const struct told *a = one, *b = other;
    const struct wire_op_name *x = &a->wait->name, *y = &b->wait->name;
    if (a->peer->group != b->peer->group) return a->peer->group < b->peer->group ? -1 : 1;
    if (x->tag != y->tag) return x->tag < y->tag ? -1 : 1;
    if (x->sequence != y->sequence) return x->sequence < y->sequence ? -1 : 1;
    if (x->segment != y->segment) return x->segment < y->segment ? -1 : 1;
    return (x->subgroup > y->subgroup) - (x->subgroup < y->subgroup);
}

static size_t end_of_op(const struct look *look, size_t begin) {
    size_t end = begin + 1;
    while (end < look->count && by_op(&look->list[begin], &look->list[end]) == 0) end++;
    return end;
}

// Returns false if memory was refused.
static bool gather_waits(struct look *look) {
    struct membership *table = look->table;
    look->list = malloc((size_t)table->count * WIRE_MAX_WAITS * sizeof *look->list + 1);
    for (uint32_t i = 0; i < table->count && look->list != NULL; i++) {
        struct peer_record *peer = table->order[i];
        const struct wire_waits *waits = waits_of(table, peer);
        peer->waits_at = SIZE_MAX;
        for (uint32_t k = 0; k < waits->count && peer->stuck; k++) {
            struct told *told = &look->list[look->count++];
            *told = (struct told){.peer = peer, .wait = &waits->list[k]};
            for (uint32_t j = 0; j < told->wait->missing_count; j++) {
                struct peer_record *missing = membership_in_group(table, peer->group, &told->wait->missing[j]);
                if (missing != NULL) told->missing[told->count++] = missing;
            }
        }
    }
    if (look->list != NULL) qsort(look->list, look->count, sizeof *look->list, by_op);
    return look->list != NULL;
}

// A member may not know who is missing: others that wait in the same operation do. A member that waits in it has begun
// it, although its word of that may still be on its way to others.
static bool op_is_stuck(const struct look *look, size_t begin, size_t end) {
    bool stuck = false;
    for (size_t i = begin; i < end; i++) look->list[i].peer->waits_at = begin;
    for (size_t i = begin; i < end; i++)
        for (uint32_t k = 0; k < look->list[i].count; k++)
            stuck |= look->list[i].missing[k]->waits_at != begin && is_held(look->table, look->list[i].missing[k], 0);
    return stuck;
}

static bool release_from_ops(const struct look *look) {
    bool released = false;
    for (size_t begin = 0, end; begin < look->count; begin = end) {
        end = end_of_op(look, begin);
        bool stuck = op_is_stuck(look, begin, end);
        for (size_t i = begin; i < end && !stuck; i++) released |= release(look->list[i].peer);
    }
    return released;
}

// ---- votes ----

// Votes of the kinds from `first` to `last` want all of these members.
static bool release_from_votes(const struct look *look, struct peer_record *const *members, uint32_t count,
                               uint8_t first, uint8_t last) {
    bool stuck[WIRE_VOTE_SYNC + 1] = {0}, released = false;
    for (uint32_t i = 0; i < count; i++)
        for (uint8_t kind = first; kind <= last; kind++)
            stuck[kind] |= members[i]->vote != kind && is_held(look->table, members[i], kind);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t vote = members[i]->vote;
        if (vote >= first && vote <= last && !stuck[vote]) released |= release(members[i]);
    }
    return released;
}

// Returns false if it is not finished after as much work as one look may do.
static bool release_all(const struct look *look) {
    struct membership *table = look->table;
    bool released = true;
    for (int i = 0; i < ROUNDS_MOST && released; i++) {
        released = release_from_ops(look);
        released |= release_from_votes(look, table->order, table->count, WIRE_VOTE_UPDATE, WIRE_VOTE_OPTIMIZE);
        for (struct peer_group *group = membership_groups(table); group != NULL; group = membership_next(table, group))
            released |= release_from_votes(look, group->members, group->count, WIRE_VOTE_SYNC, WIRE_VOTE_SYNC);
    }
    return !released;
}

// ---- what is done ----

// Calls it as Python does. Tags that the library makes, of names and groups, tell a reader nothing.
static void describe_op(char *out, size_t capacity, const struct wire_wait *wait) {
    const struct plan_collective *collective = plan_collective(wait->kind);
    const char *name = wait->kind == PLAN_SEND ? "send or recv"
                       : collective == NULL    ? "an operation"
                                               : collective->name;
    if (wait->name.tag >> 32 == 0)
        snprintf(out, capacity, "%s with tag %llu", name, (unsigned long long)wait->name.tag);
    else
        snprintf(out, capacity, "%s", name);
    for (char *dash; (dash = strchr(out, '-')) != NULL;) *dash = '_';
}

// Returns false if nobody is stuck.
static bool describe(const struct membership *table, char text[WIRE_MAX_TEXT]) {
    size_t at = 0;
    uint32_t count = 0, named = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct peer_record *peer = table->order[i];
        const struct wire_wait *wait = &peer->waits.list[0];
        char call[64];
        count += peer->stuck;
        if (!peer->stuck || named == NAMED || at > WIRE_MAX_TEXT - ROOM) continue;
        named++;
        if (peer->vote != 0)
            snprintf(call, sizeof call, "%s", membership_call(peer->vote));
        else
            describe_op(call, sizeof call, wait);
        at += (size_t)snprintf(text + at, WIRE_MAX_TEXT - at, "%s%s in %s",
                               at > 0 ? ", " : "deadlock: ", membership_label(peer).chars, call);
    }
    char more[32] = "";
    if (count > named) snprintf(more, sizeof more, " and %u more", count - named);
    snprintf(text + at, WIRE_MAX_TEXT - at,
             "%s wait for each other for %u s; make the same calls in the same order on all members", more,
             (unsigned)(table->deadlock_ns / SECOND_NS));
    return count > 0;
}

// Ends the calls: a vote for all who have cast it, since it fails for all, and an operation for all who have begun it.
static void end_calls(const struct look *look, const char *text) {
    struct membership *table = look->table;
    uint32_t sent = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        struct peer_record *peer = table->order[i];
        uint8_t vote = peer->vote;
        for (uint32_t k = 0; k < table->count && peer->stuck && vote != 0; k++) {
            struct peer_record *other = table->order[k];
            if (other->vote != vote || (vote == WIRE_VOTE_SYNC && other->group != peer->group)) continue;
            membership_send_text(table, other, WIRE_DEADLOCK, text);
            membership_set_vote(table, other, 0);
        }
    }
    for (size_t begin = 0, end; begin < look->count; begin = end) {
        struct peer_group *group = look->list[begin].peer->group;
        bool stuck = false;
        end = end_of_op(look, begin);
        for (size_t i = begin; i < end; i++) stuck |= look->list[i].peer->stuck;
        if (!stuck || sent >= VERDICTS_MOST) continue;
        verdicts_end(table, group, &look->list[begin].wait->name, WIRE_VERDICT_DEADLOCK, text);
        sent += group->count;
    }
    for (uint32_t i = 0; i < table->count; i++) table->order[i]->waits = (struct wire_waits){0};
}

void deadlock_note(struct membership *table, struct peer_record *peer, const struct wire_waits *waits) {
    peer->waits = *waits;
    peer->waits_ns = table->now_ns;
    if (table->deadlock_ns > 0 && table->deadlock_at == INT64_MAX)
        table->deadlock_at = table->now_ns + DEADLOCK_LOOK_MS * MS_NS;
}

void deadlock_look(struct membership *table) {
    struct look look = {.table = table};
    bool waits = false, stuck = false;
    if (table->deadlock_at > table->now_ns) return;
    for (uint32_t i = 0; i < table->count; i++) {
        struct peer_record *peer = table->order[i];
        peer->stuck = waits_long(table, peer);
        stuck |= peer->stuck;
        waits |= peer->vote != 0 || waits_of(table, peer)->count > 0;
    }
    table->deadlock_at = waits ? table->now_ns + DEADLOCK_LOOK_MS * MS_NS : INT64_MAX;
    if (stuck && gather_waits(&look) && release_all(&look)) {
        char text[WIRE_MAX_TEXT];
        if (describe(table, text)) {
            actions_log(&table->actions, LOG_ERR, "%s", text);
            end_calls(&look, text);
        }
    }
    free(look.list);
}
