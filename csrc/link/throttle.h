// How fast the connections to one far neighbour may send together. As long as they only stop when the queue on the way
// overflows, the acknowledgements of the other direction wait in it, and that direction carries less with the same
// windows. So what the way carries is measured while a queue is there, and they send so much less, or more, that a
// short one stays. Where the queue does not become shorter, or they send ever less for it, it is somebody else's, and
// they send as fast as they can. Pure.
#ifndef PCCL_LINK_THROTTLE_H
#define PCCL_LINK_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "link/bucket.h"
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

// State of the rate control of all connections to one member (link/rate). All 0 at the beginning.
// Thread, unless stated otherwise.
struct rate_control {
    struct pace_lanes lanes;  // how many carry bulk
    struct throttle throttle; // how fast they may be together; changed with the lock held
    struct bucket bucket;     // what they may send now; a far neighbour alone
    double speed;             // of all of them together
    int64_t speed_ns;         // when that was measured
    bool alone;               // set by the owner: the last large transfer has bulk for no other member
};

#endif
