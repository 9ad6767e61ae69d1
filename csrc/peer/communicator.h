// A communicator, as the public functions (api) use it: its life, what it tells, and the calls of a program. Everything
// of this header may be called from any thread. Results are those of pccl.h; whenever one is not pcclSuccess or
// pcclTimedOut, the thread's detail text says why.
//
// One source for each part: communicator.c (what it is, and the one call that waits), connect.c (its life), ops.c
// (collectives), shared_state.c (rounds of shared state) and control.c (the thread that drives the state machine).
// communicator_private.h is what they share.
#ifndef PCCL_PEER_COMMUNICATOR_H
#define PCCL_PEER_COMMUNICATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/recorder.h"
#include "net/cards.h"
#include "net/transport.h"
#include "ops/call.h"
#include "pccl.h"
#include "peer/member.h"
#include "state/sync.h"

struct communicator;
struct link_report;

enum { COMMUNICATOR_RELAY_BYTES = 272 };

struct communicator_params {
    struct communicator_masters {
        struct wire_address list[WIRE_MAX_MASTERS]; // in the order of preference
        uint32_t count;
    } masters;
    uint32_t group;
    uint32_t lanes;                       // 1..WIRE_MAX_LANES
    struct member_settings member;        // what follows from the rest is set when it connects
    struct cards cards;                   // `relays` is set when it connects
    uint8_t relays;                       // enum wire_relays
    char relay[COMMUNICATOR_RELAY_BYTES]; // host and port; "": none
    struct wire_run run;                  // of the masters', the one to be in; empty: the one without a name
    struct transport_options transport;   // its keys are held
    char events[RECORDER_PATH_BYTES];     // file of the flight recorder, as PCCL_EVENTS; "": that of the environment
};

// ---- its life ----
// No network, no thread. NULL when the system refuses.
struct communicator *connect_new(const struct communicator_params *params);
// Begins to connect, which is waited for with its ticket. Success: accepted and adopted. After an error of the master
// it may be begun again, as a new peer.
pcclResult_t connect_begin(struct communicator *c, uint64_t *ticket);
// Ways to stop a communicator: what the master is told. The numbers are those of pccl_ext_comm_end.
enum communicator_end {
    COMMUNICATOR_LEAVES,    // that the program closes it
    COMMUNICATOR_FAILS,     // nothing: it takes the end of the connection for a death
    COMMUNICATOR_UNDECIDED, // nothing yet: the process ends, with a status that is not known
};
void connect_set_end(struct communicator *c, enum communicator_end end);
bool connect_is_undecided(struct communicator *c);
// Tells the master, as the process ends well, and leaves everything else to the system.
void connect_exit(struct communicator *c);

// Leaves the run, ends all ops and both threads, and makes every call in other threads return: with an error, but for
// awaits of ops that had ended. Ops may be awaited afterwards, which does not wait for others. Bounded.
void connect_stop(struct communicator *c);
// Stops, and frees: by the thread that stops it. Bounded. NULL is allowed.
void connect_free(struct communicator *c);

// ---- what programs ask ----
// Copies its parameters.
void communicator_params(struct communicator *c, struct communicator_params *out);
// Sets the parameters for the next connect, but for the keys: these are `keys`, which it holds; NULL: they stay. False:
// it is connecting, or was connected.
bool communicator_configure(struct communicator *c, const struct communicator_params *params, struct keys *keys);
// Sets the keys alone. NULL: connections are plain.
bool communicator_set_keys(struct communicator *c, struct keys *keys);
// Connected and alive: pcclSuccess, pcclInvalidUsage or pcclMasterConnectionFailed. The first check of every call.
pcclResult_t communicator_usable(struct communicator *c);
// The adopted snapshot; all ones when dead. pcclInvalidUsage: never connected.
pcclResult_t communicator_view(struct communicator *c, struct member_view *out);
// The id that this peer has in the run; all 0 before it has connected.
struct wire_id communicator_id(struct communicator *c);
// The name of a peer: of a member of the run, or of one that was lost not long ago. False: it is not known.
bool communicator_peer_name(struct communicator *c, const struct wire_id *id, struct wire_name *out);
// Writes the members that were lost last, up to `capacity`, oldest first, and returns how many.
uint32_t communicator_lost(struct communicator *c, struct wire_gone *out, size_t capacity);
// Path of the file of its flight recorder, cut to `capacity` > 0; "": there is none.
void communicator_events_path(struct communicator *c, char *out, size_t capacity);
// Blocks until an operator asks where the threads of the program stand. False: the communicator is being stopped.
bool communicator_await_stacks(struct communicator *c);
// Tells it, in at most WIRE_MAX_STACKS bytes; dropped without a connection to a master.
void communicator_tell_stacks(struct communicator *c, const char *text, size_t length);
enum { COMMUNICATOR_REPORT_MS = 200 };
// Records numbers of the program in its flight recorder, and tells the master the newest of each name: at once, or
// COMMUNICATOR_REPORT_MS after it was told the last ones.
void communicator_report(struct communicator *c, const struct wire_numbers *numbers);
// Live state in a few words, cut to `capacity` > 0.
void communicator_state(struct communicator *c, char *out, size_t capacity);
// Reports the links to the other members of the group; writes up to `capacity` reports.
pcclResult_t communicator_links(struct communicator *c, struct link_report *out, size_t capacity, size_t *count_out);
// A descriptor that becomes readable whenever a call ends; made at the first request, closed by connect_free.
// Readable at first. Negative: -errno.
int communicator_events(struct communicator *c);
// Between these two it is not freed, though that may be under way: for a call that makes several of the others.
void communicator_enter(struct communicator *c);
void communicator_exit(struct communicator *c);
// For a query to the masters of the run. The caller releases `transport`.
struct communicator_access {
    struct transport_context *transport;
    struct wire_address masters[WIRE_MAX_MASTERS];
    uint32_t master_count;
    struct wire_run run;
    struct wire_diagnose proof;
};
// Errors are those of communicator_usable.
pcclResult_t communicator_access(struct communicator *c, struct communicator_access *out);

// ---- calls that wait for others ----
//
// A connect, a vote and a round of shared state wait for others. Such a call is begun once, which gives a ticket, and
// waited for as often as it takes. A communicator has one at a time.
//
// A wait that is cut short leaves the call open. A ticket is a number, so there is nothing to free: an open call that
// no thread is in is taken up by the next begin of the same call, which gets a new ticket, and the old one is void.
// When the communicator is destroyed, every wait ends with pcclMasterConnectionFailed.

// Waits in any thread, but in one at a time (pcclInvalidUsage), until `deadline_ns` (monotonic; INT64_MAX = for ever).
// pcclTimedOut: it goes on, and the detail says what is known of whom it waits for. Any other result ends it, and its
// ticket is void (pcclInvalidUsage). `value` is the answer of are_peers_pending, or the revision of a round.
pcclResult_t communicator_wait(struct communicator *c, uint64_t ticket, int64_t deadline_ns, uint64_t *value);

// Announces that this peer leaves (member_announce).
pcclResult_t communicator_announce(struct communicator *c, uint32_t within_ms, bool at_update);
// Writes up to `capacity` members that have announced that they leave.
pcclResult_t communicator_leaving(struct communicator *c, struct leaving_member *out, size_t capacity,
                                  size_t *count_out);

// Begins a vote other than that of a round of shared state. Update and optimise adopt when they succeed.
pcclResult_t communicator_begin_vote(struct communicator *c, enum wire_vote_kind kind, uint64_t *ticket);

// ---- collectives ----
enum { OPS_CONTRIBUTORS_KEPT = 1024 }; // ops whose contributors are known

// Calls that are given no tag are numbered: members that make them in the same order give them the same tags. Such a
// tag is the name of a sequence, whose lower OPS_NUMBER_BITS are 0, and a number. Calls of all members are one
// sequence, whatever their names, which are made of the members that a caller knows. It begins anew with each update of
// the topology, from which newcomers count. A call that is not launched takes no number.
enum { OPS_NUMBER_BITS = 16 };
enum ops_sequence { OPS_TAGGED, OPS_NUMBERED, OPS_NUMBERED_OF_ALL };

// Posts an op whose arguments were checked. Its tag is `args->tag`, or begins with that; it is written back.
pcclResult_t ops_launch(struct communicator *c, struct call_args *args, enum ops_sequence sequence);
// Returns how many ops of a sequence were launched.
uint32_t ops_launched(struct communicator *c, uint64_t name);
// Waits for an op until `deadline_ns` (monotonic; INT64_MAX = for ever; pcclTimedOut: it goes on) and takes it; adopts
// when it returns pcclRankConnectionLost and the communicator lives. `out` is written on success. An op in retry mode
// adopts whatever it ends with, ends with pcclTooFewPeers when no other member is left, and with
// pcclMasterConnectionFailed when the communicator has died.
pcclResult_t ops_await(struct communicator *c, uint64_t tag, int64_t deadline_ns, struct call_info *out);
// Makes later work in this stream wait for the end of the operation. The host does not wait.
pcclResult_t ops_hold(struct communicator *c, uint64_t tag, void *stream);
// Asks to cancel the op on all members; ops_await tells how it ended. pcclInvalidArgument: there is no such op.
pcclResult_t ops_cancel(struct communicator *c, uint64_t tag);
// Range number `index` of the op of this tag that was to tell its contributors and was taken last; the ids go to
// `ids_out` alone. False: there is none, or no such range; the last OPS_CONTRIBUTORS_KEPT tags are known.
bool ops_contributors(struct communicator *c, uint64_t tag, size_t index, struct call_range *range_out,
                      struct wire_id *ids_out, size_t capacity, size_t *ranges_out);
// The members of the own peer group, by joining, as they are now or, `adopted`, in the snapshot; `capacity` of them are
// written.
pcclResult_t ops_members(struct communicator *c, bool adopted, struct wire_id *ids_out, size_t capacity,
                         size_t *count_out);
// Whether a signal or an input of this member has come for an op of this tag that is not posted here.
pcclResult_t ops_posted(struct communicator *c, uint64_t tag, const struct wire_id *member, bool *posted_out);

// Many ops in retry mode at once, a few of them in flight: pcclAllReduceMultipleWithRetry. Run by the caller's thread,
// in pieces; not thread-safe. While one is not finished, its communicator counts as having un-awaited ops.
struct ops_retry;

// Copies `calls`, whose arguments were checked, and launches the first. At most `max_in_flight` are live at a time;
// equal tags run one after another. Errors are those of ops_launch when not one op could be launched.
pcclResult_t ops_retry_new(struct communicator *communicator, const struct call_args *calls, size_t count,
                           size_t max_in_flight, struct ops_retry **out);
// Goes on until all ops are done (pcclSuccess), or cannot be (any other), or the deadline passes (pcclTimedOut: call
// again). When it ends, none of its ops is live. `info` (may be NULL) is written with success, and with world 1 with
// pcclTooFewPeers.
pcclResult_t ops_retry_wait(struct ops_retry *retry, int64_t deadline_ns, pcclReduceInfo_t *info);
// Frees its own memory and touches nothing else: the peer may be gone, or a parent process's. If it has not ended, the
// peer counts it as un-awaited from then on. NULL is allowed.
void ops_retry_free(struct ops_retry *retry);

// ---- rounds of shared state; the transfers are state/sync ---- Begins a round of shared state, whose arguments were
// checked; it is waited for with its ticket. The state and its tensors belong to the round until its end was told, or
// the communicator is freed. It is taken up by one of the same entries, tensors, flags, revision and strategy alone. On
// success the value is the revision of the round.
pcclResult_t shared_state_begin(struct communicator *c, const pcclSharedState_t *state, const bool *read_only,
                                int strategy, uint64_t *ticket);
// Sets the state that this peer, as a newcomer, copies before it is admitted, and that it gives to later newcomers as
// `gives` says, an enum precopy_gives (state/precopy). Its tensors are borrowed until another one, or NULL, takes its
// place, or the communicator is freed. pcclInvalidUsage: the communicator is connecting.
pcclResult_t shared_state_set_precopy(struct communicator *c, const pcclSharedState_t *state, const bool *read_only,
                                      int gives);
// Whether a round can be taken up, also when the communicator is dead meanwhile.
bool shared_state_is_left(struct communicator *c);

// Report of the round under way, or of the last one.
struct shared_state_report {
    struct sync_report moved;
    uint64_t tx_bytes;
    double seconds;          // of the whole call
    double hash_seconds;     // of its own hash
    double transfer_seconds; // from the plan on
    bool hashing;
};
void shared_state_look(struct communicator *c, struct shared_state_report *out);

#endif
