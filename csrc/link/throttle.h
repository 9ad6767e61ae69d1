// How fast the connections to one far neighbour may send together: the limit, and the token bucket that keeps them to
// it. Pure.
//
// As long as they only stop when the queue on the way
// overflows, the acknowledgements of the other direction wait in it, and that direction carries less with the same
// windows. So what the way carries is measured while a queue is there, and they send so much less, or more, that a
// short one stays. Where the queue does not become shorter, or they send ever less for it, it is somebody else's, and
// they send as fast as they can.
//
// The kernel can pace each connection by itself, but then a timer of its own sends every two segments. Over 1 Gbit/s
// these timers cost more of the processor than all else (docs/decisions/far-links.md). The bucket costs one wake-up per
// millisecond.
#ifndef PCCL_LINK_THROTTLE_H
#define PCCL_LINK_THROTTLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "link/pace.h"

// All 0 at the beginning. Speeds are bytes per nanosecond.
struct throttle {
    double rate;   // so fast may they be; 0: as fast as they can
    double widest; // the largest that was measured
    double line;   // so much the way carries; 0: unknown
    // the look at hand: sum of the queue as it was seen since then, so many times
    int64_t looked_ns;
    uint64_t queue_us, samples;
    // the measurement at hand, of several looks
    int64_t since_ns;
    uint32_t lanes;
    uint64_t acked, busy_us, coming_us;
    double least_us, sum_us; // of the looks in it
    uint32_t looks;
    bool idle;         // there was not always something to send
    uint32_t learned;  // measurements of the line, the first ones
    uint32_t low;      // measurements one after another with much less than the line was
    uint32_t high;     // likewise with much more
    uint32_t clear;    // likewise without any queue, though they would send more if they might
    uint32_t growing;  // likewise in which the line was taken to carry more
    uint32_t stubborn; // likewise with a long queue, though they sent less than the line carries
    int64_t rests_until;
};

// Takes what the kernel says of the connections in use. `may`: whether they may be limited at all.
void throttle_step(struct throttle *throttle, const struct pace_total *total, bool may, int64_t now_ns);
// Returns how fast they may send together, in bytes per nanosecond; 0: as fast as they can. `smooth`: what they send is
// spread over the round trip, with some room for windows that grow.
// Connections that find a rate by themselves (BBR) have no limit together, but each has a share (throttle_share).
double throttle_limit(const struct throttle *throttle, const struct pace_total *total, bool smooth);
// Returns what one of them with this window may send, in bytes per second; 0: as fast as it can.
uint32_t throttle_share(const struct throttle *throttle, const struct pace_total *total, uint32_t window);

enum { THROTTLE_TICK_MS = 1 }; // between two looks at a bucket that somebody waits for

// All 0 at the beginning.
struct throttle_bucket {
    double rate; // bytes per nanosecond; 0: no limit
    double room; // bytes that may be sent now; below 0 after a frame that was larger
    int64_t filled_ns;
    bool waits;       // a sender found it empty
    int64_t empty_ns; // when that was last
};

// Fills the bucket for the time that has passed, and returns whether anything may be sent. Notes in `waits` if not.
bool throttle_has_room(struct throttle_bucket *bucket, int64_t now_ns);
// Takes bytes that are about to be sent out of the bucket.
static inline void throttle_take(struct throttle_bucket *bucket, size_t bytes) {
    if (bucket->rate > 0) bucket->room -= (double)bytes;
}

// State of the rate control of all connections to one member (link/neighbour). All 0 at the beginning.
// Thread, unless stated otherwise.
struct rate_control {
    struct pace_lanes lanes;       // how many carry bulk
    struct throttle throttle;      // how fast they may be together; changed with the lock held
    struct throttle_bucket bucket; // what they may send now; a far neighbour alone
    double speed;                  // of all of them together
    int64_t speed_ns;              // when that was measured
    bool alone;                    // set by the owner: the last large transfer has bulk for no other member
};

#endif
