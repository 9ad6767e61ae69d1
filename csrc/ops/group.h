// The members of a collective call: a list that the caller names, by rank, which may be any of the run's peer group
// that this member is in. A list is made without telling anybody; that all its members mean the same one is seen by its
// hash, which is a part of each op's fingerprint.
//
// Who of a list takes part in an op of an epoch is its team: those that are members of the epoch, in the order of its
// ring.
#ifndef PCCL_OPS_GROUP_H
#define PCCL_OPS_GROUP_H

#include "ops/driver.h"
#include "ops/epoch.h"
#include "ops/weighted.h"

enum { GROUP_NOBODY = UINT32_MAX };

struct team {
    const struct epoch *epoch;  // counted
    uint32_t count, place;      // the own place in it
    struct op_member **members; // by place; NULL at the own one
    uint32_t *ranks;            // by place: the rank in the list
    uint32_t *places;           // by rank in the epoch's ring: the place, or GROUP_NOBODY
    struct weighted *weighted;  // owned; NULL: all weights are 0
};

// A list of members that a caller names; its ops share it.
struct group {
    _Atomic uint32_t references;
    uint32_t count, rank; // of the list; the own rank
    uint32_t hash;        // of the list; its lower half, the mark, is never 0
    struct team *team;    // of the newest epoch that it was asked for; under the lock of the call table
    struct wire_id ids[];
};

// A copy with one reference. NULL: memory was refused. `rank`: of the caller.
struct group *group_new(const struct wire_id *ids, uint32_t count, uint32_t rank);
struct group *group_get(struct group *group); // one more reference; NULL is allowed, here and in group_put
void group_put(struct group *group);
bool group_names(const struct group *group, const struct wire_id *id);
// Whether the one of this rank is a member of the epoch.
bool group_has(const struct group *group, uint32_t rank, const struct epoch *epoch);
// Short mark of a list, for messages without room for the hash. 0: no list.
static inline uint16_t group_mark(uint32_t hash) { return (uint16_t)hash; }
// How many of them are members of the epoch.
uint32_t group_living(const struct group *group, const struct epoch *epoch);

// The team of a list, or with NULL of everybody, in an epoch whose members are given by ring rank. NULL: memory was
// refused.
struct team *team_new(const struct group *group, const struct epoch *epoch, struct op_member *const *members);
void team_free(struct team *team); // NULL is allowed
// The place of a member of the epoch; GROUP_NOBODY: it is not in the team.
static inline uint32_t team_place(const struct team *team, const struct op_member *member) {
    return member->rank == UINT32_MAX ? (uint32_t)GROUP_NOBODY : team->places[member->rank];
}

#endif
