#include "link/frame.h"

#include "link/pool.h"

bool frame_has_epoch(uint16_t type) { return type < WIRE_SYNC_ASK_HASHES || type > WIRE_LINK_HEARTBEAT; }

static uint8_t lead_of(const struct frame *frame) {
    enum { WORTH_IT = 4096 }; // a short copy is fast at every distance
    bool fits = frame->length >= WORTH_IT && frame->length + 2 * WIRE_ALIGN <= WIRE_MAX_DATA_BYTES;
    return fits ? (uint8_t)((uintptr_t)frame->payload % WIRE_ALIGN) : 0;
}

void frame_encode(struct frame *frame, uint8_t out[FRAME_BEFORE_BYTES]) {
    struct wire_head *head = &frame->head;
    head->lead = lead_of(frame);
    head->padding = wire_padding(head->lead + frame->length);
    frame->header.length = WIRE_HEAD_BYTES + head->lead + frame->length + head->padding;
    wire_header_encode(out, &frame->header);
    wire_head_encode(out + WIRE_HEADER_BYTES, frame->header.type, head);
}

struct frame *frame_new_in(struct frame_source *source, uint64_t epoch, uint16_t type, const struct wire_head *head,
                           size_t payload) {
    struct block *room = block_new(source->pool, sizeof(struct frame));
    if (room == NULL) return NULL;
    struct frame *frame = (struct frame *)(void *)room->bytes;
    *frame = (struct frame){.header = source->now, .head = *head, .length = (uint32_t)payload, .room = room};
    frame->header.epoch = epoch;
    frame->header.type = type;
    return frame;
}

struct frame *frame_new(struct frame_source *source, uint16_t type, const struct wire_head *head, size_t payload) {
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
