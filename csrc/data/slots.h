// Shared-memory slots: how bytes pass between two members of one host.
//
// Each member owns slots for each neighbour of its host. It copies a chunk into free slots and names them in a frame on
// the link. The receiver reads the chunk where it lies, adds it up or copies it to its destination, and returns the
// slots (WIRE_TAKEN). The slots are the library's own memory, so no page of them makes a reader wait, and no right to
// read another process is needed (docs/decisions/slots.md).
//
// Each member sends the others the name of its socket. A peer with the same address at both ends of the link claims
// there to hold the links of this pair, each named by its two addresses, and hands over its slots. So no process that
// does not know the links can pass for a peer, and none of another user.
//
// Slots belong to one group epoch. Each epoch begins with fresh memory: a slot is never written again while somebody
// may still read what an abandoned operation left there.
#ifndef PCCL_DATA_SLOTS_H
#define PCCL_DATA_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_data.h"

struct block;
struct engine;
struct frame;
struct incoming;
struct lane;
struct neighbour;
struct op;
struct slots; // data/core.h

enum {
    SLOT_BYTES = 256 * 1024,
    SLOTS = 16,
    SLOTS_BYTES = SLOTS * SLOT_BYTES,
    SLOTS_CHUNK_MAX = 4 * SLOT_BYTES, // bytes of a chunk, in consecutive slots
    SLOTS_PART = 128 * 1024,          // bytes to work on at a time, so that they stay in the cache between two steps
    SLOTS_INPUT_LEAST = 64 * 1024,    // bytes of an input of a small all-reduce; a smaller one is sent
};

// ---- life ----
// The epoch is over, or the neighbour is gone.
void slots_end(struct slots *slots);

// ---- members of one host find each other and hand over their slots ----
void slots_announce(struct engine *engine); // all links are there
void slots_announced(struct lane *lane);    // thread
// Listens and claims again after a pause. Returns how long the thread may wait, at most `timeout_ms`; -1: any time.
int slots_step(struct engine *engine, int timeout_ms);
void slots_take_claims(struct engine *engine); // thread
// Returns whether the other end may be a process of this host.
bool slots_may_come(const struct lane *lane);

// ---- chunks of large operations ----
// Returns READY for this member, which says whether chunks of the operation may come in its slots. Lock held.
struct wire_ready slots_offer(const struct neighbour *to, const struct op *op);
// Returns whether chunks for the member that sent this READY go through slots. Lock held.
bool slots_serve(struct neighbour *to, const struct op *op, const struct wire_ready *ready);
// Returns a frame that names free slots for `bytes` <= SLOTS_CHUNK_MAX, and in `*room` where they are. The caller
// copies the chunk there before it queues the frame. Returns NULL if too few slots are free, or the system refused
// memory. Lock not held.
struct frame *slots_frame(struct engine *engine, struct op *op, struct neighbour *to, struct wire_head *head,
                          size_t bytes, uint8_t **room);
// The same with the chunk copied.
struct frame *slots_chunk(struct engine *engine, struct op *op, struct neighbour *to, struct wire_head *head,
                          const uint8_t *chunk, size_t bytes);

// ---- inputs of small all-reduces: each is read where it lies until the operation has no use for it ----
// Returns a frame that names slots for the whole input of the operation. The caller copies the input to `*room`.
// Returns NULL if the input has to be sent: it is small, no slots are free, or the neighbour lacks them. Lock held.
struct frame *slots_input_frame(struct engine *engine, struct neighbour *to, const struct op *op,
                                struct wire_head *head, uint8_t **room);
// Returns a block that stands for the input that SMALL_IN names. Takes the slots from `in`. NULL: the system refused
// memory. Lock held.
struct block *slots_input(struct engine *engine, struct incoming *in);
// Returns all slots to the neighbour that nobody here reads any more. Lock held.
void slots_return(struct engine *engine, struct neighbour *from);

// ---- leaves of a shared state ----
// Reserves slots for a leaf of `bytes` <= SLOT_BYTES. Lock held.
enum slots_leaf { SLOTS_LEAF, SLOTS_LEAF_LATER, SLOTS_LEAF_SENT };
enum slots_leaf slots_reserve_leaf(struct neighbour *to, size_t bytes, uint32_t *first, uint8_t **room);
// Makes the named slot the payload of the frame.
void slots_write(struct engine *engine, struct frame *frame, uint32_t first);

// ---- frames that name slots ----
// Returns whether the payload of the frame is not its bytes, but the slots that they lie in.
bool slots_are_named(const struct incoming *in);
// Finds the bytes that the frame names and sets `in->slot`; it stays NULL if they lie in slots of another epoch, which
// is malformed except for a leaf. Returns false if the frame is malformed. Lock not held.
bool slots_find(struct engine *engine, struct incoming *in);
// Returns the slots of `in` to the neighbour, unless slots_input took them. Lock not held.
void slots_release(struct engine *engine, struct incoming *in);
// Handles TAKEN: the neighbour returned slots, or (no slot) reports that it has mapped them. Returns false if the frame
// is malformed. Lock held.
bool slots_returned(struct engine *engine, struct incoming *in);

#endif
