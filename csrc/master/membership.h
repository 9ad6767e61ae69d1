// The master's mind: who belongs to the run, which epoch is in force, how votes and ops end.
//
// Pure: no sockets, no clock, no threads. The body (master/master, or a simulator) reports what happened, with the
// time, and carries out the actions that the event returns. The same events in the same order give the same actions.
//
// Memory is bounded by the number of peers and by the limits in wire.h. When it is refused for a connection that is no
// member's, that one is closed. When it is refused for something that members have to know, the run is given up, as if
// this master had ended: they come back with RESUME, and it goes on when there is memory again.
#ifndef PCCL_MASTER_MEMBERSHIP_H
#define PCCL_MASTER_MEMBERSHIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "net/wire.h"

enum {
    // connections that the mind knows: peers, and those that wait for a run to be taken up
    MEMBERSHIP_MAX_KNOWN = 2 * WIRE_MAX_MEMBERS,
    MEMBERSHIP_MAX_CONNS = 4096,  // connections are named by numbers below this, chosen by the body
    MEMBERSHIP_RANDOM_BYTES = 32, // run id, secret, and a key
    // of these: spreads ids over tables, is told to nobody, and changes nothing that can be seen
    MEMBERSHIP_KEY_BYTES = 8,
    MEMBERSHIP_MAX_LOGS = 32, // lines per event, then lines are dropped
    MEMBERSHIP_LOG_BYTES = 320,
    // between a link's break and its repair: most breaks are deaths, told by the control socket
    MEMBERSHIP_GRACE_MS = 30,
    // in a heartbeat limit: the time to say whom one accuses, before somebody is expelled for broken links
    MEMBERSHIP_HEARING_OF = 8,
    MEMBERSHIP_WAIT_WARN_MS = 10000, // then those that wait are told for whom
    MEMBERSHIP_YOUNG_RUN_MS = 10000, // for so long after its first peer a run gives way to an older one
    MEMBERSHIP_HOLD_MS = 60000,      // a newcomer waits no longer for a run to be taken up
};

struct membership;

struct membership_send {
    uint32_t conn;
    size_t offset, length; // of actions.bytes; several sends may share bytes
};

struct membership_log {
    enum log_level level;
    bool of_strangers; // anybody who can connect causes it
    char text[MEMBERSHIP_LOG_BYTES];
};

// Carried out in this order: all sends, then all closes. A connection is closed once what was sent on it is written, or
// cannot be. The mind has forgotten a connection that it closes: nothing more is to be reported of it.
struct membership_actions {
    struct wire_buffer bytes;
    struct membership_send *sends;
    size_t send_count, send_capacity;
    uint32_t closes[MEMBERSHIP_MAX_CONNS];
    size_t close_count;
    struct membership_log logs[MEMBERSHIP_MAX_LOGS];
    size_t log_count;
};

// `random` is the run id and the secret of the first run. NULL when memory is refused.
struct membership *membership_new(uint32_t heartbeat_limit_ms, const uint8_t random[MEMBERSHIP_RANDOM_BYTES],
                                  int64_t now_ns);
void membership_free(struct membership *membership);

// ---- events; each returns what to do, valid until the next event ----

// A connection said HELLO. `source` is where it came from; the peer's address is this host and the port in the hello.
const struct membership_actions *membership_peer_connected(struct membership *membership, int64_t now_ns, uint32_t conn,
                                                           const struct wire_address *source,
                                                           const struct wire_hello *hello);
// A connection's first frame is RESUME: a member of a run whose master is lost, or a newcomer that waited there.
const struct membership_actions *membership_peer_resumed(struct membership *membership, int64_t now_ns, uint32_t conn,
                                                         const struct wire_address *source,
                                                         const struct wire_header *header, const uint8_t *body);
// A whole later frame of that connection. Any bytes may come.
const struct membership_actions *membership_message(struct membership *membership, int64_t now_ns, uint32_t conn,
                                                    const struct wire_header *header, const uint8_t *body);
// The connection is gone, or cannot take what was sent.
const struct membership_actions *membership_peer_lost(struct membership *membership, int64_t now_ns, uint32_t conn,
                                                      const char *why);
// Several at once make one epoch.
struct membership_loss {
    uint32_t conn;
    const char *why;
};
const struct membership_actions *membership_peers_lost(struct membership *membership, int64_t now_ns,
                                                       const struct membership_loss *losses, size_t count);
// Time has passed. Call it at membership_next_deadline, after everything that arrived before has been reported.
const struct membership_actions *membership_tick(struct membership *membership, int64_t now_ns);

// Another master serves a run, while here some gather: they are sent on to it, if they are not enough to take theirs
// up.
const struct membership_actions *membership_send_on(struct membership *membership, int64_t now_ns);

// What the busiest of the other masters does: where it has a run, or gathers, this one begins none.
const struct membership_actions *membership_others_are(struct membership *membership, int64_t now_ns,
                                                       enum wire_activity most);

// The owner stops this master: the last words to all.
const struct membership_actions *membership_farewell(struct membership *membership, int64_t now_ns);

// ---- between events ----

// Until then members of an earlier run are expected to come, and newcomers wait for them. At first: not at all.
void membership_expect_survivors(struct membership *membership, int64_t until_ns);

// Bytes of an unfinished frame arrived: the peer is not silent.
void membership_heard(struct membership *membership, int64_t now_ns, uint32_t conn);
// When the next tick is due; INT64_MAX: never.
int64_t membership_next_deadline(const struct membership *membership);
// A run has ended, the next one needs an id and a secret. Until they are given, the old random bytes are stretched.
bool membership_wants_random(const struct membership *membership);
void membership_set_random(struct membership *membership, const uint8_t random[MEMBERSHIP_RANDOM_BYTES]);
// A standby takes runs up and serves them, but begins none.
void membership_set_standby(struct membership *membership, bool standby);
// What the other masters of the list do is not known: newcomers wait for membership_others_are. Nobody is asked when
// there is a run.
void membership_await_others(struct membership *membership);
enum wire_activity membership_activity(const struct membership *membership);
uint32_t membership_peer_count(const struct membership *membership);
uint64_t membership_epoch(const struct membership *membership);

#endif
