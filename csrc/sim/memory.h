// Memory that is refused. Programs that run the simulator are linked with --wrap=malloc and so on (CMakeLists.txt), so
// that the allocations of the shipped minds come through here. Those of the simulator itself, between its events and by
// sim_take, are never refused.
#ifndef PCCL_SIM_MEMORY_H
#define PCCL_SIM_MEMORY_H

#include "sim/world.h"

// Memory is refused to a process `times` times, when so many more allocations have been granted.
struct shortage {
    uint32_t granted, times;
    uint32_t refused; // in this life
};

void sim_short(struct pccl_sim *s, struct shortage *shortage); // from now on, on this thread; NULL: no longer
void *sim_take(size_t bytes);                                  // for the simulator itself

#endif
