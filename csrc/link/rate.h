// Rate control of all connections to one member: how many of them carry bulk, how fast they send together, and how fast
// they are. It drives the pure modules: pace (one connection), throttle (the limit) and bucket (keeping to it).
#ifndef PCCL_LINK_RATE_H
#define PCCL_LINK_RATE_H

#include "link/throttle.h"

struct lane;
struct neighbour;

// Returns true if the number of lanes or their speed was limited.
static inline bool rate_is_limited(const struct rate_control *rate) {
    return rate->lanes.in_use > 0 || rate->bucket.rate > 0;
}
// Reads what the kernel says of the connection, and sets how many unsent bytes that may take. Thread.
void rate_look(struct lane *lane, int64_t now_ns);
// Returns true if the lane has to wait until its neighbour's bucket fills. Frames that are queued already do not wait.
bool rate_must_wait(const struct lane *lane);
// Adapts number and speed of the neighbour's lanes, if it is time. Thread, lock not held.
void rate_tune(struct lane *lane);
// Returns how many of the neighbour's lanes carry bulk, the direct link aside, and why.
uint32_t rate_lanes_in_use(const struct neighbour *peer);
enum pace_reason rate_reason(const struct neighbour *peer);
// Returns the throughput of the neighbour's links while they are busy, in bytes per ns; 0 if unknown. Thread.
double rate_speed(struct neighbour *peer);

#endif
