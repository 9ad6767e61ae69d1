// Every kernel in plain C: what the other levels must equal bit for bit, and what finishes their last few elements.
#include "compute/float_ops.h"
#include "compute/kernels_levels.h"

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

// XXH3's default secret. It is here because all levels need it, and compute/hash needs the levels.
// clang-format off
const uint8_t hash_secret[HASH_SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
// clang-format on

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

#include "compute/kernels_loops.h"

KERNELS_TABLE(KERNEL_PORTABLE, "portable");

const struct kernels *kernels_portable(void) { return &table; }
