// Sum, product, maximum and minimum of two floats (compute/kernels.h): op_sum_f32(x, y) and so on; and the canonical
// NaN.
#ifndef PCCL_COMPUTE_FLOAT_OPS_H
#define PCCL_COMPUTE_FLOAT_OPS_H

#include "compute/element.h"

ELEMENT float canonical_f32(float x) { return x != x ? float_from_bits(0x7FC00000u) : x; }

ELEMENT double canonical_f64(double x) {
    uint64_t nan = 0x7FF8000000000000u;
    if (x != x) memcpy(&x, &nan, sizeof x);
    return x;
}

ELEMENT int is_negative_f32(float x) { return (int)(float_to_bits(x) >> 31); }

ELEMENT int is_negative_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 63);
}

// Two equal values may differ: -0 and +0.
#define FLOAT_OPS(suffix, real) \
    ELEMENT real op_sum_##suffix(real x, real y) { return canonical_##suffix(x + y); } \
    ELEMENT real op_prod_##suffix(real x, real y) { return canonical_##suffix(x * y); } \
    ELEMENT real op_max_##suffix(real x, real y) { \
        if (x != x || y != y) return canonical_##suffix(x + y); \
        return x > y || (x == y && !is_negative_##suffix(x)) ? x : y; \
    } \
    ELEMENT real op_min_##suffix(real x, real y) { \
        if (x != x || y != y) return canonical_##suffix(x + y); \
        return x < y || (x == y && is_negative_##suffix(x)) ? x : y; \
    }

FLOAT_OPS(f32, float)
FLOAT_OPS(f64, double)

#endif
