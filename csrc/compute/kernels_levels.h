// Between kernels.c, codec.c, quant.c and hash.c and the files of the single instruction sets, and for what GPUs do
// likewise. Each of these files gives its table, or NULL when it was compiled for a machine or with flags that lack the
// instruction set; whether this machine has it is kernels.c's to know.
#ifndef PCCL_COMPUTE_KERNELS_LEVELS_H
#define PCCL_COMPUTE_KERNELS_LEVELS_H

#include "compute/block_code.h"
#include "compute/kernels.h"

const struct kernels *kernels_portable(void);
const struct kernels *kernels_avx2(void);
const struct kernels *kernels_avx512(void);
const struct kernels *kernels_neon(void);

// ---- memory: caller's tensors may lie at any address ----
typedef uint8_t any_u8 __attribute__((may_alias));
typedef int8_t any_i8 __attribute__((may_alias));
typedef uint8_t any_bool __attribute__((may_alias));
typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));
typedef int16_t any_i16 __attribute__((aligned(1), may_alias));
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));
typedef int32_t any_i32 __attribute__((aligned(1), may_alias));
typedef uint64_t any_u64 __attribute__((aligned(1), may_alias));
typedef int64_t any_i64 __attribute__((aligned(1), may_alias));
typedef uint16_t any_f16 __attribute__((aligned(1), may_alias));
typedef uint16_t any_bf16 __attribute__((aligned(1), may_alias));
typedef float any_f32 __attribute__((aligned(1), may_alias));
typedef double any_f64 __attribute__((aligned(1), may_alias));

// dst is a, is b, or overlaps neither: no iteration reads what another one wrote.
#if defined(__clang__)
#define INDEPENDENT // clang warns of each such loop that it leaves as it is
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

// ---- vectors ----
// From the machine's names of its vectors of float and double. All are of the same size, and two make a step.
#define VECTORS(of_float, of_double) \
    typedef of_float f32_vector; \
    typedef of_double f64_vector; \
    typedef uint32_t u32_vector __attribute__((vector_size(sizeof(f32_vector)))); \
    typedef uint64_t u64_vector __attribute__((vector_size(sizeof(f32_vector)))); \
    typedef f32_vector any_f32_vector __attribute__((aligned(1), may_alias)); \
    typedef f64_vector any_f64_vector __attribute__((aligned(1), may_alias)); \
    typedef u32_vector any_u32_vector __attribute__((aligned(1), may_alias)); \
    typedef u64_vector any_u64_vector __attribute__((aligned(1), may_alias)); \
    struct f32_pair { \
        f32_vector a, b; \
    }; \
    struct f64_pair { \
        f64_vector a, b; \
    }

// ---- quantisation ----
// A block of codes stands for value = (offset + (code - zero) * scale) * shrink, codes counted from 0 to `last` also
// for signed types, whose stored form has the top bit turned (`flip`).
struct quant_affine {
    double offset, scale, inverse, zero; // inverse = 1 / scale
    double grow, shrink;                 // powers of two, product 1; 1 for float
    uint32_t last, flip;
};

enum { QUANT_FLOAT, QUANT_DOUBLE, QUANT_WIDES }; // of wide values
// Widths of codes. Codes of 64 bits need more than double; quant.c has its own.
enum { QUANT_CODE8, QUANT_CODE16, QUANT_CODE32, QUANT_CODES };

struct quant_loops {
    // The extreme values as integers of the same order (kernels_loops.h).
    void (*range[QUANT_WIDES])(const void *wide, size_t count, int64_t *smallest, int64_t *largest);
    void (*encode[QUANT_WIDES][QUANT_CODES])(void *codes, const void *wide, size_t count,
                                             const struct quant_affine *affine);
    void (*decode[QUANT_WIDES][QUANT_CODES])(void *wide, const void *codes, size_t count,
                                             const struct quant_affine *affine);
    void (*widen_f16)(void *wide, const void *src, size_t count);
    void (*narrow_f16)(void *dst, const void *wide, size_t count);
    void (*widen_bf16)(void *wide, const void *src, size_t count);
    void (*narrow_bf16)(void *dst, const void *wide, size_t count);
};

// ---- blocks ----
// `codes` of one block of `count` floats, none of them NaN or infinite (compute/block_code.h).
struct block_loops {
    // The bits of the largest magnitude; of NaN they are larger than those of infinity.
    uint32_t (*largest)(const void *values, size_t count);
    void (*encode[BLOCK_CODES][BLOCK_ROUNDINGS])(uint8_t *codes, const void *values, size_t count,
                                                 const struct block_scale *by);
    void (*decode[BLOCK_CODES])(void *values, const uint8_t *codes, size_t count, float scale);
    // out[i] = (wanted[i] - got[i]) * times, and 0 where that is not finite. All floats.
    void (*residual)(void *out, const void *wanted, const void *got, float times, size_t count);
};

// ---- hash: the eight lanes that XXH3 runs over more than 240 bytes ----
enum {
    HASH_SECRET_BYTES = 192,
    HASH_STRIPE_BYTES = 64,
    HASH_BLOCK_STRIPES = (HASH_SECRET_BYTES - HASH_STRIPE_BYTES) / 8,
    HASH_BLOCK_BYTES = HASH_BLOCK_STRIPES * HASH_STRIPE_BYTES,
};

extern const uint8_t hash_secret[HASH_SECRET_BYTES];

#define HASH_PRIME32_1 0x9E3779B1u

#endif
