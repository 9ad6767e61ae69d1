// Memory that is refused to the shipped state machines (sim/refuse). What the simulator itself asks for, between its
// events and by refuse_never, it gets.
#ifndef PCCL_SIM_MEMORY_H
#define PCCL_SIM_MEMORY_H

#include "sim/world.h"

// Memory is refused to a process `times` times, when so many more allocations have been granted.
struct shortage {
    uint32_t granted, times;
    uint32_t refused; // in this life
};

void sim_short(struct pccl_sim *s, struct shortage *shortage); // from now on, on this thread; NULL: no longer

#endif
