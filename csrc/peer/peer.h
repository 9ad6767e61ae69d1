// One communicator: the body around the member mind. Its control thread (`pccl:control`) owns the socket to the master
// and all links until they are made; the engine moves the data; callers wait here.
//
// Every function may be called from any thread. Results are those of pccl.h; whenever one is not pcclSuccess or
// pcclTimedOut, the thread's detail text says why. Functions with a deadline (monotonic; INT64_MAX = for ever) return
// pcclTimedOut when it passes; what they wait for goes on, and the same call made again waits on for it.
#ifndef PCCL_PEER_PEER_H
#define PCCL_PEER_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/engine.h"
#include "pccl.h"
#include "net/wire.h"
#include "peer/member.h"

struct peer;

struct peer_params {
    struct wire_address masters[WIRE_MAX_MASTERS]; // in the order of preference
    uint32_t master_count;
    uint32_t recovery_limit_ms; // for how long a lost master is waited for; 0: not at all
    uint32_t group;
    uint32_t lanes; // 1..WIRE_MAX_LANES
};

// No network, no thread. NULL when the system refuses.
struct peer *peer_new(const struct peer_params *params);
// For the next connect, and until then only: the masters to be tried, 1..WIRE_MAX_MASTERS.
bool peer_set_masters(struct peer *peer, const struct wire_address *masters, uint32_t count);
bool peer_set_recovery(struct peer *peer, uint32_t limit_ms); // likewise
// Leaves the run, makes every call in other threads return an error, and frees. Bounded. NULL is allowed.
void peer_free(struct peer *peer);

// Success: accepted and adopted. After 6 or 7 it may be called again, as a new peer.
pcclResult_t peer_connect(struct peer *peer, int64_t deadline_ns);
// `value` (may be NULL) is the answer of WIRE_VOTE_PENDING. Update and optimise adopt when they succeed.
pcclResult_t peer_vote(struct peer *peer, enum wire_vote_kind kind, int64_t deadline_ns, bool *value);

// Connected and alive: pcclSuccess, pcclInvalidUsage or pcclMasterConnectionFailed. The first check of every call.
pcclResult_t peer_usable(struct peer *peer);
// A round of shared state, whose arguments were checked. On success `revision` is that of the round and *out, if not
// NULL, tells what moved. Until it returns anything but pcclTimedOut, or the peer is freed, the tensors belong to the
// round.
pcclResult_t peer_sync(struct peer *peer, pcclSharedState_t *state, const bool *read_only, int strategy,
                       int64_t deadline_ns, pcclSharedStateSyncInfo_t *out);
// A round that timed out before, and that the next peer_sync goes on with, also when the communicator is dead
// meanwhile.
bool peer_sync_waits(struct peer *peer);

// Of the round under way, or of the last one.
struct peer_sync_report {
    uint64_t rx_bytes, rx_leaves, wire_bytes, missing_bytes, tx_bytes;
    uint32_t donors;
    double seconds, hash_seconds, transfer_seconds; // of the whole call; the own hash; from the plan on
    bool hashing;
};
void peer_sync_look(struct peer *peer, struct peer_sync_report *out);
// The adopted snapshot; all ones when dead. pcclInvalidUsage: never connected.
pcclResult_t peer_view(struct peer *peer, struct member_view *out);

// Posts an op whose arguments were checked.
pcclResult_t peer_launch(struct peer *peer, const struct engine_reduce *reduce);
// Waits for an op and takes it; adopts when it returns pcclRankConnectionLost and the communicator lives. `out` is
// written on success. An op in retry mode adopts whatever it ends with, ends with pcclTooFewPeers when no other member
// is left, and with pcclMasterConnectionFailed when the communicator has died.
pcclResult_t peer_await(struct peer *peer, uint64_t tag, int64_t deadline_ns, struct engine_info *out);
// Range number `index` of the op of this tag that was to tell its contributors and was taken last; the ids go to
// `ids_out` alone. False: there is none, or no such range; the last PEER_TOLD_MAX tags are known.
enum { PEER_TOLD_MAX = 1024 };
bool peer_contributors(struct peer *peer, uint64_t tag, size_t index, struct engine_range *range_out,
                       struct wire_id *ids_out, size_t capacity, size_t *ranges_out);
// The id that this peer has in the run; all 0 before it has connected.
struct wire_id peer_id(struct peer *peer);
// Between these two the peer is not freed, though peer_free may be under way: for a call that makes several of the
// above.
void peer_enter(struct peer *peer);
void peer_exit(struct peer *peer);
// Between these two the communicator counts as having un-awaited ops.
void peer_hold(struct peer *peer);
void peer_release(struct peer *peer);

// Live state in a few words, cut to `capacity` > 0.
void peer_state(struct peer *peer, char *out, size_t capacity);

#endif
