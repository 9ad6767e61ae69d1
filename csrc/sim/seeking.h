// How a peer comes to a master of the list: at first, and when it has lost one.
#ifndef PCCL_SIM_SEEKING_H
#define PCCL_SIM_SEEKING_H

#include "sim/world.h"

void sim_join_master(struct pccl_sim *s, int slot); // the first one of the list that there is
void sim_lose_master(struct pccl_sim *s, int slot); // begins to look for one, or goes on with that
void sim_seek_master(struct pccl_sim *s, int slot, bool late);
// Perhaps it has waited long enough at the one that it has found. True: it leaves it, and its mind has said so; then
// comes seek_anew.
bool sim_seek_anew(struct pccl_sim *s, int slot, uint32_t serial);

#endif
