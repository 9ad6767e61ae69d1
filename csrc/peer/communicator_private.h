// Private header of a communicator's parts: its lock, its phase, the state machine, the engine, and the calls that are
// inside. Each part is a source: communicator.c, below the others; ops.c, shared_state.c and control.c; connect.c above
// them, which makes and frees the whole.
//
// Events are decided by the state machine under the lock; what it decides is carried out without it. Nobody but the
// control thread changes the state machine's membership, so that thread may read it without the lock.
#ifndef PCCL_PEER_COMMUNICATOR_PRIVATE_H
#define PCCL_PEER_COMMUNICATOR_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/platform.h"
#include "data/engine.h"
#include "ops/op.h"
#include "peer/communicator.h"

struct ticket_type;
struct control;
struct master_link;
struct shared_state;
struct precopy;
struct kept_contributors;
struct recorder;

enum communicator_phase {
    COMMUNICATOR_IDLE,
    COMMUNICATOR_CONNECTING,
    COMMUNICATOR_CONNECTED,
    COMMUNICATOR_DEAD,
};

// The members of the own group that were lost last, so that errors and programs can name them. All zero at the
// beginning.
enum { COMMUNICATOR_LOST_MOST = 64 };

struct lost_members {
    uint32_t count; // ever noted; the latest COMMUNICATOR_LOST_MOST are kept
    struct {
        struct wire_gone gone;
        struct wire_name name;
        uint64_t epoch; // that it is not in any more
    } list[COMMUNICATOR_LOST_MOST];
};

enum { COMMUNICATOR_WAITS_MS = 1000 }; // between two looks at what the program waits for

// The call that waits for others, of which there is one at a time.
struct ticket {
    const struct ticket_type *type; // NULL: none is open
    uint64_t number;                // grows with each
    bool inside;                    // a thread begins it or waits for it
    struct wait_span wait;          // how long that has waited
    bool caller_waits;              // and it is the only thread that calls the communicator
    uint64_t recorded;              // its record (base/recorder)
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
    struct wire_run run;                 // `params.run`; if that has no name, the one to which the keys are confined
    enum communicator_phase phase;
    bool closing;
    enum communicator_end end;   // how it stops
    bool stopped;                // connect_stop has returned; its caller's
    bool renewing;               // state machine and engine are being made anew
    uint32_t users;              // calls inside
    uint32_t launches;           // ops being posted
    uint32_t holds;              // sets of ops in retry mode, each of which counts as un-awaited ops
    struct member *core;         // of this connect attempt; membership changed by the control thread only
    struct engine *engine;       // of this connect attempt; stays while connected
    char reason[MEMBER_TEXT];    // why the attempt failed, or the communicator died
    char waits_why[MEMBER_TEXT]; // the last that a master said of waiting in this call; "": nothing yet
    struct lost_members lost;    // of this attempt and those before
    struct master_link *master;  // of control.c
    int wake;                    // the control thread's
    atomic_int events;           // signalled when a call ends; -1 until somebody asks for it
    struct wire_address relay;   // of this connect attempt; family 0: none
    struct ticket ticket;
    struct shared_state *shared_state;      // of shared_state.c
    struct precopy *precopy;                // of the state that newcomers copy; lives as long as the communicator
    struct kept_contributors *contributors; // of ops.c; made at first use
    pthread_mutex_t numbering;              // of the next two; taken before `lock`, and held while an op is launched
    struct op_counters launched;            // by the name of the sequence
    atomic_uint launched_of_all;            // since the topology was updated
    struct control *control;                // of control.c
    struct wire_numbers numbers;            // of the program, the newest of each name; the last reported is last
    bool numbers_new;                       // the master does not know them all
    int64_t numbers_told_ns;                // when it was told the last ones
    int64_t waits_ns;                       // when it is looked next what the program waits for
    bool waits_told, waits_awake;           // the master knows of a wait; something is under way that may wait
    bool stacks_watched, stacks_wanted;     // communicator_await_stacks was called; the master asks
    struct recorder *recorder;              // made by the first connect attempt; NULL: none
};

// ---- communicator.c ----
// A function that begins with it is called with the lock held.
#define communicator_assert_locked(c) lock_assert_held(&(c)->lock)
// Takes the lock; the first of every call.
void communicator_begin(struct communicator *c);
// Gives it back, and returns `code`; the last of every call.
pcclResult_t communicator_finish(struct communicator *c, pcclResult_t code);
// Tells the master the numbers of the program, if they are new and it is time. Returns when it will be time; INT64_MAX:
// there is nothing to tell, or no master. The lock is not held.
int64_t communicator_tell_numbers(struct communicator *c, int64_t now_ns);
// Tells the master once a second what the program has waited for. Returns when it is time to look again; INT64_MAX: no
// call is under way. The lock is not held.
int64_t communicator_tell_waits(struct communicator *c, int64_t now_ns);
// Lets the program tell its stacks, or tells the master that it has none.
void communicator_want_stacks(struct communicator *c);
// Whether it is dead; the state machine knows of it a moment before the phase does.
bool communicator_is_dead(const struct communicator *c);
// pcclMasterConnectionFailed or another code, for a communicator that is dead.
pcclResult_t communicator_dead(const struct communicator *c, pcclResult_t code);
// Like communicator_usable.
pcclResult_t communicator_check_usable(const struct communicator *c);
// Returns pcclPendingAsyncOps if an operation is live.
pcclResult_t communicator_check_no_ops(const struct communicator *c);
// A state machine for the next attempt; the lock is not held. NULL when memory is refused.
struct member *communicator_new_member(const struct communicator *c, const struct wire_id *id);

// `gone`: what the master says of it, or NULL.
void communicator_lost_note(struct lost_members *lost, const struct wire_member *member, const struct wire_gone *gone,
                            uint64_t epoch);
// The name of a member that was lost. NULL: it is not known.
const struct wire_name *communicator_lost_name(const struct lost_members *lost, const struct wire_id *id);
// Writes how texts call those that were lost after epoch `after`, with commas, cut to `capacity` > 0. Returns how many
// there are, of those that are kept.
uint32_t communicator_lost_tell(const struct lost_members *lost, uint64_t after, char *out, size_t capacity);

// ---- the call that waits ----
// Callbacks of a ticket, on its caller's thread.
struct ticket_type {
    const char *name; // as texts call it
    // Before it can be waited for; pcclTimedOut: there is more to do. NULL: nothing.
    pcclResult_t (*prepare)(struct communicator *c, int64_t deadline_ns);
    // Called when the call has ended, or the communicator is being destroyed. Writes `value` on success.
    pcclResult_t (*collect)(struct communicator *c, uint64_t *value);
};

// Whether the open call is are_peers_pending, beside which ops may be launched.
bool communicator_ticket_is_peers_pending(const struct communicator *c);
// Returns pcclInvalidUsage if one is open.
pcclResult_t communicator_ticket_check_none(const struct communicator *c);
// Whether one of this type is open, and no thread is in it.
bool communicator_ticket_is_left(const struct communicator *c, const struct ticket_type *type);
// Opens one, with the caller in it. Until communicator_ticket_begun, nobody takes it up or waits for it.
void communicator_ticket_open(struct communicator *c, const struct ticket_type *type);
// Ends a begin, with `code`: gives the ticket of the open call, or closes it when it could not be begun.
pcclResult_t communicator_ticket_begun(struct communicator *c, pcclResult_t code, uint64_t *ticket);
// Ends the one that is open, if any. `view` may be NULL.
void communicator_ticket_end(struct communicator *c, pcclResult_t code, uint64_t value, const struct member_view *view);

// ---- ops.c ----
// Frees the contributors that were kept.
void ops_forget(struct communicator *c);

// ---- shared_state.c ----
struct shared_state *shared_state_new(void); // NULL: memory was refused
// When nobody else can hold the communicator, and its engine still is there: ends what is open. NULL is allowed.
void shared_state_free(struct communicator *c);
void shared_state_planned(struct communicator *c, const struct wire_sync_plan *plan, int64_t now_ns);
// The master has ended the round: called before communicator_ticket_end.
void shared_state_ended(struct communicator *c, const struct wire_sync_end *end);
// The master is lost: the transfers of an open round end here, for the next plan may be another one. `tensors` tells
// what they hold then, and `content` is its hash if that is whole. False: memory was refused.
bool shared_state_restart(struct communicator *c, enum member_tensors *tensors, struct wire_hash *content);

// ---- control.c: the control thread (`pccl:control`) ----
//
// What happens is told to the state machine, and what that decides is carried out. The thread owns the connection to
// the master, and all connections to peers until they are links.

// NULL when the system refuses.
struct control *control_new(struct communicator *c);
// The thread has ended, and the engine of `control_callbacks` too. NULL is allowed.
void control_free(struct control *control);
struct engine_callbacks control_callbacks(struct control *control);

// Starts the thread, unless it runs. False: the system refuses. Not from two threads at once.
bool control_start(struct control *control);
// Joins the thread, which ends once the communicator is closing.
void control_join(struct control *control);
// Sends LEAVE after control_join, if the communicator has stopped undecided.
void control_leave(struct control *control);

// Has the thread begin an attempt. Its end is that of the open call.
void control_connect(struct control *control);

#endif
