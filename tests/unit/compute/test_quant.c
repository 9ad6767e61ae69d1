// Quantised blocks: what comes back, by how much it is off, and what malformed heads do. Every level's loops against
// the portable ones.
#define _GNU_SOURCE
#include "check.h"

#include "compute/codec.h"
#include "compute/element.h"
#include "compute/kernels.h"
#include "compute/kernels_levels.h"

#include <float.h>
#include <math.h>
#include <pccl.h>

enum { HEAD_BYTES = 32, MAX_COUNT = CODEC_PIECE, COMBINATIONS = 4 * (6 + 4) };

static const int sources[] = {pcclFloat16, pcclBFloat16, pcclFloat, pcclDouble};
static const int codes[] = {pcclUint8, pcclInt8, pcclUint16, pcclInt16, pcclUint32, pcclUint64};
static const int algorithms[] = {pcclQuantMinMax, pcclQuantZeroPointScale};

// Odd addresses: nothing in codec.h asks for alignment.
static uint8_t wide_memory[MAX_COUNT * 8 + 1], back_memory[MAX_COUNT * 8 + 1],
    code_memory[HEAD_BYTES + MAX_COUNT * 8 + 1];
static uint8_t *const wide = wide_memory + 1, *const back = back_memory + 1, *const encoded = code_memory + 1;

static bool supported(int dtype, int quantised, int algorithm) {
    return codec_of_options(dtype, quantised, algorithm, 0) != CODEC_RAW;
}

static const struct codec *codec_of(int dtype, int quantised, int algorithm) {
    return codec_find(codec_of_options(dtype, quantised, algorithm, 0));
}

static size_t wide_size(int dtype) { return dtype_size(codec_wide(dtype)); }

#define FOR_COMBINATIONS(dtype, quantised, algorithm) \
    for (size_t d_ = 0; d_ < 4; d_++) \
        for (size_t q_ = 0; q_ < 6; q_++) \
            for (size_t a_ = 0; a_ < 2; a_++) \
                for (int dtype = sources[d_], quantised = codes[q_], algorithm = algorithms[a_], once_ = 1; \
                     once_ && supported(dtype, quantised, algorithm); once_ = 0)

static const char *algorithm_name(int algorithm) { return algorithm == pcclQuantMinMax ? "MinMax" : "ZeroPointScale"; }

static double get(int dtype, const uint8_t *values, size_t i) {
    float single;
    double value;
    if (dtype == pcclDouble) return memcpy(&value, values + 8 * i, 8), value;
    return memcpy(&single, values + 4 * i, 4), (double)single;
}

static void put(int dtype, uint8_t *values, size_t i, double value) {
    float single = (float)value;
    if (dtype == pcclDouble)
        memcpy(values + 8 * i, &value, 8);
    else
        memcpy(values + 4 * i, &single, 4);
}

static bool roundtrip(int dtype, int quantised, int algorithm, size_t count) {
    codec_encode(codec_of(dtype, quantised, algorithm), dtype, encoded, wide, count, NULL);
    return codec_decode(codec_of(dtype, quantised, algorithm), dtype, back, encoded, count);
}

static void test_supported(void) {
    size_t allowed = 0;
    for (int dtype = -1; dtype <= KERNEL_DTYPES; dtype++)
        for (int quantised = -1; quantised <= KERNEL_DTYPES; quantised++)
            for (int algorithm = -1; algorithm <= 3; algorithm++) allowed += supported(dtype, quantised, algorithm);
    check_case("supported");
    CHECK_EQ(allowed, COMBINATIONS);
    CHECK(supported(pcclFloat, pcclUint8, pcclQuantMinMax));
    CHECK(supported(pcclDouble, pcclInt16, pcclQuantZeroPointScale));
    CHECK(supported(pcclBFloat16, pcclUint64, pcclQuantMinMax));
    CHECK(!supported(pcclBFloat16, pcclUint64, pcclQuantZeroPointScale));
    CHECK(!supported(pcclFloat, pcclInt32, pcclQuantMinMax));
    CHECK(!supported(pcclFloat, pcclUint8, pcclQuantNone));
    CHECK(!supported(pcclInt32, pcclUint8, pcclQuantMinMax));
    CHECK(!supported(pcclFloat, pcclFloat, pcclQuantMinMax));
    CHECK_EQ(codec_bytes(codec_of(pcclFloat, pcclUint16, pcclQuantMinMax), pcclFloat, 10), HEAD_BYTES + 20);
    CHECK_EQ(wide_size(pcclBFloat16), 4);
    CHECK_EQ(wide_size(pcclDouble), 8);
}

// In bits of the wide type.
static const uint32_t float_constants[] = {0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x3DCCCCCD, 0xC2C80001,
                                           0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF,
                                           0x4B800001, 0x33800000, 0x477FE000, 0xC77FE000};
static const uint64_t double_constants[] = {0x0000000000000000, 0x8000000000000000, 0x3FF0000000000000,
                                            0xBFB999999999999A, 0x0000000000000001, 0x8000000000000001,
                                            0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF,
                                            0xFFEFFFFFFFFFFFFF, 0x4340000000000001};
static const size_t constant_counts[] = {0, 1, 2, 7, 33, 64, 1000};

static void test_constants(void) {
    FOR_COMBINATIONS(dtype, quantised, algorithm) {
        size_t size = wide_size(dtype);
        size_t rows = size == 8 ? sizeof double_constants / sizeof *double_constants
                                : sizeof float_constants / sizeof *float_constants;
        for (size_t row = 0; row < rows; row++) {
            for (size_t k = 0; k < sizeof constant_counts / sizeof *constant_counts; k++) {
                size_t count = constant_counts[k];
                const void *constant =
                    size == 8 ? (const void *)&double_constants[row] : (const void *)&float_constants[row];
                for (size_t i = 0; i < count; i++) memcpy(wide + i * size, constant, size);
                check_case("constant %zu, %zu times, %s in %s by %s", row, count, dtype_name(dtype),
                           dtype_name(quantised), algorithm_name(algorithm));
                CHECK(roundtrip(dtype, quantised, algorithm, count));
                CHECK_MEM(back, wide, count * size);
            }
        }
    }
}

// Three peers with constant buffers, through the whole quantised way: encode, decode, reduce, divide, encode, decode,
// narrow.
static void test_constant_peers(void) {
    enum { COUNT = 37, PEERS = 3 };
    static const double rows[][PEERS] = {{1, 2, 3}, {-4, 4, 0},         {0.5, 0.25, -0.125}, {100, 7, 21},
                                         {0, 0, 0}, {-0.0, -0.0, -0.0}, {6, 6, 6},           {-1, -2, -3}};
    FOR_COMBINATIONS(dtype, quantised, algorithm) {
        for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
            for (int op = 0; op < KERNEL_OPS; op++) {
                if (!red_op_takes(op, dtype)) continue;
                uint8_t input[COUNT * 8], plain[COUNT * 8], got[COUNT * 8], sum[COUNT * 8];
                for (int peer = 0; peer < PEERS; peer++) {
                    for (size_t i = 0; i < COUNT; i++) put(dtype, wide, i, rows[row][peer]);
                    codec_narrow(dtype, input, wide, COUNT);
                    codec_widen(dtype, wide, input, COUNT);
                    roundtrip(dtype, quantised, algorithm, COUNT);
                    if (peer == 0) {
                        memcpy(plain, input, sizeof plain), memcpy(sum, back, sizeof sum);
                        continue;
                    }
                    kernels_get()->reduce[op][dtype](plain, plain, input, COUNT);
                    kernels_get()->reduce[op][codec_wide(dtype)](sum, sum, back, COUNT);
                }
                if (op == pcclAvg)
                    kernels_get()->divide[dtype](plain, COUNT, PEERS),
                        kernels_get()->divide[codec_wide(dtype)](sum, COUNT, PEERS);
                memcpy(wide, sum, COUNT * wide_size(dtype));
                roundtrip(dtype, quantised, algorithm, COUNT);
                codec_narrow(dtype, got, back, COUNT);
                check_case("peers row %zu %s, %s in %s by %s", row, red_op_name(op), dtype_name(dtype),
                           dtype_name(quantised), algorithm_name(algorithm));
                CHECK_MEM(got, plain, COUNT * dtype_size(dtype));
            }
        }
    }
}

static double uniform(uint64_t *seed) { return (double)(check_random(seed) >> 11) * 0x1p-53; }

// Value i of a distribution over [low, high]; the ends are always in it.
static const struct range_row {
    const char *name;
    double low, high;
    bool mixed; // exponents all over the range instead of uniform
    bool only_double;
} range_rows[] = {
    {"around 0", -1, 1, false, false},
    {"positive", 0, 5, false, false},
    {"mixed magnitudes", -1, 1, true, false},
    {"lopsided", -3, 250, false, false},
    {"far from 0", 1000, 1001, false, false},
    {"far below 0", -1001, -1000, false, false},
    {"next to 1", 1, 1 + 0x1p-20, false, false},
    {"two neighbours", 1, 1 + 0x1p-23, false, false},
    {"small", 1e-30, 3e-30, false, false},
    {"float denormals", -0x1p-140, 0x1p-141, false, false},
    {"largest of float16", -65504, 65504, false, false},
    {"up to the largest of float16", 60000, 65504, false, false},
    {"all of float", -(double)FLT_MAX, (double)FLT_MAX, false, false},
    {"large floats", (double)FLT_MAX / 2, (double)FLT_MAX, false, false},
    {"all of double", -DBL_MAX, DBL_MAX, false, true},
    {"huge and small", -1, DBL_MAX, true, true},
    {"large doubles", DBL_MAX / 2, DBL_MAX, false, true},
    {"double denormals", -0x1p-1060, 0x1p-1058, false, true},
    {"three denormals", 0, 0x3p-1074, false, true},
    {"next to 1 in double", 1, 1 + 0x1p-52, false, true},
    {"wide and tiny", 0, 1e-300, true, true},
};

static double draw(const struct range_row *row, size_t i, uint64_t *seed) {
    if (i == 3) return row->low;
    if (i == 4) return row->high;
    double part = uniform(seed);
    if (row->mixed) part = ldexp(part, -(int)(check_random(seed) % 60));
    double value = row->low * (1 - part) + row->high * part;
    return value < row->low ? row->low : value > row->high ? row->high : value;
}

static long double last_place(int dtype, double value) {
    float single = fabsf((float)value);
    if (dtype == pcclDouble)
        return fabs(value) >= DBL_MAX ? 0x1p971L
                                      : (long double)nextafter(fabs(value), INFINITY) - (long double)fabs(value);
    return single >= FLT_MAX ? 0x1p104L : (long double)nextafterf(single, INFINITY) - (long double)single;
}

static void test_error(size_t count) {
    FOR_COMBINATIONS(dtype, quantised, algorithm) {
        for (size_t row = 0; row < sizeof range_rows / sizeof *range_rows; row++) {
            const struct range_row *range = &range_rows[row];
            if (range->only_double && dtype != pcclDouble) continue;
            uint64_t seed = row + 99;
            long double low = INFINITY, high = -INFINITY;
            for (size_t i = 0; i < count; i++) {
                put(dtype, wide, i, draw(range, i, &seed));
                long double value = (long double)get(dtype, wide, i);
                low = value < low ? value : low, high = value > high ? value : high;
            }
            long double step = (high - low) / (ldexpl(1, (int)dtype_size(quantised) * 8) - 1);
            check_case("error, %s, %s in %s by %s", range->name, dtype_name(dtype), dtype_name(quantised),
                       algorithm_name(algorithm));
            CHECK(roundtrip(dtype, quantised, algorithm, count));
            size_t wrong = 0;
            long double total = 0;
            for (size_t i = 0; i < count; i++) {
                double value = get(dtype, wide, i), got = get(dtype, back, i);
                long double error = (long double)got - (long double)value;
                total += error;
                // Half a step, and one rounding to the element type.
                wrong += !(fabsl(error) <= step / 2 * (1 + 1e-5L) + last_place(dtype, value) * 0.75L);
                wrong += value == 0 && !range->mixed && algorithm == pcclQuantZeroPointScale && got != 0;
            }
            CHECK_EQ(wrong, 0);
            if (algorithm == pcclQuantMinMax) {
                CHECK(get(dtype, back, 3) == (double)low || step < 2 * last_place(dtype, (double)low));
                CHECK(fabsl((long double)get(dtype, back, 4) - high) <= last_place(dtype, (double)high));
            }
            // The errors of many values cancel: their mean is far below the half step of a cut instead of a rounding.
            if (!range->mixed && count > 1000 &&
                step > 8 * last_place(dtype, (double)(fabsl(low) > fabsl(high) ? low : high)))
                CHECK(fabsl(total / (long double)count) < step * 0.29L * 5 / sqrtl((long double)count));
        }
    }
}

// What float16 can hold must not come back as infinity when it is narrowed.
static void test_edge_of_float16(void) {
    static const float rows[][2] = {{-65504, 65504}, {-65504, 0},    {-65504, 100},
                                    {-100, 65504},   {65000, 65504}, {-300, 65504}};
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        for (size_t a = 0; a < 2; a++) {
            uint16_t halves[2];
            memcpy(wide, rows[row], sizeof rows[row]);
            CHECK(roundtrip(pcclFloat16, pcclInt8, algorithms[a], 2));
            codec_narrow(pcclFloat16, halves, back, 2);
            check_case("edge of float16 row %zu by %s", row, algorithm_name(algorithms[a]));
            CHECK((halves[0] & 0x7FFF) < 0x7C00);
            CHECK((halves[1] & 0x7FFF) < 0x7C00);
        }
    }
}

static void test_zero_comes_back(void) {
    for (size_t q = 0; q < 4; q++) {
        for (int i = 0; i < 200; i++) put(pcclFloat, wide, (size_t)i, i == 100 ? 0 : (i - 77) * 0.137);
        check_case("zero in %s", dtype_name(codes[q]));
        CHECK(roundtrip(pcclFloat, codes[q], pcclQuantZeroPointScale, 200));
        CHECK(get(pcclFloat, back, 100) == 0);
    }
}

static void test_not_finite(void) {
    static const double bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    enum { COUNT = 100 };
    FOR_COMBINATIONS(dtype, quantised, algorithm) {
        for (size_t row = 0; row < sizeof bad / sizeof *bad; row++) {
            for (size_t i = 0; i < COUNT; i++) put(dtype, wide, i, (double)i);
            put(dtype, wide, 13 + row * 20, bad[row]);
            check_case("not finite %zu, %s in %s by %s", row, dtype_name(dtype), dtype_name(quantised),
                       algorithm_name(algorithm));
            CHECK(roundtrip(dtype, quantised, algorithm, COUNT));
            size_t numbers = 0;
            for (size_t i = 0; i < COUNT; i++)
                if (!isnan(get(dtype, back, i))) numbers++;
            CHECK_EQ(numbers, 0);
        }
    }
}

static void test_malformed(void) {
    static const struct {
        const char *name;
        size_t offset, bytes;
        uint64_t value;
    } rows[] = {
        {"kind", 0, 1, 5},
        {"kind of doubles only", 0, 1, 1},
        {"other element type", 1, 1, pcclDouble},
        {"other quantised type", 2, 1, pcclInt8},
        {"other algorithm", 3, 1, pcclQuantZeroPointScale},
        {"smaller count", 4, 4, 99},
        {"larger count", 4, 4, 0xFFFFFFFF},
        {"offset NaN", 8, 8, 0x7FF8000000000000},
        {"offset infinite", 8, 8, 0x7FF0000000000000},
        {"offset beyond float", 8, 8, 0x4800000000000000},
        {"scale 0", 16, 8, 0},
        {"scale negative", 16, 8, 0xBFF0000000000000},
        {"scale NaN", 16, 8, 0x7FF8000000000000},
        {"scale infinite", 16, 8, 0x7FF0000000000000},
        {"last value beyond float", 16, 8, 0x47F0000000000000},
        {"zero NaN", 24, 8, 0x7FF8000000000000},
        {"zero huge", 24, 8, 0x4330000000000000},
    };
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        for (size_t i = 0; i < 100; i++) put(pcclFloat, wide, i, (double)i);
        codec_encode(codec_of(pcclFloat, pcclUint8, pcclQuantMinMax), pcclFloat, encoded, wide, 100, NULL);
        memcpy(encoded + rows[row].offset, &rows[row].value, rows[row].bytes);
        check_case("malformed: %s", rows[row].name);
        CHECK(!codec_decode(codec_of(pcclFloat, pcclUint8, pcclQuantMinMax), pcclFloat, back, encoded, 100));
    }
}

// Any bytes are refused or decoded, without undefined behaviour; what is finite in the head never decodes to NaN or
// infinity.
static void test_fuzz(uint64_t seed) {
    enum { COUNT = 9, ROUNDS = 3000 };
    size_t decoded = 0;
    FOR_COMBINATIONS(dtype, quantised, algorithm) {
        size_t bytes = codec_bytes(codec_of(dtype, quantised, algorithm), dtype, COUNT);
        for (int round = 0; round < ROUNDS; round++) {
            for (size_t i = 0; i < COUNT; i++) put(dtype, wide, i, uniform(&seed) - 0.5);
            codec_encode(codec_of(dtype, quantised, algorithm), dtype, encoded, wide, COUNT, NULL);
            if (round % 3 == 0)
                for (size_t i = 0; i < bytes; i++) encoded[i] = (uint8_t)check_random(&seed);
            else
                for (int k = round % 5; k >= 0; k--)
                    encoded[check_random(&seed) % (round % 2 ? bytes : HEAD_BYTES)] = (uint8_t)check_random(&seed);
            const struct codec *codec = codec_of(dtype, quantised, algorithm);
            bool good = codec_decode(codec, dtype, back, encoded, COUNT);
            CHECK_EQ(codec_valid(codec, dtype, encoded, COUNT), good);
            if (!good) continue;
            decoded++;
            if (quantised == pcclUint64 || encoded[0] == 4) continue;
            for (size_t i = 0; i < COUNT; i++) CHECK(isfinite(get(dtype, back, i)));
        }
    }
    check_case("fuzz");
    CHECK(decoded > 1000);
}

static void test_widen_narrow(const struct kernels *kernels, uint64_t seed) {
    static uint8_t halves[65536 * 2 + 3], values[65536 * 4 + 3], again[65536 * 2 + 3];
    const struct quant_loops *loops = kernels->quant;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        check_case("%s all %s", kernels->name, bf16 ? "bfloat16" : "float16");
        for (uint32_t i = 0; i < 65536; i++) memcpy(halves + 1 + 2 * i, &i, 2);
        (bf16 ? loops->widen_bf16 : loops->widen_f16)(values + 3, halves + 1, 65536);
        (bf16 ? loops->narrow_bf16 : loops->narrow_f16)(again + 1, values + 3, 65536);
        size_t wrong = 0;
        for (uint32_t i = 0; i < 65536; i++) {
            uint16_t half;
            memcpy(&half, again + 1 + 2 * i, 2);
            bool nan = (i & 0x7FFF) > (bf16 ? 0x7F80 : 0x7C00);
            wrong += half != (nan ? (bf16 ? 0x7FC0 : 0x7E00) : i);
        }
        CHECK_EQ(wrong, 0);
        for (size_t count = 0; count <= 70; count++) {
            memset(again, 0xA5, sizeof again);
            for (size_t i = 0; i < count; i++) {
                uint32_t bits = (uint32_t)check_random(&seed);
                if (i % 3) bits = float_to_bits((float)((uniform(&seed) - 0.5) * 131100 * uniform(&seed)));
                memcpy(values + 3 + 4 * i, &bits, 4);
            }
            (bf16 ? loops->narrow_bf16 : loops->narrow_f16)(again + 1, values + 3, count);
            wrong = 0;
            for (size_t i = 0; i < count; i++) {
                float value;
                uint16_t half;
                memcpy(&value, values + 3 + 4 * i, 4), memcpy(&half, again + 1 + 2 * i, 2);
                wrong += half != (bf16 ? float_to_bf16(value) : float_to_f16(value));
            }
            check_case("%s narrow %s count %zu", kernels->name, bf16 ? "bfloat16" : "float16", count);
            CHECK_EQ(wrong, 0);
            CHECK_EQ(again[1 + 2 * count], 0xA5);
        }
    }
}

static void test_loops(const struct kernels *kernels, uint64_t seed) {
    enum { COUNT = 3000 };
    static const uint32_t last[QUANT_CODES] = {255, 65535, UINT32_MAX};
    static uint8_t values[COUNT * 8 + 1], mine[COUNT * 8 + 1], model[COUNT * 8 + 1];
    const struct quant_loops *loops = kernels->quant, *portable = kernels_at(KERNEL_PORTABLE)->quant;
    for (int round = 0; round < 60; round++) {
        size_t count = round < 40 ? (size_t)round : COUNT - check_random(&seed) % 100;
        for (int w = 0; w < QUANT_WIDES; w++) {
            int dtype = w == QUANT_DOUBLE ? pcclDouble : pcclFloat;
            double centre = (uniform(&seed) - 0.5) * ldexp(1, (int)(check_random(&seed) % 12)),
                   grow = w == QUANT_DOUBLE && round % 2 ? 0x1p256 : 1;
            for (size_t i = 0; i < count; i++) put(dtype, values + 1, i, centre + uniform(&seed) - 0.5);
            int64_t low = 0, high = 0, want_low = 0, want_high = 0;
            loops->range[w](values + 1, count, &low, &high);
            portable->range[w](values + 1, count, &want_low, &want_high);
            check_case("%s range of %s count %zu", kernels->name, dtype_name(dtype), count);
            CHECK_EQ(low, want_low);
            CHECK_EQ(high, want_high);
            for (int c = 0; c < QUANT_CODES; c++) {
                struct quant_affine affine = {.offset = (centre - 0.5) * grow,
                                              .scale = 1.0 / last[c] * grow,
                                              .grow = grow,
                                              .shrink = 1 / grow,
                                              .last = last[c],
                                              .flip = round % 3 && c < 2 ? last[c] / 2 + 1 : 0};
                affine.inverse = 1 / affine.scale;
                if (round % 5 == 0) affine.zero = (double)(check_random(&seed) % 1000);
                memset(mine, 0, sizeof mine), memset(model, 0, sizeof model);
                loops->encode[w][c](mine + 1, values + 1, count, &affine);
                portable->encode[w][c](model + 1, values + 1, count, &affine);
                check_case("%s encode %s %d count %zu", kernels->name, dtype_name(dtype), c, count);
                CHECK_MEM(mine, model, sizeof mine);
                uint8_t coded[COUNT * 4];
                memcpy(coded, model + 1, count * 4);
                loops->decode[w][c](mine + 1, coded, count, &affine);
                portable->decode[w][c](model + 1, coded, count, &affine);
                check_case("%s decode %s %d count %zu", kernels->name, dtype_name(dtype), c, count);
                CHECK_MEM(mine, model, sizeof mine);
            }
        }
    }
}

int main(void) {
    test_supported();
    test_constants();
    test_constant_peers();
    test_error(5);
    test_error(77);
    test_error(3001);
    test_edge_of_float16();
    test_zero_comes_back();
    test_not_finite();
    test_malformed();
    test_fuzz(5);
    for (int level = 0; level < KERNEL_LEVELS; level++) {
        const struct kernels *kernels = kernels_at((enum kernel_level)level);
        if (!kernels) continue;
        test_widen_narrow(kernels, 3);
        test_loops(kernels, 4);
    }
    return check_status();
}
