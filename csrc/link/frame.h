// Frames on the links of an engine: those that are to be sent, and the one that is coming on a lane.
//
// A frame is a head of fixed size (struct wire_header, then struct wire_op), a payload, and padding. Some frames belong
// to an op (data/algorithms), some to the service of the engine (data/service.h), the rest to the links and the
// agreement about ops.
#ifndef PCCL_LINK_FRAME_H
#define PCCL_LINK_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_data.h"

struct block;
struct device_queue;
struct engine;
struct lane;
struct op;
struct neighbour;

enum {
    FRAME_HEAD_BYTES = WIRE_HEADER_BYTES + WIRE_OP_BYTES,
    FRAME_NOTE_BYTES = 16, // of the longest payload that is not for an op or a service
};

// A frame to be sent.
struct frame {
    struct frame *next;
    uint8_t head[FRAME_HEAD_BYTES + WIRE_ALIGN]; // with room for the zero bytes of frame_align
    const uint8_t *payload; // a window of a tensor, the bytes of `block`, a lane's stage, or `place`
    uint32_t length;        // of the payload
    uint8_t lead;           // zero bytes in front of it, see frame_align
    uint32_t copied;        // bytes that were copied for it into slots
    uint32_t bytes;         // element bytes that it stands for, for the algorithm of `op`
    uint64_t fence; // of `device`, whose window the payload is: it is there when this has passed; 0: it is there
    struct device_queue *device;
    uint8_t place[WIRE_SLOT_BYTES]; // room for a payload that names slots
    struct op *op;                  // large op that the frame belongs to, or NULL
    struct block *block;            // owned reference, or NULL
    struct block *room;             // that the frame itself lies in
    bool service;                   // belongs to the service, whose memory the payload is
};

// The frame that is coming on a lane.
struct incoming {
    struct lane *lane;
    struct neighbour *from;
    struct wire_header header;
    struct wire_op head;
    size_t length, got;              // of the payload
    uint8_t *to;                     // where the payload goes; NULL: it is discarded
    struct block *block;             // owned, when `to` is inside
    struct op *op;                   // large op that the payload is for
    bool service;                    // `to` is memory of the service
    uint8_t place[FRAME_NOTE_BYTES]; // room for a payload that names slots, or a socket
    const uint8_t *slot;             // the bytes that the frame names (slots_find); NULL: it names none
    uint32_t slots;                  // a bit for each slot that they lie in
};

// In the order in which they were pushed, but for what was put back.
struct frame_queue {
    struct frame *first, **last;
};

// Whether frames of this type belong to an epoch: not those of the service, nor heartbeats, since candidates are heard
// too.
bool frame_has_epoch(uint16_t type);
// A frame with the head of the epoch in force; NULL: memory was refused, the engine is dead.
struct frame *frame_new(struct engine *engine, uint16_t type, const struct wire_op *head, size_t payload);
// The same in `epoch`.
struct frame *frame_new_in(struct engine *engine, uint64_t epoch, uint16_t type, const struct wire_op *head,
                           size_t payload);
// Writes the head again, when the payload has changed.
void frame_write_head(const struct engine *engine, struct frame *frame, uint64_t epoch, uint16_t type,
                      const struct wire_op *head);
// Returns how many bytes of `frame` come before its payload.
static inline size_t frame_head_bytes(const struct frame *frame) { return FRAME_HEAD_BYTES + frame->lead; }
// Puts zero bytes in front of a large payload, so that the kernel copies it to an address equal to its own modulo
// WIRE_ALIGN: docs/decisions/frames-are-aligned.md. To be called before the first byte is sent; a second call has no
// effect.
void frame_align(struct frame *frame);
//
void frame_free(struct engine *engine, struct frame *frame);
// Returns whether the frame ends with the service, or else with an epoch. A leaf in slots outlives the service: its
// receiver returns the slots.
static inline bool frame_is_of(const struct frame *frame, bool service) {
    return frame->service == service && (!service || frame->payload != frame->place);
}
void frame_push(struct frame_queue *queue, struct frame *frame);
// NULL: the queue is empty.
struct frame *frame_pop(struct frame_queue *queue);
// Puts the frame back as the next one to be popped.
void frame_put_back(struct frame_queue *queue, struct frame *frame);

#endif
