// The codecs with a scale for each block: int8, int4 and the 4-bit float E3M0. Pure.
//
// A block is its scale, a float, little-endian, and the codes of its elements: a byte each, or two in a byte
// (compute/block_loops.h). The scale is that of the block's largest magnitude: divided by 127 for int8 and by 7 for
// int4, whose codes are whole numbers from -127 to 127 and from -7 to 7; itself for E3M0, whose codes are a sign and an
// exponent (docs/protocol.md). So 0 comes back as 0, the largest magnitude to within the rounding of float, and of the
// integers no value is off by more than half a scale, as long as the scale is no denormal. Rounded stochastically, it
// is less than a whole one, and right on average.
//
// A block that holds NaN or infinity has the canonical NaN as its scale and zeros as codes, and comes back as all NaN:
// there is no code to spare for them. Decoding gives the same bits on every machine and at every kernel level.
#include "compute/codec.h"

#include "compute/kernels.h"
#include "compute/kernels_levels.h"

#include <float.h>
#include <math.h>
#include <pccl.h>
#include <string.h>

#define INFINITY_BITS 0x7F800000u
#define NAN_BITS 0x7FC00000u
// Below it a block is coded at GROWN times its value, where nothing is denormal.
#define SMALL 0x1p-90f
#define GROWN 0x1p100f

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "scales are sent as they lie in memory");

bool block_is_algorithm(int algorithm) { return algorithm >= pcclQuantBlockInt8 && algorithm <= pcclQuantBlockE3M0; }

bool block_takes(int dtype) { return dtype == pcclFloat || dtype == pcclFloat16 || dtype == pcclBFloat16; }

static int code_of(const struct codec *codec) { return codec->algorithm - pcclQuantBlockInt8; }

static size_t code_bytes(const struct codec *codec, size_t count) {
    return code_of(codec) == BLOCK_CODE_INT8 ? count : (count + 1) / 2;
}

size_t block_bytes(const struct codec *codec, int dtype, size_t count) {
    (void)dtype;
    return sizeof(float) + code_bytes(codec, count);
}

// The splitmix64 finaliser.
static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static float scale_of(int code, float largest) {
    if (code == BLOCK_CODE_E3M0) return largest;
    float most = code == BLOCK_CODE_INT8 ? 127.0f : 7.0f, scale = largest / most;
    return isinf(scale * most) ? scale * (1 - FLT_EPSILON) : scale; // rounded up, and all of float was used
}

static struct block_scale by_of(int code, float largest, const struct codec_dice *dice) {
    struct block_scale by = {.scale = scale_of(code, largest), .grow = largest < SMALL ? GROWN : 1.0f};
    by.inverse = 1.0f / (by.scale * by.grow);
    if (dice == NULL) return by;
    uint64_t key = mixed(mixed(dice->seed + 0x9E3779B97F4A7C15u) + (dice->index >> 32));
    by.key[0] = (uint32_t)key;
    by.key[1] = (uint32_t)(key >> 32);
    by.counter = (uint32_t)dice->index;
    return by;
}

void block_encode(const struct codec *codec, int dtype, uint8_t *out, const void *wide, size_t count,
                  const struct codec_dice *dice) {
    (void)dtype;
    const struct block_loops *loops = kernels_get()->block;
    uint32_t bits = loops->largest(wide, count);
    float largest = 0;
    if (bits < INFINITY_BITS) memcpy(&largest, &bits, sizeof largest);
    struct block_scale by = by_of(code_of(codec), largest, dice);
    uint8_t *codes = out + sizeof by.scale;
    if (bits >= INFINITY_BITS) {
        bits = NAN_BITS;
        memcpy(&by.scale, &bits, sizeof bits);
        memset(codes, 0, code_bytes(codec, count));
    } else if (by.scale == 0) {
        memset(codes, 0, code_bytes(codec, count));
    } else {
        loops->encode[code_of(codec)][dice == NULL ? BLOCK_NEAREST : BLOCK_STOCHASTIC](codes, wide, count, &by);
    }
    memcpy(out, &by.scale, sizeof by.scale);
}

bool block_decode(const struct codec *codec, int dtype, void *wide, const uint8_t *in, size_t count) {
    (void)dtype;
    uint32_t bits;
    float scale;
    memcpy(&bits, in, sizeof bits);
    memcpy(&scale, in, sizeof scale);
    const uint8_t *codes = in + sizeof scale;
    if (bits == NAN_BITS) { // a code of 0 would give NaN as well, but not of the same bits on all machines
        for (size_t i = 0; i < count; i++) memcpy((uint8_t *)wide + i * sizeof bits, &bits, sizeof bits);
        return true;
    }
    if (bits >= INFINITY_BITS) return false; // negative, infinite, or another NaN
    if (code_of(codec) != BLOCK_CODE_INT8 && count % 2 != 0 && codes[count / 2] >> 4 != 0) return false;
    kernels_get()->block->decode[code_of(codec)](wide, codes, count, scale);
    return true;
}
