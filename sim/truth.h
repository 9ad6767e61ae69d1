// Members of a run: the epochs that masters announced, and who has entered them.
#ifndef PCCL_SIM_TRUTH_H
#define PCCL_SIM_TRUTH_H

#include "sim/world.h"

enum { RUNS_MOST = 4, EPOCHS_MOST = 64 };

// The members of an epoch of all, as a master announced it.
struct epoch_record {
    uint64_t run, generation, number;
    struct wire_quorum quorum;
    bool old[SLOTS]; // members before
    uint32_t lives[SLOTS];
};

// The last commit of a group, to see that no revision is lost.
struct commit_record {
    uint64_t run, round, revision;
    uint32_t lives[SLOTS]; // that took part; 0: did not
};

// The membership of a run that was announced last, by the newest generation.
struct truth {
    uint64_t run, generation, number;
    uint32_t master, master_life; // who announced it
    uint32_t lives[SLOTS];        // 0: no member
    uint32_t groups[SLOTS];
    int64_t since[SLOTS];                                    // when it was admitted
    struct commit_record commits[GROUPS], announced[GROUPS]; // that somebody has heard of; that the master made
};

struct truths {
    struct truth runs[RUNS_MOST]; // the newest run first
    struct epoch_record epochs[EPOCHS_MOST];
    uint32_t epoch_count;
    struct {
        uint32_t life;
        uint64_t generation, epoch; // that it was in
    } resumed[SLOTS];               // who told a master what it knows, at last
};

struct truth *judge_truth(const struct pccl_sim *s, uint64_t run); // of nobody when it is not known
struct truth *truth_for(struct pccl_sim *s, uint64_t run);         // made when it is not known
// Lives, and is a member in the epoch of its run that was announced last.
bool judge_alive_member(const struct pccl_sim *s, uint64_t run, int slot, uint32_t life);
bool truth_is_tainted(const struct pccl_sim *s, int slot, uint32_t life);
// The newest epoch that a member has entered who lives, or `told`: when it told a master of it; NULL: it is no longer
// known.
const struct epoch_record *truth_newest_entered(const struct pccl_sim *s, const struct truth *truth, bool told);

#endif
