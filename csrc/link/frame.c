#include "link/frame.h"

#include "link/pool.h"

bool frame_has_epoch(uint16_t type) { return type < WIRE_SYNC_ASK_HASHES || type > WIRE_LINK_HEARTBEAT; }

static void write_head(struct frame *frame, struct wire_header *header, struct wire_op *op, uint8_t lead) {
    frame->lead = op->lead = lead;
    op->padding = wire_padding(lead + frame->length);
    header->length = WIRE_OP_BYTES + lead + frame->length + op->padding;
    wire_header_encode(frame->head, header);
    wire_op_encode(frame->head + WIRE_HEADER_BYTES, op);
}

void frame_write_head(const struct frame_source *source, struct frame *frame, uint64_t epoch, uint16_t type,
                      const struct wire_op *head) {
    struct wire_op op = *head;
    struct wire_header header = source->now;
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

struct frame *frame_new_in(struct frame_source *source, uint64_t epoch, uint16_t type, const struct wire_op *head,
                           size_t payload) {
    struct block *room = block_new(source->pool, sizeof(struct frame));
    if (room == NULL) return NULL;
    struct frame *frame = (struct frame *)(void *)room->bytes;
    *frame = (struct frame){.length = (uint32_t)payload, .room = room};
    frame_write_head(source, frame, epoch, type, head);
    return frame;
}

struct frame *frame_new(struct frame_source *source, uint16_t type, const struct wire_op *head, size_t payload) {
    return frame_new_in(source, source->now.epoch, type, head, payload);
}

void frame_free(struct frame_source *source, struct frame *frame) {
    block_put(source->pool, frame->block);
    block_put(source->pool, frame->room);
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
