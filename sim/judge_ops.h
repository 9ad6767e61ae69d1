// The invariants of ops, votes and rounds of shared state: agreement, exactness, no mixing, parity. Whoever models a
// peer's data plane tells what it does.
#ifndef PCCL_SIM_JUDGE_OPS_H
#define PCCL_SIM_JUDGE_OPS_H

#include "peer/member.h"
#include "sim/world.h"

enum { INSTANCES_MOST = 1 << 12, INSTANCE_SLOTS = 1 << 10, RINGS_MOST = 256, ROUNDS_MOST = 256, VOTES_MOST = 64 };

enum outcome { OUTCOME_NONE, OUTCOME_OK, OUTCOME_LOST, OUTCOME_MISMATCH, OUTCOME_CANCELLED };

// An op at one peer, as the judge is shown it.
struct judged_op {
    struct wire_op_name name;
    const struct epoch *epoch; // in force
    bool small;
    uint32_t members; // slots that take part
    uint32_t holds;   // slots whose inputs its result is made of
    uint32_t calls;   // with this tag in this phase of the program
    uint64_t input;
    // of what has been reduced
    uint64_t value;
    uint32_t contributors;    // slots
    uint32_t shards, results; // that travel; that are here
    enum outcome outcome;
};

// An operation's name in a group: who took part, with what, and how it ended there.
struct instance {
    struct wire_op_name name;
    uint64_t run, generation; // generation: of the epoch
    uint32_t group, id, next;
    bool small;
    uint32_t members;                               // slots
    uint32_t lives[DATA_SLOTS];                     // of members
    uint32_t began, done;                           // slots
    uint64_t inputs[DATA_SLOTS], views[DATA_SLOTS]; // views: what the programs could read that began it
    uint32_t calls[DATA_SLOTS];
    uint8_t outcomes[DATA_SLOTS];
    uint8_t verdict;
    uint32_t heard; // slots that heard it
    uint64_t verdict_generation;
    bool supplied; // it named a supplier
};

// Members of a group epoch in order: the same to all that enter it.
struct ring_record {
    uint64_t run, generation, epoch, hash;
    uint32_t group;
};

struct judged_ops {
    struct instance instances[INSTANCES_MOST];
    uint32_t slots[INSTANCE_SLOTS]; // id of the newest in the chain + 1
    uint32_t count, ring_count;
    struct ring_record rings[RINGS_MOST];
};

// How one round of shared state ended, at the first member that heard of it.
struct round_record {
    uint64_t run, round, revision, content;
    uint8_t code;
};

// How one vote of all ended.
struct vote_record {
    uint64_t run, number, value, epoch;
    uint32_t kind, code, world, groups;
};

struct judged_ends {
    struct round_record rounds[ROUNDS_MOST];
    struct vote_record votes[VOTES_MOST];
    uint32_t round_count, vote_count;
    uint64_t voted[SLOTS];             // number of the last vote whose end this life heard
    uint32_t heard[VOTES_MOST][SLOTS]; // lives that heard that end of a vote
};

void judge_ops_begin(struct pccl_sim *s);
// Generations from this one on are given again, since nobody is left who may have heard of them.
void judge_ops_forget(struct pccl_sim *s, uint64_t run, uint64_t first);
void judge_ring(struct pccl_sim *s, int slot, const struct epoch *epoch); // is entered
void judge_begins(struct pccl_sim *s, int slot, const struct judged_op *op);
void judge_reduced(struct pccl_sim *s, int slot, const struct judged_op *op);  // its result is here
void judge_complete(struct pccl_sim *s, int slot, const struct judged_op *op); // and nobody needs it for theirs
void judge_ended(struct pccl_sim *s, int slot, const struct judged_op *op);
// A verdict of a live op, as the peer hears it.
void judge_verdict(struct pccl_sim *s, int slot, const struct judged_op *op, const struct wire_verdict *verdict);
// A master commits: of the newest generation up to this one.
void judge_commit(struct pccl_sim *s, uint64_t run, uint64_t generation, uint32_t group,
                  const struct wire_verdict *verdict);

// ---- votes and rounds: they end alike at all ----

void judge_vote(struct pccl_sim *s, int slot, const struct member_action *action); // of all; or a connect
// The peer has that content now, and had been at that revision.
void judge_sync(struct pccl_sim *s, int slot, const struct wire_sync_end *end, uint64_t content, uint64_t before);

#endif
