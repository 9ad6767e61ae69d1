// How fast edges usually are, for comparisons: each is compared with those that carry at least half as many bytes. How
// fast an edge with little to do would be nobody knows: bytes seldom wait there, however slow it is. Where sub-groups
// have ops of their own, some edges carry much more than others. Pure.
#ifndef PCCL_TOPOLOGY_USUAL_H
#define PCCL_TOPOLOGY_USUAL_H

#include <stddef.h>
#include <stdint.h>

struct usual {
    uint32_t edge;
    double bytes, speed;
};

// Writes the middle speed of those that an edge is compared with, itself among them, of two the larger one, to its
// place in `out`; 0: there is nobody else, or memory was refused. Sorts `edges`.
void usual_speeds(struct usual *edges, size_t count, double *out);

#endif
