// Participants of an op: the members of an epoch, those of a subgroup, and those that are both.
//
// Epoch: the members, the own rank, and the figures of the cost model. Immutable and counted: the member's state
// machine makes it, the engine, the call table and the ops hold it, and whoever has a reference reads it without a
// lock, on any thread.
//
// Subgroup: the members that a collective call names, by rank. They may be any members of the caller's peer group. The
// caller makes a subgroup without telling others. Its hash is a part of each op's fingerprint, so members that name
// different subgroups get a mismatch.
//
// Team: the members of a subgroup who are members of an epoch, in ring order. They take part in an op of that epoch.
#ifndef PCCL_OPS_MEMBERS_H
#define PCCL_OPS_MEMBERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "net/wire_control.h"
#include "net/wire_data.h"
#include "ops/plan.h"

enum {
    OP_ACKS_MAX = 32, // names in one ACK
    SUBGROUP_NOBODY = UINT32_MAX,
};

// Another member, as the ops know it; part of what the driver keeps of it, from one epoch to the next. Made with its id
// and rank UINT32_MAX, the rest 0.
struct op_member {
    struct wire_id id;
    uint32_t rank;                         // in the epoch in force, or UINT32_MAX
    uint32_t unexpected_count;             // signals and inputs that came before the op was posted here, and
    uint64_t unexpected_bytes;             // the bytes of those inputs
    struct wire_op_name acks[OP_ACKS_MAX]; // of results that it keeps, not sent yet
    uint64_t ack_sizes[OP_ACKS_MAX];       // of those results, in bytes, and
    uint64_t ack_bytes;                    // all of them together
    uint32_t ack_count;
    bool draining;    // about to leave: acks go out at once
    int64_t heard_ns; // the driver's clock when the signal at hand came
};

// ---- epoch ----
// A peer's group in ring order: each member sends to the next.
struct epoch_ring {
    const struct wire_member *members;
    uint32_t count;
    uint32_t rank; // this member's, from 0 on in ring order
};

struct epoch {
    _Atomic uint32_t references; // of members.c alone
    uint64_t run, generation;    // of the master that made it
    uint64_t number;
    uint64_t group_epoch; // the number of the last epoch that changed the own group
    bool lost;            // the group lost members since the group epoch before this one
    uint32_t latency_us, megabytes_per_s;
    struct epoch_ring ring; // the own group, within `everyone`
    uint32_t count;
    struct wire_member everyone[]; // all groups, one after another
};

// The group of `self` in an epoch as the master tells it. False: `self` is not in it.
bool epoch_find_ring(const struct wire_epoch *told, const struct wire_id *self, struct epoch_ring *out);
bool epoch_ring_has(const struct epoch_ring *ring, const struct wire_id *id);
// Returns the rank of a member in ring order; SUBGROUP_NOBODY: it is not there.
uint32_t epoch_ring_find(const struct epoch_ring *ring, const struct wire_id *id);
// Returns the rank of a member that joined so: as programs count, by join numbers.
uint32_t epoch_ring_rank(const struct epoch_ring *ring, uint64_t join_number);
// A copy, with one reference for the caller; `ring` is that of `told`. `header`: its run and generation. NULL: memory
// was refused.
struct epoch *epoch_new(const struct wire_epoch *told, const struct epoch_ring *ring, const struct wire_header *header,
                        bool lost);
// Returns the epoch before the first one: no members, all numbers 0. References count as for others.
const struct epoch *epoch_none(void);
// Adds a reference; NULL is allowed, here and in epoch_put.
const struct epoch *epoch_get(const struct epoch *epoch);
void epoch_put(const struct epoch *epoch);

// ---- subgroup and team ----
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
static inline struct subgroup *subgroup_get(struct subgroup *subgroup) {
    if (subgroup != NULL) atomic_fetch_add(&subgroup->references, 1);
    return subgroup;
}
void subgroup_put(struct subgroup *subgroup);
bool subgroup_names(const struct subgroup *subgroup, const struct wire_id *id);
// Returns true if the member of this rank is in the epoch.
static inline bool subgroup_has(const struct subgroup *subgroup, uint32_t rank, const struct epoch *epoch) {
    return epoch_ring_has(&epoch->ring, &subgroup->ids[rank]);
}
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
