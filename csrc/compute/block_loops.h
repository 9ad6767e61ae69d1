// The loops of the codecs with a scale for each block, as plain C that the compiler vectorises: compiled once with the
// flags of each instruction set, equal bits from each. Included by the kernels_*.c files.
//
// Codes of four bits lie two in a byte: byte j has the code of element j in its low half, and that of element
// j + half in its high one, where half is half the block, rounded up. So no vector has to be taken apart.
#ifndef PCCL_COMPUTE_BLOCK_LOOPS_H
#define PCCL_COMPUTE_BLOCK_LOOPS_H

#include "compute/kernels_levels.h"

#include <string.h>

static uint32_t block_largest(const void *values, size_t count) {
    const any_u32 *x = values;
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = x[i] & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

static inline uint32_t block_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float block_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// The random number of element i, by the finaliser of a hash (lowbias32 of Wellons's hash-prospector), with the second
// half of the key between its two multiplications.
static inline uint32_t block_random(const struct block_scale *by, uint32_t i) {
    uint32_t x = by->counter + i + by->key[0];
    x = (x ^ x >> 16) * 0x21F0AAADu;
    x ^= by->key[1];
    x = (x ^ x >> 15) * 0x735A2D97u;
    return x ^ x >> 15;
}

// To the nearest whole number, to even: adding and taking away 1.5 * 2^23 does it.
static inline int32_t block_int_nearest(float y, uint32_t random) {
    (void)random;
    return (int32_t)(y + 0x1.8p23f - 0x1.8p23f);
}

// floor(y + r), r evenly in (0, 1) in steps of 2^-16: a whole y of at most 7 bits stays as it is.
static inline int32_t block_int_stochastic(float y, uint32_t random) {
    float sum = y + ((float)(int32_t)(random >> 16) + 0.5f) * 0x1p-16f;
    int32_t cut = (int32_t)sum;
    return cut - (sum < (float)cut);
}

static inline int32_t block_clamp(int32_t k, int32_t most) {
    k = k < -most ? -most : k;
    return k > most ? most : k;
}

// The code m of a magnitude y in [0, 1] stands for 2^(m - 7), and 0 for 0: the exponent of a float, once the rounding
// of its digits has been carried into it. 2^-7 is half way between 0 and the smallest power, 2^-6.
static inline uint32_t block_power_nearest(float y, uint32_t random) {
    (void)random;
    int32_t m = (int32_t)((block_bits(y) + 0x00400000u) >> 23) - 120, least = y >= 0x1p-7f;
    return (uint32_t)(m < least ? least : m);
}

// Between two powers the digits say how likely the upper one is.
static inline uint32_t block_power_stochastic(float y, uint32_t random) {
    int32_t m = (int32_t)((block_bits(y) + (random >> 9)) >> 23) - 120;
    int32_t small = (float)(int32_t)(random >> 8) * 0x1p-30f < y;
    m = y < 0x1p-6f ? small : m;
    return (uint32_t)(m > 7 ? 7 : m);
}

#define BLOCK_INT_CODE(rounding, most) \
    block_clamp(block_int_##rounding(x[i] * scale.grow * scale.inverse, block_random(&scale, (uint32_t)i)), most)

#define BLOCK_ENCODE(rounding) \
    static inline uint32_t block_code_int4_##rounding(const any_f32 *x, size_t i, struct block_scale scale) { \
        return (uint32_t)BLOCK_INT_CODE(rounding, 7) & 15u; \
    } \
    static inline uint32_t block_code_e3m0_##rounding(const any_f32 *x, size_t i, struct block_scale scale) { \
        float y = block_float(block_bits(x[i] * scale.grow * scale.inverse) & 0x7FFFFFFFu); \
        uint32_t m = block_power_##rounding(y, block_random(&scale, (uint32_t)i)); \
        return m | (m == 0 ? 0 : block_bits(x[i]) >> 28 & 8u); \
    } \
    static void encode_int8_##rounding(uint8_t *codes, const void *values, size_t count, \
                                       const struct block_scale *by) { \
        const any_f32 *x = values; \
        const struct block_scale scale = *by; \
        INDEPENDENT for (size_t i = 0; i < count; i++) codes[i] = (uint8_t)BLOCK_INT_CODE(rounding, 127); \
    } \
    BLOCK_ENCODE_HALVES(int4, rounding) \
    BLOCK_ENCODE_HALVES(e3m0, rounding)

#define BLOCK_ENCODE_HALVES(name, rounding) \
    static void encode_##name##_##rounding(uint8_t *codes, const void *values, size_t count, \
                                           const struct block_scale *by) { \
        const any_f32 *x = values; \
        const struct block_scale scale = *by; \
        size_t half = (count + 1) / 2, pairs = count / 2; \
        INDEPENDENT for (size_t i = 0; i < pairs; i++) codes[i] = \
            (uint8_t)(block_code_##name##_##rounding(x, i, scale) | block_code_##name##_##rounding(x, i + half, scale) \
                                                                        << 4); \
        if (pairs < half) codes[pairs] = (uint8_t)block_code_##name##_##rounding(x, pairs, scale); \
    }

BLOCK_ENCODE(nearest)
BLOCK_ENCODE(stochastic)

static void decode_int8(void *values, const uint8_t *codes, size_t count, float scale) {
    any_f32 *x = values;
    INDEPENDENT for (size_t i = 0; i < count; i++) x[i] = (float)(int8_t)codes[i] * scale;
}

static inline float block_value_int4(uint32_t code, float scale) { return (float)((int32_t)(code ^ 8u) - 8) * scale; }

static inline float block_value_e3m0(uint32_t code, float scale) {
    uint32_t m = code & 7u, bits = (code & 8u) << 28 | (m + 120u) << 23;
    return block_float(m == 0 ? 0 : bits) * scale;
}

#define BLOCK_DECODE_HALVES(name) \
    static void decode_##name(void *values, const uint8_t *codes, size_t count, float scale) { \
        any_f32 *x = values; \
        size_t half = (count + 1) / 2, pairs = count / 2; \
        INDEPENDENT for (size_t i = 0; i < half; i++) x[i] = block_value_##name(codes[i] & 15u, scale); \
        INDEPENDENT for (size_t i = 0; i < pairs; i++) x[i + half] = block_value_##name(codes[i] >> 4, scale); \
    }

BLOCK_DECODE_HALVES(int4)
BLOCK_DECODE_HALVES(e3m0)

static void block_residual(void *out, const void *wanted, const void *got, float times, size_t count) {
    any_f32 *d = out;
    const any_f32 *x = wanted, *y = got;
    INDEPENDENT for (size_t i = 0; i < count; i++) {
        uint32_t bits = block_bits((x[i] - y[i]) * times);
        d[i] = block_float((bits & 0x7F800000u) == 0x7F800000u ? 0 : bits);
    }
}

static const struct block_loops block_loops = {
    .largest = block_largest,
    .encode = {{encode_int8_nearest, encode_int8_stochastic},
               {encode_int4_nearest, encode_int4_stochastic},
               {encode_e3m0_nearest, encode_e3m0_stochastic}},
    .decode = {decode_int8, decode_int4, decode_e3m0},
    .residual = block_residual,
};

#endif
