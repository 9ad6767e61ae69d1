#include "peer/decision.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { ACTIONS_LEAST = 16 };

void member_output_clear(struct member_output *output) {
    output->count = 0;
    output->frames.length = 0;
    output->failed = false;
}

void member_output_fini(struct member_output *output) {
    free(output->actions);
    wire_buffer_fini(&output->frames);
    memset(output, 0, sizeof *output);
}

const struct wire_gone *member_action_gone(const struct member_action *action, const struct wire_id *id) {
    for (uint32_t i = 0; i < action->gone_count; i++)
        if (wire_id_equal(&action->gone[i].id, id)) return &action->gone[i];
    return NULL;
}

struct member_action *member_act(struct member_output *out, enum member_action_kind kind) {
    static _Thread_local struct member_action refused; // written and never read
    if (!GROW(out->actions, out->capacity, out->count, ACTIONS_LEAST)) {
        out->failed = true;
        return &refused;
    }
    struct member_action *action = &out->actions[out->count++];
    *action = (struct member_action){.kind = kind};
    return action;
}

struct member_view member_view_of(const struct wire_epoch *epoch, const struct epoch_ring *ring) {
    struct member_view view = {.number = epoch->number,
                               .group_epoch = epoch->group_epoch,
                               .global_world = epoch->count,
                               .group_world = ring->count,
                               .rank = epoch_ring_rank(ring, ring->members[ring->rank].join_number)};
    uint32_t size = 0;
    for (uint32_t i = 0; i < epoch->count; i++) {
        bool first = i == 0 || epoch->members[i].group != epoch->members[i - 1].group;
        size = first ? 1 : size + 1;
        view.groups += first;
        if (size > view.largest_group) view.largest_group = size;
    }
    return view;
}

// ---- the open vote ----

void decision_vote_open(struct pending_vote *b, enum wire_vote_kind kind, const struct wire_sync_vote *sync,
                        bool heard) {
    b->kind = (uint8_t)kind;
    b->unsent = !heard;
    if (sync == NULL) return;
    b->sync = *sync;
    b->differs_told = false;
}

void decision_vote_cast(struct pending_vote *b, struct wire_header header, struct wire_buffer *out) {
    struct wire_vote vote = {.kind = b->kind};
    if (b->kind == WIRE_VOTE_SYNC)
        wire_encode_sync_vote(out, header, &b->sync);
    else
        wire_encode_vote(out, header, &vote);
}

void decision_vote_renew(struct pending_vote *b, enum member_tensors tensors, const struct wire_hash *content,
                         const struct wire_id *self) {
    b->differs_told = false;
    if (b->kind == WIRE_VOTE_SYNC && tensors == MEMBER_TENSORS_RECEIVED) b->sync.content = *content;
    if (b->kind != WIRE_VOTE_SYNC || tensors != MEMBER_TENSORS_TORN) return;
    b->sync.incomplete = 1;
    memcpy(&b->sync.content, self->bytes, sizeof b->sync.content); // nobody's content
}

bool decision_vote_take_differs(struct pending_vote *b, const uint8_t *body, size_t length) {
    struct wire_sync_differs differs;
    if (!wire_decode_sync_differs(body, length, &differs)) return false;
    b->differs = differs;
    b->differs_told = b->kind == WIRE_VOTE_SYNC;
    return true;
}
