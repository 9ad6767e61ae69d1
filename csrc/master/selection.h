// Selects what makes ops faster: the order of the rings, the algorithm of large all-reduces, and the weight and the
// site of each member (topology/weights). Only speed depends on it.
//
// Two sources tell how fast links are. A survey measures the links inside the groups, in rounds, when members ask for
// it. In one round no host takes part in two measurements (hosts are told apart by address), so that measurements do
// not disturb each other. Only links not known yet are measured; those of the ring in force come first. Algorithms and
// weights come from the members' reports (master/matrix), at votes.
#ifndef PCCL_MASTER_SELECTION_H
#define PCCL_MASTER_SELECTION_H

#include "master/candidate.h"
#include "master/matrix.h"

struct survey_measurement {
    struct peer_record *from, *to;
    bool answered;
};

struct survey {
    uint64_t *rates;                   // [from slot][to slot], bytes/s, 0: unknown; made at the first survey
    uint32_t rate_slots;               // that it has room for; later ones are unknown
    uint32_t round, count, unanswered; // `round`: its number; the rest of the one at hand
    int64_t deadline_ns, end_ns;       // of the round, of the survey
    struct survey_measurement measurements[WIRE_MAX_MEMBERS];
    uint32_t hosts[WIRE_MAX_MEMBERS]; // by slot: the place in the order of the first member on its host
};

// Figures of a group of these members.
struct selection_group {
    uint32_t count;
    struct wire_id ids[WEIGHTS_MOST]; // by rank
    struct weights_memory memory;
};

// All zero at the beginning.
struct selection {
    struct survey survey;
    struct selection_group *groups[WIRE_MAX_MEMBERS]; // by the group's slot; NULL: nothing is known
};

void selection_fini(struct selection *selection);
void selection_forget_group(struct selection *selection, uint32_t slot); // a group that has ended

// ---- survey ----

void selection_forget_peer(struct selection *selection, uint32_t slot); // the rates of a peer's links
// The slowest link of a group's ring, or the default.
uint32_t selection_group_rate(const struct selection *selection, const struct membership *table,
                              const struct peer_group *group);

// False: memory was refused.
bool selection_begin_survey(struct selection *selection, const struct membership *table);
// Plans the next round and asks for it; false: what is unknown now stays so.
bool selection_next_round(struct selection *selection, struct membership *table);
void selection_measured(struct selection *selection, const struct membership *table, const struct peer_record *peer,
                        const struct wire_measured *measured);
// At deadline_ns: what is not answered cannot be measured.
void selection_give_up_round(struct selection *selection, const struct membership *table);
// Marks measurements that failed as unknown again. Used when members are lost in a survey; the order may still hold
// those.
void selection_end_survey(struct selection *selection, const struct membership *table);
// The survey is over: the best order of all members, group by group. True when it differs from the one in force.
bool selection_order_rings(struct selection *selection, const struct membership *table, struct peer_record **order);

// ---- algorithms and weights ----

// Looks at all groups. `candidate` has an order of the members alone, with the weights in force; it gets better ones,
// and where that order is the one in force and the survey knows too little of it, a better order. True: something
// differs. Memory that is refused leaves things as they are.
bool selection_plan(struct selection *selection, struct matrix *matrix, struct membership *table,
                    struct candidate *candidate);
// Leaves the groups unchanged for a while, because the plan could not come into force.
void selection_failed(struct selection *selection);

#endif
