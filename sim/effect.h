// How long what goes wrong lasts, threads that block in the middle of an event, and memory that is refused to the
// shipped state machines (sim/refuse). What the simulator itself asks for, between its events and by refuse_never, it
// gets.
#ifndef PCCL_SIM_EFFECT_H
#define PCCL_SIM_EFFECT_H

#include "sim/world.h"

enum { NAP_SKEW_MS = 4 }; // within which a master that wakes hears what came meanwhile, each connection by itself

// The effects of a fault are over at `until`, or later.
void effect_until(struct pccl_sim *s, int64_t until);
int64_t effect_draw(struct pccl_sim *s);
// For how long a thread blocks in the middle of this event; 0: it does not. `weighty`: the event is one where that is
// worth more tries.
int64_t effect_block(struct pccl_sim *s, bool weighty);

void sim_short(struct pccl_sim *s, struct shortage *shortage); // from now on, on this thread; NULL: no longer

#endif
