// Every codec of the table: what it says of itself, and that blocks make a piece.
#include "check.h"

#include <stdlib.h>

#include "compute/codec.h"
#include "four_bits.h"
#include "net/wire.h"

static void test_table(void) {
    for (uint8_t id = CODEC_RAW + 1; id < CODECS; id++) {
        const struct codec *codec = codec_find(id);
        check_case("codec %u", id);
        CHECK(codec != NULL && codec->name != NULL);
        CHECK_EQ(CODEC_PIECE % codec->block, 0);
        for (uint8_t other = CODEC_RAW + 1; other < id; other++)
            CHECK(strcmp(codec->name, codec_find(other)->name) != 0);
        for (int dtype = 0; dtype < KERNEL_DTYPES; dtype++) {
            if (!codec->takes(dtype)) continue;
            CHECK(codec_bytes(codec, dtype, CODEC_PIECE) <= WIRE_MAX_DATA_BYTES); // fits a frame
            CHECK_EQ(codec_of_options(dtype, codec->quantised, codec->algorithm, codec->block), id);
        }
    }
    CHECK(codec_find(CODEC_RAW) == NULL && codec_find(CODECS) == NULL && codec_find(255) == NULL);
    CHECK_EQ(codec_of_options(pcclFloat, pcclUint8, pcclQuantNone, 0), CODEC_RAW);
    CHECK_EQ(codec_of_options(pcclFloat, pcclUint64, pcclQuantZeroPointScale, 0), CODEC_RAW);
    CHECK_EQ(codec_of_options(pcclInt32, pcclUint8, pcclQuantMinMax, 0), CODEC_RAW);
}

// Blocks are written one behind the other, each as if it stood alone.
static void test_blocks(void) {
    static const size_t counts[] = {0, 1, 2, 255, 256, 257, 511, 512, 513, 65535, 65536};
    static float values[CODEC_PIECE], back[CODEC_PIECE], alone[FOUR_BITS_BLOCK];
    static uint8_t written[CODEC_PIECE];
    const struct codec *codec = codec_find(CODEC_FOUR_BITS);
    for (size_t i = 0; i < CODEC_PIECE; i++) values[i] = (float)((i * 7919 + i / 256) % 1000) - 500;
    for (size_t row = 0; row < sizeof counts / sizeof counts[0]; row++) {
        size_t count = counts[row], at = 0;
        check_case("%zu elements", count);
        CHECK_EQ(codec_bytes(codec, pcclFloat, count),
                 count / 256 * 129 + (count % 256 == 0 ? 0 : 1 + (count % 256 + 1) / 2));
        codec_encode(codec, pcclFloat, written, values, count, NULL);
        CHECK(codec_decode(codec, pcclFloat, back, written, count));
        for (size_t begin = 0; begin < count; begin += FOUR_BITS_BLOCK) {
            size_t length = count - begin < FOUR_BITS_BLOCK ? count - begin : FOUR_BITS_BLOCK;
            CHECK(codec->decode(codec, pcclFloat, alone, written + at, length));
            CHECK_MEM(alone, back + begin, length * sizeof(float));
            at += codec->bytes(codec, pcclFloat, length);
        }
        CHECK_EQ(at, codec_bytes(codec, pcclFloat, count));
        if (count % 2 == 0) continue;
        written[at - 1] |= 0x80; // a block in the midst or at the end that is malformed
        CHECK(!codec_decode(codec, pcclFloat, back, written, count));
    }
}

int main(void) {
    test_table();
    test_blocks();
    return check_status();
}
