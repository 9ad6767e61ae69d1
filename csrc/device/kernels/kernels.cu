// All kernels, as one module.
#include "device/kernels/codes.cu"
#include "device/kernels/hash.cu"
#include "device/kernels/reduce.cu"
