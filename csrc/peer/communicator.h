// Shared by all parts of a communicator: its lock, its phase, the state machine, the engine, and the calls that are
// inside. The parts stand above it: ticket, vote, ops, shared_state, control; connect makes and frees the whole.
//
// Events are decided by the state machine under the lock; what it decides is carried out without it. Nobody but the
// control thread changes the state machine's membership, so that thread may read it without the lock.
//
// Functions may be called from any thread. Results are those of pccl.h; whenever one is not pcclSuccess or
// pcclTimedOut, the thread's detail text says why.
#ifndef PCCL_PEER_COMMUNICATOR_H
#define PCCL_PEER_COMMUNICATOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/platform.h"
#include "data/engine.h"
#include "net/transport.h"
#include "pccl.h"
#include "peer/departed.h"
#include "peer/member.h"

struct link_report;
struct ticket_type;
struct control;
struct master_link;
struct shared_state;
struct told;

struct communicator_params {
    struct wire_address masters[WIRE_MAX_MASTERS]; // in the order of preference
    uint32_t master_count;
    uint32_t recovery_limit_ms; // for how long a lost master is waited for; 0: not at all
    uint32_t group;
    uint32_t lanes;       // 1..WIRE_MAX_LANES
    uint32_t spare_lanes; // more of them, to far neighbours, for as long as they can be had
    bool join_only;       // refused where no run goes on
    struct wire_name name;
    struct transport_options transport; // its keys are held
};

enum communicator_phase {
    COMMUNICATOR_IDLE,
    COMMUNICATOR_CONNECTING,
    COMMUNICATOR_CONNECTED,
    COMMUNICATOR_DEAD,
};

// The call that waits for others, of which there is one at a time: see ticket.h.
struct ticket {
    const struct ticket_type *type; // NULL: none is open
    uint64_t number;                // grows with each
    bool inside;                    // a thread begins it or waits for it
    bool done;                      // answered, with what follows
    pcclResult_t code;
    uint64_t value;
    struct member_view view;
};

struct communicator {
    pthread_mutex_t lock; // taken before those of engine and master link, which have their own
    pthread_cond_t changed;
    struct transport_context *transport; // of all connections of this connect attempt; changes under `renewing`
    struct communicator_params params;   // what has a setter changes while it is idle
    enum communicator_phase phase;
    bool closing;
    bool stopped;                // connect_stop has returned; its caller's
    bool renewing;               // state machine and engine are being made anew
    uint32_t users;              // calls inside
    uint32_t launches;           // ops being posted
    uint32_t holds;              // communicator_hold
    struct member *core;         // of this connect attempt; membership changed by the control thread only
    struct engine *engine;       // of this connect attempt; stays while connected
    char reason[MEMBER_TEXT];    // why the attempt failed, or the communicator died
    char waits_why[MEMBER_TEXT]; // the last that a master said of waiting in this call; "": nothing yet
    struct departed departed;    // of this attempt and those before
    struct master_link *master;  // of control.c
    int wake;                    // the control thread's
    atomic_int events;           // signalled when a call ends; -1 until somebody asks for it
    struct ticket ticket;
    struct shared_state *shared_state; // of shared_state.c
    struct told *told;                 // of ops.c; made at first use
    struct control *control;           // of control.c
};

// No network, no thread, no part. NULL when the system refuses.
struct communicator *communicator_new(const struct communicator_params *params);
// Nobody else may hold it. Its parts, state machine and engine are gone.
void communicator_free(struct communicator *c);

// ---- what programs ask ----
// For the next connect, and until then only: the masters to be tried, 1..WIRE_MAX_MASTERS.
bool communicator_set_masters(struct communicator *c, const struct wire_address *masters, uint32_t count);
// For the next connect, likewise: how long a lost master is waited for.
bool communicator_set_recovery(struct communicator *c, uint32_t limit_ms);
// For the next connect, likewise: whether it fails where no run goes on, rather than begin one.
bool communicator_set_join_only(struct communicator *c, bool join_only);
// For the next connect, likewise: the name of this peer, which is clean.
bool communicator_set_name(struct communicator *c, const struct wire_name *name);
// For the next connect, likewise: the keys of its connections, which it holds; NULL: they are plain.
bool communicator_set_keys(struct communicator *c, struct keys *keys);
// For the next connect, likewise: whether plain connections may leave loopback.
bool communicator_set_insecure(struct communicator *c, bool insecure);
// Connected and alive: pcclSuccess, pcclInvalidUsage or pcclMasterConnectionFailed. The first check of every call.
pcclResult_t communicator_usable(struct communicator *c);
// The adopted snapshot; all ones when dead. pcclInvalidUsage: never connected.
pcclResult_t communicator_view(struct communicator *c, struct member_view *out);
// The id that this peer has in the run; all 0 before it has connected.
struct wire_id communicator_id(struct communicator *c);
// The name of a peer: of a member of the run, or of one that was lost not long ago. False: it is not known.
bool communicator_peer_name(struct communicator *c, const struct wire_id *id, struct wire_name *out);
// Live state in a few words, cut to `capacity` > 0.
void communicator_state(struct communicator *c, char *out, size_t capacity);
// Reports the links to the other members of the group; writes up to `capacity` reports.
pcclResult_t communicator_links(struct communicator *c, struct link_report *out, size_t capacity, size_t *count_out);
// A descriptor that becomes readable whenever a call ends; made at the first request, closed by communicator_free.
// Readable at first. Negative: -errno.
int communicator_events(struct communicator *c);
// Between these two it is not freed, though that may be under way: for a call that makes several of the others.
void communicator_enter(struct communicator *c);
void communicator_exit(struct communicator *c);
// Between these two it counts as having un-awaited ops.
void communicator_hold(struct communicator *c);
void communicator_release(struct communicator *c);

// ---- what its parts use ----
// A function that begins with it is called with the lock held.
#define communicator_assert_locked(c) lock_assert_held(&(c)->lock)
// Takes the lock; the first of every call.
void communicator_begin(struct communicator *c);
// Gives it back, and returns `code`; the last of every call.
pcclResult_t communicator_finish(struct communicator *c, pcclResult_t code);
// Whether it is dead; the state machine knows of it a moment before the phase does.
bool communicator_is_dead(const struct communicator *c);
// Why it is dead.
const char *communicator_why_dead(const struct communicator *c);
// pcclMasterConnectionFailed or another code, for a communicator that is dead.
pcclResult_t communicator_dead(const struct communicator *c, pcclResult_t code);
// Like communicator_usable.
pcclResult_t communicator_check_usable(const struct communicator *c);
// Returns pcclPendingAsyncOps if an operation is live.
pcclResult_t communicator_check_no_ops(const struct communicator *c);
// A state machine for the next attempt; the lock is not held. NULL when memory is refused.
struct member *communicator_new_member(const struct communicator *c, const struct wire_id *id);

#endif
