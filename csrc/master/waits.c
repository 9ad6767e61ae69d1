#include "master/waits.h"

#include <stdio.h>

enum {
    NAMES = 3, // in one text
    WAITS_AGAIN_MOST_MS = 600000,
};

static const char *call_of(uint8_t vote) {
    static const char *const calls[] = {"no call that waits for all members", "update_topology", "are_peers_pending",
                                        "optimize_topology", "sync_shared_state"};
    return calls[vote];
}

// Members that still have to call what a vote is about.
struct missing {
    uint32_t count, of;
    char names[NAMES * sizeof(struct peer_text)];
};

static void find_missing(const struct membership *table, uint8_t vote, const struct peer_group *group,
                         struct missing *out) {
    size_t at = 0;
    *out = (struct missing){0};
    for (uint32_t i = 0; i < table->count; i++) {
        const struct peer_record *peer = table->order[i];
        if (group != NULL && peer->group != group) continue;
        out->of++;
        if (peer->vote == vote || out->count++ >= NAMES) continue;
        at += (size_t)snprintf(out->names + at, sizeof out->names - at, "%s%s, in %s", at > 0 ? "; " : "",
                               membership_label_at(peer).chars, call_of(peer->vote));
        if (at >= sizeof out->names) at = sizeof out->names - 1;
    }
    if (out->count > NAMES) snprintf(out->names + at, sizeof out->names - at, "; and %u more", out->count - NAMES);
}

static bool all_voted(const struct peer_group *group) {
    bool all = true;
    for (uint32_t rank = 0; rank < group->count; rank++) all &= group->members[rank]->vote == WIRE_VOTE_SYNC;
    return all;
}

// Since when a peer waits for others that have yet to make a call; INT64_MAX: it does not.
static int64_t waits_since(const struct membership *table, const struct peer_record *peer) {
    bool waits = !peer->accepted                ? table->count > 0
                 : peer->vote == WIRE_VOTE_SYNC ? !all_voted(peer->group)
                                                : peer->vote != 0;
    return waits ? peer->waits_since : INT64_MAX;
}

// False: there is nothing to tell.
static bool describe_newcomer(const struct membership *table, const struct peer_record *peer,
                              struct failure_counts *failure_counts, const struct missing *missing, unsigned seconds,
                              char text[WIRE_MAX_TEXT]) {
    int64_t behind_ns = failure_counts_until(failure_counts, &peer->member.address, table->now_ns) - table->now_ns;
    if (behind_ns > 0)
        snprintf(text, WIRE_MAX_TEXT,
                 "waiting to be admitted: newcomers from this address failed to connect to members before, so others "
                 "come first for %u s more",
                 (unsigned)(behind_ns / SECOND_NS) + 1);
    else if (missing->count > 0)
        snprintf(text, WIRE_MAX_TEXT,
                 "waiting to be admitted: %u of %u members %s not called update_topology for %u s: %.380s",
                 missing->count, missing->of, missing->count == 1 ? "has" : "have", seconds, missing->names);
    return behind_ns > 0 || missing->count > 0;
}

static bool describe_member(const struct membership *table, const struct peer_record *peer, unsigned seconds,
                            char text[WIRE_MAX_TEXT]) {
    struct missing missing;
    find_missing(table, peer->vote, peer->vote == WIRE_VOTE_SYNC ? peer->group : NULL, &missing);
    if (missing.count == 0) return false;
    snprintf(text, WIRE_MAX_TEXT, "%s has waited for %u of %u members for %u s: %.380s", call_of(peer->vote),
             missing.count, missing.of, seconds, missing.names);
    return true;
}

void waits_tick(struct membership *table, struct failure_counts *failure_counts, bool idle) {
    static const int64_t first_ns = MEMBERSHIP_WARN_MS * MS_NS;
    struct missing missing;
    bool logged[WIRE_VOTE_SYNC + 1] = {false}; // by the vote that is open; 0: of a newcomer
    if (table->warn_at > table->now_ns) return;
    table->warn_at = INT64_MAX;
    find_missing(table, WIRE_VOTE_UPDATE, NULL, &missing);
    for (uint32_t slot = 0; slot < table->slots; slot++) {
        struct peer_record *peer = &table->peers[slot];
        struct wait_report *told = &peer->told;
        int64_t since = peer->used && !peer->gone ? waits_since(table, peer) : INT64_MAX;
        if (since == INT64_MAX) continue;
        if (told->since_ns != since) *told = (struct wait_report){since, since + first_ns}; // another wait
        if (told->next_ns <= table->now_ns) {
            char text[WIRE_MAX_TEXT];
            unsigned seconds = (unsigned)((table->now_ns - since) / SECOND_NS);
            bool tells =
                idle && (peer->accepted ? describe_member(table, peer, seconds, text)
                                        : describe_newcomer(table, peer, failure_counts, &missing, seconds, text));
            if (tells) membership_send_text(table, peer, WIRE_WAITING, text);
            if (tells && !logged[peer->vote])
                actions_log(&table->actions, LOG_NOTICE, "%s: %s", membership_label_at(peer).chars, text);
            logged[peer->vote] |= tells;
            told->next_ns = table->now_ns +
                            (tells ? platform_earlier(table->now_ns - since, WAITS_AGAIN_MOST_MS * MS_NS) : first_ns);
        }
        table->warn_at = platform_earlier(table->warn_at, told->next_ns);
    }
}
