// The loops of quantisation over all elements, as plain C that the compiler vectorises: compiled once with the flags of
// each instruction set, equal bits from each. Included by the kernels_*.c files, which also give widen_f16 and
// narrow_f16.
//
// Numbers are double throughout: for float elements nothing can overflow or lose its last bit, at a speed still far
// above any link's.
#ifndef PCCL_COMPUTE_QUANT_LOOPS_H
#define PCCL_COMPUTE_QUANT_LOOPS_H

#include "compute/kernels_levels.h"

// Floats ordered as integers: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN.
#define QUANT_RANGE(suffix, key, most) \
    static void range_##suffix(const void *wide, size_t count, int64_t *smallest, int64_t *largest) { \
        const any_##key *x = wide; \
        any_##key low = most, high = -most - 1; \
        for (size_t i = 0; i < count; i++) { \
            any_##key k = x[i] < 0 ? x[i] ^ most : x[i]; \
            low = k < low ? k : low; \
            high = k > high ? k : high; \
        } \
        *smallest = low; \
        *largest = high; \
    }

QUANT_RANGE(f32, i32, INT32_MAX)
QUANT_RANGE(f64, i64, INT64_MAX)

// Adding and taking away 1.5 * 2^52 rounds to the nearest whole number, to even; the rest is exact.
#define QUANT_ROUND(x) ((x) + 0x1.8p52 - 0x1.8p52)
#define QUANT_GROWN_f32(x, by) (x)
#define QUANT_GROWN_f64(x, by) ((x) * (by))

#define QUANT_ENCODE(suffix, code, whole) \
    static void encode_##suffix##_##code(void *codes, const void *wide, size_t count, \
                                         const struct quant_affine *affine) { \
        any_##code *d = codes; \
        const any_##suffix *x = wide; \
        const struct quant_affine by = *affine; \
        for (size_t i = 0; i < count; i++) { \
            double y = QUANT_GROWN_##suffix((double)x[i], by.grow); \
            whole k = (whole)QUANT_ROUND((y - by.offset) * by.inverse + by.zero); \
            k = k < 0 ? 0 : k; \
            k = k > (whole)by.last ? (whole)by.last : k; \
            d[i] = (any_##code)((uint32_t)k ^ by.flip); \
        } \
    }
#define QUANT_DECODE(suffix, code, whole) \
    static void decode_##suffix##_##code(void *wide, const void *codes, size_t count, \
                                         const struct quant_affine *affine) { \
        any_##suffix *d = wide; \
        const any_##code *x = codes; \
        const struct quant_affine by = *affine; \
        for (size_t i = 0; i < count; i++) { \
            double k = (double)(whole)(x[i] ^ by.flip); \
            d[i] = (any_##suffix)QUANT_GROWN_##suffix(by.offset + (k - by.zero) * by.scale, by.shrink); \
        } \
    }
#define QUANT_PAIR(suffix, code, whole) QUANT_ENCODE(suffix, code, whole) QUANT_DECODE(suffix, code, whole)

QUANT_PAIR(f32, u8, int32_t)
QUANT_PAIR(f32, u16, int32_t)
QUANT_PAIR(f32, u32, int64_t)
QUANT_PAIR(f64, u8, int32_t)
QUANT_PAIR(f64, u16, int32_t)
QUANT_PAIR(f64, u32, int64_t)

static void widen_bf16(void *wide, const void *src, size_t count) {
    any_u32 *d = wide;
    const any_u16 *x = src;
    for (size_t i = 0; i < count; i++) d[i] = (uint32_t)x[i] << 16;
}

static void narrow_bf16(void *dst, const void *wide, size_t count) {
    any_u16 *d = dst;
    const any_u32 *x = wide;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = x[i], rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
        d[i] = (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
    }
}

static const struct quant_loops quant_loops = {
    .range = {range_f32, range_f64},
    .encode = {{encode_f32_u8, encode_f32_u16, encode_f32_u32}, {encode_f64_u8, encode_f64_u16, encode_f64_u32}},
    .decode = {{decode_f32_u8, decode_f32_u16, decode_f32_u32}, {decode_f64_u8, decode_f64_u16, decode_f64_u32}},
    .widen_f16 = widen_f16,
    .narrow_f16 = narrow_f16,
    .widen_bf16 = widen_bf16,
    .narrow_bf16 = narrow_bf16,
};

#endif
