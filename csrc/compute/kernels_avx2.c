// AVX2 with F16C. Empty when compiled without them.
#include "compute/kernels_levels.h"

#if defined(__AVX2__) && defined(__F16C__)

#include "compute/hash_levels.h"
#include "compute/kernels_int.h"

#include <immintrin.h>
#include <pccl.h>

struct f32_pair {
    __m256 a, b;
};
struct f64_pair {
    __m256d a, b;
};

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
#define VECTOR_OPS(suffix, v, p, nan) \
    static inline v op_sum_##suffix(v x, v y) { return _mm256_add_##p(x, y); } \
    static inline v op_prod_##suffix(v x, v y) { return _mm256_mul_##p(x, y); } \
    static inline v op_div_##suffix(v x, v y) { return _mm256_div_##p(x, y); } \
    static inline v op_max_##suffix(v x, v y) { \
        v larger = _mm256_and_##p(_mm256_max_##p(x, y), _mm256_max_##p(y, x)); \
        return _mm256_blendv_##p(larger, nan, _mm256_cmp_##p(x, y, _CMP_UNORD_Q)); \
    } \
    static inline v op_min_##suffix(v x, v y) { \
        v smaller = _mm256_or_##p(_mm256_min_##p(x, y), _mm256_min_##p(y, x)); \
        return _mm256_blendv_##p(smaller, nan, _mm256_cmp_##p(x, y, _CMP_UNORD_Q)); \
    }

VECTOR_OPS(f32, __m256, ps, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)))
VECTOR_OPS(f64, __m256d, pd, _mm256_castsi256_pd(_mm256_set1_epi64x(0x7FF8000000000000)))

static inline __m256 splat_f32(float x) { return _mm256_set1_ps(x); }

static inline __m256d splat_f64(double x) { return _mm256_set1_pd(x); }

static inline struct f32_pair load_f32(const uint8_t *p) {
    return (struct f32_pair){_mm256_loadu_ps((const void *)p), _mm256_loadu_ps((const void *)(p + 32))};
}

static inline void store_f32(uint8_t *p, struct f32_pair x) {
    _mm256_storeu_ps((void *)p, x.a);
    _mm256_storeu_ps((void *)(p + 32), x.b);
}

static inline struct f64_pair load_f64(const uint8_t *p) {
    return (struct f64_pair){_mm256_loadu_pd((const void *)p), _mm256_loadu_pd((const void *)(p + 32))};
}

static inline void store_f64(uint8_t *p, struct f64_pair x) {
    _mm256_storeu_pd((void *)p, x.a);
    _mm256_storeu_pd((void *)(p + 32), x.b);
}

static inline struct f32_pair load_f16(const uint8_t *p) {
    return (struct f32_pair){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                             _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 16)))};
}

static inline void store_f16(uint8_t *p, struct f32_pair x) {
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(p + 16), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

// The even and the odd elements: nothing has to change its lane.
static inline struct f32_pair load_bf16(const uint8_t *p) {
    __m256i x = _mm256_loadu_si256((const void *)p);
    __m256i odd = _mm256_and_si256(x, _mm256_set1_epi32((int)0xFFFF0000));
    return (struct f32_pair){_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), _mm256_castsi256_ps(odd)};
}

// To nearest even, into the upper half of each lane.
static inline __m256i round_bf16(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), last);
}

static inline void store_bf16(uint8_t *p, struct f32_pair x) {
    __m256i even = _mm256_srli_epi32(round_bf16(x.a), 16);
    _mm256_storeu_si256((void *)p, _mm256_blend_epi16(even, round_bf16(x.b), 0xAA));
}

#include "compute/kernels_float.h"
#include "compute/quant_loops.h"

typedef struct {
    __m256i half[2];
} hash_lanes;

static inline void hash_accumulate(hash_lanes *lanes, const uint8_t *stripe, const uint8_t *secret) {
    for (size_t i = 0; i < 2; i++) {
        __m256i words = _mm256_loadu_si256((const void *)(stripe + 32 * i));
        __m256i keys = _mm256_xor_si256(words, _mm256_loadu_si256((const void *)(secret + 32 * i)));
        __m256i products = _mm256_mul_epu32(keys, _mm256_srli_epi64(keys, 32));
        __m256i swapped = _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
        lanes->half[i] = _mm256_add_epi64(_mm256_add_epi64(lanes->half[i], swapped), products);
    }
}

static inline void hash_scramble(hash_lanes *lanes, const uint8_t *secret) {
    const __m256i prime = _mm256_set1_epi64x(HASH_PRIME32_1);
    for (size_t i = 0; i < 2; i++) {
        __m256i x = lanes->half[i];
        x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 47));
        x = _mm256_xor_si256(x, _mm256_loadu_si256((const void *)(secret + 32 * i)));
        __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), prime);
        lanes->half[i] = _mm256_add_epi64(_mm256_mul_epu32(x, prime), _mm256_slli_epi64(high, 32));
    }
}

#include "compute/hash_loop.h"

KERNELS_TABLE(KERNEL_AVX2, "avx2");

const struct kernels *kernels_avx2(void) { return &table; }

#else

const struct kernels *kernels_avx2(void) { return NULL; }

#endif
