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
                               .group_world = ring->count};
    uint32_t size = 0;
    for (uint32_t i = 0; i < ring->count; i++)
        view.rank += ring->members[i].join_number < ring->members[ring->rank].join_number;
    for (uint32_t i = 0; i < epoch->count; i++) {
        bool first = i == 0 || epoch->members[i].group != epoch->members[i - 1].group;
        size = first ? 1 : size + 1;
        view.groups += first;
        if (size > view.largest_group) view.largest_group = size;
    }
    return view;
}
