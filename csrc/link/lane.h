// Framing on one connection: bytes in, frames out, and back.
#ifndef PCCL_LINK_LANE_H
#define PCCL_LINK_LANE_H

#include "link/connection.h"

// Takes the stream, unless memory is refused: NULL.
struct lane *lane_new(struct neighbour *peer, uint32_t index, struct transport *stream);
void lane_free(struct lane *lane);

// ---- thread ----
// WIRE_MAX_DATA_BYTES to receive into. NULL: memory was refused. Lock held.
uint8_t *lane_scratch(struct lane *lane);
// WIRE_MAX_DATA_BYTES for what this lane sends, one frame at a time. NULL: memory was refused.
uint8_t *lane_stage(struct lane *lane);
// Does what can be done now. False: nothing is left to do until an event.
bool lane_step(struct lane *lane);
// Takes the lane out of use; it is freed after the events at hand. Lock not held.
void lane_break(struct lane *lane, enum wire_link_reason reason, const char *why);
// Drops the frames of large ops, or those of the service, in either direction. Lock held.
void lane_drop_frames(struct lane *lane, bool service);
// An epoch was entered: looks again at a frame that waits for it. Lock held.
void lane_enter_epoch(struct lane *lane);
// Records the events that epoll reports for the lane.
void lane_note_events(struct lane *lane, uint32_t events);
// Queues a frame, and takes it.
void lane_push(struct lane *lane, struct frame *frame);

// ---- the direct link, which must exist; lock held ----
// Sends a frame at once, or queues what the kernel does not take.
void lane_send(struct lane *lane, struct frame *frame);

static inline void neighbour_send(struct neighbour *peer, struct frame *frame) { lane_send(peer->lanes[0], frame); }

// Queues a frame for the direct link. Thread.
static inline void neighbour_push(struct neighbour *peer, struct frame *frame) {
    lane_push(peer->lanes[0], frame);
    lane_schedule(peer->lanes[0]);
}

#endif
