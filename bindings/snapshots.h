// Kernels for snapshots of a state: a hash that does not depend on how tensors are divided, the search for blocks that
// have changed, and sums for the parity of units. Pure; buffers may lie at any address; the same values on every
// machine of one byte order. A module of the Python package by itself (pccl/state/_snapshots), and no part of the core.
#ifndef PCCL_BINDINGS_SNAPSHOTS_H
#define PCCL_BINDINGS_SNAPSHOTS_H

#include <stddef.h>
#include <stdint.h>

// Adds the hash of `count` elements of `size` bytes each (1, 2, 4 or 8), the first of which has the index `first` in
// its tensor, to sums[0] and sums[1], modulo 2^64. The hash of a tensor is the sum of the hashes of its elements, so
// it is that of its parts, whatever these are. `seed` stands for the tensor. It finds damage, not forgery.
void snapshot_hash(const void *elements, size_t count, size_t size, uint64_t first, uint64_t seed, uint64_t *sums);

// Compares two buffers block by block; the last block may be shorter. changed[i] is 1 where block i differs, else 0.
// Returns how many differ.
size_t snapshot_changed(const void *one, const void *other, size_t bytes, size_t block, uint8_t *changed);

// target[i] ^= products[source[i]]: adds a multiple of a unit to a row of parity. `products` has the multiples of all
// 256 bytes in a field of characteristic 2, so that of a sum is the sum of the multiples; NULL: those by 1.
void snapshot_add(uint8_t *target, const uint8_t *source, size_t bytes, const uint8_t *products);

// The same with the least instructions, for any table.
void snapshot_add_bytes(uint8_t *target, const uint8_t *source, size_t bytes, const uint8_t *products);

#endif
