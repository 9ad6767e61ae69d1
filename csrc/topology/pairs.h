// A model of members each two of whom have a link of their own, as sites in clouds do: what each link carries, from
// what was seen of it, and the weights that such links carry fastest. Pure and deterministic.
#ifndef PCCL_TOPOLOGY_PAIRS_H
#define PCCL_TOPOLOGY_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

enum { WEIGHTS_MOST = 32 }; // members; more stay on the ring

// Statistics of the traffic from one member to another while ops ran.
struct weights_edge {
    double rate;          // bytes per second, on average
    double backlogged;    // 0 to 1: how often bytes waited to be sent
    double round_trip_us; // the shortest; 0: unknown
};

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
// Seconds per byte of the tensor by weights that add up to 1, and on the ring.
double pairs_time(const struct pairs *pairs, const double *x);
double pairs_ring_time(const struct pairs *pairs);
// Whether all links that would carry something were seen to.
bool pairs_seen(const struct pairs *pairs, const double *x);
bool pairs_ring_seen(const struct pairs *pairs);
// Among near-optimal weights, chooses those with the smallest maximum.
void pairs_fill(const struct pairs *pairs, double *x);

#endif
