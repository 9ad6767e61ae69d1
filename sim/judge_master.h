// The invariants of what masters say, as they say it.
#ifndef PCCL_SIM_JUDGE_MASTER_H
#define PCCL_SIM_JUDGE_MASTER_H

#include "master/core.h"
#include "sim/controls.h"

struct left_record {
    uint32_t life;
    uint64_t run, generation; // of the master that heard its LEAVING, or its LEAVE
    bool ended;               // the latter
};

struct judged_masters {
    struct {
        uint32_t life;
        uint64_t run, generation, number;
    } last[MASTERS_MOST];         // epoch that it announced
    int64_t regrouped_at[GROUPS]; // when a master last formed that group anew,
    uint64_t regrouped[GROUPS];   // in which epoch
    uint64_t gone[MASTERS_MOST];  // digest of what the last epoch told of those who are gone
    struct left_record left[SLOTS];
    uint32_t expelled[SLOTS]; // life that was told so
    // When a master heard a LINK_DOWN of the one about the other; when the one said of the other that it has no links
    // to it for a candidate.
    int64_t reported_at[SLOTS][SLOTS], unreached_at[SLOTS][SLOTS];
    struct wire_member members[WIRE_MAX_MEMBERS]; // scratch
    struct wire_gone gone_list[WIRE_MAX_MEMBERS];
    struct wire_verdict verdict;
    struct wire_sync_end sync_end;
};

// Judges what a master sends in that life.
void judge_sends(struct pccl_sim *s, uint32_t master, uint32_t life, const struct actions *actions, size_t first,
                 size_t end);
// A LINK_DOWN, LINKED, LEAVING or LEAVE, as a master hears it.
void judge_link_report(struct pccl_sim *s, const struct connection *control, const struct wire_header *header,
                       const uint8_t *body);

#endif
