// Jobs, the only parameters of the GPU kernels, shared with the code that launches them.
//
// The kernels are in the language that C and CUDA C++ have in common. nvcc compiles them for GPUs, with the flags of
// cmake/cuda_kernels.cmake, which keep the bits those of the CPU; the C compiler compiles the same files for tests,
// where tests/fakes/cuda/kernels.c stands in for a GPU.
#ifndef PCCL_CUDA_KERNELS_KERNEL_H
#define PCCL_CUDA_KERNELS_KERNEL_H

#include <stdint.h>

// Each kernel: name, threads of a block. Its function is called pccl_<name>.
#define DEVICE_KERNELS(F) \
    F(hash_leaves, 128) \
    F(codes, 512) \
    DEVICE_REDUCTIONS(F)
// In the order of pcclDataType_t.
#define DEVICE_REDUCTIONS(F) \
    F(reduce_u8, 256) \
    F(reduce_i8, 256) \
    F(reduce_i16, 256) \
    F(reduce_u16, 256) \
    F(reduce_u32, 256) \
    F(reduce_i32, 256) \
    F(reduce_u64, 256) \
    F(reduce_i64, 256) \
    F(reduce_f16, 256) \
    F(reduce_bf16, 256) \
    F(reduce_f32, 256) \
    F(reduce_f64, 256) \
    F(reduce_bool, 256)

enum { KERNEL_WARP_SHIFT = 5, KERNEL_WARP = 1 << KERNEL_WARP_SHIFT, KERNEL_SECRET_WORDS = 24 };

// leaves[i] = hash of leaf first + i (compute/hash), of which each has more than 240 bytes. A warp for each leaf.
struct hash_leaves_job {
    const uint8_t *content;
    uint64_t *leaves; // may be page-locked memory of the host
    uint64_t bytes, first, count;
    uint64_t secret[KERNEL_SECRET_WORDS]; // hash_secret
};

// result[i] = both[i] = both[i] op input[i], divided by `divisor` unless that is 0. Any number of blocks.
struct reduce_job {
    void *result;
    void *both; // page-locked memory of the host
    const void *input;
    uint64_t count;
    uint32_t op; // pcclRedOp_t
    uint32_t divisor;
};

// The terms are reduced in their order and divided by `divisor` unless that is 0. Then, as far as they are not NULL,
// `codes` is what they give with this codec, `result` what is stored, of the codes if there are any, and
// residual_out = (what was wanted - what is had) * times. A block of threads for 16 blocks of the codec, and for fewer
// where these have more than 256 elements.
struct codes_job {
    const void *own;          // the term `own_term`, of elements; NULL: all terms are codes
    const float *residual_in; // added to it; NULL: nothing is
    const uint8_t *inputs;    // codes of the other terms, `stride` apart; may be page-locked memory of the host
    uint8_t *codes;           // likewise; this and the inputs are aligned to 4 bytes
    void *result;             // elements; may be `own`
    float *residual_out;
    uint64_t count, stride;
    uint64_t seed, index; // of stochastic rounding
    uint32_t terms, own_term;
    uint32_t block, code; // of the codec: elements of a block, BLOCK_CODE_INT8 and so on
    uint32_t dtype, op;   // pcclFloat16, pcclBFloat16 or pcclFloat; pcclRedOp_t
    uint32_t divisor, is_stochastic;
    float times;
};

enum { KERNEL_CODES_EACH = 256 }; // elements of a warp of it

#endif
