// How a peer comes to a master of the list: at first, and when it has lost one.
#ifndef PCCL_SIM_SEEKING_H
#define PCCL_SIM_SEEKING_H

#include "sim/world.h"

void sim_join_master(struct pccl_sim *s, int slot); // the first one of the list that there is
// Begins to look for one, or goes on with that; `anew`: from the first of the list on.
void sim_lose_master(struct pccl_sim *s, int slot, bool anew);
void sim_seek_master(struct pccl_sim *s, int slot, bool late);

#endif
