// An epoch as a member knows it: the members, the own rank, and the figures of the cost model. Immutable and counted:
// the member's state machine makes it, the engine, the call table and the ops hold it, and whoever has a reference
// reads it without a lock, on any thread.
#ifndef PCCL_OPS_EPOCH_H
#define PCCL_OPS_EPOCH_H

#include <stdbool.h>
#include <stdint.h>

#include "net/wire_control.h"

// A peer's group in ring order: each member sends to the next.
struct epoch_ring {
    const struct wire_member *members;
    uint32_t count;
    uint32_t rank; // this member's place
};

struct epoch {
    _Atomic uint32_t references; // of epoch.c alone
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
// A copy, with one reference for the caller; `ring` is that of `told`. `header`: its run and generation. NULL: memory
// was refused.
struct epoch *epoch_new(const struct wire_epoch *told, const struct epoch_ring *ring, const struct wire_header *header,
                        bool lost);
// Returns the epoch before the first one: no members, all numbers 0. References count as for others.
const struct epoch *epoch_none(void);
// Adds a reference; NULL is allowed, here and in epoch_put.
const struct epoch *epoch_get(const struct epoch *epoch);
void epoch_put(const struct epoch *epoch);

#endif
