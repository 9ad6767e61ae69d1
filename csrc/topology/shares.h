// Which way the bytes of large all-reduces go, and how much of the tensor each member reduces: from what was seen of
// the edges between n members to sites, shares and the modelled time of each way. Pure, deterministic, and robust
// against any numbers: what members tell is not proven. docs/decisions/ways-and-shares.md says why.
#ifndef PCCL_TOPOLOGY_SHARES_H
#define PCCL_TOPOLOGY_SHARES_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SHARES_MOST = 32,      // members; more stay on the ring
    SHARES_NEAR_US = 2000, // members of one site have a shorter round trip
    SHARES_WHOLE = 65535,  // the largest share
};

enum shares_way {
    SHARES_RING,   // all shares 0
    SHARES_SPREAD, // each member reduces its share of the inputs of all
    SHARES_SITES,  // the same between sites, each of which reduces among its members first
};

// What was seen of what one member sends to another one while ops ran.
struct shares_edge {
    double rate;          // bytes per second, on average
    double pressed;       // 0 to 1: how often bytes waited to be sent
    double round_trip_us; // the shortest; 0: unknown
};

// The way in force, or a better one. Members are in the order of the ring.
struct shares_plan {
    enum shares_way way;
    uint16_t share[SHARES_MOST]; // relative weights
    uint16_t site[SHARES_MOST];  // 1 and up; 0: a site of its own. All 0 unless `way` is SHARES_SITES
};

// What is remembered from one call to the next, of the same members. All 0 at the beginning.
struct shares_memory {
    // By member, what it was seen to send, and to receive, while that was the limit, in bytes per second; 0: unknown.
    // Forgotten when the member is seen to do more.
    double full[SHARES_MOST][2];
    double ring_s;          // seconds per byte on the ring, as measured; 0: unknown
    uint32_t tries, slower; // returns to the ring, because other ways were slower; looks at one that is
    uint32_t waits;         // calls that leave the ring alone
};

// Modelled seconds per byte of the tensor. A way that makes no sense has HUGE_VAL.
struct shares_times {
    double now, ring, spread, sites;
};

// True: another plan than `now` takes at most nine tenths of its time by the model; or `now` is no ring, and the ring
// is about as fast as the best, or was measured to be faster, in which case it is left alone for a number of calls that
// grows. False: `next` is `now`; so it is without an edge at which bytes wait, for what limits ops is not seen. `edges`
// is n x n, row = from, column = to, all seen while `now` was in force; for n > SHARES_MOST it is not read. `times` may
// be NULL.
bool shares_plan(uint32_t n, const struct shares_edge *edges, struct shares_memory *memory,
                 const struct shares_plan *now, struct shares_plan *next, struct shares_times *times);

// The sites of members by round trips: numbers from 1 on in the order of their first members. How many there are.
uint32_t shares_sites(uint32_t n, const struct shares_edge *edges, uint16_t site[SHARES_MOST]);

// For ring_order(): what an edge is taken to carry, whether it was seen or not, n x n in bytes per second.
void shares_rates(uint32_t n, const struct shares_edge *edges, const struct shares_memory *memory, uint64_t *rates);

#endif
