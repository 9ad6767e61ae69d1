// Chooses the algorithm of large all-reduces, and the part of the tensor that each member reduces. Input: statistics of
// the edges between n members. Output: sites, shares and the modelled time of each algorithm. Pure, deterministic, and
// robust against any numbers: the reports of members are not proven. docs/decisions/ways-and-shares.md says why.
#ifndef PCCL_TOPOLOGY_SHARES_H
#define PCCL_TOPOLOGY_SHARES_H

#include <stdbool.h>
#include <stdint.h>

#include "topology/edge.h"

enum {
    SHARES_NEAR_US = 2000, // members of one site have a shorter round trip
    SHARES_WHOLE = 65535,  // the largest share
};

enum shares_way {
    SHARES_RING,   // all shares 0
    SHARES_SPREAD, // each member reduces its share of the inputs of all
    SHARES_SITES,  // the same between sites, each of which reduces among its members first
};

// The way in force, or a better one. Members are in the order of the ring.
struct shares_plan {
    enum shares_way way;
    uint16_t share[SHARES_MOST]; // relative weights
    uint16_t site[SHARES_MOST];  // 1 and up; 0: a site of its own. All 0 unless `way` is SHARES_SITES
};

// The limit of a spread.
enum shares_model {
    SHARES_PORTS, // what each member sends or receives altogether
    SHARES_PAIRS, // what passes between each two; only where all are far from each other
    SHARES_MODELS,
};

// Memory from one call to the next, for the same members. All 0 at first.
struct shares_memory {
    // By member, what it was seen to send, and to receive, while that was the limit, in bytes per second; 0: unknown.
    // Forgotten when the member is seen to do more.
    double full[SHARES_MOST][2];
    double pair[SHARES_MOST][SHARES_MOST]; // from one to the other, what the link carries; 0: unknown
    // The plan with which ops were fastest, and their seconds per byte, as measured of late; 0: unknown.
    struct shares_plan best;
    double best_s;
    bool returns;           // it was chosen again, because others were slower
    bool explored;          // shares were in force: they show what passes between each two
    uint32_t tries, slower; // such returns; looks at ops that are slower than with the best plan
    uint32_t waits;         // calls that change nothing
    // Prediction of each model for the plan chosen last, in seconds per byte; 0: none, or compared with the measurement
    // already. `error`: how wrong the models were, as natural logarithms; 0: unknown.
    struct shares_plan promised;
    double promise[SHARES_MODELS], error[SHARES_MODELS];
};

// Modelled seconds per byte of the tensor. A way that makes no sense has HUGE_VAL.
struct shares_times {
    double now, ring, spread, sites;
};

// True: `next` is another plan than `now`. By the model that was less wrong of late it takes at most nine tenths of the
// time of `now`, both modelled and measured (four fifths where what is far from each other limits it); or it is even
// shares, in place of a ring of members that are far from each other, because they show more; or the ring, about as
// fast as the best; or a plan that was measured to be faster than `now`, after which nothing changes for a number of
// calls that grows. False: `next` is `now`; so it is without an edge at which bytes wait, for what limits ops is not
// seen. `edges` is n x n, row = from, column = to, all seen while `now` was in force; for n > SHARES_MOST it is not
// read. `times` may be NULL.
bool shares_plan(uint32_t n, const struct shares_edge *edges, struct shares_memory *memory,
                 const struct shares_plan *now, struct shares_plan *next, struct shares_times *times);

// Fills `memory` for other members, or the same in another order: keeps the statistics of known members and the errors
// of the models, drops the speed of ops. `was`: the earlier rank of each of the n members; SHARES_MOST: a new member.
void shares_recall(const struct shares_memory *before, uint32_t n, const uint32_t *was, struct shares_memory *memory);

// The sites of members by round trips: numbers from 1 on in the order of their first members. How many there are.
uint32_t shares_sites(uint32_t n, const struct shares_edge *edges, uint16_t site[SHARES_MOST]);

// For ring_order(): what an edge is taken to carry, whether it was seen or not, n x n in bytes per second.
void shares_rates(uint32_t n, const struct shares_edge *edges, const struct shares_memory *memory, uint64_t *rates);

#endif
