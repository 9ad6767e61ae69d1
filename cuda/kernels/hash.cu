// XXH3-64 of leaves (compute/hash), a warp for each leaf.
//
// XXH3 runs over blocks of 16 stripes of 64 bytes. What a stripe adds to the eight lanes of the state does not depend
// on the state, so the threads of the warp take the stripes of a block at once: thread t has 16 bytes of stripe t / 4
// and 16 of stripe t / 4 + 8, both for lanes 2p and 2p + 1, p = t % 4. What the threads with the same p have is added
// up in three exchanges; each of them then has these two lanes of the state, and scrambles them. Meanwhile the next
// block is on its way from memory.
#include "compute/element.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/language.h"

#define HASH_BLOCK 1024u
#define HASH_STRIPE 64u
#define HASH_LEAF (256u << 10)
#define HASH_WORDS_BEFORE_SCRAMBLE 16u // bytes 128 of the secret
#define HASH_SECRET_OF_LAST 121u
#define HASH_SECRET_OF_MERGE 11u
#define HASH_P32_1 0x9E3779B1u
#define HASH_P64_1 0x9E3779B185EBCA87u

// State of lanes 2p and 2p + 1.
struct hash_pair {
    uint64_t a, b;
};

// Load width that the address allows: whole, in words of 4 bytes, or byte by byte.
enum hash_steps { HASH_STEP_16, HASH_STEP_4, HASH_STEP_1 };

ELEMENT uint64_t hash_bytes(const uint8_t *at) {
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) x |= (uint64_t)at[i] << (8 * i);
    return x;
}

ELEMENT struct hash_pair hash_load(const uint8_t *at, enum hash_steps steps) {
    struct hash_pair x;
    if (steps == HASH_STEP_16) {
        ulonglong2 both = *(const ulonglong2 *)at;
        x.a = both.x;
        x.b = both.y;
    } else if (steps == HASH_STEP_4) {
        const uint32_t *word = (const uint32_t *)at;
        x.a = word[0] | (uint64_t)word[1] << 32;
        x.b = word[2] | (uint64_t)word[3] << 32;
    } else {
        x.a = hash_bytes(at);
        x.b = hash_bytes(at + 8);
    }
    return x;
}

// Two words of the secret, from this byte on.
ELEMENT uint64_t hash_key_at(const uint64_t *secret, unsigned byte) {
    unsigned shift = byte % 8 * 8;
    uint64_t low = secret[byte / 8];
    return shift == 0 ? low : low >> shift | secret[byte / 8 + 1] << (64 - shift);
}

ELEMENT struct hash_pair hash_key(const uint64_t *secret, unsigned byte) {
    struct hash_pair key;
    key.a = hash_key_at(secret, byte);
    key.b = hash_key_at(secret, byte + 8);
    return key;
}

ELEMENT void hash_add(struct hash_pair *sum, struct hash_pair x, struct hash_pair key) {
    uint64_t a = x.a ^ key.a, b = x.b ^ key.b;
    sum->a += (uint64_t)(uint32_t)a * (uint32_t)(a >> 32) + x.b;
    sum->b += (uint64_t)(uint32_t)b * (uint32_t)(b >> 32) + x.a;
}

ELEMENT uint64_t hash_over_stripes(uint64_t x) {
    x += __shfl_xor_sync(KERNEL_ALL_THREADS, x, 4);
    x += __shfl_xor_sync(KERNEL_ALL_THREADS, x, 8);
    return x + __shfl_xor_sync(KERNEL_ALL_THREADS, x, 16);
}

ELEMENT uint64_t hash_scramble(uint64_t x, uint64_t key) { return (x ^ x >> 47 ^ key) * HASH_P32_1; }

ELEMENT uint64_t hash_avalanche(uint64_t x) {
    x = (x ^ x >> 37) * 0x165667919E3779F9u;
    return x ^ x >> 32;
}

// Returns the hash of the leaf at `at`, in all threads. bytes > 240
ELEMENT uint64_t hash_leaf(const uint8_t *at, unsigned bytes, const uint64_t *secret, enum hash_steps steps) {
    unsigned thread = threadIdx.x % KERNEL_WARP, p = thread % 4, stripe = thread / 4;
    unsigned blocks = (bytes - 1) / HASH_BLOCK, rest = (bytes - 1) % HASH_BLOCK / HASH_STRIPE;
    struct hash_pair low = hash_key(secret, 8 * stripe + 16 * p), high = hash_key(secret, 8 * stripe + 64 + 16 * p);
    struct hash_pair scramble = hash_key(secret, 8 * HASH_WORDS_BEFORE_SCRAMBLE + 16 * p), state, sum, x, y;
    // lane by lane: 32_3, 64_1, 64_2, 64_3, 64_4, 32_2, 64_5, 32_1
    state.a = p == 0 ? 0xC2B2AE3Du : p == 1 ? 0xC2B2AE3D27D4EB4Fu : p == 2 ? 0x85EBCA77C2B2AE63u : 0x27D4EB2F165667C5u;
    state.b = p == 0 ? HASH_P64_1 : p == 1 ? 0x165667B19E3779F9u : p == 2 ? 0x85EBCA77u : HASH_P32_1;
    const uint8_t *mine = at + 16 * thread;
    sum.a = sum.b = 0;
    x.a = x.b = y.a = y.b = 0;
    if (blocks > 0) {
        x = hash_load(mine, steps);
        y = hash_load(mine + HASH_BLOCK / 2, steps);
    }
    for (unsigned block = 0; block < blocks; block++) {
        struct hash_pair now_x = x, now_y = y;
        mine += HASH_BLOCK;
        if (block + 1 < blocks) {
            x = hash_load(mine, steps);
            y = hash_load(mine + HASH_BLOCK / 2, steps);
        }
        sum.a = sum.b = 0;
        hash_add(&sum, now_x, low);
        hash_add(&sum, now_y, high);
        state.a = hash_scramble(state.a + hash_over_stripes(sum.a), scramble.a);
        state.b = hash_scramble(state.b + hash_over_stripes(sum.b), scramble.b);
    }
    sum.a = sum.b = 0;
    if (stripe < rest) hash_add(&sum, hash_load(mine, steps), low);
    if (stripe + 8 < rest) hash_add(&sum, hash_load(mine + HASH_BLOCK / 2, steps), high);
    if (stripe == 0) {
        const uint8_t *last = at + bytes - HASH_STRIPE + 16 * p;
        hash_add(&sum, hash_load(last, bytes % 16 == 0 ? steps : HASH_STEP_1),
                 hash_key(secret, HASH_SECRET_OF_LAST + 16 * p));
    }
    state.a += hash_over_stripes(sum.a);
    state.b += hash_over_stripes(sum.b);
    struct hash_pair merge = hash_key(secret, HASH_SECRET_OF_MERGE + 16 * p);
    uint64_t a = state.a ^ merge.a, b = state.b ^ merge.b, folded = a * b ^ __umul64hi(a, b);
    folded += __shfl_xor_sync(KERNEL_ALL_THREADS, folded, 1);
    folded += __shfl_xor_sync(KERNEL_ALL_THREADS, folded, 2);
    return hash_avalanche(folded + bytes * HASH_P64_1);
}

KERNEL(pccl_hash_leaves, 128)(struct hash_leaves_job job) {
    uint64_t i = (uint64_t)blockIdx.x * (blockDim.x / KERNEL_WARP) + threadIdx.x / KERNEL_WARP;
    if (i >= job.count) return; // all of the warp
    uint64_t begin = (job.first + i) * HASH_LEAF, left = job.bytes - begin, hash;
    unsigned bytes = left < HASH_LEAF ? (unsigned)left : HASH_LEAF;
    const uint8_t *at = job.content + begin;
    if ((uintptr_t)at % 16 == 0)
        hash = hash_leaf(at, bytes, job.secret, HASH_STEP_16);
    else if ((uintptr_t)at % 4 == 0)
        hash = hash_leaf(at, bytes, job.secret, HASH_STEP_4);
    else
        hash = hash_leaf(at, bytes, job.secret, HASH_STEP_1);
    if (threadIdx.x % KERNEL_WARP == 0) job.leaves[i] = hash;
}
