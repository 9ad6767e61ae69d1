// All kernels, as one module.
#include "cuda/kernels/codes.cu"
#include "cuda/kernels/hash.cu"
#include "cuda/kernels/reduce.cu"
