// Subgroup: the members that a collective call names, by rank. They may be any members of the caller's peer group. The
// caller makes a subgroup without telling others. Its hash is a part of each op's fingerprint, so members that name
// different subgroups get a mismatch.
//
// Team: the members of a subgroup who are members of an epoch, in ring order. They take part in an op of that epoch.
#ifndef PCCL_OPS_SUBGROUP_H
#define PCCL_OPS_SUBGROUP_H

#include "ops/driver.h"
#include "ops/epoch.h"
#include "ops/plan.h"

enum { SUBGROUP_NOBODY = UINT32_MAX };

struct team {
    const struct epoch *epoch;    // counted
    uint32_t count, place;        // the own place in it
    struct op_member **members;   // by place; NULL at the own one
    uint32_t *ranks;              // by place: the rank in the subgroup
    uint32_t *places;             // by rank in the epoch's ring: the place, or SUBGROUP_NOBODY
    struct plan_weights *weights; // owned; NULL: all weights are 0
};

// Owned by its ops together.
struct subgroup {
    _Atomic uint32_t references;
    uint32_t count, rank; // members; the own rank
    uint32_t hash;        // of the ids; its lower half, the mark, is never 0
    struct team *team;    // of the newest epoch that it was asked for; under the lock of the call table
    struct wire_id ids[];
};

// Copies the ids, with one reference. `rank` is the caller's. Returns NULL if memory was refused.
struct subgroup *subgroup_new(const struct wire_id *ids, uint32_t count, uint32_t rank);
// Adds a reference. NULL is allowed, here and in subgroup_put.
struct subgroup *subgroup_get(struct subgroup *subgroup);
void subgroup_put(struct subgroup *subgroup);
bool subgroup_names(const struct subgroup *subgroup, const struct wire_id *id);
// Returns true if the member of this rank is in the epoch.
bool subgroup_has(const struct subgroup *subgroup, uint32_t rank, const struct epoch *epoch);
// Short mark of a subgroup, for messages without room for the hash. 0: the whole peer group.
static inline uint16_t subgroup_mark(uint32_t hash) { return (uint16_t)hash; }
// Returns the number of its members that are in the epoch.
uint32_t subgroup_living(const struct subgroup *subgroup, const struct epoch *epoch);

// Returns the team of a subgroup, or with NULL of the whole group, in an epoch whose members are given by ring rank.
// Returns NULL if memory was refused.
struct team *team_new(const struct subgroup *subgroup, const struct epoch *epoch, struct op_member *const *members);
void team_free(struct team *team); // NULL is allowed
// The place of a member of the epoch; SUBGROUP_NOBODY: it is not in the team.
static inline uint32_t team_place(const struct team *team, const struct op_member *member) {
    return member->rank == UINT32_MAX ? (uint32_t)SUBGROUP_NOBODY : team->places[member->rank];
}

#endif
