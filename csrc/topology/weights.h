// Chooses the algorithm of large all-reduces, and the part of the tensor that each member reduces. Input: statistics of
// the edges between n members. Output: sites, weights and the modelled time of each algorithm. Pure, deterministic, and
// robust against any numbers: the reports of members are not proven. docs/decisions/weighted-all-reduce.md says why.
#ifndef PCCL_TOPOLOGY_WEIGHTS_H
#define PCCL_TOPOLOGY_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "topology/pairs.h"

enum {
    WEIGHTS_NEAR_US = 2000, // members of one site have a shorter round trip
    WEIGHTS_WHOLE = 65535,  // the largest weight
};

enum weights_algorithm {
    WEIGHTS_RING,  // all weights 0
    WEIGHTS_FLAT,  // each member reduces its weight of the inputs of all
    WEIGHTS_SITES, // the same between sites, each of which reduces among its members first
};

// The way in force, or a better one. Members are in the order of the ring.
struct weights_plan {
    enum weights_algorithm algorithm;
    uint16_t weight[WEIGHTS_MOST]; // relative weights
    uint16_t site[WEIGHTS_MOST];   // 1 and up; 0: a site of its own. All 0 unless `algorithm` is WEIGHTS_SITES
};

// Limit of a weighted all-reduce.
enum weights_model {
    WEIGHTS_PORTS, // what each member sends or receives altogether
    WEIGHTS_PAIRS, // what passes between each two; only where all are far from each other
    WEIGHTS_MODELS,
};

// Memory from one call to the next, for the same members. All 0 at first.
struct weights_memory {
    // By member, what it was seen to send, and to receive, while that was the limit, in bytes per second; 0: unknown.
    // Forgotten when the member is seen to do more.
    double full[WEIGHTS_MOST][2];
    double pair[WEIGHTS_MOST][WEIGHTS_MOST]; // from one to the other, what the link carries; 0: unknown
    // The plan with which ops were fastest, and their seconds per byte, as measured of late; 0: unknown.
    struct weights_plan best;
    double best_s;
    bool returns;           // it was chosen again, because others were slower
    bool explored;          // weights were in force: they show what passes between each two
    uint32_t tries, slower; // such returns; looks at ops that are slower than with the best plan
    uint32_t waits;         // calls that change nothing
    // Prediction of each model for the plan chosen last, in seconds per byte; 0: none, or compared with the measurement
    // already. `error`: how wrong the models were, as natural logarithms; 0: unknown.
    struct weights_plan promised;
    double promise[WEIGHTS_MODELS], error[WEIGHTS_MODELS];
};

// Modelled seconds per byte of the tensor. A way that makes no sense has HUGE_VAL.
struct weights_times {
    double now, ring, flat, sites;
};

// True: `next` is another plan than `now`. By the model that was less wrong of late it takes at most nine tenths of the
// time of `now`, both modelled and measured (four fifths where what is far from each other limits it); or it is even
// weights, in place of a ring of members that are far from each other, because they show more; or the ring, about as
// fast as the best; or a plan that was measured to be faster than `now`, after which nothing changes for a number of
// calls that grows. False: `next` is `now`; so it is without an edge at which bytes wait, for what limits ops is not
// seen. `edges` is n x n, row = from, column = to, all seen while `now` was in force; for n > WEIGHTS_MOST it is not
// read. `times` may be NULL.
bool weights_plan(uint32_t n, const struct weights_edge *edges, struct weights_memory *memory,
                  const struct weights_plan *now, struct weights_plan *next, struct weights_times *times);

// Fills `memory` for other members, or the same in another order: keeps the statistics of known members and the errors
// of the models, drops the speed of ops. `was`: the earlier rank of each of the n members; WEIGHTS_MOST: a new member.
void weights_recall(const struct weights_memory *before, uint32_t n, const uint32_t *was,
                    struct weights_memory *memory);

// The sites of members by round trips: numbers from 1 on in the order of their first members. How many there are.
uint32_t weights_sites(uint32_t n, const struct weights_edge *edges, uint16_t site[WEIGHTS_MOST]);

// For ring_order(): what an edge is taken to carry, whether it was seen or not, n x n in bytes per second.
void weights_rates(uint32_t n, const struct weights_edge *edges, const struct weights_memory *memory, uint64_t *rates);

#endif
