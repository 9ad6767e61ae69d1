// Connections to other members, as the modules of link/ and their owner know them: one connection (struct lane), all
// connections to one member (struct neighbour), and all of an owner (struct lanes). What the frames mean is the owner's
// (struct link_events).
#ifndef PCCL_LINK_CONNECTION_H
#define PCCL_LINK_CONNECTION_H

#include <pthread.h>

#include "base/platform.h"
#include "link/frame.h"
#include "link/pace.h"
#include "link/silence.h"
#include "link/stats.h"
#include "link/throttle.h"
#include "link/workers.h"
#include "net/peer_name.h"
#include "net/transport.h"
#include "net/wire_control.h"

enum { LANE_BUFFER_BYTES = 16 * 1024 };

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
    struct silence silence;
    struct pace pace;
    uint64_t looked_sent; // thread: silence.sent at the last look
    struct {
        struct gauge gauge; // lock
        uint64_t sent;
    } told; // as of the last report to the master
    struct {
        struct gauge gauge;
        uint64_t sent;
        bool fresh; // it has been read: there was something to send since `told`
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

// All connections of an owner (link/lanes).
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
    bool fixed;                 // all of them carry bulk (lanes_fix)
    _Atomic int64_t silence_ns; // between two checks of silence, 0 = none

    // thread
    bool busy;              // a large transfer is under way; set by the owner
    int64_t silence_at;     // the next check
    struct lane **list;     // all that are polled
    size_t count, room;     // of `list`
    struct lane_list ready; // those that may have work, but for the lanes of workers
};

static inline void lanes_lock(const struct lanes *all) { pthread_mutex_lock(all->lock); }
static inline void lanes_unlock(const struct lanes *all) { pthread_mutex_unlock(all->lock); }
#define lanes_assert_locked(all) lock_assert_held((all)->lock)

// Frames that a lane has to send: of the direct link it is guarded by the lock, of others it belongs to the thread.
static inline void lane_assert_guarded(const struct lane *lane) {
    if (lane->index == 0) lanes_assert_locked(lane->all);
}

// Schedules a step of the lane: there may be work for it.
static inline void lane_schedule(struct lane *lane) {
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

#endif
