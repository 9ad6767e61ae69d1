// Frames on connections: those that are to be sent, the one that is coming on a lane, and the blocks of heap memory
// that they and the ops lie in.
//
// A frame is a head of fixed size (struct wire_header, then struct wire_head), a payload, and padding. The owner of the
// connections marks a frame as one of a large transfer (`op`) or of its service; link/ only tells them apart.
#ifndef PCCL_LINK_FRAME_H
#define PCCL_LINK_FRAME_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_data.h"

struct device_queue;
struct lane;
struct op;
struct neighbour;
struct pool;

enum {
    FRAME_HEAD_BYTES = WIRE_HEADER_BYTES + WIRE_HEAD_BYTES,
    FRAME_BEFORE_BYTES = FRAME_HEAD_BYTES + WIRE_ALIGN, // all that may come before a payload
    FRAME_NOTE_BYTES = 16,                              // of the longest payload that is not for an op or a service
};

// ---- blocks: counted, and used again ----
// A sum whose last addition is left until somebody asks for the bytes (data/algorithms/direct).
struct block_sum {
    struct block *operand; // owned reference, of the same length; NULL: the bytes of the block are complete
    uint64_t count;        // elements
    uint32_t divisor;      // of an average; 0: none
    uint8_t op, dtype;     // pcclRedOp_t, pcclDataType_t
    bool operand_first;    // block = operand op block, instead of block op operand
};

struct block {
    struct block *next; // in the pool
    uint32_t references;
    size_t class_bytes;
    size_t length;
    struct block_sum sum;
    // An input that lies in slots of a neighbour (data/slots) instead of `bytes`; NULL: it does not.
    const uint8_t *in_slots;
    struct neighbour *from;
    uint32_t slots;
    void (*return_slots)(const struct block *block); // called with the last reference
    _Alignas(64) uint8_t bytes[];
};

// Creates a pool that `lock`, which is borrowed, guards. It calls `refused` when it gets no memory for a block. NULL:
// no memory.
struct pool *frame_pool_new(pthread_mutex_t *lock, void (*refused)(void *context), void *context);
// NULL is allowed. No block is in use.
void frame_pool_free(struct pool *pool);

// A block with one reference; NULL: memory was refused, and reported.
struct block *block_new(struct pool *pool, size_t length);
// NULL is allowed.
void block_put(struct pool *pool, struct block *block);

static inline const uint8_t *block_payload(const struct block *block) {
    return block->in_slots != NULL ? block->in_slots : block->bytes;
}

// ---- frames ----
// Arguments of new frames.
struct frame_source {
    struct pool *pool;      // borrowed
    struct wire_header now; // run, generation and epoch in force; the rest is 0
};

// A frame to be sent.
struct frame {
    struct frame *next;
    struct wire_header header; // its length, and `lead` and `padding` of the head, are set by frame_encode
    struct wire_head head;
    const uint8_t *payload; // a mapped view of a tensor, the bytes of `block`, a lane's stage, or `note`
    uint32_t length;        // of the payload
    uint32_t copied;        // bytes that were copied for it into slots
    uint32_t bytes;         // element bytes that it stands for, for the algorithm of `op`
    uint64_t fence; // of `device`, whose mapped view the payload is: it is there when this has passed; 0: it is there
    struct device_queue *device;
    uint8_t note[WIRE_SLOT_BYTES]; // room for a payload that names slots
    struct op *op;                 // large op that the frame belongs to, or NULL
    struct block *block;           // owned reference, or NULL
    struct block *room;            // that the frame itself lies in
    bool service;                  // belongs to the service, whose memory the payload is
};

// The frame that is coming on a lane.
struct incoming {
    struct lane *lane;
    struct neighbour *from;
    struct wire_header header;
    struct wire_head head;          // as header.type has it
    size_t length, got;             // of the payload
    uint8_t *to;                    // where the payload goes; NULL: it is discarded
    struct block *block;            // owned, when `to` is inside
    struct op *op;                  // large op that the payload is for
    bool service;                   // `to` is memory of the service
    bool stands_for_chunk;          // a short frame, set by `head`, with which a whole chunk comes
    uint8_t note[FRAME_NOTE_BYTES]; // room for a payload that names slots, or a socket
    const uint8_t *slot;            // the bytes that the frame names (slots_find); NULL: it names none
    uint32_t slots;                 // a bit for each slot that they lie in
};

// In the order in which they were pushed, but for what was put back.
struct frame_queue {
    struct frame *first, **last;
};

// Returns whether frames of this type belong to an epoch: not those of the service, nor heartbeats, since candidates
// are heard too.
bool frame_has_epoch(uint16_t type);
// A frame with the head of the epoch in force; NULL: memory was refused, and reported (link_events.refused).
struct frame *frame_new(struct frame_source *source, uint16_t type, const struct wire_head *head, size_t payload);
// Returns how many bytes of `frame` come before its payload.
static inline size_t frame_head_bytes(const struct frame *frame) { return FRAME_HEAD_BYTES + frame->head.lead; }
// Writes the bytes that come before the payload, which is set, to `out`, whose last WIRE_ALIGN bytes are zeros already.
// Zeros in front of a large payload make the kernel copy it to an address equal to its own modulo WIRE_ALIGN:
// docs/decisions/frames-are-aligned.md.
void frame_encode(struct frame *frame, uint8_t out[FRAME_BEFORE_BYTES]);
// Frees the frame and gives its blocks back.
void frame_free(struct frame_source *source, struct frame *frame);
// Returns whether the frame ends with the service, or else with an epoch. A leaf in slots outlives the service: its
// receiver returns the slots.
static inline bool frame_is_of(const struct frame *frame, bool service) {
    return frame->service == service && (!service || frame->payload != frame->note);
}

#endif
