// What peers tell the master of their links (TELEMETRY), drawn from the seed: it makes the master choose ways, shares
// and orders of rings.
#ifndef PCCL_SIM_SIGHTS_H
#define PCCL_SIM_SIGHTS_H

#include "sim/world.h"

// Enough for a choice, of the group epoch that the peer is in, or nothing.
void sights_tell(struct pccl_sim *s, int slot);

#endif
