// Reductions of a chunk that lies in page-locked memory of the host with one at the GPU (compute/kernels.h), element by
// element: a kernel for each type.
//
// A thread takes 16 bytes at a time, so that the bus has few and large requests: `both` is aligned to that, the tensors
// at the GPU need not be. Room behind the last element of `both`, up to a multiple of 16 bytes, is read and written.
#include "compute/float_ops.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/language.h"

// pcclRedOp_t
enum reduce_op { REDUCE_SUM, REDUCE_AVG, REDUCE_PROD, REDUCE_MAX, REDUCE_MIN, REDUCE_AND, REDUCE_OR, REDUCE_XOR };

#define REDUCE_BYTES 16u
#define REDUCE_SAME(x) (x)

#define REDUCE_INT_ONE(suffix, element, wide, quotient) \
    ELEMENT element reduce_##suffix(unsigned op, element x, element y) { \
        switch (op) { \
        case REDUCE_PROD: return (element)((wide)x * (wide)y); \
        case REDUCE_MAX: return x > y ? x : y; \
        case REDUCE_MIN: return x < y ? x : y; \
        case REDUCE_AND: return (element)(x & y); \
        case REDUCE_OR: return (element)(x | y); \
        case REDUCE_XOR: return (element)(x ^ y); \
        default: return (element)((wide)x + (wide)y); \
        } \
    } \
    ELEMENT element divide_##suffix(element x, uint32_t divisor) { return (element)((quotient)x / (quotient)divisor); }

#define REDUCE_FLOAT_ONE(suffix, element, wide, real, load, store) \
    ELEMENT element reduce_##suffix(unsigned op, element x, element y) { \
        switch (op) { \
        case REDUCE_PROD: return store(op_prod_##wide(load(x), load(y))); \
        case REDUCE_MAX: return store(op_max_##wide(load(x), load(y))); \
        case REDUCE_MIN: return store(op_min_##wide(load(x), load(y))); \
        default: return store(op_sum_##wide(load(x), load(y))); \
        } \
    } \
    ELEMENT element divide_##suffix(element x, uint32_t divisor) { \
        return store(canonical_##wide(load(x) / (real)divisor)); \
    }

#define REDUCE_KERNEL(suffix, element) \
    KERNEL(pccl_reduce_##suffix, 256)(struct reduce_job job) { \
        enum { EACH = REDUCE_BYTES / sizeof(element) }; \
        union reduce_part_##suffix { \
            ulonglong2 bytes; \
            element each[EACH]; \
        } x, y; \
        const element *input = (const element *)job.input; \
        element *result = (element *)job.result; \
        ulonglong2 *both = (ulonglong2 *)job.both; \
        unsigned is_aligned = ((uintptr_t)input | (uintptr_t)result) % REDUCE_BYTES == 0; \
        uint64_t parts = (job.count + EACH - 1) / EACH; \
        for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < parts; i += gridDim.x * blockDim.x) { \
            uint64_t at = i * EACH; \
            unsigned count = job.count - at < EACH ? (unsigned)(job.count - at) : EACH; \
            unsigned whole = is_aligned && count == EACH; \
            x.bytes = both[i]; \
            y.bytes = x.bytes; \
            if (whole) \
                y.bytes = *(const ulonglong2 *)(input + at); \
            else \
                for (unsigned k = 0; k < EACH; k++) \
                    if (k < count) y.each[k] = input[at + k]; \
            for (unsigned k = 0; k < EACH; k++) x.each[k] = reduce_##suffix(job.op, x.each[k], y.each[k]); \
            if (job.divisor != 0) \
                for (unsigned k = 0; k < EACH; k++) x.each[k] = divide_##suffix(x.each[k], job.divisor); \
            both[i] = x.bytes; \
            if (whole) \
                *(ulonglong2 *)(result + at) = x.bytes; \
            else \
                for (unsigned k = 0; k < EACH; k++) \
                    if (k < count) result[at + k] = x.each[k]; \
        } \
    }

#define REDUCE_INT(suffix, element, wide, quotient) \
    REDUCE_INT_ONE(suffix, element, wide, quotient) \
    REDUCE_KERNEL(suffix, element)
#define REDUCE_FLOAT(suffix, element, wide, real, load, store) \
    REDUCE_FLOAT_ONE(suffix, element, wide, real, load, store) \
    REDUCE_KERNEL(suffix, element)

REDUCE_INT(u8, uint8_t, uint32_t, uint32_t)
REDUCE_INT(i8, int8_t, uint32_t, int64_t)
REDUCE_INT(u16, uint16_t, uint32_t, uint32_t)
REDUCE_INT(i16, int16_t, uint32_t, int64_t)
REDUCE_INT(u32, uint32_t, uint32_t, uint32_t)
REDUCE_INT(i32, int32_t, uint32_t, int64_t)
REDUCE_INT(u64, uint64_t, uint64_t, uint64_t)
REDUCE_INT(i64, int64_t, uint64_t, int64_t)
REDUCE_FLOAT(f16, uint16_t, f32, float, float_from_f16, float_to_f16)
REDUCE_FLOAT(bf16, uint16_t, f32, float, float_from_bf16, float_to_bf16)
REDUCE_FLOAT(f32, float, f32, float, REDUCE_SAME, REDUCE_SAME)
REDUCE_FLOAT(f64, double, f64, double, REDUCE_SAME, REDUCE_SAME)

// Any byte but 0 is true.
ELEMENT uint8_t reduce_bool(unsigned op, uint8_t x, uint8_t y) {
    switch (op) {
    case REDUCE_PROD:
    case REDUCE_MIN:
    case REDUCE_AND: return x != 0 && y != 0;
    case REDUCE_XOR: return (x != 0) != (y != 0);
    default: return (x | y) != 0;
    }
}

ELEMENT uint8_t divide_bool(uint8_t x, uint32_t divisor) { // which no op asks for
    (void)divisor;
    return x;
}

REDUCE_KERNEL(bool, uint8_t)
