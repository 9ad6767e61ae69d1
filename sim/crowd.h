// A crowd: more peers than the other simulator takes, with the shipped state machines of masters and peers, and without
// ops, states and links that break. A master ends, perhaps the next one as well, some members end with it or stand
// still, and the rest are to be one run again. All of it is drawn from the seed.
#ifndef PCCL_SIM_CROWD_H
#define PCCL_SIM_CROWD_H

#include <stdbool.h>
#include <stdint.h>

enum { CROWD_MOST = 1000 };

struct crowd;

// NULL when memory is refused.
struct crowd *crowd_new(uint64_t seed, uint32_t peers);
void crowd_free(struct crowd *crowd);
// The next event. False: the run is over; crowd_failure says how.
bool crowd_step(struct crowd *crowd);
const char *crowd_failure(const struct crowd *crowd); // "": it has passed so far
uint32_t crowd_takeovers(const struct crowd *crowd);

#endif
