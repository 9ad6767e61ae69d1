// Heartbeats of a connection, and the detection of one that is silent (link/silence decides).
#ifndef PCCL_LINK_LIVENESS_H
#define PCCL_LINK_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

struct lane;

// Returns true if the lane has nothing to send, except what its device has yet to give. Thread, lock held.
bool liveness_is_quiet(const struct lane *lane);
// Sends a heartbeat, with the time, before what its device has yet to give. Thread, lock held.
void liveness_beat(struct lane *lane);
// Breaks the lane if it has been silent for longer than about `limit_ns`; else sends a heartbeat if the lane is quiet.
// `excused`: this process was stopped. Thread, lock not held.
void liveness_check(struct lane *lane, int64_t limit_ns, bool excused);

#endif
