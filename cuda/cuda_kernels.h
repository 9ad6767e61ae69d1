// The kernels for GPUs (cuda/kernels), which the build compiles where it finds nvcc and puts into the library as
// bytes. Each context of a GPU loads them once. Where there are none, or the GPU does not take them, the host does
// their work, with the same bits.
//
// PCCL_CUDA_KERNELS in the environment names a file with kernels in place of those in the library; "off": none.
#ifndef PCCL_CUDA_KERNELS_H
#define PCCL_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/cuda_driver.h"
#include "cuda/kernels/kernel.h"

// The build's compiled kernels: a fatbin, or the reason why there is none.
struct cuda_image {
    const void *bytes;
    size_t length;
    const char *why_not;
};

extern const struct cuda_image cuda_image; // in a file that the build makes

enum cuda_kernel {
#define CUDA_KERNEL_NUMBER(name, threads) CUDA_KERNEL_##name,
    DEVICE_KERNELS(CUDA_KERNEL_NUMBER)
#undef CUDA_KERNEL_NUMBER
        CUDA_KERNELS
};

// Kernels of a context.
struct cuda_kernels {
    bool usable;
    char why_not[CUDA_WHY_BYTES];
    CUfunction functions[CUDA_KERNELS];
};

// Whether there are any to load. If not, `why_not` says why.
bool cuda_kernels_are_there(char why_not[CUDA_WHY_BYTES]);
const void *cuda_kernels_bytes(void); // NULL: there are none
// In the context that they are for. All of them, so that no first launch has to wait for what is under way at the GPU.
void cuda_kernels_load(struct cuda_kernels *kernels, const struct cuda_driver *driver);
// In that context: puts one into a stream. The job is copied.
CUresult cuda_kernels_launch(const struct cuda_kernels *kernels, const struct cuda_driver *driver,
                             enum cuda_kernel which, unsigned blocks, const void *job, CUstream stream);
// Whether kernels reduce chunks, and whether they quantise blocks: docs/decisions/sums-of-gpu-tensors.md. By default
// the host reduces and kernels quantise; PCCL_CUDA_REDUCE=gpu or host in the environment leaves both to one of them.
bool cuda_kernels_reduce(const struct cuda_kernels *kernels);
bool cuda_kernels_quantise(const struct cuda_kernels *kernels);
unsigned cuda_kernels_threads(enum cuda_kernel which); // of a block

#endif
