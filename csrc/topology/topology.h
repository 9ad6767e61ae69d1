// Makes collectives fast on the network that the members have: the order of a ring, and the algorithm and the weights
// of large all-reduces. Pure and deterministic.
#ifndef PCCL_TOPOLOGY_TOPOLOGY_H
#define PCCL_TOPOLOGY_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

// ---- the order of a ring: ring_order.c ----

enum {
    RING_ORDER_MAX = 1024,
    RING_ORDER_EXACT = 12, // up to this many members the answer is proven best
};

// Finds the ring order that makes the slowest link of a ring as fast as possible. `rates` is n x n, row = from, column
// = to, in bytes per second; 0 = unknown or unreachable, used only where nothing else is left. `order` holds the
// current order (a permutation of 0..n-1) and receives the new one, which begins with the same member. Better means: a
// faster slowest link; with equal slowest links a smaller sum of 1/rate. The order changes only for the better by more
// than a thousandth, so that repeated calls settle. True: it changed. False also when memory is refused.
bool ring_order(uint32_t n, const uint64_t *rates, uint32_t *order);

// ---- weights: weights.c ----
//
// Chooses the algorithm of large all-reduces, and the part of the tensor that each member reduces. Input: statistics of
// the edges between n members. Output: sites, weights and the modelled time of each algorithm. Robust against any
// numbers: the reports of members are not proven. docs/decisions/weighted-all-reduce.md says why.

// Statistics of the traffic from one member to another while ops ran.
struct weights_edge {
    double rate;          // bytes per second, on average
    double backlogged;    // 0 to 1: how often bytes waited to be sent
    double round_trip_us; // the shortest; 0: unknown
};

enum {
    WEIGHTS_MOST = 32,      // members; more stay on the ring
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

// ---- the model of pairs: pairs.c ----
//
// Members each two of whom have a link of their own, as sites in clouds do: what each link carries, from what was seen
// of it, and the weights that such links carry fastest.

// Bytes per second that pass between each two of n members, each way at once. Symmetric; on the diagonal nothing.
struct pairs {
    uint32_t n;
    double rate[WEIGHTS_MOST][WEIGHTS_MOST];
    bool seen[WEIGHTS_MOST][WEIGHTS_MOST]; // false: only assumed
};

// Adds what is seen now, n x n, to what is `known` of each direction, row = from; 0: nothing. All numbers are finite.
void pairs_learn(uint32_t n, const struct weights_edge *edges, double known[WEIGHTS_MOST][WEIGHTS_MOST]);
// Links of which nothing is known are taken to be faster than all that was seen of their members.
void pairs_judge(uint32_t n, const struct weights_edge *edges, const double known[WEIGHTS_MOST][WEIGHTS_MOST],
                 struct pairs *pairs);
// Seconds per byte of the tensor by weights that add up to 1.
double pairs_time(const struct pairs *pairs, const double *x);
// Whether all links that would carry something by these weights were seen to.
bool pairs_seen(const struct pairs *pairs, const double *x);
// Seconds per byte on the ring; HUGE_VAL if a link of it was never seen.
double pairs_ring_time(const struct pairs *pairs);
// Among near-optimal weights, chooses those with the smallest maximum.
void pairs_fill(const struct pairs *pairs, double *x);

#endif
