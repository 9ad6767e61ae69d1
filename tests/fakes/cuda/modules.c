// Modules of the fake driver: there is one, whose kernels are those of cuda/kernels, run on the CPU. It is found
// in a fatbin, which is not looked into, and in a text that begins with FAKE_MODULE.
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_driver.h"
#include "driver.h"
#include "kernels.h"

#define PROTOTYPE(member, symbol, parameters) FAKE_EXPORT CUresult symbol parameters;
CUDA_DRIVER_FUNCTIONS(PROTOTYPE)

enum { ERROR_INVALID_IMAGE = 200, ERROR_NOT_FOUND = 500 };

static const char FAKE_MODULE[] = "fake kernels";
static const unsigned char FATBIN[4] = {0x50, 0xED, 0x55, 0xBA};

struct launch {
    const struct fake_kernel *kernel;
    unsigned blocks;
    unsigned char job[FAKE_KERNEL_JOB_BYTES];
};

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CUresult result = fake_cuda_call();
    if (result != CUDA_SUCCESS) return result;
    if (memcmp(image, FATBIN, sizeof FATBIN) != 0 && strncmp(image, FAKE_MODULE, strlen(FAKE_MODULE)) != 0)
        return ERROR_INVALID_IMAGE;
    *module = (CUmodule)(uintptr_t)FAKE_MODULE;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CUresult result = fake_cuda_call();
    if (result != CUDA_SUCCESS) return result;
    const struct fake_kernel *kernel = fake_kernel_find(name);
    *function = (CUfunction)(uintptr_t)kernel;
    return module == (CUmodule)(uintptr_t)FAKE_MODULE && kernel != NULL ? CUDA_SUCCESS : ERROR_NOT_FOUND;
}

// Memory of a pool is there only when the stream has come to this.
static void run(void *data) {
    struct launch *launch = data;
    const struct fake_kernel *kernel = launch->kernel;
    for (int i = 0; i < FAKE_KERNEL_POINTERS && kernel->pointers[i] != 0; i++) {
        void *pointer;
        memcpy(&pointer, launch->job + kernel->pointers[i] - 1, sizeof pointer);
        if (pointer != NULL) pointer = fake_cuda_bytes(pointer);
        memcpy(launch->job + kernel->pointers[i] - 1, &pointer, sizeof pointer);
    }
    fake_kernel_run(kernel, launch->blocks, launch->job);
    free(launch);
}

CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads,
                        unsigned threads_y, unsigned threads_z, unsigned shared_bytes, CUstream stream,
                        void **parameters, void **extra) {
    CUresult result = fake_cuda_call();
    if (result != CUDA_SUCCESS) return result;
    const struct fake_kernel *kernel = (const struct fake_kernel *)(uintptr_t)function;
    if (blocks == 0 || blocks_y != 1 || blocks_z != 1 || threads != kernel->threads || threads_y != 1 ||
        threads_z != 1 || shared_bytes != 0 || extra != NULL || kernel->job_bytes > FAKE_KERNEL_JOB_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    struct launch *launch = calloc(1, sizeof *launch);
    launch->kernel = kernel;
    launch->blocks = blocks;
    memcpy(launch->job, parameters[0], kernel->job_bytes);
    result = fake_cuda_put(stream, run, launch);
    if (result != CUDA_SUCCESS) free(launch);
    return result;
}
