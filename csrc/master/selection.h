// Chooses the algorithm of large all-reduces for each group (topology/weights), at votes, from the members' reports.
// Gives each member a weight and a site, and the ring another order if that pays. Only speed depends on it.
#ifndef PCCL_MASTER_SELECTION_H
#define PCCL_MASTER_SELECTION_H

#include "master/candidate.h"
#include "master/matrix.h"
#include "master/survey.h"

// Figures of a group of these members.
struct selection_group {
    uint32_t count;
    struct wire_id ids[WEIGHTS_MOST]; // by rank
    struct weights_memory memory;
};

// All zero at the beginning.
struct selection {
    struct selection_group *groups[WIRE_MAX_MEMBERS]; // by the group's slot; NULL: nothing is known
};

void selection_forget(struct selection *selection, uint32_t slot); // of a group that has ended
// Looks at all groups. `candidate` has an order of the members alone, with the weights in force; it gets better ones,
// and where that order is the one in force and `survey` knows too little of it, a better order. True: something
// differs. Memory that is refused leaves things as they are.
bool selection_plan(struct selection *selection, struct matrix *matrix, const struct survey *survey,
                    struct membership *table, struct candidate *candidate);
// Leaves the groups unchanged for a while, because the plan could not come into force.
void selection_failed(struct selection *selection);

#endif
