// How the elements of an op are quantised for their way: a codec for each id, which members agree on. RAW is none: the
// elements travel as they lie in memory. Pure.
//
// A codec writes block after block of `block` elements, each by itself; the last one may be shorter. How long that is,
// it alone says: the bytes of an element need not be a whole number. Members take the same arguments to the same bits.
//
// Values between memory and a codec are wide: float for float16, bfloat16 and float, every other type as it is.
#ifndef PCCL_COMPUTE_CODEC_H
#define PCCL_COMPUTE_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum codec_id {
    CODEC_RAW,
    CODEC_MINMAX_UINT8,
    CODEC_MINMAX_INT8,
    CODEC_MINMAX_UINT16,
    CODEC_MINMAX_INT16,
    CODEC_MINMAX_UINT32,
    CODEC_MINMAX_UINT64,
    CODEC_ZERO_UINT8,
    CODEC_ZERO_INT8,
    CODEC_ZERO_UINT16,
    CODEC_ZERO_INT16,
    // with a scale for each block of 32, 64, ..., 4096 elements: ids one after another
    CODEC_BLOCK_INT8,
    CODEC_BLOCK_INT4 = CODEC_BLOCK_INT8 + 8,
    CODEC_BLOCK_E3M0 = CODEC_BLOCK_INT4 + 8,
    CODECS = CODEC_BLOCK_E3M0 + 8,
};

// Elements that travel in one frame; a multiple of every codec's `block`. Written, they fit a frame.
enum { CODEC_PIECE = 65536 };

// Seed and position of the random numbers for stochastic rounding.
struct codec_rounding {
    uint64_t seed;
    uint64_t index; // of the first element
};

struct codec {
    const char *name;             // in texts, after "quantised to"
    uint8_t quantised, algorithm; // the options that ask for it: pcclDataType_t, pcclQuantizationAlgorithm_t
    uint32_t block;
    bool (*takes)(int dtype); // of these elements
    // Functions for one block of `count` <= `block` elements, at any address:
    size_t (*bytes)(const struct codec *codec, int dtype, size_t count);
    // `rounding`: rounds stochastically; NULL, or a codec that cannot: to nearest.
    void (*encode)(const struct codec *codec, int dtype, uint8_t *out, const void *wide, size_t count,
                   const struct codec_rounding *rounding);
    // Whether `decode` takes these bytes, of which there are as many as `bytes` says. NULL: it takes all.
    bool (*valid)(const struct codec *codec, int dtype, const uint8_t *in, size_t count);
    // False: malformed.
    bool (*decode)(const struct codec *codec, int dtype, void *wide, const uint8_t *in, size_t count);
};

// NULL: there is none of this id, as of RAW.
const struct codec *codec_find(uint8_t id);
// The one that these options of a reduce ask for; CODEC_RAW: none. `block`: of those with a scale for each block.
uint8_t codec_of_options(int dtype, int quantised_dtype, int algorithm, uint32_t block);

// Functions for any number of elements that begin with a block.
size_t codec_bytes(const struct codec *codec, int dtype, size_t count);
void codec_encode(const struct codec *codec, int dtype, uint8_t *out, const void *wide, size_t count,
                  const struct codec_rounding *rounding);
bool codec_valid(const struct codec *codec, int dtype, const uint8_t *in, size_t count);
bool codec_decode(const struct codec *codec, int dtype, void *wide, const uint8_t *in, size_t count);

// out[i] = (wanted[i] - got[i]) * times, and 0 where that is not finite. Of those that are wide as floats.
void codec_residual(void *out, const void *wanted, const void *got, uint32_t times, size_t count);

int codec_wide(int dtype); // the type of the wide elements
// wide[i] = src[i]
void codec_widen(int dtype, void *wide, const void *src, size_t count);
// dst[i] = wide[i], rounded to nearest even
void codec_narrow(int dtype, void *dst, const void *wide, size_t count);

// ---- the codecs, each kind in a file of its own, in the order of codec_id ----
enum { BLOCK_LEAST = 32, BLOCK_MOST = 4096, BLOCK_DEFAULT = 256 };

extern const struct codec quant_codecs[CODEC_BLOCK_INT8 - CODEC_MINMAX_UINT8]; // those with one scale
extern const struct codec block_codecs[CODECS - CODEC_BLOCK_INT8];             // those with a scale for each block
bool block_is_algorithm(int algorithm);

#endif
