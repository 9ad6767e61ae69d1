#include "link/frame.h"

#include "data/core.h"
#include "link/pool.h"

bool frame_has_epoch(uint16_t type) { return type < WIRE_SYNC_ASK_HASHES || type > WIRE_LINK_HEARTBEAT; }

static void write_head(struct frame *frame, struct wire_header *header, struct wire_op *op, uint8_t lead) {
    frame->lead = op->lead = lead;
    op->padding = wire_padding(lead + frame->length);
    header->length = WIRE_OP_BYTES + lead + frame->length + op->padding;
    wire_header_encode(frame->head, header);
    wire_op_encode(frame->head + WIRE_HEADER_BYTES, op);
}

void frame_write_head(const struct engine *engine, struct frame *frame, uint64_t epoch, uint16_t type,
                      const struct wire_op *head) {
    struct wire_op op = *head;
    struct wire_header header = engine_header(engine);
    header.epoch = epoch;
    header.type = type;
    write_head(frame, &header, &op, 0);
}

void frame_align(struct frame *frame) {
    enum { WORTH_IT = 4096 }; // a short copy is fast at every distance
    uint8_t lead = (uintptr_t)frame->payload % WIRE_ALIGN;
    bool fits = frame->length >= WORTH_IT && frame->length + 2 * WIRE_ALIGN <= WIRE_MAX_DATA_BYTES;
    if (lead == 0 || !fits || frame->lead != 0) return;
    struct wire_header header;
    struct wire_op op;
    wire_header_decode(frame->head, &header);
    wire_op_decode(frame->head + WIRE_HEADER_BYTES, &op);
    write_head(frame, &header, &op, lead);
}

struct frame *frame_new_in(struct engine *engine, uint64_t epoch, uint16_t type, const struct wire_op *head,
                           size_t payload) {
    engine_assert_locked(engine);
    struct block *room = block_new(engine, sizeof(struct frame));
    if (room == NULL) return NULL;
    struct frame *frame = (struct frame *)(void *)room->bytes;
    *frame = (struct frame){.length = (uint32_t)payload, .room = room};
    frame_write_head(engine, frame, epoch, type, head);
    return frame;
}

struct frame *frame_new(struct engine *engine, uint16_t type, const struct wire_op *head, size_t payload) {
    return frame_new_in(engine, engine_header(engine).epoch, type, head, payload);
}

void frame_free(struct engine *engine, struct frame *frame) {
    engine_assert_locked(engine);
    block_put(engine, frame->block);
    block_put(engine, frame->room);
}

void frame_push(struct frame_queue *queue, struct frame *frame) {
    frame->next = NULL;
    *queue->last = frame;
    queue->last = &frame->next;
}

struct frame *frame_pop(struct frame_queue *queue) {
    struct frame *frame = queue->first;
    if (frame == NULL) return NULL;
    queue->first = frame->next;
    if (queue->first == NULL) queue->last = &queue->first;
    return frame;
}

void frame_put_back(struct frame_queue *queue, struct frame *frame) {
    frame->next = queue->first;
    if (queue->first == NULL) queue->last = &frame->next;
    queue->first = frame;
}
