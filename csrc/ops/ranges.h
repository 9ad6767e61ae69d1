// A set of whole numbers, as ranges that do not touch. What comes in order, in a few strands, stays a few ranges.
#ifndef PCCL_OPS_RANGES_H
#define PCCL_OPS_RANGES_H

#include <stdbool.h>
#include <stddef.h>

#include "ops/plan.h"

struct ranges {              // all 0: empty
    struct plan_range *list; // sorted; owned
    size_t count, room;
    bool refused; // memory was, once
};

// Adds [begin, end). False: memory was refused, and the set is as it was.
bool ranges_add(struct ranges *ranges, uint64_t begin, uint64_t end);
// The first range within [begin, end) that is not in the set. False: there is none.
bool ranges_gap(const struct ranges *ranges, uint64_t begin, uint64_t end, struct plan_range *gap);
// Adds what is not there in any part. False: some of it is, or memory was refused and `refused` is set.
bool ranges_take(struct ranges *ranges, uint64_t begin, uint64_t end);
void ranges_clear(struct ranges *ranges); // its memory stays
void ranges_fini(struct ranges *ranges);

#endif
