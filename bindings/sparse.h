// Sparse forms of float tensors: the largest elements of each chunk, in two bits each (SparseLoCo, arXiv 2508.15706).
//
// A tensor is cut into chunks of SPARSE_CHUNK elements; the last one may be shorter. A chunk has min(k, its length)
// entries, and a form is its chunks one behind the other, each of these bytes, little-endian:
//
//     4                    scale: float, 0 or positive and at most FLT_MAX / 2, or NaN
//     12 bits per entry    index of the element in its chunk, from the low bits on; the last byte is padded
//     2 bits per entry     bit 0: the magnitude is scale (0) or 2 * scale (1); bit 1: the sign; padded likewise
//
// Indices ascend. An entry that repeats the index before it is unused, and so are all that follow. A chunk of scale 0
// has no elements. Scale NaN: all elements of the entries are NaN.
//
// Pure; buffers may lie at any address; the same bits on every machine. A module of the Python package by itself
// (pccl/_peer/sparse.py), and no part of the core.
#ifndef PCCL_BINDINGS_SPARSE_H
#define PCCL_BINDINGS_SPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SPARSE_CHUNK = 4096 };

// The bytes of a form; k from 1 to SPARSE_CHUNK, count up to SIZE_MAX / sizeof(float).
size_t sparse_bytes(size_t count, size_t k);

// Writes the form of x = values + decay * residual_in (rounded as float), and residual_out = x less what the form
// stands for. residual_in may be NULL, which counts as 0, and so may residual_out, which may also be one of the inputs.
//
// Of each chunk the k elements of largest magnitude are taken, of equals those of lower index. Of these the scale is
// the one of least squared error that a few rounds of Lloyd's algorithm find; those nearer to 0 than to it are left
// out. A chunk that holds NaN or infinity (which count as largest, NaN first) has the scale NaN; its residual is 0
// where elements were sent or are not finite.
void sparse_encode(uint8_t *form, const float *values, const float *residual_in, float decay, size_t count, size_t k,
                   float *residual_out);

// Whether any bytes are a form of that many elements.
bool sparse_valid(const uint8_t *form, size_t count, size_t k);

// sum += weight * what a valid form stands for; computed in double, rounded once. A weight of 0 adds nothing. A NaN is
// always the same one.
void sparse_add(float *sum, const uint8_t *form, double weight, size_t count, size_t k);

#endif
