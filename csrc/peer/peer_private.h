// What the files of a communicator share: peer.c (its life, connect, votes), peer_ops.c (all-reduces), peer_sync.c
// (rounds of shared state), peer_control.c (the thread, and what the mind decides), peer_master.c (the connection to
// the master), peer_output.c (what goes out on it).
//
// Two locks, never held together. `lock` guards the mind and what callers wait for: events are decided under it, the
// actions they give are carried out without it. `out_lock` guards the way to the master, which the engine's thread uses
// directly.
//
// Nobody but the control thread changes the mind's membership, so this thread may read it without the lock.
#ifndef PCCL_PEER_PEER_PRIVATE_H
#define PCCL_PEER_PEER_PRIVATE_H

#include <pthread.h>

#include "base/detail.h"
#include "base/log.h"
#include "base/platform.h"
#include "state/content.h"
#include "state/sync.h"
#include "peer/link.h"
#include "peer/peer.h"
#include "peer/seek.h"

enum {
    DATA_WAKE = 0, // epoll data
    DATA_MASTER = 1,
    DATA_LINKS = 2,
    INPUT_BYTES = WIRE_HEADER_BYTES + WIRE_MAX_CONTROL_BYTES,
};

enum phase { PHASE_IDLE, PHASE_CONNECTING, PHASE_CONNECTED, PHASE_DEAD };

struct lost_link {
    struct wire_id id;
    uint32_t index;
    bool silent;
};

struct peer {
    struct peer_params params;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    // guarded by lock
    enum phase phase;
    bool closing, renewing, dial_wanted;
    uint32_t users, launches, holds; // calls inside; posts under way; peer_hold
    struct member *member;           // of this connect attempt; membership changed by the control thread only
    char reason[MEMBER_TEXT];        // why the attempt failed, or the communicator died
    struct {
        bool done, waiter;
        int code;
        struct member_view view;
    } attempt;
    struct {
        uint8_t kind; // enum wire_vote_kind or WIRE_VOTE_SYNC, 0 = none
        bool done, waiter;
        int code;
        uint64_t value;
        struct member_view view;
    } vote;
    struct {
        struct content *content; // of the open round; belongs to the caller inside, or to nobody
        bool voted;              // the state is hashed, the engine takes part
        int strategy;
        uint64_t revision, tx_bytes;
        int64_t began_at, hashed_at, planned_at; // 0 = not yet
        bool restarting;                         // the control thread is at it; nobody ends the round meanwhile
        struct sync_report before;               // what moved before it began again
        char text[WIRE_MAX_TEXT + 1];            // of SYNC_END
        struct peer_sync_report report;          // when it is over
    } sync;
    struct told {
        uint64_t tag;
        struct engine_contributors *contributors; // NULL: a free place
    } *told;                                      // [PEER_TOLD_MAX], made at first use; the oldest is overwritten
    size_t told_at;                               // that is the one
    struct engine *engine;                        // replaced by connect only, in PHASE_CONNECTING before dial_wanted

    pthread_mutex_t out_lock;
    // guarded by out_lock
    int master_fd;              // opened and closed by the control thread; -1: what is sent is dropped
    struct wire_header op_head; // run and generation of the frames that the engine causes
    struct wire_buffer out;
    size_t out_sent;
    struct lost_link *lost; // links that the engine saw break, for the control thread
    size_t lost_count, lost_capacity;
    bool refused; // memory, to the engine, or for one of these

    // the control thread's own
    pthread_t thread;
    bool thread_runs; // set under `renewing`
    int epoll, wake;
    bool master_connected, watching_output;
    int dial_fd; // the connection to a master that is being made, or -1
    int64_t dial_deadline;
    struct seek seek;
    bool seeking; // the master is lost
    int64_t lost_at;
    uint16_t links_port;
    struct links *links;
    struct member_output actions;
    struct log_limit waiting_log;       // what a master says of waiting
    char waits_why[WIRE_MAX_TEXT + 16]; // the last of it in this call; "": nothing yet
    uint8_t *input;
    size_t input_length;
};

// ---- peer.c: callers, lock held ----
void peer_begin(struct peer *p); // of every call: takes the lock; ended by
pcclResult_t peer_finish(struct peer *p, pcclResult_t code);
bool peer_is_dead(const struct peer *p); // the mind knows of its death a moment before the phase does
const char *peer_why_dead(const struct peer *p);
pcclResult_t peer_check_usable(const struct peer *p); // as peer_usable
// pcclTimedOut; the text is what is known here of whom the call waits for
pcclResult_t peer_timed_out(const struct peer *p);
pcclResult_t peer_check_vote(const struct peer *p); // none is open: or pcclInvalidUsage
// Until `*done` or the communicator is being destroyed; false when the deadline passed first.
bool peer_wait_for(struct peer *p, const bool *done, int64_t deadline);
// A mind for the next attempt, without the lock. NULL when memory is refused.
struct member *peer_new_member(const struct peer *p, const struct wire_id *id);

// ---- peer_ops.c: lock held ----
pcclResult_t peer_check_ops(struct peer *p); // none is live: or pcclPendingAsyncOps

// ---- peer_sync.c: control thread ----
void peer_sync_planned(struct peer *p, const struct wire_sync_plan *plan, int64_t now);
void peer_sync_ended(struct peer *p, const struct wire_sync_end *end); // lock held
// The master is lost: the transfers of an open round end here, for the next plan may be another one. What the tensors
// hold then; its hash if it is whole.
enum member_tensors peer_sync_restart(struct peer *p, struct wire_hash *content);
void peer_sync_discard(struct peer *p); // when nobody else can hold this peer

// ---- peer_control.c: control thread ----
void *peer_control(void *peer); // the thread
// Around each event: the mind is told between the two, under the lock; then what it decides is carried out, without it.
void peer_event_begin(struct peer *p);
void peer_event_end(struct peer *p, int64_t now);
void peer_lose_links(struct peer *p, int64_t now); // tells the mind of links that the engine saw break
// Ends the connect attempt; `view` may be NULL. Unless it succeeded, the caller may free mind and engine from then on.
void peer_end_attempt(struct peer *p, int code, const struct member_view *view, const char *text);
enum member_judgement peer_judge(void *peer, const struct wire_link_hello *hello);

// ---- peer_master.c: control thread ----
void peer_first_master(struct peer *p, int64_t now); // dials the masters of the list, for an attempt
// A master has refused this newcomer: perhaps the next one of the list serves the run. False: there is none, or memory
// was refused.
bool peer_next_master(struct peer *p, int64_t now);
void peer_seek_master(struct peer *p, int64_t now); // it is lost: links and ops go on while another one is looked for
void peer_found_master(struct peer *p, int64_t now);
void peer_master_event(struct peer *p, uint32_t events, int64_t now);
void peer_master_tick(struct peer *p, int64_t now);
int64_t peer_master_deadline(const struct peer *p); // of the next tick; INT64_MAX = none
void peer_watch_master(struct peer *p);             // before each wait: output that the kernel did not take
void peer_hang_up(struct peer *p);                  // ends that connection and all that are not links yet
void peer_leave(struct peer *p);                    // says so first

// ---- peer_output.c: any thread, no lock held ----
void peer_send(struct peer *p, const struct wire_buffer *frames);
struct engine_callbacks peer_engine_callbacks(struct peer *p);
// Control thread. `first`, if not NULL, is swapped for what is waiting, and nothing goes out before it; else all that
// is waiting is dropped.
void peer_output_open(struct peer *p, int fd, struct wire_buffer *first);
int peer_output_close(struct peer *p);  // the connection, to be closed; -1: there is none
bool peer_output_flush(struct peer *p); // something is left
void peer_output_name(struct peer *p, const struct wire_header *header); // run and generation from now on
// The next link that broke. `refused`: memory was, and nothing is known for sure any more.
bool peer_output_lost(struct peer *p, struct lost_link *out, bool *refused);
void peer_output_forget_lost(struct peer *p);
// memory was refused to the engine: the communicator dies, when the control thread comes to it
void peer_engine_failed(void *peer);

#endif
