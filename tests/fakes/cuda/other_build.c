// A libpccl_cuda.so of another build: of an older version, or with OTHER_LAYOUT of another interface.
#include <stdlib.h>

#include "device/cuda.h"

#define PUBLIC __attribute__((visibility("default")))

#undef PCCL_VERSION
#define PCCL_VERSION "0.0.9"

PUBLIC extern const struct cuda_abi pccl_cuda_abi;
#ifdef OTHER_LAYOUT
const struct cuda_abi pccl_cuda_abi = {.bytes = 8, .revision = CUDA_REVISION + 1};
#else
const struct cuda_abi pccl_cuda_abi = CUDA_ABI;
#endif

PUBLIC const struct cuda_library *pccl_cuda_open(const struct cuda_host *host);
const struct cuda_library *pccl_cuda_open(const struct cuda_host *host) {
    (void)host;
    abort(); // the core compares first
}
