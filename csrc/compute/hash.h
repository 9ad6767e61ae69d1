// The content hash of shared state: XXH3 with seed 0, own implementation of its published specification (xxhash_spec,
// version 0.8).
//
// Content is cut into leaves of HASH_LEAF_BYTES (the last one may be shorter; no content has no leaves). A leaf's hash
// is the XXH3-64 of its bytes; the hash of the whole is the XXH3-128 of all leaf hashes, 8 bytes each, little-endian.
// Leaves are independent of each other, so that several threads or a GPU can work at once. Pure; any address; the same
// value at every kernel level.
//
// Not a cryptographic hash: it finds damage and drift, not forgery.
#ifndef PCCL_COMPUTE_HASH_H
#define PCCL_COMPUTE_HASH_H

#include <stddef.h>
#include <stdint.h>

enum { HASH_LEAF_BYTES = 256 << 10 };

struct hash128 {
    uint64_t low, high;
};

uint64_t hash_xxh3_64(const void *data, size_t bytes);
struct hash128 hash_xxh3_128(const void *data, size_t bytes);

// Leaves of content of that size.
static inline uint64_t hash_leaf_count(uint64_t bytes) {
    return bytes / HASH_LEAF_BYTES + (bytes % HASH_LEAF_BYTES != 0);
}
// leaves[i] = hash of leaf first + i, for `count` leaves that begin inside the content.
void hash_leaves(uint64_t *leaves, const void *content, uint64_t bytes, uint64_t first, uint64_t count);
// The secret of XXH3, HASH_SECRET_BYTES long (compute/kernels_levels.h).
const uint8_t *hash_get_secret(void);
// The hash of the whole from all its leaves.
struct hash128 hash_root(const uint64_t *leaves, uint64_t count);

#endif
