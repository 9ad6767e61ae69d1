// How fast bytes go, how many may be under way, and in what pieces: what the data plane and shared state decide about
// their links by figures, they decide here. Pure: figures in (the kernel's of a link, net/socket; those of the epoch;
// what has come), decisions out.
//
// Speeds are bytes per nanosecond, 0 is unknown.
#ifndef PCCL_LINK_PACE_H
#define PCCL_LINK_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/socket.h"

enum {
    PACE_CHUNK_MAX = 256 * 1024,  // bytes; send, scratch and result of one chunk fit an L2 cache of 1 MiB together
    PACE_CHUNK_MIN = 128 * 1024,  // bytes; a chunk costs two wake-ups at every member, whatever its size
    PACE_TURN_BYTES = 16 * 1024,  // bytes that a lane sends before the others have their turn, or one frame
    PACE_TICK_MS = 20,            // ms between two readings of one link
    PACE_FAR_US = 2000,           // us; shortest round trip of a far link; below it wake-ups limit a link
    PACE_FLOW_LEAST = 1 << 20,    // bytes on the way from one giver, at least
    PACE_FLOW_MOST = 64 << 20,    // bytes on the way from one giver, at most
    PACE_GRANTED_MOST = 64 << 20, // bytes granted by one owner of a shard, at most
};

// The mean after one more measurement of the same speed; an unknown one changes nothing.
double pace_mean(double mean, double newest);

// ---- one link, by what the kernel says ----
// All 0 at the beginning.
struct pace {
    struct gauge gauge; // as last read
    bool far;           // PACE_FAR_US
    int64_t measured_ns;
    uint64_t acked, busy_us; // where the next measurement of its speed begins
    double speed;            // in the last tick, while it had something to send
};

// Returns whether the last measurement of its speed is a tick old.
bool pace_is_due(const struct pace *pace, int64_t now_ns);
// A reading; if it is due, a measurement too.
void pace_note(struct pace *pace, const struct gauge *gauge, int64_t now_ns);

// Bytes of a frame of bulk on this link, and those that it may have taken and not sent yet (0: any number). Where the
// window of each connection is a small part of what a far link holds, a connection that has just lost a packet needs
// several round trips for what others send in one: it must not have taken much, or all wait for it.
size_t pace_frame(const struct pace *pace);
uint32_t pace_unsent(const struct pace *pace);

// ---- the connections to one neighbour ----
// How many of them carry bulk to a far one. More of them get through loss that no congestion causes, and hold more
// bytes than the window of one; too many of them only fill the queue of a busy link until it drops what comes. So they
// double with each round trip until the first queue, if their windows become large; from then on they become more while
// they are the limit and no queue is seen, and fewer while there is one and much is sent again and again. The round
// trip contains the queue of the other direction too, which the acknowledgements wait in, so that one is taken off
// where heartbeats tell how long it is.
enum pace_reason {
    PACE_NEAR,    // all are in use: the neighbour is near
    PACE_BEGINS,  // so many were not measured yet
    PACE_ENOUGH,  // they did not always have something to send: they are not the limit
    PACE_RAMPS,   // they became faster by themselves
    PACE_ADDED,   // there are more than before: they were the limit, and no queue was seen
    PACE_ALL,     // they are the limit, and there are no more
    PACE_QUEUES,  // a queue is on the way, which more of them would only make longer
    PACE_REDUCED, // there are fewer than before: a queue stays on the way, or much was sent again with one
    PACE_FIXED,   // all are in use: the program has told how many
    PACE_DIRECT,  // there is none beside the direct link
    PACE_VAIN,    // more of them were no faster
    PACE_FULL,    // they send what the way carries, and no faster (link/throttle)
    PACE_MEMORY,  // none is: large tensors pass by the memory of the host
    PACE_REASONS
};

// Why so many are in use, as one sentence.
const char *pace_reason_text(enum pace_reason reason);

struct pace_lanes {
    uint32_t in_use;         // 0: all, the neighbour is near
    enum pace_reason reason; // for that
    bool ramped;             // they double no more with each round trip
    bool wide;               // they did so twice: the way is no narrow one
    bool filled;             // a queue was seen: they become more slowly
    uint32_t clear;          // measurements one after another without any
    uint32_t lengthy;        // measurements one after another with a long queue
    uint32_t strained;       // measurements one after another in which much was sent again
    uint32_t lanes;          // of the measurement at hand, which began at since_ns
    int64_t since_ns;
    uint64_t acked, busy_us, segments, retransmits, window;
    uint64_t queue_us, samples; // sum of the queue as it was seen meanwhile, so many times
    double speed;               // in the measurement before; 0: there was none of as many
    uint32_t tried;             // so many there were before the latest became more; 0: they have shown what they bring
    uint32_t tried_lanes;       // of them there were
    double tried_speed;         // of those
    uint32_t rests;             // measurements in which they become no more
};

// Returns whether the last measurement saw a queue on the way.
static inline bool pace_sees_queue(const struct pace_lanes *pace) {
    return pace->reason == PACE_QUEUES || pace->reason == PACE_REDUCED;
}

// Sums over the connections in use, as last read.
struct pace_total {
    uint32_t lanes;
    uint32_t round_trip_us;                                                       // the shortest
    uint64_t smoothed_us, acked, busy_us, segments, retransmits, window, waiting; // sums
    bool pauses;        // no large op runs, so it is no wonder that they have nothing to send
    bool models;        // they send at a rate that they have found by themselves (BBR), so few fill a link
    uint64_t coming_us; // how long the queue of the other direction is, as far as it is known
};

// Returns whether what the connections to a far neighbour send is spread over the round trip (link/throttle).
// Acknowledgements wait behind the bulk of the other direction, come together, and let out bursts together: many
// connections in step fill the link in one moment and leave it empty in the next. Few of them leave more to others when
// they are not smooth, so on a narrow way they are not.
bool pace_is_smooth(const struct pace_lanes *pace, const struct pace_total *total);
// How long the queue on the way there is, of the own direction as far as the two are known apart.
uint64_t pace_queue_us(const struct pace_total *total);

// Returns whether the way holds much, whose rate may then be limited (link/throttle): on a narrow one others would get
// all of it.
bool pace_is_wide(const struct pace_lanes *pace, const struct pace_total *total);

void pace_total_add(struct pace_total *total, const struct pace *pace);
// The neighbour has `available` connections for bulk. True: others are in use than before.
bool pace_lanes_step(struct pace_lanes *pace, const struct pace_total *total, uint32_t available, int64_t now_ns);

// ---- one giver, by what comes ----
// Of what was asked for (leaves of shared state), however it comes. All 0 at the beginning.
struct pace_flow {
    int64_t delay_ns; // the shortest from a question to the first byte of its answer; 0: unknown
    double speed;     // mean
    int64_t since_ns; // the measurement at hand; 0: none
    uint64_t came;    // bytes since then
};

void pace_flow_begin(struct pace_flow *flow, int64_t now_ns); // something is asked for; may be under way already
void pace_flow_delayed(struct pace_flow *flow, int64_t delay_ns);
void pace_flow_came(struct pace_flow *flow, uint64_t bytes, int64_t now_ns);
// Nothing is asked for: idle time is no slowness.
void pace_flow_pause(struct pace_flow *flow);
// Bytes that may be on the way from this giver.
uint64_t pace_flow_window(const struct pace_flow *flow);

// ---- what is spread ----
// Bytes of inputs of one op that a member lets each other one of its team, of three at least, send before they are
// added up. So much is on the way to it, at twice the figures of the epoch, that no link is without work, but no more
// than it can store: PACE_GRANTED_MOST from all of them together.
uint64_t pace_granted(uint32_t members, uint32_t latency_us, uint32_t megabytes_per_s);

// ---- rings ----
// Bytes of own chunks that a member, one of two at least, keeps under way in the rings of all its ops together: no link
// is without work, and more would only wait in buffers and leave the caches (docs/decisions/what-limits-tcp.md). The
// figures are those of the epoch: what was measured of its slowest link.
uint64_t pace_window(uint32_t members, uint32_t latency_us, uint32_t megabytes_per_s);
// Elements per chunk of a shard with this many elements, of at most `max_bytes`; at least 1. A segment has others
// beside it to keep the ring busy, so it needs fewer.
uint64_t pace_chunk(uint64_t shard_elements, size_t element_bytes, size_t max_bytes, bool segment);
// Elements of a block of a spread, for an epoch with that latency. A block is added up when each member's input of it
// is complete: where a link takes a tenth of a second for 256 KiB, small blocks wait less.
uint64_t pace_block(uint64_t shard_elements, size_t element_bytes, uint32_t latency_us);

#endif
