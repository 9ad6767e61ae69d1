#include "master/deadlock.h"

#include <stdio.h>
#include <string.h>

#include "master/verdicts.h"
#include "ops/plan.h"

enum { NAMED = 3 }; // in one text

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

static bool vote_is_stuck(const struct membership *table, const struct peer_record *peer) {
    bool sync = peer->vote == WIRE_VOTE_SYNC;
    struct peer_record *const *members = sync ? peer->group->members : table->order;
    uint32_t count = sync ? peer->group->count : table->count;
    for (uint32_t i = 0; i < count; i++)
        if (members[i]->vote != peer->vote && is_held(table, members[i], peer->vote)) return true;
    return false;
}

static bool misses_held(struct membership *table, const struct peer_group *group, const struct wire_wait *wait) {
    for (uint32_t i = 0; i < wait->missing_count; i++) {
        const struct peer_record *missing = membership_in_group(table, group, &wait->missing[i]);
        if (missing != NULL && is_held(table, missing, 0)) return true;
    }
    return false;
}

// A member may not know who is missing: others that wait in the same operation do.
static bool op_is_stuck(struct membership *table, const struct peer_record *peer, const struct wire_wait *wait) {
    if (misses_held(table, peer->group, wait)) return true;
    for (uint32_t rank = 0; rank < peer->group->count; rank++) {
        const struct peer_record *other = peer->group->members[rank];
        const struct wire_waits *waits = waits_of(table, other);
        for (uint32_t i = 0; i < waits->count && other != peer; i++)
            if (wire_op_name_equal(&waits->list[i].name, &wait->name) &&
                misses_held(table, peer->group, &waits->list[i]))
                return true;
    }
    return false;
}

static bool is_stuck(struct membership *table, const struct peer_record *peer) {
    const struct wire_waits *waits = waits_of(table, peer);
    bool stuck = peer->vote == 0 || vote_is_stuck(table, peer);
    for (uint32_t i = 0; i < waits->count && stuck; i++) stuck = op_is_stuck(table, peer, &waits->list[i]);
    return stuck;
}

// Returns whether members are in different calls. One slow member that all others wait for costs one look at each.
static bool differ(const struct membership *table) {
    uint32_t votes = 0, ops = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct peer_record *peer = table->order[i];
        const struct wire_waits *waits = waits_of(table, peer);
        if (peer->stuck) votes |= 1U << peer->vote;
        for (uint32_t k = 0; k < waits->count && peer->stuck; k++) ops |= waits->list[k].missing_count > 0;
    }
    return (votes & (votes - 1)) != 0 || ops;
}

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

static void describe(struct membership *table, char text[WIRE_MAX_TEXT]) {
    size_t at = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct peer_record *peer = table->order[i];
        const struct wire_wait *wait = &peer->waits.list[0];
        char call[64];
        if (!peer->stuck || count++ >= NAMED) continue;
        if (peer->vote != 0)
            snprintf(call, sizeof call, "%s", membership_call(peer->vote));
        else
            describe_op(call, sizeof call, wait);
        at += (size_t)snprintf(text + at, WIRE_MAX_TEXT - at, "%s%s in %s",
                               at > 0 ? ", " : "deadlock: ", membership_label(peer).chars, call);
        if (at >= WIRE_MAX_TEXT) at = WIRE_MAX_TEXT - 1;
    }
    char more[32] = "";
    if (count > NAMED) snprintf(more, sizeof more, " and %u more", count - NAMED);
    snprintf(text + at, WIRE_MAX_TEXT - at,
             "%s wait for each other for %u s; make the same calls in the same order on all members", more,
             (unsigned)(table->deadlock_ns / SECOND_NS));
}

// Whether a member before this one is stuck in the same operation.
static bool is_ended(const struct membership *table, uint32_t before, const struct wire_wait *wait) {
    for (uint32_t i = 0; i < before; i++) {
        const struct wire_waits *waits = waits_of(table, table->order[i]);
        for (uint32_t k = 0; k < waits->count && table->order[i]->stuck; k++)
            if (wire_op_name_equal(&waits->list[k].name, &wait->name)) return true;
    }
    return false;
}

// Ends the calls: a vote for all who have cast it, since it fails for all, and an operation for all who have begun it.
static void end_calls(struct membership *table, const char *text) {
    for (uint32_t i = 0; i < table->count; i++) {
        struct peer_record *peer = table->order[i];
        uint8_t vote = peer->vote;
        const struct wire_waits *waits = waits_of(table, peer);
        for (uint32_t k = 0; k < waits->count && peer->stuck; k++)
            if (!is_ended(table, i, &waits->list[k]))
                verdicts_end(table, peer->group, &waits->list[k].name, WIRE_VERDICT_DEADLOCK, text);
        for (uint32_t k = 0; k < table->count && peer->stuck && vote != 0; k++) {
            struct peer_record *other = table->order[k];
            if (other->vote != vote || (vote == WIRE_VOTE_SYNC && other->group != peer->group)) continue;
            membership_send_text(table, other, WIRE_DEADLOCK, text);
            membership_set_vote(table, other, 0);
        }
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
    bool waits = false, changed = true, found = false;
    if (table->deadlock_at > table->now_ns) return;
    for (uint32_t i = 0; i < table->count; i++) {
        struct peer_record *peer = table->order[i];
        peer->stuck = waits_long(table, peer);
        waits |= peer->vote != 0 || waits_of(table, peer)->count > 0;
    }
    table->deadlock_at = waits ? table->now_ns + DEADLOCK_LOOK_MS * MS_NS : INT64_MAX;
    if (!differ(table)) return;
    while (changed) {
        changed = found = false;
        for (uint32_t i = 0; i < table->count; i++) {
            struct peer_record *peer = table->order[i];
            bool stays = peer->stuck && is_stuck(table, peer);
            changed |= peer->stuck && !stays;
            peer->stuck = stays;
            found |= stays;
        }
    }
    if (!found) return;
    char text[WIRE_MAX_TEXT];
    describe(table, text);
    actions_log(&table->actions, LOG_ERR, "%s", text);
    end_calls(table, text);
}
