#include "peer/recording.h"

#include <stdio.h>

static void record_members(struct recorder *recorder, enum recorder_kind kind, const struct epoch *of,
                           const struct epoch *without, const struct member_action *action) {
    for (uint32_t i = 0; of != NULL && i < of->ring.count; i++) {
        const struct wire_member *member = &of->ring.members[i];
        const struct wire_gone *gone = member_action_gone(action, &member->id);
        uint8_t reason = gone == NULL ? WIRE_LOSS_UNKNOWN : gone->reason;
        if (without != NULL && epoch_ring_has(&without->ring, &member->id)) continue;
        recorder_add(recorder, &(struct recorder_event){.kind = kind,
                                                        .a = action->epoch->number,
                                                        .b = reason,
                                                        .id = member->id.bytes,
                                                        .text = member->name.chars});
    }
}

static void record_weights(struct recorder *recorder, const struct epoch *epoch) {
    char text[RECORDER_TEXT_BYTES] = "weights";
    size_t at = sizeof "weights" - 1;
    bool weighted = false;
    for (uint32_t i = 0; i < epoch->ring.count; i++) {
        weighted |= epoch->ring.members[i].weight != 0;
        if (at < sizeof text) at += (size_t)snprintf(text + at, sizeof text - at, " %u", epoch->ring.members[i].weight);
    }
    if (weighted)
        recorder_add(recorder,
                     &(struct recorder_event){.kind = RECORDER_SELECTION, .a = epoch->group_epoch, .text = text});
}

void recording_epoch(struct recorder *recorder, const struct wire_id *self, uint32_t group, const struct epoch *known,
                     const struct member_action *action) {
    const struct epoch *epoch = action->epoch;
    if (recorder == NULL) return;
    recorder_identify(recorder, epoch->run, self->bytes, group);
    record_members(recorder, RECORDER_LEFT, known, epoch, action);
    record_members(recorder, RECORDER_JOINED, epoch, known, action);
    recorder_add(recorder,
                 &(struct recorder_event){.kind = RECORDER_EPOCH, .a = epoch->group_epoch, .b = epoch->ring.count});
    record_weights(recorder, epoch);
}
