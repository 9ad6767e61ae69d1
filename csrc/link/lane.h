// The connections to the neighbours: frames in, frames out. What the frames mean is said by whoever is asked for it
// (struct lane_route).
#ifndef PCCL_LINK_LANE_H
#define PCCL_LINK_LANE_H

#include "link/bucket.h"
#include "link/frame.h"
#include "link/pace.h"
#include "link/silence.h"
#include "link/stats.h"
#include "link/throttle.h"
#include "link/workers.h"
#include "device/rendezvous.h"
#include "net/peer_name.h"
#include "net/transport.h"
#include "ops/driver.h"

enum { LANE_BUFFER_BYTES = 16 * 1024 };

// The memory shared with a neighbour (data/slots), of the epoch in force; all 0: there is none. Lock held; the thread
// reads `other` without it.
struct slots {
    uint8_t *own;         // for chunks that go to the neighbour
    uint32_t free;        // slots of it, a bit each
    bool populated;       // it has pages
    bool mapped;          // the neighbour has mapped it
    const uint8_t *other; // chunks that come from the neighbour
    uint32_t to_return;   // slots of it, a bit each
};

// Another member, or candidate, and the links to it. Changed under the lock by the modules lane, link and same_host,
// and on the thread only where that is said; all others read.
struct neighbour {
    struct op_member member; // first: what the call table knows of it; rank UINT32_MAX: it is no member
    struct wire_name name;   // empty before the first epoch with it
    struct neighbour *next;
    struct lane *lanes[WIRE_MAX_LANES + 1]; // [0] the direct link
    uint32_t lane_end;                      // no lane has this index, or a higher one
    uint32_t lane_count;                    // lanes that still point here, the closed ones too
    bool dropped;                           // freed as soon as nothing points here
    bool offered;                           // in this epoch it has told the name of its
    uint8_t rendezvous[RENDEZVOUS_NAME_BYTES];
    struct slots slots;
    uint64_t eager_bytes;     // algorithms/direct, algorithms/ring: sent before the peer posted the op
    double speed;             // thread: of its links together
    int64_t speed_ns;         // thread: when it was measured
    struct pace_lanes pace;   // thread: how many of its lanes carry bulk
    struct throttle throttle; // how fast they may be together; changed by the thread under the lock
    struct bucket bucket;     // thread: what they may send now; a far neighbour alone
    uint32_t turn;            // thread: the lane that is scheduled first
    bool alone;               // thread: the last large op that began has bulk for no other member
    struct link_stats stats;
};

// The next thing on a lane: the head of a frame; its payload; or nothing, until the epoch of the frame whose head is in
// the buffer is entered. Padding (`skip`) follows a payload and arrives together with the next head.
enum lane_receive { LANE_HEAD, LANE_PAYLOAD, LANE_AHEAD };

// A connection. The lock guards sending on a direct link (index 0), since callers send small operations themselves;
// everything else belongs to the thread.
struct lane {
    struct engine *engine;
    struct neighbour *peer; // also in.from
    struct lane *next;      // arriving
    struct transport *stream;
    struct worker *worker; // that steps it; NULL: the engine's thread does
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
    size_t sent;    // of head + payload
    uint8_t *stage; // encoded block or packed leaf being sent by this lane, made at first use
};

enum neighbour_change {
    NEIGHBOUR_LINK_UP,   // a lane is polled from now on
    NEIGHBOUR_LINK_DOWN, // a lane broke
    NEIGHBOUR_LEFT,      // it is no member any more
    NEIGHBOUR_FREED,     // it is about to be freed
};

// Functions that a lane calls about its frames, all on the engine's thread.
struct lane_route {
    // The head of a frame has come: sets where its payload goes (struct incoming). False: malformed.
    bool (*place)(struct engine *engine, struct incoming *in);
    // The whole frame is here. Lock not held. False: malformed.
    bool (*arrived)(struct engine *engine, struct incoming *in);
    // A frame made on demand, or NULL. With frames queued (not `idle`) only what must not wait. Lock not held.
    struct frame *(*next)(struct engine *engine, struct lane *lane, bool idle);
    // A frame of an op has been handed to the kernel. Lock not held.
    void (*sent)(struct engine *engine, const struct frame *frame);
    // Whether the other end may be a process of this host that shares memory with this one.
    bool (*may_share_memory)(const struct lane *lane);
    // Something became of a neighbour. Lock held, but for NEIGHBOUR_LINK_DOWN.
    void (*changed)(struct engine *engine, struct neighbour *peer, enum neighbour_change change);
};

extern const struct lane_route route; // data/route

// All links of an engine (data/link).
struct lanes {
    struct engine *engine;
    int epoll; // borrowed
    struct neighbour *neighbours;
    struct lane *arriving;      // added, not polled yet
    bool fixed;                 // all of them carry bulk (engine_fix_lanes)
    _Atomic int64_t silence_ns; // between two checks of silence, 0 = none

    // thread
    int64_t silence_at;     // the next check
    struct lane **list;     // all that are polled
    size_t count, room;     // of `list`
    struct lane_list ready; // those that may have work, but for the lanes of workers
};

// Takes the stream, unless memory is refused: NULL.
struct lane *lane_new(struct engine *engine, struct neighbour *peer, uint32_t index, struct transport *stream);
void lane_free(struct lane *lane);

// ---- lanes; thread ----
// Whether bulk goes this way: the direct link only stands in where the pair has no lanes, and to a far neighbour not
// all lanes may be in use (pace_lanes). Thread, or lock held.
bool lane_is_for_bulk(const struct lane *lane);
// WIRE_MAX_DATA_BYTES to receive into. NULL: memory was refused, the engine is dead.
uint8_t *lane_scratch(struct lane *lane);
// WIRE_MAX_DATA_BYTES for what this lane sends, one frame at a time. NULL: memory was refused.
uint8_t *lane_stage(struct lane *lane);
// Reads what the kernel says of its connection, and sets how many unsent bytes that may take. Thread.
void lane_look(struct lane *lane, int64_t now_ns);
// Queues a frame, and takes it.
void lane_push(struct lane *lane, struct frame *frame);
// There may be work for it.
void lane_schedule(struct lane *lane);
// Does what can be done now. False: nothing is left to do until an event.
bool lane_step(struct lane *lane);
// Takes the lane out of use; it is freed after the events at hand. Lock not held.
void lane_break(struct lane *lane, enum wire_link_reason reason, const char *why);
// Drops the frames of large ops, or those of the service, in either direction.
void lane_drop_frames(struct lane *lane, bool service);
// An epoch was entered: looks again at a frame that waits for it.
void lane_enter_epoch(struct lane *lane);
// Records the events that epoll reports for the lane.
void lane_note_events(struct lane *lane, uint32_t events);
// Whether it has nothing to send, but what its device has yet to give.
bool lane_is_quiet(const struct lane *lane);
// Says a heartbeat, with the time, before what its device has yet to give.
void lane_beat(struct lane *lane);
// Breaks it if it has been silent for longer than about `limit_ns`, else lets it say something. `excused`: this process
// was stopped.
void lane_check_silence(struct lane *lane, int64_t limit_ns, bool excused);

// ---- neighbours ----
static inline struct neighbour *neighbour_of(struct op_member *member) { return (struct neighbour *)(void *)member; }
// Returns whether large tensors pass to the neighbour through shared memory.
static inline bool neighbour_is_by_memory(const struct neighbour *peer) { return peer->slots.mapped; }
struct peer_label neighbour_label(const struct neighbour *peer);
// Schedules its lanes, from another one on each time: the first ones get what the bucket has. Thread.
void neighbour_schedule(struct neighbour *peer);
// The lane of this index, or the one that stands in for it; NULL: there is none.
struct lane *neighbour_lane(struct neighbour *peer, uint32_t index);
// Queues a frame for the direct link, which is there. Thread.
void neighbour_push(struct neighbour *peer, struct frame *frame);
// Sends a frame without or with a block over the direct link, at once if the kernel takes it. False: there is no link,
// or memory was refused and the engine is dead.
bool neighbour_signal(struct engine *engine, struct neighbour *peer, uint16_t type, const struct wire_op *head,
                      struct block *payload);
// Sends a frame over the direct link, which must exist. Queues what the kernel does not take at once.
void neighbour_send(struct neighbour *peer, struct frame *frame);
// How many of its lanes carry bulk, the direct link aside, and why.
uint32_t neighbour_lanes_in_use(const struct neighbour *peer);
enum pace_reason neighbour_lanes_reason(const struct engine *engine, const struct neighbour *peer);
// Returns the throughput of the peer's links while they are busy, in bytes per ns; 0 if unknown. Thread.
double neighbour_speed(struct neighbour *peer);

#endif
