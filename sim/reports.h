// Draws the peers' reports on their links (TELEMETRY) from the seed. They make the master choose algorithms, weights
// and ring orders.
#ifndef PCCL_SIM_REPORTS_H
#define PCCL_SIM_REPORTS_H

#include "sim/world.h"

// Enough for a choice, of the group epoch that the peer is in, or nothing.
void reports_tell(struct pccl_sim *s, int slot);

#endif
