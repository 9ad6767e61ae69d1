#include "compute/hash.h"

#include "compute/kernels_levels.h"
#include "compute/kernels.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as they lie in memory");

#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u
#define PRIME_MX1 0x165667919E3779F9u
#define PRIME_MX2 0x9FB21C651E98DF25u

static uint32_t read32(const uint8_t *p) {
    uint32_t x;
    return memcpy(&x, p, sizeof x), x;
}

static uint64_t read64(const uint8_t *p) {
    uint64_t x;
    return memcpy(&x, p, sizeof x), x;
}

// Two words of the secret that lie side by side, combined.
static uint64_t secret64(size_t at) { return read64(hash_secret + at) ^ read64(hash_secret + at + 8); }

static uint64_t secret32(size_t at) { return read32(hash_secret + at) ^ read32(hash_secret + at + 4); }

static uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

static struct hash128 multiply(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 u128;
    u128 product = (u128)a * b;
    return (struct hash128){(uint64_t)product, (uint64_t)(product >> 64)};
}

static uint64_t multiply_fold(uint64_t a, uint64_t b) {
    struct hash128 product = multiply(a, b);
    return product.low ^ product.high;
}

static uint64_t avalanche(uint64_t x) {
    x = (x ^ x >> 37) * PRIME_MX1;
    return x ^ x >> 32;
}

static uint64_t avalanche_xxh64(uint64_t x) {
    x = (x ^ x >> 33) * PRIME64_2;
    x = (x ^ x >> 29) * PRIME64_3;
    return x ^ x >> 32;
}

static uint64_t mix16(const uint8_t *p, size_t secret) {
    return multiply_fold(read64(p) ^ read64(hash_secret + secret), read64(p + 8) ^ read64(hash_secret + secret + 8));
}

// 1 to 3 bytes
static uint32_t combined(const uint8_t *p, size_t n) {
    return (uint32_t)p[0] << 16 | (uint32_t)p[n / 2] << 24 | p[n - 1] | (uint32_t)n << 8;
}

// ---- 64 bits

static uint64_t short_64(const uint8_t *p, size_t n) {
    if (n == 0) return avalanche_xxh64(secret64(56));
    if (n < 4) return avalanche_xxh64(secret32(0) ^ combined(p, n));
    if (n <= 8) {
        uint64_t x = (read32(p + n - 4) + ((uint64_t)read32(p) << 32)) ^ secret64(8);
        x ^= rotate(x, 49) ^ rotate(x, 24);
        x *= PRIME_MX2;
        x ^= (x >> 35) + n;
        x *= PRIME_MX2;
        return x ^ x >> 28;
    }
    uint64_t low = read64(p) ^ secret64(24), high = read64(p + n - 8) ^ secret64(40);
    return avalanche(n + __builtin_bswap64(low) + high + multiply_fold(low, high));
}

// 17 to 128 bytes: from both ends inwards.
static uint64_t medium_64(const uint8_t *p, size_t n) {
    uint64_t sum = n * PRIME64_1;
    for (size_t i = 0; i < (n + 31) / 32; i++)
        sum += mix16(p + 16 * i, 32 * i) + mix16(p + n - 16 * (i + 1), 32 * i + 16);
    return avalanche(sum);
}

// 129 to 240 bytes
static uint64_t large_64(const uint8_t *p, size_t n) {
    uint64_t sum = n * PRIME64_1;
    for (size_t i = 0; i < 8; i++) sum += mix16(p + 16 * i, 16 * i);
    sum = avalanche(sum);
    for (size_t i = 8; i < n / 16; i++) sum += mix16(p + 16 * i, 16 * (i - 8) + 3);
    return avalanche(sum + mix16(p + n - 16, 136 - 17));
}

static void long_lanes(uint64_t lanes[8], const uint8_t *p, size_t n) {
    static const uint64_t start[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                      PRIME64_4, PRIME32_2, PRIME64_5, HASH_PRIME32_1};
    memcpy(lanes, start, sizeof start);
    kernels_get()->hash_long(lanes, p, n);
}

static uint64_t merge(const uint64_t lanes[8], size_t secret, uint64_t sum) {
    for (size_t i = 0; i < 4; i++)
        sum += multiply_fold(lanes[2 * i] ^ read64(hash_secret + secret + 16 * i),
                             lanes[2 * i + 1] ^ read64(hash_secret + secret + 16 * i + 8));
    return avalanche(sum);
}

uint64_t hash_xxh3_64(const void *data, size_t bytes) {
    if (bytes <= 16) return short_64(data, bytes);
    if (bytes <= 128) return medium_64(data, bytes);
    if (bytes <= 240) return large_64(data, bytes);
    uint64_t lanes[8];
    long_lanes(lanes, data, bytes);
    return merge(lanes, 11, bytes * PRIME64_1);
}

// ---- 128 bits

static struct hash128 short_128(const uint8_t *p, size_t n) {
    if (n == 0) return (struct hash128){avalanche_xxh64(secret64(64)), avalanche_xxh64(secret64(80))};
    if (n < 4) {
        uint32_t low = combined(p, n), swapped = __builtin_bswap32(low), high = swapped << 13 | swapped >> 19;
        return (struct hash128){avalanche_xxh64(secret32(0) ^ low), avalanche_xxh64(secret32(8) ^ high)};
    }
    if (n <= 8) {
        uint64_t x = (read32(p) + ((uint64_t)read32(p + n - 4) << 32)) ^ secret64(16);
        struct hash128 h = multiply(x, PRIME64_1 + (n << 2));
        h.high += h.low << 1;
        h.low ^= h.high >> 3;
        h.low = (h.low ^ h.low >> 35) * PRIME_MX2;
        h.low ^= h.low >> 28;
        h.high = avalanche(h.high);
        return h;
    }
    uint64_t low = read64(p), high = read64(p + n - 8);
    struct hash128 m = multiply(low ^ high ^ secret64(32), PRIME64_1);
    m.low += (uint64_t)(n - 1) << 54;
    high ^= secret64(48);
    m.high += high + (high & UINT32_MAX) * (PRIME32_2 - 1);
    m.low ^= __builtin_bswap64(m.high);
    struct hash128 h = multiply(m.low, PRIME64_2);
    h.high += m.high * PRIME64_2;
    return (struct hash128){avalanche(h.low), avalanche(h.high)};
}

static void mix32(struct hash128 *sum, const uint8_t *a, const uint8_t *b, size_t secret) {
    sum->low += mix16(a, secret);
    sum->low ^= read64(b) + read64(b + 8);
    sum->high += mix16(b, secret + 16);
    sum->high ^= read64(a) + read64(a + 8);
}

static struct hash128 finish(struct hash128 sum, size_t n) {
    uint64_t high = sum.low * PRIME64_1 + sum.high * PRIME64_4 + n * PRIME64_2;
    return (struct hash128){avalanche(sum.low + sum.high), -avalanche(high)};
}

static struct hash128 medium_128(const uint8_t *p, size_t n) {
    struct hash128 sum = {n * PRIME64_1, 0};
    for (size_t i = (n + 31) / 32; i-- > 0;) mix32(&sum, p + 16 * i, p + n - 16 * (i + 1), 32 * i);
    return finish(sum, n);
}

static struct hash128 large_128(const uint8_t *p, size_t n) {
    struct hash128 sum = {n * PRIME64_1, 0};
    for (size_t i = 0; i < 4; i++) mix32(&sum, p + 32 * i, p + 32 * i + 16, 32 * i);
    sum = (struct hash128){avalanche(sum.low), avalanche(sum.high)};
    for (size_t i = 4; i < n / 32; i++) mix32(&sum, p + 32 * i, p + 32 * i + 16, 32 * (i - 4) + 3);
    mix32(&sum, p + n - 16, p + n - 32, 136 - 17 - 16);
    return finish(sum, n);
}

struct hash128 hash_xxh3_128(const void *data, size_t bytes) {
    if (bytes <= 16) return short_128(data, bytes);
    if (bytes <= 128) return medium_128(data, bytes);
    if (bytes <= 240) return large_128(data, bytes);
    uint64_t lanes[8];
    long_lanes(lanes, data, bytes);
    return (struct hash128){merge(lanes, 11, bytes * PRIME64_1),
                            merge(lanes, HASH_SECRET_BYTES - HASH_STRIPE_BYTES - 11, ~(bytes * PRIME64_2))};
}

// ---- leaves

void hash_leaves(uint64_t *leaves, const void *content, uint64_t bytes, uint64_t first, uint64_t count) {
    const uint8_t *at = content;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t start = (first + i) * HASH_LEAF_BYTES, length = bytes - start;
        leaves[i] = hash_xxh3_64(at + start, length < HASH_LEAF_BYTES ? length : HASH_LEAF_BYTES);
    }
}

struct hash128 hash_root(const uint64_t *leaves, uint64_t count) {
    return hash_xxh3_128(leaves, count * sizeof *leaves);
}

const uint8_t *hash_get_secret(void) { return hash_secret; }
