// Integer kernels as plain loops, compiled once with the flags of each instruction set: the compiler vectorises all of
// them. Included by the kernels_*.c files only.
#ifndef PCCL_COMPUTE_KERNELS_INT_H
#define PCCL_COMPUTE_KERNELS_INT_H

#include "compute/kernels_levels.h"

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
