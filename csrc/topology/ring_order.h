// The ring order that makes the slowest link of a ring as fast as possible. Pure and deterministic.
#ifndef PCCL_TOPOLOGY_RING_ORDER_H
#define PCCL_TOPOLOGY_RING_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum {
    RING_ORDER_MAX = 1024,
    RING_ORDER_EXACT = 12, // up to this many members the answer is proven best
};

// `rates` is n x n, row = from, column = to, in bytes per second; 0 = unknown or unreachable, used only where nothing
// else is left. `order` holds the current order (a permutation of 0..n-1) and receives the new one, which begins with
// the same member. Better means: a faster slowest link; with equal slowest links a smaller sum of 1/rate. The order
// changes only for the better by more than a thousandth, so that repeated calls settle. True: it changed. False also
// when memory is refused.
bool ring_order(uint32_t n, const uint64_t *rates, uint32_t *order);

// The slowest link of a ring in this order; 0 when one is unknown. n >= 2.
uint64_t ring_order_slowest(uint32_t n, const uint64_t *rates, const uint32_t *order);

#endif
