// Between hash.c and the vector loops of each instruction set: the eight lanes that XXH3 runs over more than 240 bytes.
#ifndef PCCL_COMPUTE_HASH_LEVELS_H
#define PCCL_COMPUTE_HASH_LEVELS_H

#include <stddef.h>
#include <stdint.h>

enum {
    HASH_SECRET_BYTES = 192,
    HASH_STRIPE_BYTES = 64,
    HASH_BLOCK_STRIPES = (HASH_SECRET_BYTES - HASH_STRIPE_BYTES) / 8,
    HASH_BLOCK_BYTES = HASH_BLOCK_STRIPES * HASH_STRIPE_BYTES,
};

extern const uint8_t hash_secret[HASH_SECRET_BYTES];

#define HASH_PRIME32_1 0x9E3779B1u

#endif
