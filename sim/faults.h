// What goes wrong, and when: drawn from the seed.
#ifndef PCCL_SIM_FAULTS_H
#define PCCL_SIM_FAULTS_H

#include "sim/world.h"

void sim_draw_faults(struct pccl_sim *s);
void sim_fault(struct pccl_sim *s);

#endif
