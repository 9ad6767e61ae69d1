#include "compute/codec.h"

#include "compute/kernels.h"
#include "compute/kernels_levels.h"

#include <pccl.h>
#include <string.h>

// ---- wide elements ----
int codec_wide(int dtype) { return dtype == pcclFloat16 || dtype == pcclBFloat16 ? pcclFloat : dtype; }

void codec_widen(int dtype, void *wide, const void *src, size_t count) {
    const struct quant_loops *loops = kernels_get()->quant;
    if (dtype == pcclFloat16)
        loops->widen_f16(wide, src, count);
    else if (dtype == pcclBFloat16)
        loops->widen_bf16(wide, src, count);
    else if (count > 0)
        memmove(wide, src, count * dtype_size(dtype));
}

void codec_narrow(int dtype, void *dst, const void *wide, size_t count) {
    const struct quant_loops *loops = kernels_get()->quant;
    if (dtype == pcclFloat16)
        loops->narrow_f16(dst, wide, count);
    else if (dtype == pcclBFloat16)
        loops->narrow_bf16(dst, wide, count);
    else if (count > 0)
        memmove(dst, wide, count * dtype_size(dtype));
}

// ---- the codecs ----
const struct codec *codec_find(uint8_t id) {
    if (id == CODEC_RAW || id >= CODECS) return NULL;
    return id >= CODEC_BLOCK_INT8 ? &block_codecs[id - CODEC_BLOCK_INT8] : &quant_codecs[id - CODEC_MINMAX_UINT8];
}

uint8_t codec_of_options(int dtype, int quantised_dtype, int algorithm, uint32_t block) {
    for (uint8_t id = CODEC_RAW + 1; id < CODECS; id++) {
        const struct codec *codec = codec_find(id);
        bool asked = block_is_algorithm(algorithm) ? codec->block == block : codec->quantised == quantised_dtype;
        if (asked && codec->algorithm == algorithm && codec->takes(dtype)) return id;
    }
    return CODEC_RAW;
}

// ---- many blocks ----
size_t codec_bytes(const struct codec *codec, int dtype, size_t count) {
    size_t rest = count % codec->block;
    return count / codec->block * codec->bytes(codec, dtype, codec->block) +
           (rest == 0 ? 0 : codec->bytes(codec, dtype, rest));
}

void codec_encode(const struct codec *codec, int dtype, uint8_t *out, const void *wide, size_t count,
                  const struct codec_rounding *rounding) {
    const uint8_t *from = wide;
    struct codec_rounding now_rounding = rounding == NULL ? (struct codec_rounding){0} : *rounding;
    for (size_t size = dtype_size(codec_wide(dtype)); count > 0;) {
        size_t now = count < codec->block ? count : codec->block;
        codec->encode(codec, dtype, out, from, now, rounding == NULL ? NULL : &now_rounding);
        now_rounding.index += now;
        out += codec->bytes(codec, dtype, now);
        from += now * size;
        count -= now;
    }
}

bool codec_valid(const struct codec *codec, int dtype, const uint8_t *in, size_t count) {
    while (count > 0 && codec->valid != NULL) {
        size_t now = count < codec->block ? count : codec->block;
        if (!codec->valid(codec, dtype, in, now)) return false;
        in += codec->bytes(codec, dtype, now);
        count -= now;
    }
    return true;
}

bool codec_decode(const struct codec *codec, int dtype, void *wide, const uint8_t *in, size_t count) {
    uint8_t *to = wide;
    for (size_t size = dtype_size(codec_wide(dtype)); count > 0;) {
        size_t now = count < codec->block ? count : codec->block;
        if (!codec->decode(codec, dtype, to, in, now)) return false;
        in += codec->bytes(codec, dtype, now);
        to += now * size;
        count -= now;
    }
    return true;
}

void codec_residual(void *out, const void *wanted, const void *got, uint32_t times, size_t count) {
    kernels_get()->block->residual(out, wanted, got, (float)times, count);
}
