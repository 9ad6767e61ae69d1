// The loops of the codecs with a scale for each block, as plain C that the compiler vectorises: compiled once with the
// flags of each instruction set, equal bits from each. Included by the kernels_*.c files.
//
// Codes of four bits lie two in a byte: byte j has the code of element j in its low half, and that of element
// j + half in its high one, where half is half the block, rounded up. So no vector has to be taken apart.
#ifndef PCCL_COMPUTE_BLOCK_LOOPS_H
#define PCCL_COMPUTE_BLOCK_LOOPS_H

#include "compute/block_code.h"
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

#define BLOCK_INT_CODE(rounding, most) \
    block_clamp(block_int_##rounding(x[i] * scale.grow * scale.inverse, block_random(&scale, (uint32_t)i)), most)

#define BLOCK_ENCODE(rounding) \
    static inline uint32_t block_code_int4_##rounding(const any_f32 *x, size_t i, struct block_scale scale) { \
        return (uint32_t)BLOCK_INT_CODE(rounding, 7) & 15u; \
    } \
    static inline uint32_t block_code_e3m0_##rounding(const any_f32 *x, size_t i, struct block_scale scale) { \
        float y = float_from_bits(float_to_bits(x[i] * scale.grow * scale.inverse) & 0x7FFFFFFFu); \
        uint32_t m = block_power_##rounding(y, block_random(&scale, (uint32_t)i)); \
        return m | (m == 0 ? 0 : float_to_bits(x[i]) >> 28 & 8u); \
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
    INDEPENDENT for (size_t i = 0; i < count; i++) x[i] = block_value_int8(codes[i], scale);
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
    INDEPENDENT for (size_t i = 0; i < count; i++) d[i] = block_rest(x[i], y[i], times);
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
