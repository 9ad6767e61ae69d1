// The codecs that quantise: round to nearest, with the block's own scale. Pure.
//
// MinMax: code = round((x - min) / (max - min) * levels), x = min + code * (max - min) / levels, over the full range of
// the code type. ZeroPointScale: x = (code - zero_point) * scale, with a whole zero point when the block reaches or is
// near 0, so that 0 comes back as 0. Both give a constant finite block back exactly (also -0, also denormal), and are
// never off by more than half a step (max - min) / levels plus the rounding of the element type, at any range that the
// type has. MinMax gives the ends of the range back. A block that holds NaN or infinity comes back as all NaN: the
// codes have no value to spare for them. Decoding gives the same bits on every machine and at every kernel level.
// Buffers may lie at any address.
//
// A block is a head and its codes. A head is 32 bytes, little-endian: kind, element type, quantised type and algorithm
// in a byte each, uint32 count, and three doubles offset, scale, zero, which mean
//
//     value = (offset + (code - zero) * scale) * shrink        code counted from 0, also for signed types
//
// MinMax has offset = min and zero = 0. ZeroPointScale has offset = 0 and a whole `zero`, so that 0 comes back as 0;
// only a block far from 0, where a whole zero point would lose digits or reach beyond the type's range, is counted from
// its smallest value instead. A constant block is its own kind with the constant as offset, and so is a block that
// holds NaN or infinity. The kinds SHRUNK and GROWN are for doubles whose range overflows or whose step would be
// denormal: they are handled at 2^-64 or 2^256 times their value (`grow`), far inside the range of double.
//
// 64-bit codes count finer than double does: they are computed in pairs of doubles (head + tail), and the third double
// of the head is the tail of the scale.
#include "compute/codec.h"

#include "compute/element.h"
#include "compute/kernels.h"
#include "compute/kernels_levels.h"

#include <float.h>
#include <math.h>
#include <pccl.h>
#include <string.h>

enum kind { KIND_PLAIN, KIND_SHRUNK, KIND_GROWN, KIND_CONSTANT, KIND_NOT_FINITE };

// Largest zero point, in steps. A block beyond it is far from 0.
#define ZERO_LIMIT 0x1p20

struct head {
    uint8_t kind, dtype, quantised, algorithm;
    uint32_t count;
    double offset, scale, zero;
};
_Static_assert(sizeof(struct head) == 32, "the head is sent as it lies in memory");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the head is sent as it lies in memory");

static bool quant_takes(int dtype) {
    return dtype == pcclFloat16 || dtype == pcclBFloat16 || dtype == pcclFloat || dtype == pcclDouble;
}

static size_t quant_bytes(const struct codec *codec, int dtype, size_t count) {
    (void)dtype;
    return sizeof(struct head) + count * dtype_size(codec->quantised);
}

static bool is_signed(int quantised_dtype) { return quantised_dtype == pcclInt8 || quantised_dtype == pcclInt16; }

static int wide_of(int dtype) { return dtype == pcclDouble ? QUANT_DOUBLE : QUANT_FLOAT; }

// Returns one wide value as a double. Wide buffers may lie at any address.
static double wide_get(int wide, const void *values, size_t i) {
    float single;
    double both;
    if (wide == QUANT_DOUBLE) return memcpy(&both, (const char *)values + i * sizeof both, sizeof both), both;
    return memcpy(&single, (const char *)values + i * sizeof single, sizeof single), (double)single;
}

static void wide_put(int wide, void *values, size_t i, double value) {
    float single = (float)value;
    if (wide == QUANT_DOUBLE)
        memcpy((char *)values + i * sizeof value, &value, sizeof value);
    else
        memcpy((char *)values + i * sizeof single, &single, sizeof single);
}

static void wide_fill(int wide, void *values, size_t count, double value) {
    for (size_t i = 0; i < count; i++) wide_put(wide, values, i, value);
}

// Back from the order of integers to the value.
static double wide_of_key(int wide, int64_t key) {
    int64_t bits = key < 0 ? key ^ INT64_MAX : key;
    int32_t small = (int32_t)(key < 0 ? key ^ INT32_MAX : key);
    return wide_get(wide, wide == QUANT_DOUBLE ? (const void *)&bits : (const void *)&small, 0);
}

static double grow_of(int kind) { return kind == KIND_SHRUNK ? 0x1p-64 : kind == KIND_GROWN ? 0x1p256 : 1.0; }

static double shrink_of(int kind) { return kind == KIND_SHRUNK ? 0x1p64 : kind == KIND_GROWN ? 0x1p-256 : 1.0; }

static uint64_t last_code(int quantised_dtype) { return UINT64_MAX >> (64 - 8 * dtype_size(quantised_dtype)); }

static struct quant_affine affine_of(const struct head *head) {
    return (struct quant_affine){
        .offset = head->offset,
        .scale = head->scale,
        .inverse = 1.0 / head->scale,
        .zero = head->zero,
        .grow = grow_of(head->kind),
        .shrink = shrink_of(head->kind),
        .last = (uint32_t)last_code(head->quantised),
        .flip = is_signed(head->quantised) ? (uint32_t)(last_code(head->quantised) / 2 + 1) : 0,
    };
}

static int code_size(int quantised_dtype) {
    return dtype_size(quantised_dtype) == 1   ? QUANT_CODE8
           : dtype_size(quantised_dtype) == 2 ? QUANT_CODE16
                                              : QUANT_CODE32;
}

// To the nearest whole number, to even, without -0; for magnitudes below 2^51.
static double to_whole(double x) { return x + 0x1.8p52 - 0x1.8p52; }

// ---- pairs of doubles ----
// About 106 bits, value = head + tail with |tail| at most half a last place of head (Knuth's two-sum, Dekker 1971).
// Exact only while nothing overflows or becomes denormal, and without contraction to fused operations.

struct pair {
    double head, tail;
};

static struct pair pair_sum(double a, double b) {
    double sum = a + b, of_b = sum - a;
    return (struct pair){sum, (a - (sum - of_b)) + (b - of_b)};
}

static struct pair pair_split(double a) {
    double scaled = a * 134217729.0, high = scaled - (scaled - a); // 2^27 + 1
    return (struct pair){high, a - high};
}

static struct pair pair_product(double a, double b) {
    struct pair x = pair_split(a), y = pair_split(b);
    double product = a * b;
    return (struct pair){product, ((x.head * y.head - product) + x.head * y.tail + x.tail * y.head) + x.tail * y.tail};
}

static struct pair pair_add(struct pair a, struct pair b) {
    struct pair sum = pair_sum(a.head, b.head);
    return pair_sum(sum.head, sum.tail + (a.tail + b.tail));
}

static struct pair pair_times(struct pair a, struct pair b) {
    struct pair product = pair_product(a.head, b.head);
    return pair_sum(product.head, product.tail + (a.head * b.tail + a.tail * b.head));
}

static struct pair pair_over(struct pair a, struct pair b) {
    double first = a.head / b.head;
    struct pair by_first = pair_times((struct pair){first, 0}, b);
    struct pair rest = pair_add(a, (struct pair){-by_first.head, -by_first.tail});
    return pair_sum(first, rest.head / b.head);
}

static struct pair pair_of_code(uint64_t code) {
    return pair_sum((double)(code >> 32) * 0x1p32, (double)(code & UINT32_MAX));
}

static uint64_t code_of_pair(struct pair x) {
    if (x.head < 0) return 0;
    double whole = x.head < 0x1p52 ? (double)(int64_t)x.head : x.head;
    int64_t rest = (int64_t)to_whole((x.head - whole) + x.tail);
    if (whole >= 0x1p64) return rest < 0 ? (uint64_t)rest : UINT64_MAX;
    uint64_t code = (uint64_t)whole + (uint64_t)rest;
    if (rest > 0 && code < (uint64_t)whole) return UINT64_MAX;
    return rest < 0 && code > (uint64_t)whole ? 0 : code;
}

static void encode_pairs(const struct head *head, uint8_t *codes, const void *values, size_t count) {
    int wide = wide_of(head->dtype);
    double grow = grow_of(head->kind);
    struct pair scale = {head->scale, head->zero};
    for (size_t i = 0; i < count; i++) {
        struct pair above = pair_sum(wide_get(wide, values, i) * grow, -head->offset);
        uint64_t code = code_of_pair(pair_over(above, scale));
        memcpy(codes + i * sizeof code, &code, sizeof code);
    }
}

static void decode_pairs(const struct head *head, void *values, const uint8_t *codes, size_t count) {
    int wide = wide_of(head->dtype);
    double shrink = shrink_of(head->kind);
    struct pair scale = {head->scale, head->zero}, offset = {head->offset, 0};
    for (size_t i = 0; i < count; i++) {
        uint64_t code;
        memcpy(&code, codes + i * sizeof code, sizeof code);
        struct pair value = pair_add(offset, pair_times(pair_of_code(code), scale));
        wide_put(wide, values, i, (value.head + value.tail) * shrink);
    }
}

// ---- encoding

// Not from the maths library, which would be one more library to load.
static double smaller(double a, double b) { return a < b ? a : b; }

static double larger(double a, double b) { return a > b ? a : b; }

static double largest_of(int dtype) {
    switch (dtype) {
    case pcclFloat16: return 65504.0;
    case pcclBFloat16: return (double)float_from_bits(0x7F7F0000u);
    case pcclFloat: return FLT_MAX;
    default: return DBL_MAX;
    }
}

// Whether the outermost codes stand for values that the element type has, if the block's own values are such.
static bool reaches_too_far(const struct head *head, double min, double max) {
    double largest = largest_of(head->dtype) * grow_of(head->kind);
    double first = (0 - head->zero) * head->scale,
           last = ((double)last_code(head->quantised) - head->zero) * head->scale;
    return first < smaller(min, -largest) || last > larger(max, largest);
}

static void choose_zero_point(struct head *head, double min, double max) {
    double zero = -min / head->scale;
    if (fabs(zero) > ZERO_LIMIT) return;
    double offset = head->offset;
    head->offset = 0;
    head->zero = to_whole(zero);
    if (!reaches_too_far(head, min, max)) return;
    head->offset = offset;
    head->zero = 0;
}

static void choose_scale(struct head *head, double min, double max) {
    double extent = larger(fabs(min), fabs(max));
    head->kind = extent > 0x1p900 ? KIND_SHRUNK : max - min < 0x1p-700 ? KIND_GROWN : KIND_PLAIN;
    double grow = grow_of(head->kind);
    min *= grow, max *= grow;
    head->offset = min;
    double last = (double)last_code(head->quantised);
    if (head->quantised == pcclUint64) {
        struct pair codes = {0x1p64, -1};
        struct pair scale = pair_over(pair_sum(max, -min), codes);
        head->scale = scale.head, head->zero = scale.tail;
        return;
    }
    head->scale = (max - min) / last;
    if (head->algorithm == pcclQuantZeroPointScale) choose_zero_point(head, min, max);
}

// Chooses -0 as the constant only if all values are -0.
static void choose_head(struct head *head, const void *values, size_t count) {
    int wide = wide_of(head->dtype);
    int64_t smallest, largest;
    kernels_get()->quant->range[wide](values, count, &smallest, &largest);
    double min = wide_of_key(wide, smallest), max = wide_of_key(wide, largest);
    if (!isfinite(min) || !isfinite(max)) {
        head->kind = KIND_NOT_FINITE;
    } else if (min == max) {
        head->kind = KIND_CONSTANT;
        head->offset = max;
    } else {
        choose_scale(head, min + 0.0, max + 0.0);
    }
}

static void quant_encode(const struct codec *codec, int dtype, uint8_t *out, const void *wide, size_t count,
                         const struct codec_rounding *rounding) {
    (void)rounding;
    struct head head = {.kind = KIND_CONSTANT,
                        .dtype = (uint8_t)dtype,
                        .quantised = codec->quantised,
                        .algorithm = codec->algorithm,
                        .count = (uint32_t)count};
    if (count > 0) choose_head(&head, wide, count);
    memcpy(out, &head, sizeof head);
    uint8_t *codes = out + sizeof head;
    if (head.kind == KIND_CONSTANT || head.kind == KIND_NOT_FINITE) {
        memset(codes, 0, count * dtype_size(codec->quantised));
    } else if (codec->quantised == pcclUint64) {
        encode_pairs(&head, codes, wide, count);
    } else {
        struct quant_affine affine = affine_of(&head);
        kernels_get()->quant->encode[wide_of(dtype)][code_size(codec->quantised)](codes, wide, count, &affine);
    }
}

// ---- decoding

// A rounding error beyond the largest number is allowed, and cut off afterwards.
static bool in_range(int wide, double value) {
    return wide == QUANT_DOUBLE ? isfinite(value) : fabs(value) <= FLT_MAX * (1 + 0x1p-40);
}

static bool affine_valid(const struct head *head, int wide) {
    if (wide == QUANT_FLOAT && head->kind != KIND_PLAIN) return false;
    if (!(head->scale > 0) || !isfinite(head->zero)) return false;
    double last = (double)last_code(head->quantised);
    if (head->quantised == pcclUint64)
        return fabs(head->zero) <= head->scale && in_range(wide, head->offset) &&
               in_range(wide, head->offset + last * head->scale);
    if (fabs(head->zero) > ZERO_LIMIT) return false;
    return in_range(wide, head->offset - head->zero * head->scale) &&
           in_range(wide, head->offset + (last - head->zero) * head->scale);
}

static bool head_valid(const struct head *head, const struct codec *codec, int dtype, size_t count) {
    if (head->dtype != dtype || head->quantised != codec->quantised || head->algorithm != codec->algorithm ||
        head->count != count)
        return false;
    if (head->kind == KIND_NOT_FINITE) return true;
    int wide = wide_of(dtype);
    if (head->kind > KIND_NOT_FINITE || !isfinite(head->offset) || !in_range(wide, head->offset)) return false;
    return head->kind == KIND_CONSTANT || affine_valid(head, wide);
}

// The largest doubles may have come back as infinity.
static void cut_infinity(double *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double value = wide_get(QUANT_DOUBLE, values, i);
        if (isinf(value)) wide_put(QUANT_DOUBLE, values, i, copysign(DBL_MAX, value));
    }
}

static bool quant_valid(const struct codec *codec, int dtype, const uint8_t *in, size_t count) {
    struct head head;
    memcpy(&head, in, sizeof head);
    return head_valid(&head, codec, dtype, count);
}

static bool quant_decode(const struct codec *codec, int dtype, void *wide, const uint8_t *in, size_t count) {
    struct head head;
    memcpy(&head, in, sizeof head);
    if (!head_valid(&head, codec, dtype, count)) return false;
    const uint8_t *codes = in + sizeof head;
    if (head.kind == KIND_CONSTANT) {
        wide_fill(wide_of(dtype), wide, count, head.offset);
    } else if (head.kind == KIND_NOT_FINITE) {
        wide_fill(wide_of(dtype), wide, count, NAN);
    } else if (codec->quantised == pcclUint64) {
        decode_pairs(&head, wide, codes, count);
    } else {
        struct quant_affine affine = affine_of(&head);
        kernels_get()->quant->decode[wide_of(dtype)][code_size(codec->quantised)](wide, codes, count, &affine);
    }
    if (head.kind == KIND_SHRUNK) cut_infinity(wide, count);
    return true;
}

#define QUANT(id, text, dtype, by) \
    [(id) - CODEC_MINMAX_UINT8] = { \
        .name = text, \
        .quantised = dtype, \
        .algorithm = by, \
        .block = CODEC_PIECE, \
        .takes = quant_takes, \
        .bytes = quant_bytes, \
        .encode = quant_encode, \
        .valid = quant_valid, \
        .decode = quant_decode, \
    }

const struct codec quant_codecs[] = {
    QUANT(CODEC_MINMAX_UINT8, "uint8 by min-max", pcclUint8, pcclQuantMinMax),
    QUANT(CODEC_MINMAX_INT8, "int8 by min-max", pcclInt8, pcclQuantMinMax),
    QUANT(CODEC_MINMAX_UINT16, "uint16 by min-max", pcclUint16, pcclQuantMinMax),
    QUANT(CODEC_MINMAX_INT16, "int16 by min-max", pcclInt16, pcclQuantMinMax),
    QUANT(CODEC_MINMAX_UINT32, "uint32 by min-max", pcclUint32, pcclQuantMinMax),
    QUANT(CODEC_MINMAX_UINT64, "uint64 by min-max", pcclUint64, pcclQuantMinMax),
    QUANT(CODEC_ZERO_UINT8, "uint8 by zero-point-scale", pcclUint8, pcclQuantZeroPointScale),
    QUANT(CODEC_ZERO_INT8, "int8 by zero-point-scale", pcclInt8, pcclQuantZeroPointScale),
    QUANT(CODEC_ZERO_UINT16, "uint16 by zero-point-scale", pcclUint16, pcclQuantZeroPointScale),
    QUANT(CODEC_ZERO_INT16, "int16 by zero-point-scale", pcclInt16, pcclQuantZeroPointScale),
};
