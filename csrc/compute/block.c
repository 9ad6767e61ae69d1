// The codecs with a scale for each block: int8, int4 and the 4-bit float E3M0. Pure.
//
// A block is its scale, a float, little-endian, and the codes of its elements: a byte each, or two in a byte
// (compute/kernels_loops.h). The scale is that of the block's largest magnitude: divided by 127 for int8 and by 7 for
// int4, whose codes are whole numbers from -127 to 127 and from -7 to 7; itself for E3M0, whose codes are a sign and an
// exponent (docs/protocol.md). So 0 comes back as 0, the largest magnitude to within the rounding of float, and of the
// integers no value is off by more than half a scale, as long as the scale is no denormal. Rounded stochastically, it
// is less than a whole one, and right on average.
//
// A block that holds NaN or infinity has the canonical NaN as its scale and zeros as codes, and comes back as all NaN:
// there is no code to spare for them. Decoding gives the same bits on every machine and at every kernel level.
#include "compute/codec.h"

#include "compute/block_code.h"
#include "compute/kernels.h"
#include "compute/kernels_levels.h"

#include <pccl.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "scales are sent as they lie in memory");

bool block_is_algorithm(int algorithm) { return algorithm >= pcclQuantBlockInt8 && algorithm <= pcclQuantBlockE3M0; }

static bool block_takes(int dtype) { return dtype == pcclFloat || dtype == pcclFloat16 || dtype == pcclBFloat16; }

static int code_of(const struct codec *codec) { return codec->algorithm - pcclQuantBlockInt8; }

static size_t code_bytes(const struct codec *codec, size_t count) {
    return code_of(codec) == BLOCK_CODE_INT8 ? count : (count + 1) / 2;
}

static size_t block_bytes(const struct codec *codec, int dtype, size_t count) {
    (void)dtype;
    return sizeof(float) + code_bytes(codec, count);
}

static void block_encode(const struct codec *codec, int dtype, uint8_t *out, const void *wide, size_t count,
                         const struct codec_rounding *rounding) {
    (void)dtype;
    const struct block_loops *loops = kernels_get()->block;
    uint32_t bits = loops->largest(wide, count);
    float largest = 0;
    if (bits < BLOCK_INFINITY_BITS) memcpy(&largest, &bits, sizeof largest);
    struct block_scale by = block_scale_of(code_of(codec), largest);
    if (rounding != NULL) block_key_of(&by, rounding->seed, rounding->index);
    uint8_t *codes = out + sizeof by.scale;
    if (bits >= BLOCK_INFINITY_BITS) {
        bits = BLOCK_NAN_BITS;
        memcpy(&by.scale, &bits, sizeof bits);
        memset(codes, 0, code_bytes(codec, count));
    } else if (by.scale == 0) {
        memset(codes, 0, code_bytes(codec, count));
    } else {
        loops->encode[code_of(codec)][rounding == NULL ? BLOCK_NEAREST : BLOCK_STOCHASTIC](codes, wide, count, &by);
    }
    memcpy(out, &by.scale, sizeof by.scale);
}

// A negative, infinite or other NaN than the canonical one is no scale; what stands for no element is 0.
static bool block_valid(const struct codec *codec, int dtype, const uint8_t *in, size_t count) {
    (void)dtype;
    uint32_t bits;
    memcpy(&bits, in, sizeof bits);
    if (bits == BLOCK_NAN_BITS) return true;
    if (bits >= BLOCK_INFINITY_BITS) return false;
    return code_of(codec) == BLOCK_CODE_INT8 || count % 2 == 0 || in[sizeof bits + count / 2] >> 4 == 0;
}

static bool block_decode(const struct codec *codec, int dtype, void *wide, const uint8_t *in, size_t count) {
    uint32_t bits;
    float scale;
    if (!block_valid(codec, dtype, in, count)) return false;
    memcpy(&bits, in, sizeof bits);
    memcpy(&scale, in, sizeof scale);
    const uint8_t *codes = in + sizeof scale;
    if (bits == BLOCK_NAN_BITS) { // a code of 0 would give NaN as well, but not of the same bits on all machines
        for (size_t i = 0; i < count; i++) memcpy((uint8_t *)wide + i * sizeof bits, &bits, sizeof bits);
        return true;
    }
    kernels_get()->block->decode[code_of(codec)](wide, codes, count, scale);
    return true;
}

#define BLOCK(id, text, by, size) \
    [(id) - CODEC_BLOCK_INT8 + __builtin_ctz((size) / BLOCK_LEAST)] = { \
        .name = text " in blocks of " #size, \
        .algorithm = by, \
        .block = size, \
        .takes = block_takes, \
        .bytes = block_bytes, \
        .encode = block_encode, \
        .valid = block_valid, \
        .decode = block_decode, \
    }
#define BLOCKS(id, text, by) \
    BLOCK(id, text, by, 32), BLOCK(id, text, by, 64), BLOCK(id, text, by, 128), BLOCK(id, text, by, 256), \
        BLOCK(id, text, by, 512), BLOCK(id, text, by, 1024), BLOCK(id, text, by, 2048), BLOCK(id, text, by, 4096)

const struct codec block_codecs[] = {
    BLOCKS(CODEC_BLOCK_INT8, "int8", pcclQuantBlockInt8),
    BLOCKS(CODEC_BLOCK_INT4, "int4", pcclQuantBlockInt4),
    BLOCKS(CODEC_BLOCK_E3M0, "E3M0", pcclQuantBlockE3M0),
};
