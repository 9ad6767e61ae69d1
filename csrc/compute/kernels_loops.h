// Plain loops that the compiler vectorises, compiled once with the flags of each instruction set: the kernels of
// integers, quantisation, blocks and the hash. All sets give equal bits. Included at the end of the kernels_*.c files,
// which have the kernels of floats, widen_f16 and narrow_f16, and of the hash hash_lanes (64 bytes that hold the eight
// lanes in order), hash_accumulate(lanes, stripe, secret) and hash_scramble(lanes, secret).
#ifndef PCCL_COMPUTE_KERNELS_LOOPS_H
#define PCCL_COMPUTE_KERNELS_LOOPS_H

#include "compute/block_code.h"
#include "compute/kernels_levels.h"

#include <string.h>

// ---- integers ----

// `wide` is an unsigned type that the product fits in, or wraps in, without promotion to signed int.
#define INT_REDUCE(name, suffix, wide, expression) \
    static void name##_##suffix(void *dst, const void *a, const void *b, size_t count) { \
        any_##suffix *d = dst; \
        const any_##suffix *p = a, *q = b; \
        INDEPENDENT for (size_t i = 0; i < count; i++) { \
            wide x = p[i], y = q[i]; \
            d[i] = (any_##suffix)(expression); \
        } \
    }

#define INT_MODULAR(suffix, wide) \
    INT_REDUCE(sum, suffix, wide, x + y) \
    INT_REDUCE(prod, suffix, wide, x *y) \
    INT_REDUCE(and, suffix, wide, x &y) \
    INT_REDUCE(or, suffix, wide, x | y) \
    INT_REDUCE(xor, suffix, wide, x ^ y)
#define INT_ORDERED(suffix) \
    INT_REDUCE(max, suffix, any_##suffix, x > y ? x : y) \
    INT_REDUCE(min, suffix, any_##suffix, x < y ? x : y)

INT_MODULAR(u8, uint32_t)
INT_MODULAR(u16, uint32_t)
INT_MODULAR(u32, uint32_t)
INT_MODULAR(u64, uint64_t)
INT_ORDERED(u8)
INT_ORDERED(i8)
INT_ORDERED(u16)
INT_ORDERED(i16)
INT_ORDERED(u32)
INT_ORDERED(i32)
INT_ORDERED(u64)
INT_ORDERED(i64)
INT_REDUCE(and, bool, any_bool, x != 0 && y != 0)
INT_REDUCE(or, bool, any_bool, (x | y) != 0)
INT_REDUCE(xor, bool, any_bool, (x != 0) != (y != 0))

// Vectors have no integer division. The quotient of two floats that is cut to a whole number is exact as long as
// numerator and quotient x divisor stay below the precision: the nearest quotient below an integer n is n - 1/divisor,
// farther from n than half a unit in the last place. A divisor beyond the element's range gives 0 either way.
#define INT_DIVIDE(suffix, real, whole) \
    static void divide_##suffix(void *dst, size_t count, uint32_t divisor) { \
        any_##suffix *d = dst; \
        real by = (real)divisor; \
        for (size_t i = 0; i < count; i++) d[i] = (any_##suffix)(whole)((real)(whole)d[i] / by); \
    }

INT_DIVIDE(u8, float, int32_t)
INT_DIVIDE(i8, float, int32_t)
INT_DIVIDE(u16, float, int32_t)
INT_DIVIDE(i16, float, int32_t)
INT_DIVIDE(u32, double, int64_t)
INT_DIVIDE(i32, double, int32_t)

// floor(n * floor(2^64 / divisor) / 2^64) is the quotient or one less.
static inline uint64_t quotient_u64(uint64_t n, uint64_t divisor, uint64_t reciprocal) {
    __extension__ typedef unsigned __int128 u128;
    uint64_t quotient = (uint64_t)((u128)n * reciprocal >> 64);
    return quotient + (n - quotient * divisor >= divisor);
}

static void divide_u64(void *dst, size_t count, uint32_t divisor) {
    if (divisor == 1) return; // its reciprocal does not fit
    any_u64 *d = dst;
    uint64_t reciprocal = -(uint64_t)divisor / divisor + 1;
    for (size_t i = 0; i < count; i++) d[i] = quotient_u64(d[i], divisor, reciprocal);
}

static void divide_i64(void *dst, size_t count, uint32_t divisor) {
    if (divisor == 1) return;
    any_i64 *d = dst;
    uint64_t reciprocal = -(uint64_t)divisor / divisor + 1;
    for (size_t i = 0; i < count; i++) {
        uint64_t sign = (uint64_t)(d[i] >> 63); // all ones when negative
        uint64_t magnitude = ((uint64_t)d[i] ^ sign) - sign;
        d[i] = (int64_t)((quotient_u64(magnitude, divisor, reciprocal) ^ sign) - sign);
    }
}

// ---- quantisation ----
// Numbers are double throughout: for float elements nothing can overflow or lose its last bit, at a speed still far
// above any link's.

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

// ---- blocks ----
// Codes of four bits lie two in a byte: byte j has the code of element j in its low half, and that of element j + half
// in its high one, where half is half the block, rounded up. So no vector has to be taken apart.

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

// ---- hash ----

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

// ---- the table ----

#define INT_MODULAR_ROW(name) \
    [pcclUint8] = name##_u8, [pcclInt8] = name##_u8, [pcclUint16] = name##_u16, [pcclInt16] = name##_u16, \
    [pcclUint32] = name##_u32, [pcclInt32] = name##_u32, [pcclUint64] = name##_u64, [pcclInt64] = name##_u64
#define INT_ORDERED_ROW(name) \
    [pcclUint8] = name##_u8, [pcclInt8] = name##_i8, [pcclUint16] = name##_u16, [pcclInt16] = name##_i16, \
    [pcclUint32] = name##_u32, [pcclInt32] = name##_i32, [pcclUint64] = name##_u64, [pcclInt64] = name##_i64
#define FLOAT_ROW(name) \
    [pcclFloat16] = name##_f16, [pcclBFloat16] = name##_bf16, [pcclFloat] = name##_f32, [pcclDouble] = name##_f64

// A level's table from the functions named sum_f32, divide_f32 and so on of the including file.
#define KERNELS_TABLE(which, text) \
    static const struct kernels table = { \
        .level = which, \
        .name = text, \
        .reduce = \
            { \
                [pcclSum] = {INT_MODULAR_ROW(sum), FLOAT_ROW(sum), [pcclBool] = or_bool}, \
                [pcclAvg] = {INT_MODULAR_ROW(sum), FLOAT_ROW(sum)}, \
                [pcclProd] = {INT_MODULAR_ROW(prod), FLOAT_ROW(prod), [pcclBool] = and_bool}, \
                [pcclMax] = {INT_ORDERED_ROW(max), FLOAT_ROW(max), [pcclBool] = or_bool}, \
                [pcclMin] = {INT_ORDERED_ROW(min), FLOAT_ROW(min), [pcclBool] = and_bool}, \
                [pcclBand] = {INT_MODULAR_ROW(and), [pcclBool] = and_bool}, \
                [pcclBor] = {INT_MODULAR_ROW(or), [pcclBool] = or_bool}, \
                [pcclBxor] = {INT_MODULAR_ROW(xor), [pcclBool] = xor_bool}, \
            }, \
        .divide = {INT_ORDERED_ROW(divide), FLOAT_ROW(divide)}, \
        .quant = &quant_loops, \
        .block = &block_loops, \
        .hash_long = hash_long, \
    }

#endif
