// NEON of aarch64. Empty on other machines. Its float16 conversions belong to every aarch64.
#include "compute/kernels_levels.h"

#if defined(__aarch64__)

#include "compute/hash_levels.h"
#include "compute/kernels_int.h"

#include <arm_neon.h>
#include <pccl.h>

struct f32_pair {
    float32x4_t a, b;
};
struct f64_pair {
    float64x2_t a, b;
};

typedef uint32x4_t nan_mask; // lanes without NaN are all ones

static inline nan_mask nan_none(void) { return vdupq_n_u32(UINT32_MAX); }

static inline bool nan_any(nan_mask mask) { return vminvq_u32(mask) != UINT32_MAX; }

static inline nan_mask nan_note_f32(nan_mask mask, struct f32_pair x) {
    return vandq_u32(mask, vandq_u32(vceqq_f32(x.a, x.a), vceqq_f32(x.b, x.b)));
}

static inline nan_mask nan_note_f64(nan_mask mask, struct f64_pair x) {
    return vandq_u32(mask, vreinterpretq_u32_u64(vandq_u64(vceqq_f64(x.a, x.a), vceqq_f64(x.b, x.b))));
}

// The machine orders the zeros and passes NaN on in max and min by itself.
#define VECTOR_OPS(suffix, v, t, nan) \
    static inline v canonical_vector_##suffix(v x) { return vbslq_##t(vceqq_##t(x, x), x, nan); } \
    static inline v op_sum_##suffix(v x, v y) { return vaddq_##t(x, y); } \
    static inline v op_prod_##suffix(v x, v y) { return vmulq_##t(x, y); } \
    static inline v op_div_##suffix(v x, v y) { return vdivq_##t(x, y); } \
    static inline v op_max_##suffix(v x, v y) { return canonical_vector_##suffix(vmaxq_##t(x, y)); } \
    static inline v op_min_##suffix(v x, v y) { return canonical_vector_##suffix(vminq_##t(x, y)); }

VECTOR_OPS(f32, float32x4_t, f32, vreinterpretq_f32_u32(vdupq_n_u32(0x7FC00000)))
VECTOR_OPS(f64, float64x2_t, f64, vreinterpretq_f64_u64(vdupq_n_u64(0x7FF8000000000000)))

static inline float32x4_t splat_f32(float x) { return vdupq_n_f32(x); }

static inline float64x2_t splat_f64(double x) { return vdupq_n_f64(x); }

// Byte loads and stores: the only ones that promise nothing about the address.
static inline struct f32_pair load_f32(const uint8_t *p) {
    return (struct f32_pair){vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))};
}

static inline void store_f32(uint8_t *p, struct f32_pair x) {
    vst1q_u8(p, vreinterpretq_u8_f32(x.a));
    vst1q_u8(p + 16, vreinterpretq_u8_f32(x.b));
}

static inline struct f64_pair load_f64(const uint8_t *p) {
    return (struct f64_pair){vreinterpretq_f64_u8(vld1q_u8(p)), vreinterpretq_f64_u8(vld1q_u8(p + 16))};
}

static inline void store_f64(uint8_t *p, struct f64_pair x) {
    vst1q_u8(p, vreinterpretq_u8_f64(x.a));
    vst1q_u8(p + 16, vreinterpretq_u8_f64(x.b));
}

static inline struct f32_pair load_f16(const uint8_t *p) {
    float16x8_t x = vreinterpretq_f16_u8(vld1q_u8(p));
    return (struct f32_pair){vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
}

static inline void store_f16(uint8_t *p, struct f32_pair x) {
    vst1q_u8(p, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
}

static inline struct f32_pair load_bf16(const uint8_t *p) {
    uint16x8_t x = vreinterpretq_u16_u8(vld1q_u8(p));
    return (struct f32_pair){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)),
                             vreinterpretq_f32_u32(vshll_high_n_u16(x, 16))};
}

// To nearest even, into the upper half of each lane.
static inline uint32x4_t round_bf16(float32x4_t x) {
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t last = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), last);
}

static inline void store_bf16(uint8_t *p, struct f32_pair x) {
    vst1q_u8(p, vreinterpretq_u8_u16(vshrn_high_n_u32(vshrn_n_u32(round_bf16(x.a), 16), round_bf16(x.b), 16)));
}

#include "compute/kernels_float.h"
#include "compute/quant_loops.h"

typedef struct {
    uint64x2_t two[4];
} hash_lanes;

static inline void hash_accumulate(hash_lanes *lanes, const uint8_t *stripe, const uint8_t *secret) {
    for (size_t i = 0; i < 4; i++) {
        uint64x2_t words = vreinterpretq_u64_u8(vld1q_u8(stripe + 16 * i));
        uint64x2_t keys = veorq_u64(words, vreinterpretq_u64_u8(vld1q_u8(secret + 16 * i)));
        uint64x2_t sum = vaddq_u64(lanes->two[i], vextq_u64(words, words, 1));
        lanes->two[i] = vmlal_u32(sum, vmovn_u64(keys), vshrn_n_u64(keys, 32));
    }
}

static inline void hash_scramble(hash_lanes *lanes, const uint8_t *secret) {
    const uint32x2_t prime = vdup_n_u32(HASH_PRIME32_1);
    for (size_t i = 0; i < 4; i++) {
        uint64x2_t x = veorq_u64(lanes->two[i], vshrq_n_u64(lanes->two[i], 47));
        x = veorq_u64(x, vreinterpretq_u64_u8(vld1q_u8(secret + 16 * i)));
        uint64x2_t high = vshlq_n_u64(vmull_u32(vshrn_n_u64(x, 32), prime), 32);
        lanes->two[i] = vmlal_u32(high, vmovn_u64(x), prime);
    }
}

#include "compute/hash_loop.h"

KERNELS_TABLE(KERNEL_NEON, "neon");

const struct kernels *kernels_neon(void) { return &table; }

#else

const struct kernels *kernels_neon(void) { return NULL; }

#endif
