// Quantisation of one block, round to nearest, with the block's own scale. Pure.
//
// MinMax: code = round((x - min) / (max - min) * levels), x = min + code * (max - min) / levels, over the full range of
// the code type. ZeroPointScale: x = (code - zero_point) * scale, with a whole zero point when the block reaches or is
// near 0, so that 0 comes back as 0. Both give a constant finite block back exactly (also -0, also denormal), and are
// never off by more than half a step (max - min) / levels plus the rounding of the element type, at any range that the
// type has. MinMax gives the ends of the range back. A block that holds NaN or infinity comes back as all NaN: the
// codes have no value to spare for them. Decoding gives the same bits on every machine and at every kernel level.
// Buffers may lie at any address.
#ifndef PCCL_COMPUTE_QUANT_H
#define PCCL_COMPUTE_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    QUANT_BLOCK = 65536,   // elements that share one scale; the last block of a shard may be shorter
    QUANT_META_BYTES = 32, // head of an encoded block
};

// True when the contract (5.4) allows this combination; algorithm None is not a combination.
bool quant_supported(int dtype, int quantised_dtype, int algorithm);

// Bytes of an encoded block of `count` elements: QUANT_META_BYTES + count codes.
size_t quant_encoded_bytes(int quantised_dtype, size_t count);

// Accumulators are float for float16, bfloat16 and float, double for double: `quant_wide_size` bytes per element.
size_t quant_wide_size(int dtype);
// wide[i] = src[i]
void quant_widen(int dtype, void *wide, const void *src, size_t count);
// dst[i] = wide[i], rounded to nearest even
void quant_narrow(int dtype, void *dst, const void *wide, size_t count);
// Encodes `count` <= QUANT_BLOCK wide values.
void quant_encode(int dtype, int quantised_dtype, int algorithm, uint8_t *out, const void *wide, size_t count);
// Decodes to wide values. False when the head is malformed for these arguments (lengths are the caller's to check).
bool quant_decode(int dtype, int quantised_dtype, int algorithm, void *wide, const uint8_t *in, size_t count);
// acc[i] = acc[i] op wide[i] (op: pcclRedOp_t; AVG as SUM), in wide precision, same NaN and zero rules as kernels.h.
void quant_reduce(int dtype, int op, void *acc, const void *wide, size_t count);
// acc[i] /= divisor
void quant_divide(int dtype, void *acc, size_t count, uint32_t divisor);

#endif
