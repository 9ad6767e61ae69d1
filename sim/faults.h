// Draws from the seed which faults happen, and when.
#ifndef PCCL_SIM_FAULTS_H
#define PCCL_SIM_FAULTS_H

#include "sim/world.h"

void sim_draw_faults(struct pccl_sim *s);
void sim_fault(struct pccl_sim *s);

#endif
