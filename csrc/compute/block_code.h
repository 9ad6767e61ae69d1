// Codes of one element, and scales of one block, for the block codecs (compute/block.c) on CPUs and GPUs.
//
// A value x has the code of x * grow * inverse; a code k stands for k * scale.
#ifndef PCCL_COMPUTE_BLOCK_CODE_H
#define PCCL_COMPUTE_BLOCK_CODE_H

#include <stdint.h>

#include "compute/element.h"

enum { BLOCK_CODE_INT8, BLOCK_CODE_INT4, BLOCK_CODE_E3M0, BLOCK_CODES };
enum { BLOCK_NEAREST, BLOCK_STOCHASTIC, BLOCK_ROUNDINGS };

struct block_scale {
    float scale, grow, inverse;
    uint32_t key[2], counter; // of stochastic rounding: what its random numbers are made from
};

#define BLOCK_INFINITY_BITS 0x7F800000u
#define BLOCK_NAN_BITS 0x7FC00000u
// Below it a block is coded at BLOCK_GROWN times its value, where nothing is denormal.
#define BLOCK_SMALL 0x1p-90f
#define BLOCK_GROWN 0x1p100f
#define BLOCK_EPSILON 0x1p-23f

// The random number of element i, by the finaliser of a hash (lowbias32 of Wellons's hash-prospector), with the second
// half of the key between its two multiplications.
ELEMENT uint32_t block_random(const struct block_scale *by, uint32_t i) {
    uint32_t x = by->counter + i + by->key[0];
    x = (x ^ x >> 16) * 0x21F0AAADu;
    x ^= by->key[1];
    x = (x ^ x >> 15) * 0x735A2D97u;
    return x ^ x >> 15;
}

// To the nearest whole number, to even: adding and taking away 1.5 * 2^23 does it.
ELEMENT int32_t block_int_nearest(float y, uint32_t random) {
    (void)random;
    return (int32_t)(y + 0x1.8p23f - 0x1.8p23f);
}

// floor(y + r), r evenly in (0, 1) in steps of 2^-16: a whole y of at most 7 bits stays as it is.
ELEMENT int32_t block_int_stochastic(float y, uint32_t random) {
    float sum = y + ((float)(int32_t)(random >> 16) + 0.5f) * 0x1p-16f;
    int32_t cut = (int32_t)sum;
    return cut - (sum < (float)cut);
}

ELEMENT int32_t block_clamp(int32_t k, int32_t most) {
    k = k < -most ? -most : k;
    return k > most ? most : k;
}

// The code m of a magnitude y in [0, 1] stands for 2^(m - 7), and 0 for 0: the exponent of a float, once the rounding
// of its digits has been carried into it. 2^-7 is half way between 0 and the smallest power, 2^-6.
ELEMENT uint32_t block_power_nearest(float y, uint32_t random) {
    (void)random;
    int32_t m = (int32_t)((float_to_bits(y) + 0x00400000u) >> 23) - 120, least = y >= 0x1p-7f;
    return (uint32_t)(m < least ? least : m);
}

// Between two powers the digits say how likely the upper one is.
ELEMENT uint32_t block_power_stochastic(float y, uint32_t random) {
    int32_t m = (int32_t)((float_to_bits(y) + (random >> 9)) >> 23) - 120;
    int32_t small = (float)(int32_t)(random >> 8) * 0x1p-30f < y;
    m = y < 0x1p-6f ? small : m;
    return (uint32_t)(m > 7 ? 7 : m);
}

ELEMENT float block_value_int8(uint32_t code, float scale) { return (float)(int8_t)code * scale; }

ELEMENT float block_value_int4(uint32_t code, float scale) { return (float)((int32_t)(code ^ 8u) - 8) * scale; }

ELEMENT float block_value_e3m0(uint32_t code, float scale) {
    uint32_t m = code & 7u, bits = (code & 8u) << 28 | (m + 120u) << 23;
    return float_from_bits(m == 0 ? 0 : bits) * scale;
}

// Returns the quantisation error in units of an input; 0 if it is not finite.
ELEMENT float block_rest(float wanted, float got, float times) {
    uint32_t bits = float_to_bits((wanted - got) * times);
    return float_from_bits((bits & BLOCK_INFINITY_BITS) == BLOCK_INFINITY_BITS ? 0 : bits);
}

// ---- of a block ----
// Returns the scale for a block whose largest magnitude is `largest`, which is finite.
ELEMENT struct block_scale block_scale_of(int code, float largest) {
    struct block_scale by;
    by.scale = largest;
    if (code != BLOCK_CODE_E3M0) {
        float most = code == BLOCK_CODE_INT8 ? 127.0f : 7.0f;
        by.scale = largest / most;
        // it was rounded up, and all of float was used
        if (float_to_bits(by.scale * most) == BLOCK_INFINITY_BITS) by.scale *= 1 - BLOCK_EPSILON;
    }
    by.grow = largest < BLOCK_SMALL ? BLOCK_GROWN : 1.0f;
    by.inverse = 1.0f / (by.scale * by.grow);
    by.key[0] = by.key[1] = by.counter = 0;
    return by;
}

// The splitmix64 finaliser.
ELEMENT uint64_t block_mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// `index`: of the first element.
ELEMENT void block_key_of(struct block_scale *by, uint64_t seed, uint64_t index) {
    uint64_t key = block_mixed(block_mixed(seed + 0x9E3779B97F4A7C15u) + (index >> 32));
    by->key[0] = (uint32_t)key;
    by->key[1] = (uint32_t)(key >> 32);
    by->counter = (uint32_t)index;
}

#endif
