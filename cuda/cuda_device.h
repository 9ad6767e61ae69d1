// Tensors on GPUs: the table of functions that libpccl_cuda.so gives the core.
#ifndef PCCL_CUDA_DEVICE_H
#define PCCL_CUDA_DEVICE_H

#include "device/cuda.h"

extern const struct cuda_library cuda_library;

#endif
