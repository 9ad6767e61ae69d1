// The members that the programs name in their calls over lists: those that were let in, or stayed, when the last vote
// of all to update had passed. Members may be lost since.
#ifndef PCCL_SIM_ROSTER_H
#define PCCL_SIM_ROSTER_H

#include "ops/plan.h"
#include "sim/algorithm.h"

enum { ROSTERS_MOST = 32 };

// The same for all who have passed that vote.
struct roster {
    uint64_t run, number;
    uint32_t group, count;
    uint32_t users[DATA_SLOTS]; // lives of those that go by it
    struct wire_id ids[DATA_SLOTS];
};

struct rosters {
    struct roster list[ROSTERS_MOST];
    uint32_t next;
};

// A peer passes an update that ended with the epoch of that number. A tainted one gets a roster that nobody else goes
// by.
const struct roster *roster_pass(struct pccl_sim *s, int slot, uint64_t number);
// Makes a call one over a list, by what is drawn alike for all that make it. False: this peer is not in the list.
bool roster_choose(struct pccl_sim *s, int slot, const struct roster *roster, uint64_t drawn, struct call *call);

#endif
