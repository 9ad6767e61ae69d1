// Every level of kernels against hand-written rows and against the portable one.
#define _GNU_SOURCE
#include "check.h"

#include "compute/element.h"
#include "compute/kernels.h"

#include <math.h>
#include <pccl.h>

#define U8 pcclUint8
#define I8 pcclInt8
#define I16 pcclInt16
#define U16 pcclUint16
#define U32 pcclUint32
#define I32 pcclInt32
#define U64 pcclUint64
#define I64 pcclInt64
#define F16 pcclFloat16
#define BF16 pcclBFloat16
#define F32 pcclFloat
#define F64 pcclDouble
#define BOOL pcclBool

// Bits in, bits out; negative integers are written as int64 and cut to size.
static const struct reduce_row {
    int dtype, op;
    uint64_t a, b, want;
} reduce_rows[] = {
    {U8, pcclSum, 200, 100, 44},
    {U8, pcclProd, 20, 20, 144},
    {U8, pcclMax, 200, 100, 200},
    {U8, pcclMin, 200, 100, 100},
    {I8, pcclSum, 100, 100, (uint64_t)-56},
    {I8, pcclProd, (uint64_t)-128, (uint64_t)-1, (uint64_t)-128},
    {I8, pcclMax, (uint64_t)-56, 100, 100},
    {I8, pcclMin, (uint64_t)-56, 100, (uint64_t)-56},
    {I16, pcclSum, 32767, 1, (uint64_t)-32768},
    {I16, pcclProd, 256, 256, 0},
    {I16, pcclProd, (uint64_t)-32768, (uint64_t)-1, (uint64_t)-32768},
    {I16, pcclMax, (uint64_t)-1, 1, 1},
    {I16, pcclMin, (uint64_t)-1, 1, (uint64_t)-1},
    {U16, pcclSum, 65535, 2, 1},
    {U16, pcclProd, 65535, 65535, 1},
    {U16, pcclMax, 65535, 1, 65535},
    {U16, pcclMin, 65535, 1, 1},
    {U32, pcclSum, 0xFFFFFFFF, 2, 1},
    {U32, pcclProd, 0xFFFFFFFF, 0xFFFFFFFF, 1},
    {U32, pcclMax, 0xFFFFFFFF, 1, 0xFFFFFFFF},
    {U32, pcclMin, 0xFFFFFFFF, 1, 1},
    {I32, pcclSum, 0x7FFFFFFF, 1, 0x80000000},
    {I32, pcclProd, 0x80000000, 0xFFFFFFFF, 0x80000000},
    {I32, pcclMax, 0xFFFFFFFF, 1, 1},
    {I32, pcclMin, 0xFFFFFFFF, 1, 0xFFFFFFFF},
    {U64, pcclSum, UINT64_MAX, 2, 1},
    {U64, pcclProd, UINT64_MAX, UINT64_MAX, 1},
    {U64, pcclMax, UINT64_MAX, 1, UINT64_MAX},
    {U64, pcclMin, UINT64_MAX, 1, 1},
    {I64, pcclSum, INT64_MAX, 1, (uint64_t)INT64_MIN},
    {I64, pcclProd, (uint64_t)INT64_MIN, (uint64_t)-1, (uint64_t)INT64_MIN},
    {I64, pcclMax, (uint64_t)-1, 1, 1},
    {I64, pcclMin, (uint64_t)-1, 1, (uint64_t)-1},
    {U8, pcclBand, 0xF3, 0x35, 0x31},
    {U8, pcclBor, 0xF1, 0x35, 0xF5},
    {U8, pcclBxor, 0xF1, 0x35, 0xC4},
    {I16, pcclBand, (uint64_t)-2, 0x7FF5, 0x7FF4},
    {I16, pcclBor, (uint64_t)-0x8000, 0x7FF5, (uint64_t)-11},
    {U32, pcclBxor, 0xFFFF0000, 0x0FF00FF0, 0xF00F0FF0},
    {I32, pcclBand, 0x80000001, 0xFFFFFFFE, 0x80000000},
    {U64, pcclBor, 0x8000000000000000, 1, 0x8000000000000001},
    {I64, pcclBxor, (uint64_t)-1, 0x0123456789ABCDEF, 0xFEDCBA9876543210},

    {BOOL, pcclSum, 1, 1, 1},
    {BOOL, pcclSum, 0, 0, 0},
    {BOOL, pcclSum, 0x80, 0x80, 1},
    {BOOL, pcclMax, 0, 255, 1},
    {BOOL, pcclProd, 16, 16, 1}, // the product of the bytes wraps to 0
    {BOOL, pcclProd, 2, 0, 0},
    {BOOL, pcclMin, 2, 1, 1},
    {BOOL, pcclMin, 0, 1, 0},
    {BOOL, pcclBand, 2, 1, 1}, // no bit in common
    {BOOL, pcclBor, 0, 2, 1},
    {BOOL, pcclBxor, 2, 1, 0},
    {BOOL, pcclBxor, 0, 4, 1},
    {BOOL, pcclBxor, 0, 0, 0},

    {F32, pcclSum, 0x3F800000, 0x40000000, 0x40400000},  // 1 + 2
    {F32, pcclSum, 0x3F800000, 0x33800000, 0x3F800000},  // 1 + 2^-24: a tie, to even
    {F32, pcclSum, 0x3F800001, 0x33800000, 0x3F800002},  // the next float + 2^-24: a tie, to even
    {F32, pcclSum, 0x7F7FFFFF, 0x7F7FFFFF, 0x7F800000},  // overflow
    {F32, pcclSum, 0x00000001, 0x00000001, 0x00000002},  // denormals
    {F32, pcclSum, 0x00800000, 0x80000001, 0x007FFFFF},  // into the denormals
    {F32, pcclSum, 0x80000000, 0x80000000, 0x80000000},  // -0 + -0
    {F32, pcclSum, 0x80000000, 0x00000000, 0x00000000},  // -0 + 0
    {F32, pcclSum, 0x7F800000, 0xFF800000, 0x7FC00000},  // inf - inf
    {F32, pcclSum, 0xFFC12345, 0x3F800000, 0x7FC00000},  // NaN with a payload
    {F32, pcclSum, 0x3F800000, 0x7F800001, 0x7FC00000},  // signalling NaN
    {F32, pcclProd, 0x40400000, 0xC0000000, 0xC0C00000}, // 3 * -2
    {F32, pcclProd, 0x00000000, 0xFF800000, 0x7FC00000}, // 0 * -inf
    {F32, pcclProd, 0x00800000, 0x3F000000, 0x00400000}, // denormal result
    {F32, pcclProd, 0x80000000, 0x3F800000, 0x80000000},
    {F32, pcclMax, 0x80000000, 0x00000000, 0x00000000},
    {F32, pcclMax, 0x00000000, 0x80000000, 0x00000000},
    {F32, pcclMax, 0x80000000, 0x80000000, 0x80000000},
    {F32, pcclMin, 0x80000000, 0x00000000, 0x80000000},
    {F32, pcclMin, 0x00000000, 0x80000000, 0x80000000},
    {F32, pcclMin, 0x00000000, 0x00000000, 0x00000000},
    {F32, pcclMax, 0x7FC00001, 0x7F800000, 0x7FC00000},
    {F32, pcclMax, 0x7F800000, 0xFFFFFFFF, 0x7FC00000},
    {F32, pcclMin, 0x7FC00001, 0xFF800000, 0x7FC00000},
    {F32, pcclMin, 0xFF800000, 0x7F800001, 0x7FC00000},
    {F32, pcclMax, 0xFF800000, 0xBF800000, 0xBF800000},
    {F32, pcclMin, 0x00000001, 0x00000002, 0x00000001},

    {F64, pcclSum, 0x3FF0000000000000, 0x3CA0000000000000, 0x3FF0000000000000}, // 1 + 2^-53: a tie, to even
    {F64, pcclSum, 0x7FEFFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000},
    {F64, pcclSum, 0x0000000000000001, 0x0000000000000001, 0x0000000000000002},
    {F64, pcclSum, 0xFFF8000000000001, 0x3FF0000000000000, 0x7FF8000000000000},
    {F64, pcclProd, 0x0000000000000000, 0x7FF0000000000000, 0x7FF8000000000000},
    {F64, pcclMax, 0x8000000000000000, 0x0000000000000000, 0x0000000000000000},
    {F64, pcclMax, 0x0000000000000000, 0x8000000000000000, 0x0000000000000000},
    {F64, pcclMin, 0x8000000000000000, 0x0000000000000000, 0x8000000000000000},
    {F64, pcclMin, 0x0000000000000000, 0x8000000000000000, 0x8000000000000000},
    {F64, pcclMax, 0x7FF0000000000001, 0x3FF0000000000000, 0x7FF8000000000000},
    {F64, pcclMin, 0x3FF0000000000000, 0xFFF0000000000001, 0x7FF8000000000000},

    {F16, pcclSum, 0x67FF, 0x3C00, 0x6800}, // 2047 + 1
    {F16, pcclSum, 0x6800, 0x3C00, 0x6800}, // 2048 + 1: a tie, to even
    {F16, pcclSum, 0x6801, 0x3C00, 0x6802}, // 2050 + 1: a tie, to even
    {F16, pcclSum, 0x7BFF, 0x7BFF, 0x7C00}, // overflow
    {F16, pcclSum, 0x7BFF, 0x4C00, 0x7C00}, // 65504 + 16: the tie that becomes infinity
    {F16, pcclSum, 0x7BFF, 0x4BFF, 0x7BFF}, // just below it
    {F16, pcclSum, 0x0001, 0x0001, 0x0002}, // denormals
    {F16, pcclSum, 0x03FF, 0x0001, 0x0400}, // out of the denormals
    {F16, pcclSum, 0x0400, 0x8001, 0x03FF}, // into them
    {F16, pcclSum, 0x8000, 0x8000, 0x8000},
    {F16, pcclSum, 0x7C00, 0xFC00, 0x7E00},
    {F16, pcclSum, 0x7C01, 0x3C00, 0x7E00},
    {F16, pcclSum, 0x3C00, 0xFFFF, 0x7E00},
    {F16, pcclProd, 0x0400, 0x3800, 0x0200}, // 2^-14 / 2
    {F16, pcclProd, 0x0001, 0x3800, 0x0000}, // half the smallest: a tie, to even
    {F16, pcclProd, 0x0003, 0x3800, 0x0002}, // one and a half: a tie, to even
    {F16, pcclProd, 0x0000, 0x7C00, 0x7E00},
    {F16, pcclMax, 0x8000, 0x0000, 0x0000},
    {F16, pcclMin, 0x0000, 0x8000, 0x8000},
    {F16, pcclMax, 0xFE01, 0x3C00, 0x7E00},
    {F16, pcclMin, 0x3C00, 0x7C01, 0x7E00},
    {F16, pcclMin, 0x0001, 0x0002, 0x0001},

    {BF16, pcclSum, 0x437F, 0x3F80, 0x4380}, // 255 + 1
    {BF16, pcclSum, 0x4380, 0x3F80, 0x4380}, // 256 + 1: a tie, to even
    {BF16, pcclSum, 0x4381, 0x3F80, 0x4382}, // 258 + 1: a tie, to even
    {BF16, pcclSum, 0x7F7F, 0x7F7F, 0x7F80}, // overflow
    {BF16, pcclSum, 0x7F7F, 0x7B00, 0x7F80}, // half a last place above the largest: becomes infinity
    {BF16, pcclSum, 0x0001, 0x0001, 0x0002}, // denormals
    {BF16, pcclSum, 0x8000, 0x8000, 0x8000},
    {BF16, pcclSum, 0x7F80, 0xFF80, 0x7FC0},
    {BF16, pcclSum, 0x7F81, 0x3F80, 0x7FC0},
    {BF16, pcclSum, 0x3F80, 0xFFFF, 0x7FC0},
    {BF16, pcclProd, 0x0001, 0x3F00, 0x0000}, // half the smallest: a tie, to even
    {BF16, pcclProd, 0x0003, 0x3F00, 0x0002},
    {BF16, pcclMax, 0x8000, 0x0000, 0x0000},
    {BF16, pcclMin, 0x0000, 0x8000, 0x8000},
    {BF16, pcclMax, 0xFFC1, 0x3F80, 0x7FC0},
    {BF16, pcclMin, 0x3F80, 0x7F81, 0x7FC0},
};

// The wrapped or rounded sum of two, divided.
static const struct average_row {
    int dtype;
    uint32_t divisor;
    uint64_t a, b, want;
} average_rows[] = {
    {I8, 2, 100, 100, (uint64_t)-28},
    {I8, 2, (uint64_t)-3, 0, (uint64_t)-1},
    {I8, 2, (uint64_t)-1, 0, 0},
    {I8, 2, 3, 0, 1},
    {I8, 128, 127, 0, 0},
    {I8, 200, (uint64_t)-128, 0, 0},
    {I8, 128, (uint64_t)-128, 0, (uint64_t)-1},
    {U8, 300, 255, 0, 0},
    {U8, 3, 254, 0, 84},
    {I16, 2, (uint64_t)-3, 0, (uint64_t)-1},
    {U16, 65535, 65535, 0, 1},
    {U16, 65536, 65535, 0, 0},
    {I32, 2, (uint64_t)-3, 0, (uint64_t)-1},
    {I32, 3, 0x80000000, 0, (uint64_t)-715827882},
    {I32, UINT32_MAX, 0x80000000, 0, 0},
    {U32, 3, 0xFFFFFFFF, 0, 0x55555555},
    {U32, UINT32_MAX, 0xFFFFFFFF, 0, 1},
    {U32, UINT32_MAX, 0xFFFFFFFE, 0, 0},
    {I64, 2, (uint64_t)-3, 0, (uint64_t)-1},
    {I64, 1, (uint64_t)INT64_MIN, 0, (uint64_t)INT64_MIN},
    {I64, 3, (uint64_t)INT64_MIN, 0, (uint64_t)-3074457345618258602},
    {U64, 3, UINT64_MAX, 0, 0x5555555555555555},
    {U64, 1, UINT64_MAX, 0, UINT64_MAX},
    {F32, 3, 0x3F800000, 0, 0x3EAAAAAB},
    {F32, 3, 0x40A00000, 0x40A00000, 0x40555555}, // 10 / 3, where a multiplication by 1/3 gives ...56
    {F32, 2, 0x00000001, 0, 0},                   // half the smallest: a tie, to even
    {F32, 2, 0x7FFFFFFF, 0, 0x7FC00000},
    {F64, 3, 0x3FF0000000000000, 0, 0x3FD5555555555555},
    {F16, 3, 0x3C00, 0, 0x3555},
    {F16, 2, 0x67FF, 0x3C00, 0x6400}, // (2047 + 1) / 2
    {BF16, 3, 0x3F80, 0, 0x3EAB},
    {BF16, 2, 0x437F, 0x3F80, 0x4300}, // (255 + 1) / 2
};

static bool is_float(int dtype) { return dtype >= F16 && dtype <= F64; }

// Repeats the row over a range that has whole vectors and a rest, so that both give the answer.
enum { REPEAT = 67 };

static void fill(uint8_t *at, size_t size, uint64_t bits) {
    for (size_t i = 0; i < REPEAT; i++) memcpy(at + i * size, &bits, size);
}

static void test_rows(const struct kernels *kernels) {
    uint8_t a[REPEAT * 8], b[REPEAT * 8], got[REPEAT * 8], want[REPEAT * 8];
    for (size_t i = 0; i < sizeof reduce_rows / sizeof *reduce_rows; i++) {
        const struct reduce_row *row = &reduce_rows[i];
        size_t size = dtype_size(row->dtype);
        check_case("%s reduce row %zu: %s %s", kernels->name, i, red_op_name(row->op), dtype_name(row->dtype));
        fill(a, size, row->a), fill(b, size, row->b), fill(want, size, row->want);
        kernels->reduce[row->op][row->dtype](got, a, b, REPEAT);
        CHECK_MEM(got, want, REPEAT * size);
    }
    for (size_t i = 0; i < sizeof average_rows / sizeof *average_rows; i++) {
        const struct average_row *row = &average_rows[i];
        size_t size = dtype_size(row->dtype);
        check_case("%s average row %zu: %s by %u", kernels->name, i, dtype_name(row->dtype), row->divisor);
        fill(a, size, row->a), fill(b, size, row->b), fill(want, size, row->want);
        kernels->reduce[pcclAvg][row->dtype](got, a, b, REPEAT);
        kernels->divide[row->dtype](got, REPEAT, row->divisor);
        CHECK_MEM(got, want, REPEAT * size);
    }
}

// Random bits, of which floats make mostly ordinary numbers of the same magnitude and now and then anything at all.
static void random_elements(uint8_t *at, int dtype, size_t count, bool wild, uint64_t *seed) {
    static const uint64_t special[] = {0,
                                       1,
                                       0x8000,
                                       0x8001,
                                       0x7C00,
                                       0x7C01,
                                       0xFE00,
                                       0x7F80,
                                       0x7F81,
                                       0x80000000,
                                       0x80000001,
                                       0x7F800000,
                                       0x7F800001,
                                       0xFFC00001,
                                       0x7F7FFFFF,
                                       0x8000000000000000,
                                       0x7FF0000000000000,
                                       0xFFF0000000000001};
    size_t size = dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = check_random(seed);
        bool any = wild && bits >> 60 == 0;
        if (any && bits & 0x800000000000000) bits = special[bits % (sizeof special / sizeof *special)];
        if (is_float(dtype) && !any) {
            float value = (float)((double)(int64_t)bits * 0x1p-60);
            double wide = (double)(int64_t)bits * 0x1p-60;
            bits = dtype == F16 ? float_to_f16(value) : dtype == BF16 ? float_to_bf16(value) : float_to_bits(value);
            if (dtype == F64) memcpy(&bits, &wide, sizeof bits);
        }
        memcpy(at + i * size, &bits, size);
    }
}

enum { MAX_COUNT = 5000, SLACK = 64, BYTES = MAX_COUNT * 8 + 2 * SLACK };

enum aliasing { APART, ON_A, ON_B };

static void compare_reduce(const struct kernels *kernels, int op, int dtype, size_t count, size_t shift,
                           enum aliasing aliasing, bool wild, uint64_t *seed) {
    static uint8_t a[BYTES], b[BYTES], before[BYTES], got[BYTES], want[BYTES];
    size_t size = dtype_size(dtype);
    uint8_t *p = a + shift, *q = b + (shift * 3 + 5) % SLACK;
    random_elements(p, dtype, count, wild, seed);
    random_elements(q, dtype, count, wild, seed);
    memset(want, 0xA5, sizeof want);
    memset(got, 0xA5, sizeof got);
    uint8_t *out = got + (shift * 5 + 3) % SLACK, *model = want + (shift * 5 + 3) % SLACK;
    kernels_at(KERNEL_PORTABLE)->reduce[op][dtype](model, p, q, count);
    check_case("%s %s %s count %zu shift %zu aliasing %d", kernels->name, red_op_name(op), dtype_name(dtype), count,
               shift, aliasing);
    if (aliasing == APART) {
        memcpy(before, a, sizeof before);
        kernels->reduce[op][dtype](out, p, q, count);
        CHECK_MEM(got, want, sizeof got); // also what lies around it
        CHECK_MEM(a, before, sizeof before);
    } else {
        uint8_t *in_place = aliasing == ON_A ? p : q;
        kernels->reduce[op][dtype](in_place, p, q, count);
        CHECK_MEM(in_place, model, count * size);
    }
}

static void compare_divide(const struct kernels *kernels, int dtype, size_t count, size_t shift, bool wild,
                           uint64_t *seed) {
    static const uint32_t divisors[] = {1,   2,   3,     7,     10,         127,        128,
                                        255, 256, 65535, 65537, 0x7FFFFFFF, 0x80000000, UINT32_MAX};
    static uint8_t got[BYTES], want[BYTES];
    for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++) {
        check_case("%s divide %s count %zu shift %zu by %u", kernels->name, dtype_name(dtype), count, shift,
                   divisors[i]);
        random_elements(got + shift, dtype, count, wild, seed);
        memcpy(want, got, sizeof want);
        kernels->divide[dtype](got + shift, count, divisors[i]);
        kernels_at(KERNEL_PORTABLE)->divide[dtype](want + shift, count, divisors[i]);
        CHECK_MEM(got, want, sizeof got);
    }
}

static void test_against_portable(const struct kernels *kernels, uint64_t seed) {
    for (int dtype = 0; dtype < KERNEL_DTYPES; dtype++) {
        for (int op = 0; op < KERNEL_OPS; op++) {
            if (!red_op_takes(op, dtype)) continue;
            for (size_t count = 0; count <= 70; count++)
                compare_reduce(kernels, op, dtype, count, check_random(&seed) % SLACK, (enum aliasing)(count % 3),
                               count % 2, &seed);
            for (size_t i = 0; i < 12; i++)
                compare_reduce(kernels, op, dtype, MAX_COUNT - check_random(&seed) % 1000, i * 7 % SLACK,
                               (enum aliasing)(i % 3), i % 2, &seed);
        }
        if (dtype == BOOL) continue;
        for (size_t count = 0; count <= 70; count += 5)
            compare_divide(kernels, dtype, count, count % 9, count % 2, &seed);
        compare_divide(kernels, dtype, 3001, 1, true, &seed);
    }
}

// One NaN anywhere in a large range, the rest ordinary: each place once.
static void test_single_nan(const struct kernels *kernels) {
    enum { COUNT = 2500 };
    static float a[COUNT], b[COUNT], got[COUNT];
    for (size_t at = 0; at < COUNT; at += 13) {
        for (size_t i = 0; i < COUNT; i++) a[i] = (float)i, b[i] = 1;
        b[at] = float_from_bits(0xFFC00001);
        kernels->reduce[pcclSum][F32](got, a, b, COUNT);
        check_case("%s NaN at %zu", kernels->name, at);
        size_t wrong = 0;
        for (size_t i = 0; i < COUNT; i++)
            wrong += float_to_bits(got[i]) != (i == at ? 0x7FC00000 : float_to_bits((float)(i + 1)));
        CHECK_EQ(wrong, 0);
    }
}

// Integer division against the language's own.
static void test_quotients(const struct kernels *kernels, uint64_t seed) {
    enum { COUNT = 97 };
    for (int round = 0; round < 300; round++) {
        uint32_t divisor = (uint32_t)(check_random(&seed) >> (32 + check_random(&seed) % 32));
        if (divisor == 0) divisor = 1;
        uint64_t words[COUNT], got[COUNT];
        for (size_t i = 0; i < COUNT; i++) {
            words[i] = check_random(&seed) >> check_random(&seed) % 64;
            if (i % 3 == 0) words[i] = words[i] / divisor * divisor - (i % 2); // next to a multiple
            if (i % 5 == 0) words[i] = -words[i];
        }
#define QUOTIENTS(dtype, type, wide) \
    do { \
        type in[COUNT]; \
        size_t wrong = 0; \
        for (size_t i = 0; i < COUNT; i++) in[i] = (type)words[i]; \
        memcpy(got, in, sizeof in); \
        kernels->divide[dtype](got, COUNT, divisor); \
        for (size_t i = 0; i < COUNT; i++) { \
            type want = (type)((wide)in[i] / (wide)divisor), is; \
            memcpy(&is, (char *)got + i * sizeof is, sizeof is); \
            wrong += is != want; \
        } \
        check_case("%s quotients of %s by %u", kernels->name, dtype_name(dtype), divisor); \
        CHECK_EQ(wrong, 0); \
    } while (0)
        QUOTIENTS(U8, uint8_t, uint64_t);
        QUOTIENTS(I8, int8_t, int64_t);
        QUOTIENTS(U16, uint16_t, uint64_t);
        QUOTIENTS(I16, int16_t, int64_t);
        QUOTIENTS(U32, uint32_t, uint64_t);
        QUOTIENTS(I32, int32_t, int64_t);
        QUOTIENTS(U64, uint64_t, uint64_t);
        QUOTIENTS(I64, int64_t, int64_t);
    }
}

// Each of the 65536 values plus each of a few, at every level, against double arithmetic rounded by the definition.
static double value_of(int dtype, uint16_t bits) {
    int exponent_bits = dtype == F16 ? 5 : 8, mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

static uint16_t rounded(int dtype, double value) {
    int exponent_bits = dtype == F16 ? 5 : 8, mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    if (isnan(value)) return dtype == F16 ? 0x7E00 : 0x7FC0;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    value = fabs(value);
    if (value == 0) return sign;
    int exponent = isinf(value) ? 2000 : ilogb(value);
    if (exponent < 1 - bias) exponent = 1 - bias;
    double units = nearbyint(ldexp(value, mantissa_bits - exponent));
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    if (exponent > bias) return (uint16_t)(sign | infinity);
    uint32_t bits = (uint32_t)(exponent + bias - 1) * (1u << mantissa_bits) + (uint32_t)units;
    return (uint16_t)(sign | (bits > infinity ? infinity : bits));
}

static void test_all_halves(const struct kernels *kernels, int dtype) {
    static const uint16_t others[] = {0x0000, 0x8000, 0x0001, 0x8003, 0x03FF, 0x0400, 0x3C00,
                                      0xBC01, 0x3F80, 0x4380, 0x6801, 0x7BFF, 0x7F7F, 0xFF00};
    static uint16_t a[65536], b[65536], sum[65536], product[65536];
    for (uint32_t i = 0; i < 65536; i++) a[i] = (uint16_t)i;
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        for (uint32_t i = 0; i < 65536; i++) b[i] = others[k];
        kernels->reduce[pcclSum][dtype](sum, a, b, 65536);
        kernels->reduce[pcclProd][dtype](product, a, b, 65536);
        size_t wrong_sums = 0, wrong_products = 0;
        for (uint32_t i = 0; i < 65536; i++) {
            double x = value_of(dtype, a[i]), y = value_of(dtype, b[i]);
            // By way of float, as the definition says.
            wrong_sums += sum[i] != rounded(dtype, (float)(x + y));
            wrong_products += product[i] != rounded(dtype, (float)(x * y));
        }
        check_case("%s all %s with 0x%04x", kernels->name, dtype_name(dtype), others[k]);
        CHECK_EQ(wrong_sums, 0);
        CHECK_EQ(wrong_products, 0);
    }
}

static void test_whole_number_sums(const struct kernels *kernels, int dtype, int limit) {
    for (int parts = 2; parts <= 8; parts++) {
        uint16_t total = rounded(dtype, 0), part;
        int each = limit / parts;
        for (int i = 0; i < parts; i++) {
            part = rounded(dtype, i + 1 < parts ? each : limit - each * (parts - 1));
            kernels->reduce[pcclSum][dtype](&total, &total, &part, 1);
        }
        check_case("%s %s sum of %d parts", kernels->name, dtype_name(dtype), parts);
        CHECK_EQ(total, rounded(dtype, limit));
    }
}

static void test_names(void) {
    check_case("names");
    CHECK_EQ(dtype_size(-1), 0);
    CHECK_EQ(dtype_size(KERNEL_DTYPES), 0);
    CHECK_EQ(dtype_size(BF16), 2);
    CHECK_EQ(dtype_size(F64), 8);
    CHECK_EQ(dtype_size(BOOL), 1);
    CHECK_STR(dtype_name(F32), "float32");
    CHECK_STR(dtype_name(99), "unknown");
    CHECK_STR(red_op_name(pcclAvg), "avg");
    CHECK_STR(red_op_name(pcclBxor), "bitwise xor");
    CHECK_STR(red_op_name(KERNEL_OPS), "unknown");
}

// All levels have the same kernels, and these are the ones that the definitions ask for.
static void test_what_is_defined(const struct kernels *kernels) {
    for (int op = -1; op <= KERNEL_OPS; op++) {
        for (int dtype = -1; dtype <= KERNEL_DTYPES; dtype++) {
            bool known = op >= 0 && op < KERNEL_OPS && dtype >= 0 && dtype < KERNEL_DTYPES;
            bool defined = known && !(op == pcclAvg && dtype == BOOL) && !(op >= pcclBand && is_float(dtype));
            check_case("%s %s of %s", kernels->name, red_op_name(op), dtype_name(dtype));
            CHECK_EQ(red_op_takes(op, dtype), defined);
            if (known) CHECK_EQ(kernels->reduce[op][dtype] != NULL, defined);
        }
    }
}

static void test_choice(void) {
    check_case("an unknown level is ignored");
    setenv("PCCL_CPU_LEVEL", "sse9", 1);
    const struct kernels *chosen = kernels_get();
    CHECK(chosen != NULL && chosen == kernels_at(chosen->level));
    CHECK(kernels_at(KERNEL_PORTABLE) != NULL);
    CHECK(kernels_at(KERNEL_LEVELS) == NULL);
}

#if defined(__x86_64__)
static void test_thread_mode(void) {
    check_case("denormals after kernels_enter");
    __builtin_ia32_ldmxcsr(0x9FC0); // flush to zero, denormals are zero
    kernels_enter();
    float tiny = float_from_bits(1), twice;
    kernels_get()->reduce[pcclSum][F32](&twice, &tiny, &tiny, 1);
    CHECK_EQ(float_to_bits(twice), 2);
}
#endif

int main(void) {
    test_names();
    test_choice();
    int levels = 0;
    for (int level = 0; level < KERNEL_LEVELS; level++) {
        const struct kernels *kernels = kernels_at((enum kernel_level)level);
        if (!kernels) continue;
        levels++;
        fprintf(stderr, "level %s\n", kernels->name);
        CHECK_EQ(kernels->level, level);
        test_what_is_defined(kernels);
        test_rows(kernels);
        test_against_portable(kernels, 1 + (uint64_t)level);
        test_single_nan(kernels);
        test_quotients(kernels, 7);
        test_all_halves(kernels, F16);
        test_all_halves(kernels, BF16);
        test_whole_number_sums(kernels, F16, 2048);
        test_whole_number_sums(kernels, BF16, 256);
    }
    CHECK(levels >= 1);
#if defined(__x86_64__)
    test_thread_mode();
#endif
    return check_status();
}
