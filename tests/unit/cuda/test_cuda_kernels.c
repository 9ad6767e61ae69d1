// The kernels for GPUs (cuda/kernels), which the fake driver runs on the CPU, against the kernels of the CPU:
// bit for bit, with NaN of all kinds, denormals, infinities, zeros of both signs and values half way between two
// others.
#include <pccl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "compute/codec.h"
#include "compute/kernels.h"
#include "device/device.h"
#include "fakes/cuda/driver.h"

enum { ROOM = 64 << 10 };

static uint64_t state = 88172645463325252;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

// ---- elements ----
// Bits of floats from which the exponents and the digits of special values are made: all others come by chance.
static uint64_t special(int dtype) {
    static const uint32_t f32[] = {0,          0x80000000, 1,          0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF,
                                   0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FA12345,
                                   0x3F800000, 0x3F808000, 0x3F818000, 0x477FF000, 0x33000000, 0x33000001, 0x38800000};
    static const uint16_t f16[] = {0,      0x8000, 1,      0x8001, 0x3FF,  0x400,  0x7BFF,
                                   0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE12, 0x3C00};
    static const uint16_t bf16[] = {0,      0x8000, 1,      0x8001, 0x7F,   0x80,   0x7F7F,
                                    0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFC1, 0x3F80};
    static const uint64_t f64[] = {0,
                                   UINT64_C(1) << 63,
                                   1,
                                   UINT64_C(0x8000000000000001),
                                   UINT64_C(0x000FFFFFFFFFFFFF),
                                   UINT64_C(0x7FEFFFFFFFFFFFFF),
                                   UINT64_C(0x7FF0000000000000),
                                   UINT64_C(0xFFF0000000000000),
                                   UINT64_C(0x7FF8000000000000),
                                   UINT64_C(0xFFF0000000000001),
                                   UINT64_C(0x3FF0000000000000)};
    static const uint64_t integers[] = {
        0,      1,    UINT64_MAX, UINT64_C(1) << 63, INT64_MAX, UINT64_C(0x80000000), 0x7FFFFFFF, 0x8000,
        0x7FFF, 0x80, 0x7F,       0xFFFFFFFF};
#define ONE_OF(list) list[next_random() % (sizeof list / sizeof list[0])]
    switch (dtype) {
    case pcclFloat16: return ONE_OF(f16);
    case pcclBFloat16: return ONE_OF(bf16);
    case pcclFloat: return ONE_OF(f32);
    case pcclDouble: return ONE_OF(f64);
    default: return ONE_OF(integers);
    }
}

static void fill(void *bytes, int dtype, size_t count) {
    size_t size = dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = next_random() % 3 == 0 ? special(dtype) : next_random();
        memcpy((uint8_t *)bytes + i * size, &bits, size);
    }
}

static struct device_queue *open_at(const void *tensor) {
    struct device_queue *queue = NULL;
    REQUIRE(device_open(tensor, -1, &queue) && queue != NULL);
    return queue;
}

// ---- reductions ----
// With a result and an input that begin `shift` elements behind an address of 16 bytes' alignment.
static void reduce_one(uint8_t *tensor, int dtype, int op, size_t count, size_t shift, uint32_t divisor) {
    check_case("%s of %zu %s, shifted by %zu, divided by %u", red_op_name(op), count, dtype_name(dtype), shift,
               divisor);
    static uint8_t want[ROOM], before[ROOM];
    size_t size = dtype_size(dtype), bytes = count * size;
    uint8_t *input = tensor + shift * size, *result = shift % 2 == 0 ? input : input + ROOM;
    fill(fake_cuda_bytes(input), dtype, count);
    memcpy(before, fake_cuda_bytes(input), bytes);
    struct device_queue *queue = open_at(tensor);
    void *staging = device_staging(queue, result, bytes);
    fill(staging, dtype, count);
    kernels_get()->reduce[op][dtype](want, staging, before, count);
    if (divisor != 0) kernels_get()->divide[dtype](want, count, divisor);
    const struct device_sum sum = {.op = op, .dtype = dtype, .divisor = divisor};
    unsigned launches = fake_cuda_counts().launches;
    uint8_t *end = fake_cuda_bytes(result + bytes);
    *end = 0xA5;
    device_reduce(queue, result, staging, input, count, &sum);
    uint64_t fence;
    const void *view = device_map(queue, result, bytes, &fence);
    CHECK(device_await(queue));
    CHECK_EQ(fake_cuda_counts().launches, launches + 1);
    CHECK_MEM(fake_cuda_bytes(result), want, bytes);
    CHECK_MEM(view, want, bytes); // what is sent on
    CHECK_EQ(*end, 0xA5);
    device_close(queue);
}

static void test_reduce(void) {
    static const size_t counts[] = {1, 5, 16, 333, 2048};
    uint8_t *tensor = fake_cuda_new(0, 3 * ROOM);
    for (int dtype = 0; dtype < KERNEL_DTYPES; dtype++)
        for (int op = 0; op < KERNEL_OPS; op++)
            for (size_t i = 0; red_op_takes(op, dtype) && i < sizeof counts / sizeof counts[0]; i++) {
                uint32_t divisor = op == pcclAvg ? (uint32_t)(next_random() % 9 + 1) : 0;
                reduce_one(tensor, dtype, op, counts[i], next_random() % 4 * (i % 2), divisor);
            }
    for (int dtype = 0; dtype < pcclBool; dtype++) reduce_one(tensor, dtype, pcclAvg, 4096, 0, 70000);
    fake_cuda_free(tensor);
}

// ---- codes ----
enum { TERMS_MOST = 4, COUNT_MOST = 9000 };

struct coding {
    const struct codec *codec;
    uint8_t id;
    int dtype, op;
    size_t count;
    uint32_t terms, own; // own == terms: none
    bool encodes, stores, feeds_back, stochastic;
};

// Floats of which all of a block are small, large, 0, or hold NaN or infinity, now and then.
static void fill_block_like(void *bytes, int dtype, size_t count) {
    float *wide = malloc(count * sizeof *wide + 1);
    for (size_t i = 0; i < count; i++) {
        static const float sizes[] = {1, 1e-3f, 1e30f, 1e-41f, 0, 3.4e38f, 0x1p-95f};
        wide[i] = ((float)(next_random() % 2001) - 1000) / 1000 * sizes[i / 300 % 7];
        if (next_random() % 900 == 0) wide[i] = (float)(int)(next_random() % 3 - 1) / 0.0f; // infinite, or NaN
    }
    codec_narrow(dtype, bytes, wide, count);
    free(wide);
}

// What sharded ops do on the host (data/algorithms/sharded.c).
static void code_on_host(const struct coding *how, const struct device_codes *what, const void *input,
                         const float *residual_in, uint8_t *codes, void *result, float *residual_out) {
    static float sum[COUNT_MOST], term[COUNT_MOST], stored[COUNT_MOST];
    const struct kernels *kernels = kernels_get();
    for (uint32_t i = 0; i < how->terms; i++) {
        float *to = i == 0 ? sum : term;
        if (i == how->own) codec_widen(how->dtype, to, input, how->count);
        if (i == how->own && how->feeds_back) kernels->reduce[pcclSum][pcclFloat](to, to, residual_in, how->count);
        if (i != how->own) CHECK(codec_decode(how->codec, how->dtype, to, what->terms[i], how->count));
        if (i > 0) kernels->reduce[how->op][pcclFloat](sum, sum, term, how->count);
    }
    if (what->sum.divisor != 0) kernels->divide[pcclFloat](sum, how->count, what->sum.divisor);
    memcpy(stored, sum, sizeof stored);
    if (how->encodes) {
        codec_encode(how->codec, how->dtype, codes, sum, how->count, what->rounding);
        CHECK(codec_decode(how->codec, how->dtype, stored, codes, how->count));
    }
    if (how->stores) {
        codec_narrow(how->dtype, result, stored, how->count);
        codec_widen(how->dtype, stored, result, how->count);
    }
    if (how->feeds_back) codec_residual(residual_out, sum, stored, what->times, how->count);
}

static void code_one(const struct coding *how, uint8_t *tensors) {
    check_case("%s, %zu %s, %s of %u, own %u,%s%s%s%s", how->codec->name, how->count, dtype_name(how->dtype),
               red_op_name(how->op), how->terms, how->own, how->encodes ? " encoded" : "", how->stores ? " stored" : "",
               how->feeds_back ? " with feedback" : "", how->stochastic ? " stochastic" : "");
    static uint8_t terms[TERMS_MOST][4 * COUNT_MOST], want_codes[4 * COUNT_MOST];
    static float wide[COUNT_MOST], want_result[COUNT_MOST], want_residual[COUNT_MOST], input[COUNT_MOST];
    size_t size = dtype_size(how->dtype), bytes = how->count * size,
           coded = codec_bytes(how->codec, how->dtype, how->count);
    size_t shift = next_random() % 3 * size; // a tensor may begin at any element
    uint8_t *own = tensors + shift, *result = next_random() % 2 ? own : tensors + ROOM + shift;
    float *residuals = (float *)(tensors + 2 * ROOM);
    struct codec_rounding rounding = {next_random(), next_random() % 2 ? next_random() : 7};
    fill_block_like(fake_cuda_bytes(own), how->dtype, how->count);
    fill_block_like(fake_cuda_bytes(residuals), pcclFloat, how->count);
    memcpy(input, fake_cuda_bytes(own), bytes);
    const uint8_t *list[TERMS_MOST];
    for (uint32_t i = 0; i < how->terms; i++) {
        uint8_t elements[4 * COUNT_MOST];
        fill_block_like(elements, how->dtype, how->count);
        codec_widen(how->dtype, wide, elements, how->count);
        codec_encode(how->codec, how->dtype, terms[i], wide, how->count, NULL);
        list[i] = i == how->own ? NULL : terms[i];
    }
    struct device_codes what = {.codec = how->id,
                                .sum = {how->op, how->dtype, how->op == pcclAvg ? how->terms + 3 : 0},
                                .count = how->count,
                                .terms = list,
                                .term_count = how->terms,
                                .own = how->own,
                                .input = own,
                                .residual_in = how->feeds_back ? residuals : NULL,
                                .rounding = how->stochastic ? &rounding : NULL,
                                .result = how->stores ? result : NULL,
                                .residual_out = how->feeds_back ? residuals + COUNT_MOST : NULL,
                                .times = how->terms};
    code_on_host(how, &what, input, fake_cuda_bytes(residuals), want_codes, want_result, want_residual);
    struct device_queue *queue = open_at(tensors);
    const void *codes = NULL;
    uint64_t fence = 0;
    CHECK_EQ(device_code(queue, &what, how->encodes ? &codes : NULL, &fence), DEVICE_CODING_ASKED);
    for (uint32_t i = 0; i < how->terms; i++) memset(terms[i], 0xA5, sizeof terms[i]); // nobody looks at them any more
    uint64_t behind;
    const void *left = device_map(queue, residuals + COUNT_MOST, how->count * sizeof(float), &behind);
    CHECK(device_await(queue));
    CHECK_EQ(device_passed(queue, fence), DEVICE_DONE);
    if (how->encodes) CHECK_MEM(codes, want_codes, coded);
    if (how->feeds_back) CHECK_MEM(left, want_residual, how->count * sizeof(float));
    device_unmap(queue, left);
    device_unmap(queue, codes);
    if (how->stores) CHECK_MEM(fake_cuda_bytes(result), want_result, bytes);
    if (how->feeds_back) CHECK_MEM(fake_cuda_bytes(residuals + COUNT_MOST), want_residual, how->count * sizeof(float));
    device_close(queue);
}

static void test_codes(void) {
    static const size_t counts[] = {1, 31, 300, 4097, 8999};
    static const int dtypes[] = {pcclFloat, pcclFloat16, pcclBFloat16},
                     ops[] = {pcclSum, pcclAvg, pcclProd, pcclMax, pcclMin};
    uint8_t *tensors = fake_cuda_new(0, 2 * ROOM + 2 * COUNT_MOST * sizeof(float));
    for (uint8_t id = CODEC_BLOCK_INT8; id < CODECS; id++)
        for (size_t i = 0; i < 5; i++) {
            struct coding how = {
                .codec = codec_find(id), .id = id, .dtype = dtypes[(i + id) % 3], .count = counts[(i + id) % 5]};
            how.op = ops[next_random() % 5];
            how.terms = i < 2 ? 1 : 2 + (uint32_t)i % 3;
            how.own = i == 0 ? 1 : (uint32_t)(next_random() % how.terms);
            how.encodes = i > 0;
            how.stores = i != 1;
            how.feeds_back = i > 0 && next_random() % 2;
            how.stochastic = i > 0 && next_random() % 2;
            code_one(&how, tensors);
        }
    fake_cuda_free(tensors);
}

// What is not aligned, or has no kernel, is the host's.
static void test_codes_elsewhere(void) {
    check_case("codes elsewhere");
    float *tensor = fake_cuda_new(0, ROOM);
    const uint8_t codes[36] = {0}, *term = codes;
    const void *view;
    uint64_t fence;
    struct device_codes what = {CODEC_BLOCK_INT8, {pcclSum, pcclFloat, 0}, 32, &term, 1, 1, .result = tensor};
    struct device_queue *queue = open_at(tensor);
    what.codec = CODEC_MINMAX_UINT8;
    CHECK_EQ(device_code(queue, &what, NULL, NULL), DEVICE_CODING_ELSEWHERE);
    what.codec = CODEC_BLOCK_INT8;
    what.count = 0;
    CHECK_EQ(device_code(queue, &what, NULL, NULL), DEVICE_CODING_ELSEWHERE);
    CHECK_EQ(device_code(NULL, &what, NULL, NULL), DEVICE_CODING_ELSEWHERE);
    what = (struct device_codes){CODEC_BLOCK_INT8, {pcclSum, pcclFloat, 0}, 32, &term, 1, 0, .input = tensor};
    const void *unaligned = (const uint8_t *)tensor + 2;
    what.input = unaligned;
    CHECK_EQ(device_code(queue, &what, &view, &fence), DEVICE_CODING_ELSEWHERE);
    what.input = tensor;
    what.residual_in = unaligned;
    CHECK_EQ(device_code(queue, &what, &view, &fence), DEVICE_CODING_ELSEWHERE);
    what.residual_in = NULL;
    CHECK(device_await(queue));
    fake_cuda_fail(1, 1, 2);
    if (device_code(queue, &what, &view, &fence) == DEVICE_CODING_ASKED) {
        CHECK(!device_await(queue));
        CHECK_EQ(device_passed(queue, fence), DEVICE_FAILED);
    }
    CHECK_EQ(device_code(queue, &what, &view, &fence), DEVICE_CODING_FAILED);
    fake_cuda_fail(0, 0, 0);
    device_close(queue);
    fake_cuda_free(tensor);
}

int main(void) {
    fake_cuda_delay(0);
    test_reduce();
    test_codes();
    test_codes_elsewhere();
    CHECK_EQ(fake_cuda_counts().misuses, 0);
    return check_status();
}
