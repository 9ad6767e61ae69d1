// Weighted all-reduce: how much of a large tensor each member owns, and the tree that each of its blocks takes. Pure
// arithmetic on the weights and sites of the epoch, so that all members know the same.
//
// Each member owns a shard in proportion to its weight, and a shard is cut into blocks. The inputs of a block travel up
// a tree, which adds them, and the result travels down: the owner is the root. Members of one site stand under one of
// them, the agent, which is the owner in its own site; agents stand under the owner. So each input of a site leaves it
// in one sum, and the result enters it once. A member of no site (0), or alone in one, stands under the owner.
//
// Each member of a site stands for it in proportion to its weight, and with as few members of another site as that
// allows: two sites lie beside each other like two rulers of the same length, on which each member has a part. Members
// that stand opposite each other have the blocks between them. Connections between two sites share a line, in parts
// that are rarely equal: where few members share the blocks of one owner, few wait for each other's.
#ifndef PCCL_OPS_WEIGHTED_H
#define PCCL_OPS_WEIGHTED_H

#include "ops/plan.h"

// By place in the team.
struct weighted {
    uint32_t members;
    const uint32_t *until;  // sum of the weights up to and with this place's
    const uint32_t *site;   // number of its site here, counted from 0
    const uint32_t *before; // sum of the weights of those of its site that have lower places
    // by site
    uint32_t sites;
    const uint32_t *first; // where it begins in `order`; one more, where the last one ends
    // by site, and in it by place
    const uint32_t *order;   // places
    const uint32_t *carried; // sum of what they carry of the site, up to and with this one's
};

// By place; not all weights are 0. NULL: memory was refused.
struct weighted *weighted_new(const uint16_t *weights, const uint16_t *sites, uint32_t members);
void weighted_free(struct weighted *weighted); // NULL is allowed

// Returns the range of a shard. Shards follow each other, and begin at multiples of PLAN_SHARD_ALIGN elements. Without
// weights (NULL) they are even.
struct plan_range weighted_shard(const struct weighted *weighted, uint64_t count, uint32_t members, uint32_t shard);

// Returns the member that gets this member's input of the block, or the sum of its subtree; for the owner, itself.
uint32_t weighted_parent(const struct weighted *weighted, uint32_t shard, uint64_t block, uint32_t member);
// How many send to it.
uint32_t weighted_children(const struct weighted *weighted, uint32_t shard, uint64_t block, uint32_t member);

#endif
