// A model of one round of shared state (state/sync) around the shipped plan of the transfer (state/delta).
#ifndef PCCL_SIM_STATE_H
#define PCCL_SIM_STATE_H

#include "sim/process.h"
#include "state/delta.h"

enum sync_phase { SYNC_NONE, SYNC_VOTED, SYNC_GIVING, SYNC_HASHES, SYNC_LEAVES, SYNC_DONE };

struct ask {
    uint16_t from;
    struct frame frame;
};

struct donor_model {
    int slot; // -1: gone
    uint32_t life;
    struct wire_id id;
    uint64_t kept, seen;
    bool bad;
    int64_t progress_at;
};

struct state_model {
    uint64_t revision, leaves[LEAVES];
    bool incomplete, wrote; // wrote: since the vote
    bool wrote_now;         // since the last plan
    enum sync_phase phase;
    uint64_t round, content;
    struct ask asks[2 * DATA_SLOTS];
    uint32_t ask_count;
    struct donor_model donors[DATA_SLOTS];
    uint32_t donor_count, hash_donor, sequence;
    int64_t asked_at;
    uint64_t theirs[LEAVES];
    struct delta *delta;
    uint32_t tries;
};

uint64_t state_model_content(const uint64_t leaves[LEAVES]);
void state_model_begin(struct pccl_sim *s, int slot);
void state_model_plan(struct pccl_sim *s, int slot, const struct wire_sync_plan *plan);
void state_model_frame(struct pccl_sim *s, int slot, int from, const struct frame *frame);
void state_model_tick(struct pccl_sim *s, int slot);
void state_model_forget(struct pccl_sim *s, int slot, int other);
void state_model_link_ends(struct pccl_sim *s, int slot, int other);
void state_model_end(struct pccl_sim *s, int slot);
enum member_tensors state_model_restart(struct pccl_sim *s, int slot, struct wire_hash *content); // the master is lost

#endif
