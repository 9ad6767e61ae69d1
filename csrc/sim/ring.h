// The members of a group epoch, as a peer enters it.
#ifndef PCCL_SIM_RING_H
#define PCCL_SIM_RING_H

#include "sim/world.h"

struct ring {
    bool set, lost, ready;
    uint64_t run, generation, epoch;
    uint32_t latency_us, megabytes_per_s, rank, count;
    uint8_t slots[SLOTS];
    uint32_t lives[SLOTS];
};

#endif
