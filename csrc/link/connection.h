// Connections to other members, as the modules of link/ and their owner know them: one connection (struct lane), all
// connections to one member (struct neighbour), and all of an owner (struct lanes). What the frames mean is the owner's
// (struct link_events).
//
// What they decide by figures is in pure modules: pace, throttle, failure_detector, stats.
#ifndef PCCL_LINK_CONNECTION_H
#define PCCL_LINK_CONNECTION_H

#include <pthread.h>

#include "base/platform.h"
#include "link/frame.h"
#include "link/pace.h"
#include "link/failure_detector.h"
#include "link/stats.h"
#include "link/throttle.h"
#include "net/peer_name.h"
#include "net/transport.h"
#include "net/wire_control.h"

enum { LANE_BUFFER_BYTES = 16 * 1024, WORKERS_MOST = 16 };

// Lanes that may have work.
struct lane_list {
    struct lane **list;
    size_t count, room;
};

struct worker {
    struct lanes *lanes;
    pthread_t thread;
    int epoll, wake;
    // turn
    bool waits; // in epoll_wait, or about to
    struct lane_list ready;
};

struct workers {
    pthread_mutex_t turn;
    pthread_cond_t still, go; // no worker is in a step; they may begin one
    uint32_t count, started;
    int wake; // the owner's thread's; borrowed
    // turn
    uint32_t stepping; // workers in the midst of a step
    bool paused, ending;
    bool thread_waits; // the owner's
    uint64_t freed;    // counts the times when lanes were freed, which events that nobody has looked at may name
    struct worker each[];
};

// Another member, or a candidate, and all connections to it.
//
// The owner of the connections embeds it as the first member of what it keeps of that member: the size is given to
// lanes_new. Changed with the lock held by the modules of link/, and on the thread only where that is said; all others
// read.
struct neighbour {
    struct lanes *all;
    struct wire_id id;
    struct wire_name name; // empty before the first epoch with it
    struct neighbour *next;
    struct lane *lanes[WIRE_MAX_LANES + 1]; // [0] the direct link
    uint32_t lane_end;                      // no lane has this index, or a higher one
    uint32_t lane_count;                    // lanes that still point here, the closed ones too
    bool dropped;                           // freed as soon as nothing points here, and the owner does not keep it
    uint32_t turn;                          // thread: the lane that is scheduled first
    struct rate_control rate;
    struct link_stats stats;
};

// The next thing on a lane: the head of a frame; its payload; or nothing, until the epoch of the frame whose head is in
// the buffer is entered. Padding (`skip`) follows a payload and arrives together with the next head.
enum lane_receive { LANE_HEAD, LANE_PAYLOAD, LANE_AHEAD };

// A connection. The lock guards sending on a direct link (index 0), since callers send small operations themselves;
// everything else belongs to the thread.
struct lane {
    struct lanes *all;
    uint64_t serial;        // tells it from an earlier connection of the same index
    struct neighbour *peer; // also in.from
    struct lane *next;      // arriving
    struct transport *stream;
    struct worker *worker; // that steps it; NULL: the owner's thread does
    uint32_t index;
    bool polled, broken;
    bool ready; // in the list of those that may have work
    struct failure_detector detector;
    struct pace pace;
    uint64_t looked_sent; // thread: detector.sent at the last look
    bool carried;         // thread: a frame of a large transfer was begun
    struct {
        struct gauge gauge; // lock
        uint64_t sent;
    } reported; // as of the last report to the master
    struct {
        struct gauge gauge;
        uint64_t sent;
        bool fresh; // it has been read: there was something to send since `reported`
        bool holds; // bytes that the kernel has not taken
    } read;         // thread: of the report, or the look, at hand

    // receiving
    enum lane_receive receiving;
    bool readable;
    bool ending;   // the other side has closed: read on to the end
    bool unparsed; // the buffer has a frame that is to be looked at again
    uint8_t buffer[LANE_BUFFER_BYTES];
    size_t buffered, consumed; // bytes [consumed, buffered) are unread
    struct incoming in;
    size_t skip;      // padding behind the last payload that is yet to come, or to be skipped
    uint8_t *scratch; // WIRE_MAX_DATA_BYTES, made at first use

    // sending
    bool retired;    // lock: it is not the peer's lane of this index any more
    uint32_t unsent; // what the kernel's limit is (pace_unsent)
    uint32_t paced;  // bytes per second that the kernel sends at most (BBR); 0: no limit was ever set
    bool writable;
    struct frame_queue queue;
    struct frame *sending;
    uint8_t head[FRAME_BEFORE_BYTES]; // of `sending`, from its first byte on
    size_t sent;                      // of head + payload
    uint8_t *stage;                   // encoded block or packed leaf being sent by this lane, made at first use
};

enum neighbour_change {
    NEIGHBOUR_NEW,       // it has just been made: all 0 but what is link/'s
    NEIGHBOUR_LINK_UP,   // a lane is polled from now on
    NEIGHBOUR_LINK_DOWN, // a lane broke. Lock not held
    NEIGHBOUR_FREED,     // it is about to be freed
};

// Functions of the owner of the connections. All run on the thread, and with the lock held only where that is said.
struct link_events {
    // The head of a frame has come: sets where its payload goes (struct incoming). Lock held. False: malformed.
    bool (*head)(void *context, struct incoming *in);
    // The whole frame is here. False: malformed.
    bool (*frame)(void *context, struct incoming *in);
    // Returns a frame made on demand, or NULL. With frames queued (not `idle`) only one that must not wait.
    struct frame *(*want)(void *context, struct lane *lane, bool idle);
    // A frame with an `op` has been handed to the kernel.
    void (*sent)(void *context, const struct frame *frame);
    // A neighbour has changed. Lock held, except for NEIGHBOUR_LINK_DOWN.
    void (*state)(void *context, struct neighbour *peer, enum neighbour_change change);
    // The connection with this serial number broke, and no other one has taken its place.
    void (*lost)(void *context, const struct wire_id *id, uint32_t index, uint64_t serial,
                 enum wire_link_reason reason);
    // Returns true if the owner still needs a dropped neighbour. Lock held.
    bool (*keeps)(void *context, const struct neighbour *peer);
    // Returns true if workers may step the lane. Lock held.
    bool (*may_share)(void *context, const struct lane *lane);
    // Wakes the thread, or ends everything because memory was refused. Lock held, any thread.
    void (*wake)(void *context);
    void (*refused)(void *context);
};

// All connections of an owner.
struct lanes {
    const struct link_events *events;
    void *context;         // of the events
    pthread_mutex_t *lock; // borrowed; guards what is not marked "thread"
    size_t neighbour_bytes;
    int epoll, wake;         // borrowed
    struct workers *workers; // NULL: none
    struct frame_source frames;
    struct neighbour *neighbours;
    struct lane *arriving;      // added, not polled yet
    uint64_t serial;            // of the newest connection
    bool fixed;                 // all of them carry bulk: their number is the program's (engine_fix_lanes)
    _Atomic int64_t silence_ns; // between two checks of silence, 0 = none

    // thread
    _Atomic pid_t thread;   // 0: it does not run yet, or has ended
    bool busy;              // a large transfer is under way; set by the owner
    int64_t silence_at;     // the next check
    struct lane **list;     // all that are polled
    size_t count, room;     // of `list`
    struct lane_list ready; // those that may have work, but for the lanes of workers
};

static inline void lanes_lock(const struct lanes *all) { pthread_mutex_lock(all->lock); }
static inline void lanes_unlock(const struct lanes *all) { pthread_mutex_unlock(all->lock); }
#define lanes_assert_locked(all) lock_assert_held((all)->lock)
// Functions of the thread begin with the first one. Those that change what workers use without the turn begin with the
// second one: the workers are paused. Nothing is checked while the thread does not run.
#define lanes_assert_thread(all) workers_check(all, false, __FILE__, __LINE__)
#define lanes_assert_paused(all) workers_check(all, true, __FILE__, __LINE__)
#ifdef PCCL_CHECKS
void workers_check(const struct lanes *all, bool paused, const char *file, int line);
#else
#define workers_check(all, paused, file, line) ((void)(all))
#endif

// With the turn. Wakes this worker, or with NULL the owner's thread, if it waits.
static inline void worker_wake(struct workers *all, struct worker *worker) {
    if (all == NULL) return;
    bool *waits = worker != NULL ? &worker->waits : &all->thread_waits;
    if (*waits) wake_signal(worker != NULL ? worker->wake : all->wake);
    *waits = false;
}

// Frames that a lane has to send: of the direct link it is guarded by the lock, of others it belongs to the thread.
static inline void lane_assert_guarded(const struct lane *lane) {
    lane->index == 0 ? lanes_assert_locked(lane->all) : lanes_assert_thread(lane->all);
}

// Schedules a step of the lane: there may be work for it.
static inline void lane_schedule(struct lane *lane) {
    lanes_assert_thread(lane->all);
    if (lane->ready || lane->broken || !lane->polled) return;
    lane->ready = true;
    struct lane_list *ready = lane->worker != NULL ? &lane->worker->ready : &lane->all->ready;
    ready->list[ready->count++] = lane;
    worker_wake(lane->all->workers, lane->worker);
}

// Returns true if bulk goes this way. The direct link only stands in where the pair has no lanes, and to a far
// neighbour not all lanes may be in use (pace_lanes). Thread, or lock held.
static inline bool lane_is_for_bulk(const struct lane *lane) {
    const struct neighbour *peer = lane->peer;
    if (lane->index == 0) return peer->lanes[1] == NULL;
    return peer->rate.lanes.in_use == 0 || lane->index <= peer->rate.lanes.in_use;
}

// ======== a neighbour (neighbour.c) ========
// Returns the neighbour of this id, or NULL. Lock held.
struct neighbour *neighbour_find(struct lanes *all, const struct wire_id *id);
// Returns the neighbour of this id, no longer dropped, or a new one. NULL: memory was refused. Lock held.
struct neighbour *neighbour_get(struct lanes *all, const struct wire_id *id);
struct peer_label neighbour_label(const struct neighbour *peer);
// Schedules its lanes, from another one on each time: the first ones get what the bucket has. Thread.
void neighbour_schedule(struct neighbour *peer);
// Returns the lane of this index, or the one that stands in for it; NULL if there is none.
struct lane *neighbour_lane(struct neighbour *peer, uint32_t index);
// Frees those that were dropped and that nobody needs. Thread.
void neighbours_free_dropped(struct lanes *all);

// ---- rate control of its lanes ----
// Reads what the kernel says of the connection, and sets how many unsent bytes that may take. Thread.
void neighbour_read_gauge(struct lane *lane, int64_t now_ns);
// Adapts number and speed of the neighbour's lanes, if it is time. Thread, lock not held.
void neighbour_tune(struct lane *lane);
// Returns true if the number of lanes or their speed was limited.
static inline bool neighbour_is_limited(const struct neighbour *peer) {
    return peer->rate.lanes.in_use > 0 || peer->rate.bucket.rate > 0;
}
// Returns how many of the neighbour's lanes carry bulk, the direct link aside, and why.
uint32_t neighbour_lanes_in_use(const struct neighbour *peer);
enum pace_reason neighbour_lanes_reason(const struct neighbour *peer);
// Returns the throughput of the neighbour's links while they are busy, in bytes per ns; 0 if unknown. Thread.
double neighbour_speed(struct neighbour *peer);

// ======== a lane (lane.c): framing, bytes in, frames out, and back ========
// Creates a lane, which takes the stream. Returns NULL if memory was refused; the stream stays the caller's.
struct lane *lane_new(struct neighbour *peer, uint32_t index, struct transport *stream);
void lane_free(struct lane *lane);

// ---- thread ----
// Returns WIRE_MAX_DATA_BYTES to receive into. NULL: memory was refused. Lock held.
uint8_t *lane_scratch(struct lane *lane);
// Returns WIRE_MAX_DATA_BYTES for what this lane sends, one frame at a time. NULL: memory was refused.
uint8_t *lane_stage(struct lane *lane);
// Gives each of these lanes a step. Returns whether there is more.
bool lane_step_all(struct lane_list *ready);
// Takes the lane out of use; it is freed after the events at hand. Lock not held.
void lane_break(struct lane *lane, enum wire_link_reason reason, const char *why);
// Drops the frames of large ops, or those of the service, in either direction. Lock held.
void lane_drop_frames(struct lane *lane, bool service);
// Resumes with a frame that waited for the epoch that was entered, and discards one of an older epoch that is still
// coming. Lock held.
void lane_enter_epoch(struct lane *lane);
// Records the events that epoll reports for the lane.
void lane_note_events(struct lane *lane, uint32_t events);
// Queues a frame and takes it.
void lane_push(struct lane *lane, struct frame *frame);

// ---- heartbeats; lock held ----
// Returns true if the lane has nothing to send, except what its device has yet to give. Thread.
bool lane_is_quiet(const struct lane *lane);
// Sends a heartbeat, with the time, before what its device has yet to give. Thread.
void lane_beat(struct lane *lane);

// ---- the direct link, which must exist; lock held ----
// Sends a frame at once, or queues what the kernel does not take.
void lane_send(struct lane *lane, struct frame *frame);

static inline void neighbour_send(struct neighbour *peer, struct frame *frame) { lane_send(peer->lanes[0], frame); }

// Queues a frame for the direct link. Thread.
static inline void neighbour_push(struct neighbour *peer, struct frame *frame) {
    lane_push(peer->lanes[0], frame);
    lane_schedule(peer->lanes[0]);
}

// ======== all connections of an owner (lanes.c) ========
// Borrows all that it points at.
struct lanes_options {
    const struct link_events *events;
    void *context; // of the events
    pthread_mutex_t *lock;
    struct pool *pool;
    size_t neighbour_bytes; // of what the owner keeps of a neighbour, which begins with struct neighbour
    int epoll, wake;        // of the thread
};

struct lanes *lanes_new(const struct lanes_options *options); // NULL: no memory
// Closes all. The thread has ended. NULL is allowed, as in lanes_free.
void lanes_close(struct lanes *all);
void lanes_free(struct lanes *all);
// Sets how long a link may be silent, or take nothing, before it is down (longer where pauses are usual). Before the
// first call no link is watched. Any thread.
void lanes_set_silence(struct lanes *all, int64_t limit_ns);
// Returns the limit that was set. Any thread.
static inline int64_t lanes_silence_limit_ns(const struct lanes *all) {
    return FAILURE_DETECTOR_CHECKS * all->silence_ns;
}

// ---- any thread, lock held ----
// Takes an authenticated connection and returns its serial number, which grows with each. Closes an older one of the
// same member and index if both have the same address at the other end, or the new one has one of `reach` (NULL: none),
// or has proved who it is. 0: the stream stays the caller's, because the
// older one lives and has another address (`from_elsewhere`), or memory was refused.
uint64_t lanes_add(struct lanes *all, const struct wire_id *id, uint32_t index, struct transport *stream,
                   const struct wire_reach *reach, bool *from_elsewhere);
// Closes all connections to a member that is gone.
void lanes_drop(struct lanes *all, const struct wire_id *id);
// Sends a frame with or without a payload over the direct link, at once if the kernel takes it. Returns false if there
// is no link, or memory was refused.
bool lanes_signal(struct neighbour *peer, uint16_t type, const struct wire_head *head, struct block *payload);

// ---- thread ----
// Begins to poll the lanes that were added. Lock held. False: the system refused memory or a descriptor.
bool lanes_poll_arriving(struct lanes *all);
// Shuts all connections down before callers get their memory back: neighbours may be reading it, and trust it while the
// link stands. Lock held.
void lanes_hang_up(struct lanes *all);
// Schedules the lanes of neighbours whose bucket has filled.
void lanes_look_at_buckets(struct lanes *all);
void lanes_free_broken(struct lanes *all);
// Schedules all lanes.
void lanes_schedule(struct lanes *all);
// Drops all frames of large ops, or all of the service, in either direction. Lock held.
void lanes_drop_frames(struct lanes *all, bool service);
// Enters an epoch with this run, generation and number: resumes with the frames that wait for it. Lock held.
void lanes_enter_epoch(struct lanes *all, const struct wire_header *now);
// Returns the incoming service frame of the next lane that is in the midst of one; `at` begins with 0. Returns NULL if
// there is none.
struct incoming *lanes_next_service(struct lanes *all, size_t *at);
// Breaks the lanes that have been silent for too long, if it is time to check; lets the others send heartbeats.
void lanes_check_silence(struct lanes *all);
// Returns the time until the next check or look at a bucket, if that is before `timeout_ms` (-1: never).
int lanes_timeout_ms(const struct lanes *all, int timeout_ms);

// ======== workers (workers.c): threads that receive, sum and send beside the owner's thread ========
// With workers, "thread" in a comment of link/ and data/ means: with the turn. The turn is a lock that the owner's
// thread and each worker hold whenever they run, except inside the calls that move the bytes of a chunk: a send, a
// receive, a sum, a copy. The turn comes before the lock of the connections. Each worker serves the lanes of some
// indexes, and no other thread steps those (docs/decisions/data-threads.md).

// Starts as many workers as PCCL_DATA_THREADS says; none by default. False: the system refused.
bool workers_start(struct lanes *lanes);
// Ends all workers. The owner's thread has ended. Idempotent.
void workers_stop(struct lanes *lanes);
void workers_free(struct lanes *lanes); // they have ended

// Takes the turn, or gives it up. The lock is not held. Here and below NULL stands for no workers.
static inline void turn_take(struct workers *all) {
    if (all != NULL) pthread_mutex_lock(&all->turn);
}
static inline void turn_leave(struct workers *all) {
    if (all != NULL) pthread_mutex_unlock(&all->turn);
}
// The owner's thread gives up the turn. `waits`: and waits for events, so that a lane with work has to wake it.
static inline void turn_leave_thread(struct workers *all, bool waits) {
    if (all != NULL) all->thread_waits = waits;
    turn_leave(all);
}

// Blocks until no worker is in the midst of a step; none begins another one before `workers_resume`. The owner's
// thread, with the turn, without the lock.
void workers_pause(struct lanes *lanes);
void workers_resume(struct lanes *lanes);

// ---- with the turn ----
// Returns the worker that lanes of this index belong to. NULL: the owner's thread serves them.
static inline struct worker *workers_of(struct workers *all, uint32_t index) {
    return all == NULL || index == 0 ? NULL : &all->each[(index - 1) % all->count];
}

#endif
