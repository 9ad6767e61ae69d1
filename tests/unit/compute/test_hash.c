// XXH3 and the content hash against the reference package's values, and every level's loop against the portable one.
#define _GNU_SOURCE
#include "check.h"

#include "compute/hash.h"
#include "compute/kernels_levels.h"
#include "compute/kernels.h"
#include "hash_vectors.h"

enum { CONTENT_BYTES = 31 * HASH_LEAF_BYTES + 100, SHIFTS = 9 };

static uint8_t memory[CONTENT_BYTES + SHIFTS];

static uint8_t *content_at(size_t shift) {
    for (size_t i = 0; i < CONTENT_BYTES; i++) memory[shift + i] = (uint8_t)((uint32_t)(i + 1) * 0x9E3779B1u >> 24);
    return memory + shift;
}

static void test_vectors(void) {
    for (size_t shift = 0; shift < SHIFTS; shift++) {
        const uint8_t *content = content_at(shift);
        for (size_t i = 0; i < sizeof hash_vectors / sizeof *hash_vectors; i++) {
            size_t bytes = hash_vectors[i].bytes;
            check_case("%zu bytes at address + %zu", bytes, shift);
            CHECK_EQ(hash_xxh3_64(content, bytes), hash_vectors[i].h64);
            struct hash128 hash = hash_xxh3_128(content, bytes);
            CHECK_EQ(hash.low, hash_vectors[i].low);
            CHECK_EQ(hash.high, hash_vectors[i].high);
        }
    }
}

static void test_content(void) {
    const uint8_t *content = content_at(1);
    for (size_t i = 0; i < sizeof content_vectors / sizeof *content_vectors; i++) {
        size_t bytes = content_vectors[i].bytes;
        uint64_t leaves[CONTENT_BYTES / HASH_LEAF_BYTES + 1], again[CONTENT_BYTES / HASH_LEAF_BYTES + 1];
        uint64_t count = hash_leaf_count(bytes), half = count / 2;
        check_case("content of %zu bytes", bytes);
        CHECK_EQ(count, (bytes + HASH_LEAF_BYTES - 1) / HASH_LEAF_BYTES);
        hash_leaves(leaves, content, bytes, 0, count);
        struct hash128 root = hash_root(leaves, count), want = {content_vectors[i].low, content_vectors[i].high};
        CHECK(root.low == want.low && root.high == want.high);
        hash_leaves(again + half, content, bytes, half, count - half);
        hash_leaves(again, content, bytes, 0, half);
        CHECK_MEM(again, leaves, count * sizeof *leaves);
    }
    check_case("leaf count does not wrap");
    CHECK_EQ(hash_leaf_count(UINT64_MAX), UINT64_MAX / HASH_LEAF_BYTES + 1);
}

static void test_no_content(void) {
    check_case("no content");
    uint8_t byte = 0;
    struct hash128 none = hash_root(NULL, 0), empty = hash_xxh3_128(&byte, 0);
    CHECK(none.low == empty.low && none.high == empty.high);
    CHECK_EQ(hash_xxh3_64(NULL, 0), hash_xxh3_64(&byte, 0));
    hash_leaves(NULL, NULL, 0, 0, 0);
}

// A changed, swapped or shifted byte anywhere changes the hash.
static void test_sensitivity(void) {
    enum { BYTES = 3000 };
    uint8_t *content = content_at(0);
    uint64_t before = hash_xxh3_64(content, BYTES);
    for (size_t i = 0; i < BYTES; i += 7) {
        check_case("bit of byte %zu", i);
        content[i] ^= (uint8_t)(1u << i % 8);
        CHECK(hash_xxh3_64(content, BYTES) != before);
        content[i] ^= (uint8_t)(1u << i % 8);
    }
    check_case("shifted, shortened");
    CHECK(hash_xxh3_64(content + 1, BYTES) != before);
    CHECK(hash_xxh3_64(content, BYTES - 1) != before);
    CHECK(hash_xxh3_64(content, BYTES) == before);
}

static void test_levels(void) {
    uint64_t seed = 11;
    for (size_t i = 0; i < CONTENT_BYTES; i += 8)
        memcpy(memory + i, &(uint64_t){check_random(&seed)}, CONTENT_BYTES - i < 8 ? CONTENT_BYTES - i : 8);
    for (int level = 0; level < KERNEL_LEVELS; level++) {
        const struct kernels *kernels = kernels_at((enum kernel_level)level);
        if (!kernels) continue;
        for (int round = 0; round < 600; round++) {
            size_t shift = check_random(&seed) % 64, bytes = 241 + check_random(&seed) % (round < 500 ? 5000 : 600000);
            uint64_t got[8], want[8];
            for (size_t i = 0; i < 8; i++) got[i] = want[i] = check_random(&seed);
            kernels->hash_long(got, memory + shift, bytes);
            kernels_at(KERNEL_PORTABLE)->hash_long(want, memory + shift, bytes);
            check_case("%s, %zu bytes at address + %zu", kernels->name, bytes, shift);
            CHECK_MEM(got, want, sizeof got);
        }
    }
}

int main(void) {
    test_vectors();
    test_content();
    test_no_content();
    test_sensitivity();
    test_levels();
    return check_status();
}
