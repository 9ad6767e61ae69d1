// The master's state machine: who belongs to the run, which epoch is in force, how votes and ops end; docs/protocol.md
// as code.
//
// Pure: no sockets, no clock, no threads. The driver (master/master, or a simulator) reports what happened, with the
// time, and carries out the actions that the event returns. The same events in the same order give the same actions.
//
// Memory is bounded by the number of peers and by the limits in wire.h. When it is refused for a connection that is no
// member's, that one is closed. When it is refused for something that members have to know, the run is given up, as if
// this master had ended: they come back with RESUME, and it goes on when there is memory again.
#ifndef PCCL_MASTER_CORE_H
#define PCCL_MASTER_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "master/actions.h"
#include "net/wire_control.h"

enum {
    // connections that the state machine knows: peers, and those that wait for a run to be taken up
    CORE_MAX_KNOWN = 2 * WIRE_MAX_MEMBERS,
    CORE_RANDOM_BYTES = 32, // run id, secret, and a key
    // of these: spreads ids over tables, is told to nobody, and changes nothing that can be seen
    CORE_KEY_BYTES = 8,
};

struct master_core;
struct signer; // master/quorum

struct core_settings {
    // Until then members of an earlier run are expected to come, and newcomers wait for them.
    int64_t survivors_until_ns;
    int64_t deadlock_ns; // members that wait for each other for so long are told, and their calls fail; 0: never
    // A standby takes runs up and serves them. It begins none, except for newcomers of a run whose members it has lost.
    bool standby;
    // Epochs are signed, and a RESUME of a member counts only with one that is. Copied; the owner keeps the context.
    // NULL: the run has no keys.
    const struct signer *signer;
};

// `random` is for the first run. NULL when memory is refused.
struct master_core *core_new(uint32_t heartbeat_limit_ms, const uint8_t random[CORE_RANDOM_BYTES], int64_t now_ns);
// Takes the settings, before its first event. Until then they count as 0.
void core_configure(struct master_core *core, const struct core_settings *settings);
void core_free(struct master_core *core);

// ---- events; each returns what to do, valid until the next event ----

// A connection said HELLO. `source` is where it came from; the peer's address is this host and the port in the hello.
const struct actions *core_peer_connected(struct master_core *core, int64_t now_ns, uint32_t conn,
                                          const struct wire_address *source, const struct wire_hello *hello);
// A connection's first frame is RESUME: a member of a run whose master is lost, or a newcomer that waited there.
const struct actions *core_peer_resumed(struct master_core *core, int64_t now_ns, uint32_t conn,
                                        const struct wire_address *source, const struct wire_header *header,
                                        const uint8_t *body);
// A whole later frame of that connection. Any bytes may come.
const struct actions *core_message(struct master_core *core, int64_t now_ns, uint32_t conn,
                                   const struct wire_header *header, const uint8_t *body);
// The connection is gone, or cannot take what was sent.
const struct actions *core_peer_lost(struct master_core *core, int64_t now_ns, uint32_t conn, const char *why);
// Expels a peer that sent what no peer sends. NULL: there is none on this connection.
const struct actions *core_expel(struct master_core *core, int64_t now_ns, uint32_t conn, const char *why);
// Several at once make one epoch.
struct core_loss {
    uint32_t conn;
    const char *why;
};
const struct actions *core_peers_lost(struct master_core *core, int64_t now_ns, const struct core_loss *losses,
                                      size_t count);
// Time has passed. Call it at core_next_deadline, after everything that arrived before has been reported.
const struct actions *core_tick(struct master_core *core, int64_t now_ns);
// Takes the activity of the busiest other master. If that one has a run or gathers, this one begins none. If it serves
// a run, this master redirects to it the survivors here that are too few to resume theirs.
const struct actions *core_others_are(struct master_core *core, int64_t now_ns, enum wire_activity most);
// The owner stops this master: the last words to all.
const struct actions *core_farewell(struct master_core *core, int64_t now_ns);

// ---- between events ----

// Bytes of an unfinished frame arrived: the peer is not silent.
void core_heard(struct master_core *core, int64_t now_ns, uint32_t conn);
// When the next tick is due; INT64_MAX: never.
int64_t core_next_deadline(const struct master_core *core);
// A run has ended, the next one needs an id and a secret. Until they are given, the old random bytes are stretched.
bool core_wants_random(const struct master_core *core);
void core_set_random(struct master_core *core, const uint8_t random[CORE_RANDOM_BYTES]);
// Marks the activity of the other masters of the list as unknown: newcomers wait for core_others_are. Does nothing if
// there is a run.
void core_await_others(struct master_core *core);
// Returns the number of its run; 0: none yet.
uint64_t core_run_id(const struct master_core *core);
enum wire_activity core_activity(const struct master_core *core);
// Returns what STATUS_IS tells: the activity, and how the last run ended.
struct wire_status_is core_status(const struct master_core *core, int64_t now_ns);
uint32_t core_peer_count(const struct master_core *core);
// Appends the answer to DIAGNOSE as one frame. `trusted`: the sender may know everything. Others prove with the body
// that they are members, or are told counts.
void core_describe(struct master_core *core, int64_t now_ns, const struct wire_header *header, const uint8_t *body,
                   bool trusted, struct wire_buffer *out);
// Takes a member out as REMOVE says. `why`: the reason why not, valid for ever; NULL: it was done.
const struct actions *core_remove(struct master_core *core, int64_t now_ns, const struct wire_remove *remove,
                                  const char **why);
// Finds the connection of a peer, newcomers included. False: there is no such peer.
bool core_find_conn(const struct master_core *core, const struct wire_id *id, uint32_t *conn);
uint64_t core_epoch(const struct master_core *core);

#endif
