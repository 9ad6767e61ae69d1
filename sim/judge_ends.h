// The invariants of votes and of rounds of shared state: they end alike at all.
#ifndef PCCL_SIM_JUDGE_ENDS_H
#define PCCL_SIM_JUDGE_ENDS_H

#include "peer/member.h"
#include "sim/world.h"

enum { ROUNDS_MOST = 256, VOTES_MOST = 64 };

// How one round of shared state ended, at the first member that heard of it.
struct round_record {
    uint64_t run, round, revision, content;
    uint8_t code;
};

// How one vote of all ended, and who heard it so.
struct vote_record {
    uint64_t run, number, value, epoch;
    uint32_t kind, code, world, groups;
    uint32_t lives[SLOTS];
};

struct judged_ends {
    struct round_record rounds[ROUNDS_MOST];
    struct vote_record votes[VOTES_MOST];
    uint32_t round_count, vote_count;
    uint64_t voted[SLOTS]; // number of the last vote whose end this life heard
};

void judge_ends_forget(struct pccl_sim *s, uint64_t run, uint64_t first);          // as judge_ops_forget
void judge_vote(struct pccl_sim *s, int slot, const struct member_action *action); // of all; or a connect
// The peer has that content now, and had been at that revision.
void judge_sync(struct pccl_sim *s, int slot, const struct wire_sync_end *end, uint64_t content, uint64_t before);

#endif
