// Between quant.c and the loops of each instruction set.
//
// A block of codes stands for value = (offset + (code - zero) * scale) * shrink, codes counted from 0 to `last` also
// for signed types, whose stored form has the top bit turned (`flip`).
#ifndef PCCL_COMPUTE_QUANT_LEVELS_H
#define PCCL_COMPUTE_QUANT_LEVELS_H

#include <stddef.h>
#include <stdint.h>

struct quant_affine {
    double offset, scale, inverse, zero; // inverse = 1 / scale
    double grow, shrink;                 // powers of two, product 1; 1 for float
    uint32_t last, flip;
};

enum { QUANT_FLOAT, QUANT_DOUBLE, QUANT_WIDES }; // of wide values
enum {
    QUANT_CODE8,
    QUANT_CODE16,
    QUANT_CODE32,
    QUANT_CODES
}; // 64-bit codes need more than double and are quant.c's own

struct quant_loops {
    // The extreme values as integers of the same order (quant_loops.h).
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

#endif
