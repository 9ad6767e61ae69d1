// The loop of XXH3 over long input. The including file gives hash_lanes (64 bytes that hold the eight lanes in order),
// hash_accumulate(lanes, stripe, secret) and hash_scramble(lanes, secret).
#ifndef PCCL_COMPUTE_HASH_LOOP_H
#define PCCL_COMPUTE_HASH_LOOP_H

#include "compute/kernels_levels.h"

#include <string.h>

// How far ahead memory is asked for: on content that no cache holds, half as fast again for the portable loop, a fifth
// for AVX2.
enum { HASH_AHEAD_BYTES = 2048 };

// bytes > 240
static void hash_long(uint64_t lanes[8], const void *data, size_t bytes) {
    const uint8_t *at = data, *last = at + bytes - HASH_STRIPE_BYTES;
    size_t blocks = (bytes - 1) / HASH_BLOCK_BYTES;
    size_t rest = (bytes - 1 - blocks * HASH_BLOCK_BYTES) / HASH_STRIPE_BYTES;
    hash_lanes state;
    memcpy(&state, lanes, sizeof state);
    for (; blocks > 0; blocks--) {
        for (size_t i = 0; i < HASH_BLOCK_STRIPES; i++, at += HASH_STRIPE_BYTES) {
            // may be beyond the end, which harms nothing
            __builtin_prefetch((const void *)((uintptr_t)at + HASH_AHEAD_BYTES));
            hash_accumulate(&state, at, hash_secret + 8 * i);
        }
        hash_scramble(&state, hash_secret + HASH_SECRET_BYTES - HASH_STRIPE_BYTES);
    }
    for (size_t i = 0; i < rest; i++, at += HASH_STRIPE_BYTES) hash_accumulate(&state, at, hash_secret + 8 * i);
    hash_accumulate(&state, last, hash_secret + HASH_SECRET_BYTES - HASH_STRIPE_BYTES - 7);
    memcpy(lanes, &state, sizeof state);
}

#endif
