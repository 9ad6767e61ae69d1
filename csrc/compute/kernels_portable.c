// Every kernel in plain C: what the other levels must equal bit for bit, and what finishes their last few elements.
#include "compute/float_ops.h"
#include "compute/kernels_levels.h"
#include "compute/kernels_int.h"

#include <pccl.h>

#define SAME(x) (x)

#define FLOAT_REDUCE(name, suffix, element, wide, load, store) \
    static void name##_##suffix(void *dst, const void *a, const void *b, size_t count) { \
        element *d = dst; \
        const element *p = a, *q = b; \
        INDEPENDENT for (size_t i = 0; i < count; i++) d[i] = store(op_##name##_##wide(load(p[i]), load(q[i]))); \
    }
#define FLOAT_DIVIDE(suffix, element, wide, real, load, store) \
    static void divide_##suffix(void *dst, size_t count, uint32_t divisor) { \
        element *d = dst; \
        real by = (real)divisor; \
        for (size_t i = 0; i < count; i++) d[i] = store(canonical_##wide(load(d[i]) / by)); \
    }
#define FLOAT_KERNELS(suffix, element, wide, real, load, store) \
    FLOAT_REDUCE(sum, suffix, element, wide, load, store) \
    FLOAT_REDUCE(prod, suffix, element, wide, load, store) \
    FLOAT_REDUCE(max, suffix, element, wide, load, store) \
    FLOAT_REDUCE(min, suffix, element, wide, load, store) \
    FLOAT_DIVIDE(suffix, element, wide, real, load, store)

FLOAT_KERNELS(f16, any_f16, f32, float, float_from_f16, float_to_f16)
FLOAT_KERNELS(bf16, any_bf16, f32, float, float_from_bf16, float_to_bf16)
FLOAT_KERNELS(f32, any_f32, f32, float, SAME, SAME)
FLOAT_KERNELS(f64, any_f64, f64, double, SAME, SAME)

static void widen_f16(void *wide, const void *src, size_t count) {
    any_f32 *d = wide;
    const any_f16 *x = src;
    for (size_t i = 0; i < count; i++) d[i] = float_from_f16(x[i]);
}

static void narrow_f16(void *dst, const void *wide, size_t count) {
    any_f16 *d = dst;
    const any_f32 *x = wide;
    for (size_t i = 0; i < count; i++) d[i] = float_to_f16(x[i]);
}

#include "compute/quant_loops.h"
#include "compute/block_loops.h"

typedef struct {
    uint64_t lane[8];
} hash_lanes;

static inline void hash_accumulate(hash_lanes *lanes, const uint8_t *stripe, const uint8_t *secret) {
    const any_u64 *words = (const any_u64 *)stripe, *keys = (const any_u64 *)secret;
    for (size_t i = 0; i < 8; i++) {
        uint64_t word = words[i], key = word ^ keys[i];
        lanes->lane[i ^ 1] += word;
        lanes->lane[i] += (key & UINT32_MAX) * (key >> 32);
    }
}

static inline void hash_scramble(hash_lanes *lanes, const uint8_t *secret) {
    const any_u64 *keys = (const any_u64 *)secret;
    for (size_t i = 0; i < 8; i++) {
        uint64_t x = lanes->lane[i];
        lanes->lane[i] = (x ^ x >> 47 ^ keys[i]) * HASH_PRIME32_1;
    }
}

#include "compute/hash_loop.h"

KERNELS_TABLE(KERNEL_PORTABLE, "portable");

const struct kernels *kernels_portable(void) { return &table; }
