// The master's mind: who belongs to the run, which epoch is in force, how votes and ops end; docs/protocol.md as code.
//
// Pure: no sockets, no clock, no threads. The body (master/master, or a simulator) reports what happened, with the
// time, and carries out the actions that the event returns. The same events in the same order give the same actions.
//
// Memory is bounded by the number of peers and by the limits in wire.h. When it is refused for a connection that is no
// member's, that one is closed. When it is refused for something that members have to know, the run is given up, as if
// this master had ended: they come back with RESUME, and it goes on when there is memory again.
#ifndef PCCL_MASTER_MIND_H
#define PCCL_MASTER_MIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "master/actions.h"
#include "net/wire_control.h"

enum {
    // connections that the mind knows: peers, and those that wait for a run to be taken up
    MIND_MAX_KNOWN = 2 * WIRE_MAX_MEMBERS,
    MIND_RANDOM_BYTES = 32, // run id, secret, and a key
    // of these: spreads ids over tables, is told to nobody, and changes nothing that can be seen
    MIND_KEY_BYTES = 8,
};

struct mind;

// `random` is for the first run. NULL when memory is refused.
struct mind *mind_new(uint32_t heartbeat_limit_ms, const uint8_t random[MIND_RANDOM_BYTES], int64_t now_ns);
void mind_free(struct mind *mind);

// ---- events; each returns what to do, valid until the next event ----

// A connection said HELLO. `source` is where it came from; the peer's address is this host and the port in the hello.
const struct actions *mind_peer_connected(struct mind *mind, int64_t now_ns, uint32_t conn,
                                          const struct wire_address *source, const struct wire_hello *hello);
// A connection's first frame is RESUME: a member of a run whose master is lost, or a newcomer that waited there.
const struct actions *mind_peer_resumed(struct mind *mind, int64_t now_ns, uint32_t conn,
                                        const struct wire_address *source, const struct wire_header *header,
                                        const uint8_t *body);
// A whole later frame of that connection. Any bytes may come.
const struct actions *mind_message(struct mind *mind, int64_t now_ns, uint32_t conn, const struct wire_header *header,
                                   const uint8_t *body);
// The connection is gone, or cannot take what was sent.
const struct actions *mind_peer_lost(struct mind *mind, int64_t now_ns, uint32_t conn, const char *why);
// Several at once make one epoch.
struct mind_loss {
    uint32_t conn;
    const char *why;
};
const struct actions *mind_peers_lost(struct mind *mind, int64_t now_ns, const struct mind_loss *losses, size_t count);
// Time has passed. Call it at mind_next_deadline, after everything that arrived before has been reported.
const struct actions *mind_tick(struct mind *mind, int64_t now_ns);
// Takes the activity of the busiest other master. If that one has a run or gathers, this one begins none. If it serves
// a run, this master redirects to it the survivors here that are too few to resume theirs.
const struct actions *mind_others_are(struct mind *mind, int64_t now_ns, enum wire_activity most);
// The owner stops this master: the last words to all.
const struct actions *mind_farewell(struct mind *mind, int64_t now_ns);

// ---- between events ----

// Until then members of an earlier run are expected to come, and newcomers wait for them. At first: not at all.
void mind_expect_survivors(struct mind *mind, int64_t until_ns);
// Bytes of an unfinished frame arrived: the peer is not silent.
void mind_heard(struct mind *mind, int64_t now_ns, uint32_t conn);
// When the next tick is due; INT64_MAX: never.
int64_t mind_next_deadline(const struct mind *mind);
// A run has ended, the next one needs an id and a secret. Until they are given, the old random bytes are stretched.
bool mind_wants_random(const struct mind *mind);
void mind_set_random(struct mind *mind, const uint8_t random[MIND_RANDOM_BYTES]);
// A standby takes runs up and serves them. It begins none, but for newcomers of one whose members it has lost.
void mind_set_standby(struct mind *mind, bool standby);
// Marks the activity of the other masters of the list as unknown: newcomers wait for mind_others_are. Does nothing if
// there is a run.
void mind_await_others(struct mind *mind);
enum wire_activity mind_activity(const struct mind *mind);
// Whether nobody is there, and the last run ended after a member had left by itself: its work is done.
bool mind_completed(const struct mind *mind);
uint32_t mind_peer_count(const struct mind *mind);
// Appends the answer to DIAGNOSE as one frame. `trusted`: the sender may know everything. Others prove with the body
// that they are members, or are told counts.
void mind_describe(struct mind *mind, int64_t now_ns, const struct wire_header *header, const uint8_t *body,
                   bool trusted, struct wire_buffer *out);
uint64_t mind_epoch(const struct mind *mind);

#endif
