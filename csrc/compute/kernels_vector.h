// The float kernels and the hash of the vector levels. The including file says what its machine has of its own:
//
//   VECTORS(float vector, double vector)       and that the compiler knows + - * / & | of them
//   op_max_<v>(x, y), op_min_<v>(x, y)         v = f32, f64: with the canonical NaN
//   load_f16(address), store_f16(address, pair)
//   nan_mask, nan_none(), nan_note_<v>(mask, pair), nan_any(mask)     whether any result was NaN
//   join_halves(x, y)                          of u32_vector: the low 16 bits of x, the high ones of y
//   multiply_halves(x, y), swap_halves(x)      of u64_vector: the low 32 bits of each element multiplied; pairs of
//                                              elements in the other order
//
// NaN is rare and the kernels run at the speed of the cache, where replacing each NaN costs a third of it. So sums only
// note that there was one, and a chunk that had some is gone over once more while it is in L1. The machine's NaN
// outlives its rounding to 16 bits: it is the NaN of an operand made quiet, or the default one, and both end in zeros
// there; float16 is narrowed by the machine. What is left at the end of a range goes through the portable kernels.
#ifndef PCCL_COMPUTE_KERNELS_VECTOR_H
#define PCCL_COMPUTE_KERNELS_VECTOR_H

#include "compute/kernels_levels.h"

#define PAIR_ELEMENTS(v) (sizeof(struct v##_pair) / sizeof(any_##v))

#define VECTOR_OPS(v) \
    static inline v##_vector op_sum_##v(v##_vector x, v##_vector y) { return x + y; } \
    static inline v##_vector op_prod_##v(v##_vector x, v##_vector y) { return x * y; } \
    static inline struct v##_pair load_##v(const uint8_t *p) { \
        const any_##v##_vector *at = (const void *)p; \
        return (struct v##_pair){at[0], at[1]}; \
    } \
    static inline void store_##v(uint8_t *p, struct v##_pair x) { \
        any_##v##_vector *at = (void *)p; \
        at[0] = x.a; \
        at[1] = x.b; \
    }

VECTOR_OPS(f32)
VECTOR_OPS(f64)

// The even and the odd elements: nothing has to change its lane.
static inline struct f32_pair load_bf16(const uint8_t *p) {
    u32_vector x = *(const any_u32_vector *)(const void *)p;
    return (struct f32_pair){(f32_vector)(x << 16), (f32_vector)(x & 0xFFFF0000u)};
}

// To nearest even, into the upper half of each lane.
static inline u32_vector round_bf16(f32_vector x) {
    u32_vector bits = (u32_vector)x;
    return bits + (bits >> 16 & 1u) + 0x7FFFu;
}

static inline void store_bf16(uint8_t *p, struct f32_pair x) {
    *(any_u32_vector *)(void *)p = join_halves(round_bf16(x.a) >> 16, round_bf16(x.b));
}

enum { NAN_CHUNK = 64 }; // steps

#define CANONICAL(suffix, bits, magnitude, infinity, nan) \
    static void canonical_##suffix(uint8_t *at, size_t bytes) { \
        any_##bits *d = (any_##bits *)at; \
        for (size_t i = 0; i < bytes / sizeof *d; i++) { \
            any_##bits x = d[i]; \
            d[i] = (x & magnitude) > infinity ? nan : x; \
        } \
    }

CANONICAL(f16, u16, 0x7FFFu, 0x7C00u, (uint16_t)0x7E00u)
CANONICAL(bf16, u16, 0x7FFFu, 0x7F80u, (uint16_t)0x7FC0u)
CANONICAL(f32, u32, 0x7FFFFFFFu, 0x7F800000u, 0x7FC00000u)
CANONICAL(f64, u64, 0x7FFFFFFFFFFFFFFFu, 0x7FF0000000000000u, 0x7FF8000000000000u)

#define NAN_IGNORE(v, nan, x) (nan)
#define NAN_NOTE(v, nan, x) nan_note_##v(nan, x)

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
            x.a = x.a / (real)divisor; \
            x.b = x.b / (real)divisor; \
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

// ---- hash ----
typedef struct {
    u64_vector of[HASH_STRIPE_BYTES / sizeof(u64_vector)];
} hash_lanes;

static inline void hash_accumulate(hash_lanes *lanes, const uint8_t *stripe, const uint8_t *secret) {
    const any_u64_vector *words = (const void *)stripe, *keys = (const void *)secret;
    for (size_t i = 0; i < sizeof lanes->of / sizeof lanes->of[0]; i++) {
        u64_vector word = words[i];
#if defined(__x86_64__)
        __asm__("" : "+x"(word)); // gcc would load it for each use, across two cache lines if it is not aligned
#endif
        u64_vector key = word ^ keys[i];
        u64_vector product = multiply_halves(key, key >> 32);
        lanes->of[i] += swap_halves(word) + product;
    }
}

static inline void hash_scramble(hash_lanes *lanes, const uint8_t *secret) {
    const any_u64_vector *keys = (const void *)secret;
    const u64_vector prime = (u64_vector){0} + HASH_PRIME32_1;
    for (size_t i = 0; i < sizeof lanes->of / sizeof lanes->of[0]; i++) {
        u64_vector x = lanes->of[i] ^ lanes->of[i] >> 47 ^ keys[i];
        lanes->of[i] = multiply_halves(x, prime) + (multiply_halves(x >> 32, prime) << 32);
    }
}

#endif
