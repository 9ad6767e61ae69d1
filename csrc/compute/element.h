// Functions of one element, which the kernels of the CPU and those of GPUs (cuda/kernels) share, so that there is one
// definition of each value.
#ifndef PCCL_COMPUTE_ELEMENT_H
#define PCCL_COMPUTE_ELEMENT_H

#ifdef __CUDACC__
#define ELEMENT static __device__ __forceinline__
#else
#define ELEMENT static inline
#endif

#endif
