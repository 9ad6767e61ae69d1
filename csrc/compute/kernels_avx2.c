// AVX2 with F16C. Empty when compiled without them.
#include "compute/kernels_levels.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>
#include <pccl.h>

VECTORS(__m256, __m256d);

typedef __m256 nan_mask;

static inline nan_mask nan_none(void) { return _mm256_setzero_ps(); }

static inline bool nan_any(nan_mask mask) { return _mm256_movemask_ps(mask) != 0; }

static inline nan_mask nan_note_f32(nan_mask mask, struct f32_pair x) {
    return _mm256_or_ps(mask, _mm256_cmp_ps(x.a, x.b, _CMP_UNORD_Q));
}

static inline nan_mask nan_note_f64(nan_mask mask, struct f64_pair x) {
    return _mm256_or_ps(mask, _mm256_castpd_ps(_mm256_cmp_pd(x.a, x.b, _CMP_UNORD_Q)));
}

// The machine's max and min give the second operand when the two are equal or either is NaN. Taken in both orders, AND
// keeps +0 of two zeros and OR keeps -0; NaN is put in by the comparison.
#define EXTREMES(suffix, v, p, nan) \
    static inline v op_max_##suffix(v x, v y) { \
        v larger = _mm256_and_##p(_mm256_max_##p(x, y), _mm256_max_##p(y, x)); \
        return _mm256_blendv_##p(larger, nan, _mm256_cmp_##p(x, y, _CMP_UNORD_Q)); \
    } \
    static inline v op_min_##suffix(v x, v y) { \
        v smaller = _mm256_or_##p(_mm256_min_##p(x, y), _mm256_min_##p(y, x)); \
        return _mm256_blendv_##p(smaller, nan, _mm256_cmp_##p(x, y, _CMP_UNORD_Q)); \
    }

EXTREMES(f32, __m256, ps, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)))
EXTREMES(f64, __m256d, pd, _mm256_castsi256_pd(_mm256_set1_epi64x(0x7FF8000000000000)))

static inline struct f32_pair load_f16(const uint8_t *p) {
    return (struct f32_pair){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                             _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 16)))};
}

static inline void store_f16(uint8_t *p, struct f32_pair x) {
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(p + 16), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

static inline u32_vector join_halves(u32_vector even, u32_vector odd) {
    return (u32_vector)_mm256_blend_epi16((__m256i)even, (__m256i)odd, 0xAA);
}

static inline u64_vector multiply_halves(u64_vector x, u64_vector y) {
    return (u64_vector)_mm256_mul_epu32((__m256i)x, (__m256i)y);
}

static inline u64_vector swap_halves(u64_vector x) {
    return (u64_vector)_mm256_shuffle_epi32((__m256i)x, _MM_SHUFFLE(1, 0, 3, 2));
}

#include "compute/kernels_vector.h"
#include "compute/kernels_loops.h"

KERNELS_TABLE(KERNEL_AVX2, "avx2");

const struct kernels *kernels_avx2(void) { return &table; }

#else

const struct kernels *kernels_avx2(void) { return NULL; }

#endif
