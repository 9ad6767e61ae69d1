// Who waits for whom: told to those that wait, and to the log, after MEMBERSHIP_WAIT_WARN_MS and then ever more rarely.
// Nothing is decided here.
#include "master/membership_private.h"

#include <stdio.h>
#include <string.h>

#include "net/socket.h"

enum {
    NAMES = 3, // in one text
    AGAIN_MOST_MS = 600000,
};

static const int64_t FIRST_NS = MEMBERSHIP_WAIT_WARN_MS * MS_NS;

static const char *call_of(uint8_t vote) {
    static const char *const calls[] = {"no call that waits for all", "update_topology", "are_peers_pending",
                                        "optimize_topology", "sync_shared_state"};
    return calls[vote];
}

// Those that have to call what a vote is about.
struct missing {
    uint32_t count, of;
    char names[NAMES * 128];
};

static void find_missing(const struct membership *m, uint8_t vote, const struct group *group, struct missing *out) {
    size_t at = 0;
    *out = (struct missing){0};
    for (uint32_t i = 0; i < m->count; i++) {
        const struct peer *peer = m->order[i];
        char name[128];
        if (group != NULL && peer->group != group) continue;
        out->of++;
        if (peer->vote == vote || out->count++ >= NAMES) continue;
        at += (size_t)snprintf(out->names + at, sizeof out->names - at, "%s%s, in %s", at > 0 ? "; " : "",
                               membership_name_and_address(name, peer), call_of(peer->vote));
        if (at >= sizeof out->names) at = sizeof out->names - 1;
    }
    if (out->count > NAMES) snprintf(out->names + at, sizeof out->names - at, "; and %u more", out->count - NAMES);
}

static void tell(struct membership *m, struct peer *peer, const char *text) {
    size_t begin = membership_frame_begin(m), length;
    wire_encode_text(&m->actions.bytes, membership_header(m), WIRE_WAITING, text);
    membership_frame_end(m, begin, &length);
    membership_send(m, peer, begin, length);
}

// Since when a peer waits for others that have yet to make a call; INT64_MAX: it does not.
static int64_t waits_since(const struct membership *m, const struct peer *peer) {
    if (!peer->accepted) return m->count > 0 ? peer->waits_since : INT64_MAX;
    bool waits = peer->vote == VOTE_SYNC ? membership_sync_waits(m, peer->group) : peer->vote != 0;
    return waits ? peer->voted_ns : INT64_MAX;
}

// True: there was something to tell.
static bool tell_newcomer(struct membership *m, struct peer *peer, const struct missing *missing, int64_t since,
                          char text[WIRE_MAX_TEXT]) {
    int64_t behind_ns = membership_waits_behind_until(m, &peer->member.address) - m->now_ns;
    unsigned seconds = (unsigned)((m->now_ns - since) / SECOND_NS);
    if (behind_ns > 0)
        snprintf(text, WIRE_MAX_TEXT,
                 "waiting to be admitted: newcomers from this address made no data connections to members before, so "
                 "others come first, for %u s more",
                 (unsigned)(behind_ns / SECOND_NS) + 1);
    else if (missing->count > 0)
        snprintf(text, WIRE_MAX_TEXT,
                 "waiting to be admitted: %u of %u members %s not called update_topology for %u s: %s", missing->count,
                 missing->of, missing->count == 1 ? "has" : "have", seconds, missing->names);
    else
        return false;
    tell(m, peer, text);
    return true;
}

static bool tell_member(struct membership *m, struct peer *peer, int64_t since, char text[WIRE_MAX_TEXT]) {
    struct missing missing;
    find_missing(m, peer->vote, peer->vote == VOTE_SYNC ? peer->group : NULL, &missing);
    if (missing.count == 0) return false;
    snprintf(text, WIRE_MAX_TEXT, "%s waits for %u of %u members for %u s: %s", call_of(peer->vote), missing.count,
             missing.of, (unsigned)((m->now_ns - since) / SECOND_NS), missing.names);
    tell(m, peer, text);
    return true;
}

void membership_waits_tick(struct membership *m) {
    struct missing missing;
    bool newcomer_logged = false, logged[VOTE_SYNC + 1] = {false}, found = false;
    if (m->warn_at > m->now_ns) return;
    m->warn_at = INT64_MAX;
    for (uint32_t i = 0; i < m->slots; i++) {
        struct peer *peer = &m->peers[i];
        int64_t since = peer->used && !peer->gone ? waits_since(m, peer) : INT64_MAX;
        if (since == INT64_MAX) continue;
        if (peer->told_since != since) { // another wait
            peer->told_since = since;
            peer->tell_at = since + FIRST_NS;
        }
        if (peer->tell_at <= m->now_ns) {
            char text[WIRE_MAX_TEXT], name[128];
            if (!found) find_missing(m, WIRE_VOTE_UPDATE, NULL, &missing);
            found = true;
            // Links are being made, or rates measured, for all that have called.
            bool told = m->phase == PHASE_IDLE && (peer->accepted ? tell_member(m, peer, since, text)
                                                                  : tell_newcomer(m, peer, &missing, since, text));
            bool *once = peer->accepted ? &logged[peer->vote] : &newcomer_logged;
            if (told && !*once) membership_log(m, LOG_NOTICE, "%s: %s", membership_name_and_address(name, peer), text);
            *once |= told;
            int64_t again = m->now_ns - since;
            if (again > AGAIN_MOST_MS * MS_NS) again = AGAIN_MOST_MS * MS_NS;
            peer->tell_at = m->now_ns + (told ? again : FIRST_NS);
        }
        if (peer->tell_at < m->warn_at) m->warn_at = peer->tell_at;
    }
}

void membership_wait_begins(struct membership *m) {
    if (m->now_ns + FIRST_NS < m->warn_at) m->warn_at = m->now_ns + FIRST_NS;
}
