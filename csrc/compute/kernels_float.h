// The float kernels of the vector levels. The including file says what one step is on its machine:
//
//   struct f32_pair, struct f64_pair     two vectors, `a` and `b`
//   load_<type>(address), store_<type>(address, pair)     for f16, bf16 (as float), f32, f64: as many elements as the
//   pair holds, anywhere op_sum_<v>, op_prod_<v>, op_div_<v>(x, y)     v = f32, f64: what the machine gives op_max_<v>,
//   op_min_<v>(x, y)     with the canonical NaN splat_<v>(value) nan_mask, nan_none(), nan_note_<v>(mask, pair),
//   nan_any(mask)     whether any result was NaN
//
// NaN is rare and the kernels run at the speed of the cache, where replacing each NaN costs a third of it. So sums only
// note that there was one, and a chunk that had some is gone over once more while it is in L1. The machine's NaN
// outlives its rounding to 16 bits: it is the NaN of an operand made quiet, or the default one, and both end in zeros
// there; float16 is narrowed by the machine. What is left at the end of a range goes through the portable kernels.
#ifndef PCCL_COMPUTE_KERNELS_FLOAT_H
#define PCCL_COMPUTE_KERNELS_FLOAT_H

#include "compute/quant_levels.h"

enum { NAN_CHUNK = 64 }; // steps

#define CANONICAL(suffix, bits, magnitude, infinity, nan) \
    static void canonical_##suffix(uint8_t *at, size_t bytes) { \
        any_##bits *d = (any_##bits *)at; \
        for (size_t i = 0; i < bytes / sizeof *d; i++) { \
            bits##_bits x = d[i]; \
            d[i] = (x & magnitude) > infinity ? nan : x; \
        } \
    }

typedef uint16_t u16_bits;
typedef uint32_t u32_bits;
typedef uint64_t u64_bits;
CANONICAL(f16, u16, 0x7FFFu, 0x7C00u, (uint16_t)0x7E00u)
CANONICAL(bf16, u16, 0x7FFFu, 0x7F80u, (uint16_t)0x7FC0u)
CANONICAL(f32, u32, 0x7FFFFFFFu, 0x7F800000u, 0x7FC00000u)
CANONICAL(f64, u64, 0x7FFFFFFFFFFFFFFFu, 0x7FF0000000000000u, 0x7FF8000000000000u)

#define NAN_IGNORE(v, nan, x) (nan)
#define NAN_NOTE(v, nan, x) nan_note_##v(nan, x)

#define PAIR_ELEMENTS(v) (sizeof(struct v##_pair) / sizeof(any_##v))

// Runs `body` on the pair x at byte i of the range, for all whole steps; i ends at the first byte left over.
#define FLOAT_STEPS(suffix, v, note, body) \
    size_t size = sizeof(any_##suffix), step = PAIR_ELEMENTS(v) * size; \
    size_t bytes = count * size, whole = bytes - bytes % step, i = 0; \
    while (i < whole) { \
        size_t start = i, end = whole - i < NAN_CHUNK * step ? whole : i + NAN_CHUNK * step; \
        nan_mask nan = nan_none(); \
        _Pragma("GCC unroll 2") for (; i < end; i += step) { \
            struct v##_pair x; \
            body; \
            nan = note(v, nan, x); \
            store_##suffix(d + i, x); \
        } \
        if (nan_any(nan)) canonical_##suffix(d + start, end - start); \
    }

#define FLOAT_REDUCE(name, op, suffix, v, dtype, note) \
    static void name##_##suffix(void *dst, const void *a, const void *b, size_t count) { \
        uint8_t *d = dst; \
        const uint8_t *p = a, *q = b; \
        FLOAT_STEPS(suffix, v, note, { \
            struct v##_pair y = load_##suffix(q + i); \
            x = load_##suffix(p + i); \
            x.a = op_##name##_##v(x.a, y.a); \
            x.b = op_##name##_##v(x.b, y.b); \
        }) \
        if (i < bytes) kernels_portable()->reduce[op][dtype](d + i, p + i, q + i, (bytes - i) / size); \
    }

#define FLOAT_DIVIDE(suffix, v, real, dtype) \
    static void divide_##suffix(void *dst, size_t count, uint32_t divisor) { \
        uint8_t *d = dst; \
        FLOAT_STEPS(suffix, v, NAN_NOTE, { \
            x = load_##suffix(d + i); \
            x.a = op_div_##v(x.a, splat_##v((real)divisor)); \
            x.b = op_div_##v(x.b, splat_##v((real)divisor)); \
        }) \
        if (i < bytes) kernels_portable()->divide[dtype](d + i, (bytes - i) / size, divisor); \
    }

#define FLOAT_KERNELS(suffix, v, real, dtype) \
    FLOAT_REDUCE(sum, pcclSum, suffix, v, dtype, NAN_NOTE) \
    FLOAT_REDUCE(prod, pcclProd, suffix, v, dtype, NAN_NOTE) \
    FLOAT_REDUCE(max, pcclMax, suffix, v, dtype, NAN_IGNORE) \
    FLOAT_REDUCE(min, pcclMin, suffix, v, dtype, NAN_IGNORE) \
    FLOAT_DIVIDE(suffix, v, real, dtype)

FLOAT_KERNELS(f16, f32, float, pcclFloat16)
FLOAT_KERNELS(bf16, f32, float, pcclBFloat16)
FLOAT_KERNELS(f32, f32, float, pcclFloat)
FLOAT_KERNELS(f64, f64, double, pcclDouble)

static void widen_f16(void *wide, const void *src, size_t count) {
    uint8_t *d = wide;
    const uint8_t *p = src;
    size_t step = PAIR_ELEMENTS(f32), i = 0;
    for (; count - i >= step; i += step) store_f32(d + 4 * i, load_f16(p + 2 * i));
    if (i < count) kernels_portable()->quant->widen_f16(d + 4 * i, p + 2 * i, count - i);
}

static void narrow_f16(void *dst, const void *wide, size_t count) {
    uint8_t *d = dst;
    const uint8_t *p = wide;
    FLOAT_STEPS(f16, f32, NAN_NOTE, x = load_f32(p + 2 * i))
    if (i < bytes) kernels_portable()->quant->narrow_f16(d + i, p + 2 * i, (bytes - i) / size);
}

#endif
