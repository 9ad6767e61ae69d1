// Paths that are cut: who does not hear whom, and until when.
#ifndef PCCL_SIM_PARTITION_H
#define PCCL_SIM_PARTITION_H

#include "master/core.h"
#include "sim/world.h"

void partition_in_two(struct pccl_sim *s);
void partition_one_way(struct pccl_sim *s);
// Two peers that reach everybody else lose their links to each other, and can make no others. A peer is in one such
// pair at a time.
void partition_pair(struct pccl_sim *s);
// Called when the master admits newcomers; may begin a partition at that moment.
void partition_at_admission(struct pccl_sim *s, uint32_t master, const struct actions *actions);

#endif
