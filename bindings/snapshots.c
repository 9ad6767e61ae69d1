#include "snapshots.h"

#include <string.h>

// Spreads the bits of a seed (the finaliser of MurmurHash3 by A. Appleby, public domain).
static uint64_t spread(uint64_t x) {
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

// The key of an element is its index times the golden ratio. Its halves meet those of the value in products of 32 by
// 32 bits, which every vector unit has, as in XXH3; the value is added too, since a factor may be 0.
#define HASH(name, type) \
    static void name(const uint8_t *at, size_t count, uint64_t index, uint64_t *sums) { \
        uint64_t low = 0, high = 0; \
        for (size_t i = 0; i < count; i++) { \
            type element; \
            memcpy(&element, at + i * sizeof element, sizeof element); \
            uint64_t value = element, key = (index + i) * UINT64_C(0x9e3779b97f4a7c15); \
            uint64_t other = sizeof(type) == 8 ? value >> 32 : value; \
            low += (uint64_t)(uint32_t)(key + value) * (uint32_t)(key >> 32 ^ other) + value; \
            high += (uint64_t)(uint32_t)(key >> 16 ^ value) * (uint32_t)((key >> 40) + other) + (value << 32); \
        } \
        sums[0] += low; \
        sums[1] += high; \
    }

HASH(hash_1, uint8_t)
HASH(hash_2, uint16_t)
HASH(hash_4, uint32_t)
HASH(hash_8, uint64_t)

void snapshot_hash(const void *elements, size_t count, size_t size, uint64_t first, uint64_t seed, uint64_t *sums) {
    uint64_t index = first + spread(seed);
    switch (size) {
    case 1: hash_1(elements, count, index, sums); break;
    case 2: hash_2(elements, count, index, sums); break;
    case 4: hash_4(elements, count, index, sums); break;
    default: hash_8(elements, count, index, sums); break;
    }
}

size_t snapshot_changed(const void *one, const void *other, size_t bytes, size_t block, uint8_t *changed) {
    size_t found = 0;
    for (size_t at = 0; at < bytes; at += block) {
        size_t length = bytes - at < block ? bytes - at : block;
        uint8_t differs = memcmp((const uint8_t *)one + at, (const uint8_t *)other + at, length) != 0;
        *changed++ = differs;
        found += differs;
    }
    return found;
}

void snapshot_add(uint8_t *target, const uint8_t *source, size_t bytes, const uint8_t *products) {
    if (products == NULL)
        for (size_t i = 0; i < bytes; i++) target[i] = (uint8_t)(target[i] ^ source[i]);
    else
        for (size_t i = 0; i < bytes; i++) target[i] = (uint8_t)(target[i] ^ products[source[i]]);
}
