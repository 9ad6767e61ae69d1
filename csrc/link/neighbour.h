// The members, and candidates, that an owner of connections knows.
#ifndef PCCL_LINK_NEIGHBOUR_H
#define PCCL_LINK_NEIGHBOUR_H

#include <stdint.h>

#include "net/peer_name.h"
#include "net/wire.h"

struct lane;
struct lanes;
struct neighbour;

// NULL: there is none.
struct neighbour *neighbour_find(struct lanes *all, const struct wire_id *id);
// Returns the neighbour, no longer dropped, or a new one. NULL: memory was refused.
struct neighbour *neighbour_get(struct lanes *all, const struct wire_id *id);
struct peer_label neighbour_label(const struct neighbour *peer);
// Schedules its lanes, from another one on each time: the first ones get what the bucket has. Thread.
void neighbour_schedule(struct neighbour *peer);
// Returns the lane of this index, or the one that stands in for it; NULL if there is none.
struct lane *neighbour_lane(struct neighbour *peer, uint32_t index);
// Frees those that were dropped and that nobody needs. Thread.
void neighbours_free_dropped(struct lanes *all);

#endif
