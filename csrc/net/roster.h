// The members of an epoch by id: a sorted list of their places, made once, in which members are found by halving.
#ifndef PCCL_NET_ROSTER_H
#define PCCL_NET_ROSTER_H

#include "net/wire.h"

// Fills `sorted` with 0..count - 1 in the order of the members' ids, in at most count * log2(count) comparisons,
// whatever the ids are.
void roster_sort(const struct wire_member *members, uint32_t count, uint16_t sorted[WIRE_MAX_MEMBERS]);
// The place of the member with that id; UINT32_MAX: there is none.
uint32_t roster_find(const struct wire_member *members, const uint16_t *sorted, uint32_t count,
                     const struct wire_id *id);

#endif
