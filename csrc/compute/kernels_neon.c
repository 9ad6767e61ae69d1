// NEON of aarch64. Empty on other machines. Its float16 conversions belong to every aarch64.
#include "compute/kernels_levels.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <pccl.h>

VECTORS(float32x4_t, float64x2_t);

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
#define EXTREMES(suffix, v, t, nan) \
    static inline v canonical_vector_##suffix(v x) { return vbslq_##t(vceqq_##t(x, x), x, nan); } \
    static inline v op_max_##suffix(v x, v y) { return canonical_vector_##suffix(vmaxq_##t(x, y)); } \
    static inline v op_min_##suffix(v x, v y) { return canonical_vector_##suffix(vminq_##t(x, y)); }

EXTREMES(f32, float32x4_t, f32, vreinterpretq_f32_u32(vdupq_n_u32(0x7FC00000)))
EXTREMES(f64, float64x2_t, f64, vreinterpretq_f64_u64(vdupq_n_u64(0x7FF8000000000000)))

static inline struct f32_pair load_f16(const uint8_t *p) {
    float16x8_t x = vreinterpretq_f16_u8(vld1q_u8(p));
    return (struct f32_pair){vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
}

static inline void store_f16(uint8_t *p, struct f32_pair x) {
    vst1q_u8(p, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
}

static inline u32_vector join_halves(u32_vector even, u32_vector odd) { return even | (odd & 0xFFFF0000u); }

static inline u64_vector multiply_halves(u64_vector x, u64_vector y) {
    return (u64_vector)vmull_u32(vmovn_u64((uint64x2_t)x), vmovn_u64((uint64x2_t)y));
}

static inline u64_vector swap_halves(u64_vector x) { return (u64_vector)vextq_u64((uint64x2_t)x, (uint64x2_t)x, 1); }

#include "compute/kernels_vector.h"
#include "compute/kernels_loops.h"

KERNELS_TABLE(KERNEL_NEON, "neon");

const struct kernels *kernels_neon(void) { return &table; }

#else

const struct kernels *kernels_neon(void) { return NULL; }

#endif
