// Which way the large all-reduces of each group go (topology/shares), decided at votes from what the members tell: each
// gets a share and a site, and the ring another order where that pays. All of it is for speed alone.
#ifndef PCCL_MASTER_WAYS_H
#define PCCL_MASTER_WAYS_H

#include "master/candidate.h"
#include "master/matrix.h"
#include "master/survey.h"

// What is known of a group of these members.
struct ways_group {
    uint32_t count;
    struct wire_id ids[SHARES_MOST]; // by rank
    struct shares_memory memory;
};

// All zero at the beginning.
struct ways {
    struct ways_group *groups[WIRE_MAX_MEMBERS]; // by the group's slot; NULL: nothing is known
};

void ways_forget(struct ways *ways, uint32_t slot); // of a group that has ended
// Looks at all groups. `candidate` has an order of the members alone, with the shares in force; it gets better ones,
// and where that order is the one in force and `survey` knows too little of it, a better order. True: something
// differs. Memory that is refused leaves things as they are.
bool ways_plan(struct ways *ways, struct matrix *matrix, const struct survey *survey, struct desk *desk,
               struct candidate *candidate);
// What was planned could not come into force: the groups are left alone for a while.
void ways_failed(struct ways *ways);

#endif
