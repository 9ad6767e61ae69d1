// The invariants of time: what must not last, and what must not happen when nothing goes wrong.
#ifndef PCCL_SIM_WATCH_H
#define PCCL_SIM_WATCH_H

#include "sim/world.h"

struct watch {
    int64_t measured_at;                                // when an optimisation was under way last
    int64_t sought_at;                                  // when somebody looked for a master last
    int64_t alone_at[MASTERS_MOST];                     // when no other one served its run last
    uint32_t rounds_before[SLOTS], lives_before[SLOTS]; // since the faults ended
};

void watch_calm(struct pccl_sim *s); // the faults have ended
// True: all who live have passed enough rounds since then.
bool watch_is_calm(struct pccl_sim *s);
void watch_look(struct pccl_sim *s); // now and then
void judge_dies(struct pccl_sim *s, int slot, const char *text, const char *what);

#endif
