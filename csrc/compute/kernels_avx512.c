// AVX-512 with F, BW, DQ and VL. Empty when compiled without them.
#include "compute/kernels_levels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include <immintrin.h>
#include <pccl.h>

VECTORS(__m512, __m512d);

typedef __mmask16 nan_mask;

static inline nan_mask nan_none(void) { return 0; }

static inline bool nan_any(nan_mask mask) { return mask != 0; }

static inline nan_mask nan_note_f32(nan_mask mask, struct f32_pair x) {
    return _kor_mask16(mask, _mm512_cmp_ps_mask(x.a, x.b, _CMP_UNORD_Q));
}

static inline nan_mask nan_note_f64(nan_mask mask, struct f64_pair x) {
    return _kor_mask16(mask, _mm512_cmp_pd_mask(x.a, x.b, _CMP_UNORD_Q));
}

// The machine's max and min give the second operand when the two are equal or either is NaN. Taken in both orders, AND
// keeps +0 of two zeros and OR keeps -0; NaN is put in by the comparison.
#define EXTREMES(suffix, v, p, nan) \
    static inline v op_max_##suffix(v x, v y) { \
        v larger = _mm512_and_##p(_mm512_max_##p(x, y), _mm512_max_##p(y, x)); \
        return _mm512_mask_mov_##p(larger, _mm512_cmp_##p##_mask(x, y, _CMP_UNORD_Q), nan); \
    } \
    static inline v op_min_##suffix(v x, v y) { \
        v smaller = _mm512_or_##p(_mm512_min_##p(x, y), _mm512_min_##p(y, x)); \
        return _mm512_mask_mov_##p(smaller, _mm512_cmp_##p##_mask(x, y, _CMP_UNORD_Q), nan); \
    }

EXTREMES(f32, __m512, ps, _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)))
EXTREMES(f64, __m512d, pd, _mm512_castsi512_pd(_mm512_set1_epi64(0x7FF8000000000000)))

static inline struct f32_pair load_f16(const uint8_t *p) {
    return (struct f32_pair){_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)),
                             _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p + 32)))};
}

enum { ALL_LANES = 0xFFFF }; // gcc passes -1 as the mask of the form without one
static inline void store_f16(uint8_t *p, struct f32_pair x) {
    _mm256_storeu_si256((void *)p, _mm512_maskz_cvtps_ph(ALL_LANES, x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm256_storeu_si256((void *)(p + 32), _mm512_maskz_cvtps_ph(ALL_LANES, x.b, _MM_FROUND_TO_NEAREST_INT));
}

static inline u32_vector join_halves(u32_vector even, u32_vector odd) { return even | (odd & 0xFFFF0000u); }

static inline u64_vector multiply_halves(u64_vector x, u64_vector y) {
    return (u64_vector)_mm512_mul_epu32((__m512i)x, (__m512i)y);
}

static inline u64_vector swap_halves(u64_vector x) {
    return (u64_vector)_mm512_shuffle_epi32((__m512i)x, _MM_PERM_BADC);
}

#include "compute/kernels_vector.h"
#include "compute/kernels_loops.h"

KERNELS_TABLE(KERNEL_AVX512, "avx512");

const struct kernels *kernels_avx512(void) { return &table; }

#else

const struct kernels *kernels_avx512(void) { return NULL; }

#endif
