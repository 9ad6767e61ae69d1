// The codecs with a scale for each block: what comes back, how far it is off, what random rounding does on average, and
// malformed blocks. Every level's loops against the portable ones.
#include "check.h"

#include "compute/codec.h"
#include "compute/kernels.h"
#include "compute/kernels_levels.h"

#include <float.h>
#include <math.h>
#include <pccl.h>

enum { MAX_COUNT = BLOCK_MOST };

static const int algorithms[] = {pcclQuantBlockInt8, pcclQuantBlockInt4, pcclQuantBlockE3M0};
static const float mosts[] = {127, 7, 1}; // of the codes, in scales
static const size_t counts[] = {1, 2, 3, 7, 31, 32, 33, 255, 256, 1000, 4095, 4096};

// Odd addresses: nothing in codec.h asks for alignment.
static uint8_t wide_memory[MAX_COUNT * 4 + 1], back_memory[MAX_COUNT * 4 + 1], code_memory[MAX_COUNT + 5];
static uint8_t *const wide = wide_memory + 1, *const back = back_memory + 1, *const encoded = code_memory + 1;

static const struct codec *codec_of(int algorithm, uint32_t block) {
    return codec_find(codec_of_options(pcclFloat, pcclUint8, algorithm, block));
}

static float get(const uint8_t *values, size_t i) {
    float value;
    return memcpy(&value, values + 4 * i, 4), value;
}

static void put(size_t i, float value) { memcpy(wide + 4 * i, &value, 4); }

static float scale_of_encoded(void) { return get(encoded, 0); }

static bool roundtrip(int algorithm, size_t count, const struct codec_rounding *rounding) {
    const struct codec *codec = codec_of(algorithm, MAX_COUNT);
    codec_encode(codec, pcclFloat, encoded, wide, count, rounding);
    return codec_decode(codec, pcclFloat, back, encoded, count);
}

static float uniform(uint64_t *seed) { return (float)(check_random(seed) >> 40) * 0x1p-24f; }

// ---- the table ----
static void test_options(void) {
    check_case("options");
    for (size_t a = 0; a < 3; a++) {
        for (uint32_t block = 1; block <= 8192; block *= 2) {
            uint8_t id = codec_of_options(pcclFloat16, 77, algorithms[a], block);
            bool valid = block >= BLOCK_LEAST && block <= BLOCK_MOST;
            CHECK_EQ(id != CODEC_RAW, valid);
            if (valid) CHECK_EQ(codec_find(id)->block, block);
        }
        CHECK_EQ(codec_of_options(pcclDouble, pcclUint8, algorithms[a], 256), CODEC_RAW);
        CHECK_EQ(codec_of_options(pcclInt32, pcclUint8, algorithms[a], 256), CODEC_RAW);
        CHECK_EQ(codec_of_options(pcclFloat, pcclUint8, algorithms[a], 48), CODEC_RAW);
    }
    CHECK_EQ(codec_bytes(codec_of(pcclQuantBlockInt8, 256), pcclFloat, 1000), 4 * 4 + 1000);
    CHECK_EQ(codec_bytes(codec_of(pcclQuantBlockInt4, 256), pcclFloat, 1001), 4 * 4 + 501);
    CHECK_EQ(codec_bytes(codec_of(pcclQuantBlockE3M0, 4096), pcclBFloat16, 1), 4 + 1);
}

// ---- what comes back ----
static const struct {
    const char *name;
    float from, to; // exponents of two, evenly between them
} ranges[] = {
    {"around 1", -3, 0},
    {"mixed", -60, 60},
    {"all of float", -149, 127.9999f},
    {"largest", 127, 127.9999f},
    {"smallest that are normal", -126, -120},
    {"denormal", -149, -126},
    {"next to SMALL", -92, -88},
};

static void draw(size_t range, size_t count, uint64_t *seed) {
    for (size_t i = 0; i < count; i++) {
        float exponent = ranges[range].from + (ranges[range].to - ranges[range].from) * uniform(seed);
        float value = (float)exp2((double)exponent);
        put(i, check_random(seed) % 7 == 0 ? 0 : check_random(seed) % 2 == 0 ? value : -value);
    }
}

// Whether no other code would have been nearer, but for the rounding of float.
static bool is_nearest(int algorithm, float value, float got, float scale) {
    double error = fabs((double)got - (double)value), magnitude = fabs((double)value);
    double rounding = 0x1p-20 * (double)scale + 0x1p-149; // of the scale, its inverse and the product
    if (algorithm != pcclQuantBlockE3M0) {
        double most = algorithm == pcclQuantBlockInt8 ? 127 : 7;
        if (magnitude > most * (double)scale) return error <= magnitude - most * (double)scale + rounding * most;
        return error <= (double)scale / 2 + rounding * most;
    }
    double best = magnitude;
    for (int power = -6; power <= 0; power++) {
        double off = fabs(magnitude - (double)(ldexpf(scale, power)));
        best = off < best ? off : best;
    }
    return error <= best + rounding;
}

static void test_nearest(void) {
    uint64_t seed = 1;
    for (size_t a = 0; a < 3; a++) {
        for (size_t range = 0; range < sizeof ranges / sizeof ranges[0]; range++) {
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                size_t wrong = 0, count = counts[c];
                draw(range, count, &seed);
                check_case("%s, %s, %zu", codec_of(algorithms[a], MAX_COUNT)->name, ranges[range].name, count);
                CHECK(roundtrip(algorithms[a], count, NULL));
                for (size_t i = 0; i < count; i++) {
                    float value = get(wide, i), got = get(back, i);
                    wrong += !isfinite(got) || (value == 0 && (got != 0 || signbit(got)));
                    wrong += !is_nearest(algorithms[a], value, got, scale_of_encoded());
                }
                CHECK_EQ(wrong, 0);
            }
        }
    }
}

static void test_zero_and_largest(void) {
    static const float rows[] = {1, -1, FLT_MAX, -FLT_MAX, FLT_MIN, 0x1p-149f, 0x1.fffffep-91f, 0x1p-90f, 65504};
    for (size_t a = 0; a < 3; a++) {
        check_case("zeros %s", codec_of(algorithms[a], MAX_COUNT)->name);
        memset(wide, 0, 400);
        put(5, -0.0f);
        CHECK(roundtrip(algorithms[a], 100, NULL));
        for (size_t i = 0; i < 100; i++) CHECK(get(back, i) == 0 && !signbit(get(back, i)));
        for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
            for (size_t i = 0; i < 33; i++) put(i, i == 7 ? rows[row] : 0);
            check_case("one value %g, %s", (double)rows[row], codec_of(algorithms[a], MAX_COUNT)->name);
            CHECK(roundtrip(algorithms[a], 33, NULL));
            bool tiny = fabsf(rows[row]) < 0x1p-140f; // its scale is rounded to 0
            CHECK(fabsf(get(back, 7) - rows[row]) <= fabsf(rows[row]) * (tiny ? 1 : 0x1p-14f));
            CHECK(get(back, 6) == 0 && get(back, 32) == 0);
        }
    }
}

static void test_powers(void) {
    check_case("powers");
    static const struct {
        float value, want;
    } rows[] = {{1, 1},           {0.76f, 1},           {0.75f, 1},          {0.74f, 0.5f},   {0.375f, 0.5f},
                {-0.37f, -0.25f}, {0x1p-6f, 0x1p-6f},   {0x1p-7f, 0x1p-6f},  {0x0.ffp-7f, 0}, {-0x1.8p-7f, -0x1p-6f},
                {-0x1p-20f, 0},   {0x1.7p-6f, 0x1p-6f}, {0x1.8p-6f, 0x1p-5f}};
    enum { ROWS = sizeof rows / sizeof rows[0] };
    for (size_t i = 0; i < ROWS; i++) put(i, 3 * rows[i].value);
    CHECK(roundtrip(pcclQuantBlockE3M0, ROWS, NULL));
    for (size_t i = 0; i < ROWS; i++) {
        check_case("power %zu", i);
        CHECK(get(back, i) == 3 * rows[i].want);
    }
}

static void test_not_finite(void) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const uint32_t canonical = 0x7FC00000u;
    for (size_t a = 0; a < 3; a++) {
        for (size_t row = 0; row < 3; row++) {
            check_case("not finite %zu %s", row, codec_of(algorithms[a], MAX_COUNT)->name);
            for (size_t i = 0; i < 77; i++) put(i, i == 50 ? bad[row] : (float)i);
            CHECK(roundtrip(algorithms[a], 77, row % 2 == 0 ? NULL : &(struct codec_rounding){1, 2}));
            for (size_t i = 0; i < 77; i++) CHECK_MEM(back + 4 * i, &canonical, 4);
        }
    }
}

static void test_malformed(void) {
    static const struct {
        uint32_t scale;
        bool good;
    } rows[] = {
        {0x7F800000u, false}, {0xFF800000u, false}, {0x7FC00001u, false}, {0xFFC00000u, false}, {0x80000000u, false},
        {0xBF800000u, false}, {0x7FC00000u, true},  {0x00000001u, true},  {0x7F7FFFFFu, true},  {0, true}};
    uint64_t seed = 3;
    for (size_t a = 0; a < 3; a++) {
        const struct codec *codec = codec_of(algorithms[a], 32);
        for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
            check_case("scale %zu %s", row, codec->name);
            memcpy(encoded, &rows[row].scale, 4);
            for (size_t i = 4; i < 4 + 32; i++) encoded[i] = (uint8_t)check_random(&seed); // any code
            CHECK_EQ(codec_decode(codec, pcclFloat, back, encoded, 32), rows[row].good);
            CHECK_EQ(codec_valid(codec, pcclFloat, encoded, 32), rows[row].good);
        }
        memset(encoded, 0, 20);
        encoded[4 + 3] = 0x10; // behind the last of seven
        CHECK_EQ(codec_decode(codec, pcclFloat, back, encoded, 7), algorithms[a] == pcclQuantBlockInt8);
        CHECK_EQ(codec_valid(codec, pcclFloat, encoded, 7), algorithms[a] == pcclQuantBlockInt8);
    }
}

// ---- stochastic rounding ----
static void test_mean(void) {
    enum { ROUNDS = 4000, COUNT = 64 };
    uint64_t seed = 9;
    for (size_t a = 0; a < 3; a++) {
        double total[COUNT] = {0};
        draw(0, COUNT, &seed);
        put(0, 0.9f), put(1, 0.004f), put(2, -0.004f), put(3, 1.0f);
        check_case("mean %s", codec_of(algorithms[a], MAX_COUNT)->name);
        for (uint64_t round = 0; round < ROUNDS; round++) {
            struct codec_rounding rounding = {.seed = round, .index = 1000};
            CHECK(roundtrip(algorithms[a], COUNT, &rounding));
            for (size_t i = 0; i < COUNT; i++) total[i] += (double)get(back, i);
        }
        for (size_t i = 0; i < COUNT; i++) {
            double value = (double)get(wide, i), step = (double)scale_of_encoded();
            // E3M0: the distance of two powers is at most the magnitude of the lower one
            if (algorithms[a] == pcclQuantBlockE3M0) step = fabs(value) < 0x1p-6 ? 0x1p-6 : fabs(value);
            CHECK(fabs(total[i] / ROUNDS - value) <= 5 * step / 2 / sqrt(ROUNDS) + step * 0x1p-12);
        }
        CHECK(get(back, 3) == 1 || algorithms[a] != pcclQuantBlockE3M0); // what has a code keeps it
    }
}

// One element's number depends on the seed and its index, not on where its block begins, nor on the other elements.
static void test_rounding(void) {
    enum { COUNT = 512 };
    static uint8_t whole[COUNT * 4];
    for (size_t i = 0; i < COUNT; i++) put(i, i % 32 == 0 ? 7 : 2.5f);
    for (size_t a = 0; a < 3; a++) {
        const struct codec *codec = codec_of(algorithms[a], 32);
        struct codec_rounding rounding = {.seed = 42, .index = 1u << 31};
        check_case("rounding %s", codec->name);
        codec_encode(codec, pcclFloat, encoded, wide, COUNT, &rounding);
        CHECK(codec_valid(codec, pcclFloat, encoded, COUNT) && codec_decode(codec, pcclFloat, whole, encoded, COUNT));
        rounding.index += 32 * 3;
        codec_encode(codec, pcclFloat, encoded, wide + 4 * 32 * 3, 32 * 5, &rounding);
        CHECK(codec_decode(codec, pcclFloat, back, encoded, 32 * 5));
        CHECK_MEM(back, whole + 4 * 32 * 3, 4 * 32 * 5);
        rounding.seed++;
        codec_encode(codec, pcclFloat, encoded, wide + 4 * 32 * 3, 32 * 5, &rounding);
        CHECK(codec_decode(codec, pcclFloat, back, encoded, 32 * 5));
        CHECK(memcmp(back, whole + 4 * 32 * 3, 4 * 32 * 5) != 0);
        size_t up = 0;
        for (size_t i = 0; i < COUNT; i++) up += get(whole, i) > 2.5f;
        CHECK(up > COUNT / 8 && up < COUNT * 7 / 8);
    }
}

// ---- levels ----
static void test_loops(const struct kernels *kernels, uint64_t seed) {
    static uint8_t mine[MAX_COUNT * 4 + 1], model[MAX_COUNT * 4 + 1], codes[MAX_COUNT];
    const struct block_loops *loops = kernels->block, *portable = kernels_at(KERNEL_PORTABLE)->block;
    for (size_t round = 0; round < 400; round++) {
        size_t count = round < 200 ? round : check_random(&seed) % MAX_COUNT + 1, range = round % 7;
        draw(range, count, &seed);
        check_case("%s, %s, %zu", kernels->name, ranges[range].name, count);
        CHECK_EQ(loops->largest(wide, count), portable->largest(wide, count));
        for (int code = 0; code < BLOCK_CODES; code++) {
            uint32_t bits = portable->largest(wide, count);
            float largest;
            memcpy(&largest, &bits, sizeof largest);
            struct block_scale by = {.scale = largest / mosts[code], .grow = largest < 0x1p-90f ? 0x1p100f : 1};
            if (by.scale == 0) continue;
            by.inverse = 1 / (by.scale * by.grow);
            by.key[0] = (uint32_t)check_random(&seed), by.key[1] = (uint32_t)check_random(&seed);
            by.counter = (uint32_t)check_random(&seed);
            for (int rounding = 0; rounding < BLOCK_ROUNDINGS; rounding++) {
                memset(mine, 0xAA, sizeof mine), memset(model, 0xAA, sizeof model);
                loops->encode[code][rounding](mine + 1, wide, count, &by);
                portable->encode[code][rounding](model + 1, wide, count, &by);
                check_case("%s encode %d %d, %s, %zu", kernels->name, code, rounding, ranges[range].name, count);
                CHECK_MEM(mine, model, sizeof mine);
            }
            for (size_t i = 0; i < count; i++) codes[i] = (uint8_t)check_random(&seed);
            memset(mine, 0xAA, sizeof mine), memset(model, 0xAA, sizeof model);
            loops->decode[code](mine + 1, codes, count, by.scale);
            portable->decode[code](model + 1, codes, count, by.scale);
            check_case("%s decode %d, %s, %zu", kernels->name, code, ranges[range].name, count);
            CHECK_MEM(mine, model, sizeof mine);
        }
    }
}

static void test_residual(const struct kernels *kernels, uint64_t seed) {
    static float wanted[1001], got[1001], out[1001];
    for (size_t count = 0; count <= 1001; count += count < 70 ? 1 : 931) {
        check_case("%s residual of %zu", kernels->name, count);
        for (size_t i = 0; i < count; i++) {
            wanted[i] = i % 7 == 3 ? NAN : i % 11 == 5 ? INFINITY : uniform(&seed);
            got[i] = i % 5 == 2 ? NAN : i % 11 == 5 ? INFINITY : uniform(&seed);
        }
        kernels->block->residual(out, wanted, got, 3, count);
        for (size_t i = 0; i < count; i++) {
            float lost = (wanted[i] - got[i]) * 3;
            CHECK(out[i] == (isfinite(lost) ? lost : 0));
        }
    }
}

int main(void) {
    test_options();
    test_nearest();
    test_zero_and_largest();
    test_powers();
    test_not_finite();
    test_malformed();
    test_mean();
    test_rounding();
    for (int level = 0; level < KERNEL_LEVELS; level++) {
        const struct kernels *kernels = kernels_at((enum kernel_level)level);
        if (!kernels) continue;
        test_loops(kernels, 4);
        test_residual(kernels, 5);
    }
    return check_status();
}
