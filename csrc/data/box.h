// A box: memory that two members of one host share, one way. The owner copies chunks into its slots, and tells the
// other one over the link, which copies them to where they belong and gives the slots back (WIRE_TAKEN).
//
// Two copies by two processes at the same time take half as long as one by the kernel out of the other's memory, and
// none of them can wait for a page of somebody else (docs/decisions/boxes.md). A box is of one group epoch: what an op
// that is given up has left in it, and who may still be reading that, ends with it.
#ifndef PCCL_DATA_BOX_H
#define PCCL_DATA_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct boxes; // data/lane.h
struct engine;
struct frame;
struct incoming;
struct lane;
struct neighbour;
struct op;
struct wire_op;

enum {
    BOX_SLOT_BYTES = 256 * 1024,
    BOX_SLOTS = 8,
    BOX_BYTES = BOX_SLOTS * BOX_SLOT_BYTES,
    BOX_INPUT_LEAST = 64 * 1024, // bytes of an input of a small all-reduce; a smaller one is sent
    BOX_READY = 2,               // in `extra` of READY: chunks may come in the receiver's box
};

// A box for what goes there, whose descriptor is the caller's to hand over and close. -1: there is none, or it was made
// before in this epoch.
int box_make(struct boxes *boxes);
// Drops the own box, which was not handed over.
void box_drop_own(struct boxes *boxes);
// Maps the peer's send buffer for reading. Borrows `fd`.
void box_take_other(struct boxes *boxes, int fd);
// The epoch is over, or the neighbour is no more.
void box_end(struct boxes *boxes);

// `extra` of READY to this member, for an op whose chunks may come in a box.
uint32_t box_offer(const struct neighbour *to, const struct op *op);
// Whether the member that has sent READY with this `extra` gets the chunks of the op in the box.
bool box_serves(struct neighbour *to, const struct op *op, uint32_t extra);
// A chunk of an op, copied into the box. NULL: no slot is free, or memory was refused. Lock not held.
struct frame *box_frame(struct engine *engine, struct op *op, struct neighbour *to, struct wire_op *head,
                        const uint8_t *chunk, size_t bytes);
// Whether the frame that is coming names a chunk in the box, whose bytes are `in->head.extra`; then `in->to` is set.
bool box_is_named(struct incoming *in, const struct op *op);
// Copies the chunk out of the box and gives its slot back. False: the frame is malformed. Lock not held.
bool box_copy(struct engine *engine, struct incoming *in, uint8_t *to);
// The neighbour returned slots, or (no slot) reports that it has the box. False: the frame is malformed.
bool box_taken(struct engine *engine, struct incoming *in);

// ---- inputs of small all-reduces: each in consecutive slots, read where it lies ----
// Reports to the neighbour that its box is here, if it is.
void box_take_inputs(struct engine *engine, struct neighbour *from);
// Returns a frame that names the whole input of the op; the caller copies the input to `*out`. NULL: the input has to
// be sent, since it is small, no slots are free, or the neighbour lacks the box.
struct frame *box_input_frame(struct engine *engine, struct neighbour *to, const struct op *op, struct wire_op *head,
                              uint8_t **out);
// Returns whether SMALL_IN is well-formed, and sets `in->to`.
bool box_input_is_named(struct incoming *in);
// Returns a block that stands for the input that SMALL_IN names. NULL: the frame is malformed, or the system refused
// memory.
struct block *box_input(struct engine *engine, struct incoming *in);
// Returns all slots of the neighbour's box that nobody here reads any more.
void box_return(struct engine *engine, struct neighbour *from);

#endif
