// Sparse forms against a plain reference, what a residual keeps, and bytes that nobody has encoded.
#include "check.h"

#include <float.h>
#include <math.h>

#include "sparse.h"

enum { MOST = 3 * SPARSE_CHUNK + 77 };

static float values[MOST], residual[MOST], after[MOST], sum[MOST], wanted[MOST];
static uint8_t form[8 * MOST], again[8 * MOST];

static float random_float(uint64_t *seed) {
    double x = (double)(int64_t)check_random(seed) * 0x1p-63;
    return (float)(x * x * x); // a few stand out
}

static void fill(uint64_t seed) {
    for (size_t i = 0; i < MOST; i++) values[i] = random_float(&seed);
    for (size_t i = 0; i < MOST; i++) residual[i] = random_float(&seed) / 8;
}

// ---- the reference

static const float *by;

static int compare(const void *a, const void *b) {
    size_t i = *(const size_t *)a, j = *(const size_t *)b;
    float x = fabsf(by[i]), y = fabsf(by[j]);
    return x != y ? (x > y ? -1 : 1) : (i > j) - (i < j);
}

// Checks that `decoded` has the k largest of x, each at 0, one or two times the same scale, whichever is nearest.
static void check_chunk(const float *x, const float *decoded, size_t length, size_t k) {
    size_t order[SPARSE_CHUNK];
    for (size_t i = 0; i < length; i++) order[i] = i;
    by = x;
    qsort(order, length, sizeof *order, compare);
    float scale = 0;
    for (size_t i = 0; i < length; i++)
        if (decoded[i] != 0 && (scale == 0 || fabsf(decoded[i]) < scale)) scale = fabsf(decoded[i]);
    double lost = 0, whole = 0;
    for (size_t i = 0; i < length; i++) {
        float magnitude = fabsf(x[order[i]]), got = decoded[order[i]];
        lost += ((double)x[order[i]] - got) * ((double)x[order[i]] - got);
        whole += (double)magnitude * magnitude;
        if (i >= k || magnitude == 0) {
            CHECK(got == 0);
            continue;
        }
        float want = magnitude >= 1.5 * (double)scale ? 2 * scale : magnitude >= 0.5 * (double)scale ? scale : 0;
        CHECK(fabsf(got) == want);
        CHECK(want == 0 || signbit(got) == signbit(x[order[i]]));
    }
    CHECK(whole == 0 || lost < whole);
}

static void check_form(size_t count, size_t k, const float *before, float decay) {
    for (size_t i = 0; i < count; i++) wanted[i] = before == NULL ? values[i] : values[i] + decay * before[i];
    size_t bytes = sparse_bytes(count, k);
    form[bytes] = 0xA5;
    sparse_encode(form, values, before, decay, count, k, after);
    CHECK_EQ(form[bytes], 0xA5);
    CHECK(sparse_valid(form, count, k));
    memset(sum, 0, sizeof sum);
    sparse_add(sum, form, 1, count, k);
    for (size_t i = 0; i < count; i++) CHECK(after[i] == wanted[i] - sum[i]);
    for (size_t at = 0; at < count; at += SPARSE_CHUNK) {
        size_t length = count - at < SPARSE_CHUNK ? count - at : SPARSE_CHUNK;
        check_chunk(wanted + at, sum + at, length, k < length ? k : length);
    }
}

static void test_reference(void) {
    static const size_t counts[] = {0, 1, 2, 63, 64, 65, 4095, 4096, 4097, MOST}, ks[] = {1, 2, 3, 64, 65, 4095, 4096};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
            check_case("%zu elements, k = %zu", counts[c], ks[k]);
            fill(c * 100 + k);
            check_form(counts[c], ks[k], NULL, 0.5F);
            check_form(counts[c], ks[k], residual, 0.9375F);
        }
}

static void test_sizes(void) {
    CHECK_EQ(sparse_bytes(4096, 64), 116);
    CHECK_EQ(sparse_bytes(8192, 64), 232);
    CHECK_EQ(sparse_bytes(8193, 64), 232 + 4 + 2 + 1);
    CHECK_EQ(sparse_bytes(0, 64), 0);
    CHECK_EQ(sparse_bytes(10, 64), 4 + 15 + 3);
}

// What makes selection or the scale hard.
static void test_shapes(void) {
    static const size_t ks[] = {1, 64, 4096};
    for (size_t row = 0; row < sizeof ks / sizeof *ks; row++) {
        size_t k = ks[row];
        check_case("k = %zu", k);
        for (size_t i = 0; i < MOST; i++) values[i] = i % 3 == 0 ? -1.0F : 1.0F; // ties: the lowest indices
        check_form(MOST, k, NULL, 0);
        for (size_t i = 0; i < SPARSE_CHUNK; i++) CHECK(sum[i] == (i < k ? values[i] : 0));
        memset(values, 0, sizeof values);
        check_form(MOST, k, NULL, 0);
        for (size_t i = 0; i < MOST; i++) CHECK(after[i] == 0);
        values[17] = -3;
        values[SPARSE_CHUNK + 5] = 1e-45F; // the smallest of all floats
        values[2 * SPARSE_CHUNK] = FLT_MAX;
        check_form(MOST, k, NULL, 0);
        CHECK(sum[17] == -3 && sum[SPARSE_CHUNK + 5] == 1e-45F && sum[2 * SPARSE_CHUNK] == FLT_MAX);
        for (size_t i = 0; i < MOST; i++) values[i] = i % 2 ? FLT_MAX : -FLT_MAX;
        check_form(MOST, k, NULL, 0);
        CHECK(sum[1] == (k > 1 ? FLT_MAX : 0));
        for (size_t i = 0; i < MOST; i++) values[i] = -0.0F;
        values[9] = 1e-3F, values[10] = 1000; // one that is nearer to 0 than to the scale
        check_form(MOST, k, NULL, 0);
        CHECK(sum[9] == 0 && after[9] == 1e-3F && sum[10] == 1000);
    }
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    return memcpy(&bits, &value, sizeof bits), bits;
}

static void test_not_finite(void) {
    static const float odd[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (size_t row = 0; row < 4; row++) {
        check_case("%g", (double)odd[row]);
        fill(row);
        values[SPARSE_CHUNK + 100] = odd[row];
        uint32_t all_ones = 0xFFFFFFFF;
        if (row == 3) memcpy(&values[SPARSE_CHUNK + 200], &all_ones, sizeof all_ones);
        sparse_encode(form, values, NULL, 0, MOST, 64, after);
        CHECK(sparse_valid(form, MOST, 64));
        memset(sum, 0, sizeof sum);
        sparse_add(sum, form, -2, MOST, 64);
        size_t nans = 0;
        for (size_t i = 0; i < MOST; i++) {
            CHECK(isfinite(after[i]));
            if (!isnan(sum[i])) continue;
            nans++;
            CHECK_EQ(bits_of(sum[i]), 0x7FC00000);
            CHECK_EQ(i / SPARSE_CHUNK, 1);
            CHECK(after[i] == 0);
        }
        CHECK_EQ(nans, 64);
        CHECK(isnan(sum[SPARSE_CHUNK + 100]));
        sparse_add(wanted, form, 0, MOST, 64); // a weight of 0 adds nothing
        CHECK(!isnan(wanted[SPARSE_CHUNK + 100]));
    }
}

// The output may be an input, and memory may lie anywhere.
static void test_memory(void) {
    static uint8_t memory[sizeof values + 8];
    fill(5);
    sparse_encode(form, values, residual, 0.5F, MOST, 64, after);
    memcpy(sum, residual, sizeof sum);
    sparse_encode(again, values, sum, 0.5F, MOST, 64, sum);
    CHECK_MEM(sum, after, sizeof after);
    CHECK_MEM(again, form, sparse_bytes(MOST, 64));
    for (size_t shift = 1; shift < 8; shift++) {
        float *moved = (float *)(void *)(memory + shift);
        memcpy(memory + shift, values, sizeof values);
        sparse_encode(again + shift, moved, residual, 0.5F, MOST, 64, moved);
        CHECK_MEM(memory + shift, after, sizeof after);
        CHECK_MEM(again + shift, form, sparse_bytes(MOST, 64));
    }
    sparse_encode(again, values, residual, 0.5F, MOST, 64, NULL);
    CHECK_MEM(again, form, sparse_bytes(MOST, 64));
}

// What is sent and what is kept add up to what came in, over many steps.
static void test_conservation(void) {
    static double in[MOST], sent[MOST];
    memset(residual, 0, sizeof residual);
    memset(in, 0, sizeof in);
    memset(sent, 0, sizeof sent);
    uint64_t seed = 9;
    for (int step = 0; step < 200; step++) {
        for (size_t i = 0; i < MOST; i++) in[i] += values[i] = random_float(&seed);
        sparse_encode(form, values, residual, 1, MOST, 64, after);
        if (step % 10 == 3) { // the exchange has failed: the residual of before, and the sum that was to be sent
            for (size_t i = 0; i < MOST; i++) in[i] -= values[i];
            continue;
        }
        memcpy(residual, after, sizeof residual);
        memset(sum, 0, sizeof sum);
        sparse_add(sum, form, 1, MOST, 64);
        for (size_t i = 0; i < MOST; i++) sent[i] += sum[i];
    }
    double worst = 0;
    for (size_t i = 0; i < MOST; i++) {
        double off = fabs(in[i] - sent[i] - residual[i]) / 200;
        worst = off > worst ? off : worst;
    }
    CHECK(worst < 1e-6);
}

// Whatever the bytes: refused, or added inside the tensor.
static void test_any_bytes(void) {
    static const size_t counts[] = {1, 2, 100, 4096, 4097, 5000}, ks[] = {1, 5, 64, 4096};
    uint64_t seed = 77;
    size_t taken = 0, refused = 0;
    for (int trial = 0; trial < 20000; trial++) {
        size_t count = counts[check_random(&seed) % 6], k = ks[check_random(&seed) % 4], bytes = sparse_bytes(count, k);
        uint8_t *exact = malloc(bytes); // the sanitizer sees a read beyond it
        float *room = calloc(count, sizeof *room);
        REQUIRE(exact != NULL && room != NULL);
        check_case("%zu elements, k = %zu", count, k);
        sparse_encode(exact, values, NULL, 0, count, k, NULL);
        size_t changes = check_random(&seed) % 4;
        for (size_t i = 0; i < changes; i++) exact[check_random(&seed) % bytes] = (uint8_t)check_random(&seed);
        if (trial % 8 == 0)
            for (size_t i = 0; i < bytes; i++) exact[i] = (uint8_t)check_random(&seed);
        bool valid = sparse_valid(exact, count, k);
        CHECK(valid || changes > 0 || trial % 8 == 0);
        if (valid) sparse_add(room, exact, 1, count, k);
        taken += valid, refused += !valid;
        free(exact);
        free(room);
    }
    CHECK(taken > 1000 && refused > 1000);
}

int main(void) {
    test_sizes();
    test_reference();
    test_shapes();
    test_not_finite();
    test_memory();
    test_conservation();
    test_any_bytes();
    return check_status();
}
