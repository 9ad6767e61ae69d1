#include "peer/pending_vote.h"

#include <string.h>

void pending_vote_open(struct pending_vote *b, enum wire_vote_kind kind, const struct wire_sync_vote *sync,
                       bool heard) {
    b->kind = (uint8_t)kind;
    b->unsent = !heard;
    if (sync == NULL) return;
    b->sync = *sync;
    b->differs_told = false;
}

void pending_vote_close(struct pending_vote *b) {
    b->kind = 0;
    b->unsent = false;
}

void pending_vote_send(struct pending_vote *b, struct wire_header header, struct wire_buffer *out) {
    struct wire_vote vote = {.kind = b->kind};
    if (b->kind == WIRE_VOTE_SYNC)
        wire_encode_sync_vote(out, header, &b->sync);
    else
        wire_encode_vote(out, header, &vote);
}

void pending_vote_begin_again(struct pending_vote *b, enum member_tensors tensors, const struct wire_hash *content,
                              const struct wire_id *self) {
    b->differs_told = false;
    if (b->kind == WIRE_VOTE_SYNC && tensors == MEMBER_TENSORS_RECEIVED) b->sync.content = *content;
    if (b->kind != WIRE_VOTE_SYNC || tensors != MEMBER_TENSORS_TORN) return;
    b->sync.incomplete = 1;
    memcpy(&b->sync.content, self->bytes, sizeof b->sync.content); // nobody's content
}

bool pending_vote_take_differs(struct pending_vote *b, const uint8_t *body, size_t length) {
    struct wire_sync_differs differs;
    if (!wire_decode_sync_differs(body, length, &differs)) return false;
    b->differs = differs;
    b->differs_told = b->kind == WIRE_VOTE_SYNC;
    return true;
}

bool pending_vote_is_at_fault(const struct wire_header *header, const struct wire_text *text) {
    size_t length = strlen(WIRE_SYNC_RULE);
    return header->type == WIRE_EXPELLED && text->length >= length && memcmp(text->chars, WIRE_SYNC_RULE, length) == 0;
}
