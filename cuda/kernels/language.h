// Definitions that CUDA C++ needs and C lacks. A test that compiles the kernels as C defines these, and CUDA's other
// words that they use, beforehand (tests/fakes/cuda/kernels.c).
#ifndef PCCL_CUDA_KERNELS_LANGUAGE_H
#define PCCL_CUDA_KERNELS_LANGUAGE_H

#ifdef __CUDACC__
#define KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
#define KERNEL_UNROLL _Pragma("unroll")
#endif

#define KERNEL_ALL_THREADS 0xFFFFFFFFu // of a warp

#endif
