// AVX-512 with F, BW, DQ and VL. Empty when compiled without them.
#include "compute/kernels_levels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "compute/hash_levels.h"
#include "compute/kernels_int.h"

#include <immintrin.h>
#include <pccl.h>

struct f32_pair {
    __m512 a, b;
};
struct f64_pair {
    __m512d a, b;
};

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
#define VECTOR_OPS(suffix, v, p, nan) \
    static inline v op_sum_##suffix(v x, v y) { return _mm512_add_##p(x, y); } \
    static inline v op_prod_##suffix(v x, v y) { return _mm512_mul_##p(x, y); } \
    static inline v op_div_##suffix(v x, v y) { return _mm512_div_##p(x, y); } \
    static inline v op_max_##suffix(v x, v y) { \
        v larger = _mm512_and_##p(_mm512_max_##p(x, y), _mm512_max_##p(y, x)); \
        return _mm512_mask_mov_##p(larger, _mm512_cmp_##p##_mask(x, y, _CMP_UNORD_Q), nan); \
    } \
    static inline v op_min_##suffix(v x, v y) { \
        v smaller = _mm512_or_##p(_mm512_min_##p(x, y), _mm512_min_##p(y, x)); \
        return _mm512_mask_mov_##p(smaller, _mm512_cmp_##p##_mask(x, y, _CMP_UNORD_Q), nan); \
    }

VECTOR_OPS(f32, __m512, ps, _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)))
VECTOR_OPS(f64, __m512d, pd, _mm512_castsi512_pd(_mm512_set1_epi64(0x7FF8000000000000)))

static inline __m512 splat_f32(float x) { return _mm512_set1_ps(x); }

static inline __m512d splat_f64(double x) { return _mm512_set1_pd(x); }

static inline struct f32_pair load_f32(const uint8_t *p) {
    return (struct f32_pair){_mm512_loadu_ps(p), _mm512_loadu_ps(p + 64)};
}

static inline void store_f32(uint8_t *p, struct f32_pair x) {
    _mm512_storeu_ps(p, x.a);
    _mm512_storeu_ps(p + 64, x.b);
}

static inline struct f64_pair load_f64(const uint8_t *p) {
    return (struct f64_pair){_mm512_loadu_pd(p), _mm512_loadu_pd(p + 64)};
}

static inline void store_f64(uint8_t *p, struct f64_pair x) {
    _mm512_storeu_pd(p, x.a);
    _mm512_storeu_pd(p + 64, x.b);
}

static inline struct f32_pair load_f16(const uint8_t *p) {
    return (struct f32_pair){_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)),
                             _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p + 32)))};
}

static inline void store_f16(uint8_t *p, struct f32_pair x) {
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm256_storeu_si256((void *)(p + 32), _mm512_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

// The even and the odd elements: nothing has to change its lane.
static inline struct f32_pair load_bf16(const uint8_t *p) {
    __m512i x = _mm512_loadu_si512(p);
    __m512i odd = _mm512_and_si512(x, _mm512_set1_epi32((int)0xFFFF0000));
    return (struct f32_pair){_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), _mm512_castsi512_ps(odd)};
}

// To nearest even, into the upper half of each lane.
static inline __m512i round_bf16(__m512 x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), last);
}

static inline void store_bf16(uint8_t *p, struct f32_pair x) {
    __m512i even = _mm512_srli_epi32(round_bf16(x.a), 16);
    _mm512_storeu_si512(p, _mm512_mask_mov_epi16(even, 0xAAAAAAAA, round_bf16(x.b)));
}

#include "compute/kernels_float.h"
#include "compute/quant_loops.h"

typedef __m512i hash_lanes;

static inline void hash_accumulate(hash_lanes *lanes, const uint8_t *stripe, const uint8_t *secret) {
    __m512i words = _mm512_loadu_si512(stripe);
    __m512i keys = _mm512_xor_si512(words, _mm512_loadu_si512(secret));
    __m512i products = _mm512_mul_epu32(keys, _mm512_srli_epi64(keys, 32));
    __m512i swapped = _mm512_shuffle_epi32(words, _MM_PERM_BADC);
    *lanes = _mm512_add_epi64(_mm512_add_epi64(*lanes, swapped), products);
}

static inline void hash_scramble(hash_lanes *lanes, const uint8_t *secret) {
    const __m512i prime = _mm512_set1_epi64(HASH_PRIME32_1);
    __m512i x = _mm512_xor_si512(*lanes, _mm512_srli_epi64(*lanes, 47));
    x = _mm512_xor_si512(x, _mm512_loadu_si512(secret));
    __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), prime);
    *lanes = _mm512_add_epi64(_mm512_mul_epu32(x, prime), _mm512_slli_epi64(high, 32));
}

#include "compute/hash_loop.h"

KERNELS_TABLE(KERNEL_AVX512, "avx512");

const struct kernels *kernels_avx512(void) { return &table; }

#else

const struct kernels *kernels_avx512(void) { return NULL; }

#endif
