#include "snapshots.h"

#include "base/cpu.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

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

// A multiple of a byte is the sum of those of its halves, so two tables of 16 bytes serve, which a register holds. Each
// of these adds to as much as it can at once, and returns how many bytes that is.
#if defined(__x86_64__)
__attribute__((target("avx2"))) static size_t add_by_avx2(uint8_t *target, const uint8_t *source, size_t bytes,
                                                          const uint8_t *low, const uint8_t *high) {
    const __m256i lows = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)low));
    const __m256i highs = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)high));
    const __m256i half = _mm256_set1_epi8(15);
    size_t i = 0;
    for (; i + 32 <= bytes; i += 32) {
        __m256i data = _mm256_loadu_si256((const __m256i *)(source + i));
        __m256i upper = _mm256_and_si256(_mm256_srli_epi64(data, 4), half);
        __m256i product = _mm256_shuffle_epi8(lows, _mm256_and_si256(data, half));
        product = _mm256_xor_si256(product, _mm256_shuffle_epi8(highs, upper));
        __m256i *into = (__m256i *)(target + i);
        _mm256_storeu_si256(into, _mm256_xor_si256(_mm256_loadu_si256(into), product));
    }
    return i;
}

static size_t add_halves(uint8_t *target, const uint8_t *source, size_t bytes, const uint8_t *low,
                         const uint8_t *high) {
    return cpu_level() >= CPU_AVX2 ? add_by_avx2(target, source, bytes, low, high) : 0;
}
#elif defined(__aarch64__)
static size_t add_halves(uint8_t *target, const uint8_t *source, size_t bytes, const uint8_t *low,
                         const uint8_t *high) {
    const uint8x16_t lows = vld1q_u8(low), highs = vld1q_u8(high), half = vdupq_n_u8(15);
    size_t i = 0;
    for (; i + 16 <= bytes; i += 16) {
        uint8x16_t data = vld1q_u8(source + i);
        uint8x16_t product = veorq_u8(vqtbl1q_u8(lows, vandq_u8(data, half)), vqtbl1q_u8(highs, vshrq_n_u8(data, 4)));
        vst1q_u8(target + i, veorq_u8(vld1q_u8(target + i), product));
    }
    return i;
}
#else
static size_t add_halves(uint8_t *target, const uint8_t *source, size_t bytes, const uint8_t *low,
                         const uint8_t *high) {
    (void)target, (void)source, (void)bytes, (void)low, (void)high;
    return 0;
}
#endif

void snapshot_add_bytes(uint8_t *target, const uint8_t *source, size_t bytes, const uint8_t *products) {
    for (size_t i = 0; i < bytes; i++) target[i] = (uint8_t)(target[i] ^ products[source[i]]);
}

void snapshot_add(uint8_t *target, const uint8_t *source, size_t bytes, const uint8_t *products) {
    if (products == NULL) {
        for (size_t i = 0; i < bytes; i++) target[i] = (uint8_t)(target[i] ^ source[i]);
        return;
    }
    uint8_t high[16];
    for (size_t half = 0; half < 16; half++) high[half] = products[half << 4];
    size_t done = add_halves(target, source, bytes, products, high);
    snapshot_add_bytes(target + done, source + done, bytes - done, products);
}
