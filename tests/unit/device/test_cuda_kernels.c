// The kernels for GPUs (csrc/device/kernels), which the fake driver runs on the CPU, against the kernels of the CPU:
// bit for bit, with NaN of all kinds, denormals, infinities, zeros of both signs and values half way between two
// others.
#include <pccl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
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
    void *landing = device_landing(queue, result, bytes);
    fill(landing, dtype, count);
    kernels_get()->reduce[op][dtype](want, landing, before, count);
    if (divisor != 0) kernels_get()->divide[dtype](want, count, divisor);
    const struct device_sum sum = {.op = op, .dtype = dtype, .divisor = divisor};
    unsigned launches = fake_cuda_counts().launches;
    uint8_t *end = fake_cuda_bytes(result + bytes);
    *end = 0xA5;
    device_reduce(queue, result, landing, input, count, &sum);
    uint64_t fence;
    const void *window = device_window(queue, result, bytes, &fence);
    CHECK(device_await(queue));
    CHECK_EQ(fake_cuda_counts().launches, launches + 1);
    CHECK_MEM(fake_cuda_bytes(result), want, bytes);
    CHECK_MEM(window, want, bytes); // what is sent on
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

int main(void) {
    fake_cuda_delay(0);
    test_reduce();
    CHECK_EQ(fake_cuda_counts().misuses, 0);
    return check_status();
}
