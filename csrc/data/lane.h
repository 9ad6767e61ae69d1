// The connections to the neighbours: frames in, frames out. What the frames mean is said by whoever is asked for it
// (struct lane_route).
#ifndef PCCL_DATA_LANE_H
#define PCCL_DATA_LANE_H

#include "data/frame.h"

enum neighbour_change {
    NEIGHBOUR_LINK_UP,   // a lane is polled from now on
    NEIGHBOUR_LINK_DOWN, // a lane broke
    NEIGHBOUR_HANGS,     // its memory does not answer, and is read no more
    NEIGHBOUR_LEFT,      // it is no member any more
    NEIGHBOUR_FREED,     // it is about to be freed
};

// What a lane asks about its frames. All from the engine's thread.
struct lane_route {
    // The head of a frame has come: sets where its payload goes (struct incoming). Lock held. False: malformed.
    bool (*place)(struct engine *engine, struct incoming *in);
    // The whole frame is here. Lock not held. False: malformed.
    bool (*arrived)(struct engine *engine, struct incoming *in);
    // A frame made on demand, or NULL. With frames queued (not `idle`) only what must not wait. Lock not held.
    struct frame *(*next)(struct engine *engine, struct lane *lane, bool idle);
    // A frame of an op has been handed to the kernel. Lock not held.
    void (*sent)(struct engine *engine, const struct frame *frame);
    // Something became of a neighbour. Lock held, but for NEIGHBOUR_LINK_DOWN.
    void (*changed)(struct engine *engine, struct neighbour *peer, enum neighbour_change change);
};

struct op_member;
struct transport;

struct lane *lane_new(struct engine *engine, struct neighbour *peer, uint32_t index, struct transport *stream);
void lane_free(struct lane *lane);

// ---- lanes; thread ----
struct neighbour *lane_peer(const struct lane *lane);
// 0: the direct link.
uint32_t lane_index(const struct lane *lane);
// Whether bulk goes this way: the direct link only stands in where the pair has no lanes. Lock held.
bool lane_is_for_bulk(const struct lane *lane);
// WIRE_MAX_DATA_BYTES to receive into. NULL: memory was refused, the engine is dead. Lock held.
uint8_t *lane_scratch(struct lane *lane);
// WIRE_MAX_DATA_BYTES for what this lane sends, one frame at a time. NULL: memory was refused.
uint8_t *lane_stage(struct lane *lane);
// Queues a frame, and takes it. Lock held.
void lane_push(struct lane *lane, struct frame *frame);
// There may be work for it.
void lane_heat(struct lane *lane);
// Does what can be done now. False: nothing is left to do until an event.
bool lane_step(struct lane *lane);
// Takes the lane out of use; it is freed after the events at hand. Lock not held.
void lane_break(struct lane *lane, const char *why, bool silent);
// Forgets every frame of large ops of the old epoch. Lock held.
void lane_let_go(struct lane *lane);
// Forgets every frame of the service. Lock held.
void lane_let_go_service(struct lane *lane);
// What epoll says of it.
void lane_note_events(struct lane *lane, uint32_t events);
// Breaks it if it has been silent for longer than about `limit_ns`, else lets it say something. `excused`: this process
// was stopped.
void lane_check_silence(struct lane *lane, int64_t limit_ns, bool excused);

// ---- neighbours ----
struct neighbour *neighbour_of(struct op_member *member);
enum { NEIGHBOUR_NAME_BYTES = 16 };

const char *neighbour_name(char out[NEIGHBOUR_NAME_BYTES], const struct neighbour *peer);
// In the epoch in force; UINT32_MAX: it is no member.
uint32_t neighbour_rank(const struct neighbour *peer);
struct op_member *neighbour_op_member(struct neighbour *peer);
// What movers/direct has sent before the peer posted the op. Lock held.
uint64_t *neighbour_eager_bytes(struct neighbour *peer);

// ---- all lanes of a neighbour; lock held ----
// There may be work for them. Thread.
void neighbour_heat(struct neighbour *peer);
// The lane of this index, or the one that stands in for it; NULL: there is none.
struct lane *neighbour_lane(struct neighbour *peer, uint32_t index);
bool neighbour_has_link(const struct neighbour *peer);
// Queues a frame for the direct link, which is there. Thread.
void neighbour_push(struct neighbour *peer, struct frame *frame);
// Sends a frame without or with a block over the direct link, at once if the kernel takes it. False: there is no link,
// or memory was refused and the engine is dead.
bool neighbour_signal(struct engine *engine, struct neighbour *peer, uint16_t type, const struct wire_op *head,
                      struct block *payload);
// Sends what is queued for the direct link, as far as the kernel takes it.
void lane_flush(struct lane *lane);
// Sends a frame over the direct link, which is there. False: the kernel has not taken all of it. It is still to be
// sent, and may be given a block of its own with the same bytes.
bool neighbour_send(struct neighbour *peer, struct frame *frame);
// The direct link, which is there, is over.
void neighbour_hang_up(struct neighbour *peer);
// What its links move together while they are busy, in bytes per ns; 0: unknown. Thread.
double neighbour_speed(struct neighbour *peer);

#endif
