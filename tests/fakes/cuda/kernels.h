// The kernels of cuda/kernels on the CPU: compiled as C, and run thread by thread.
#ifndef PCCL_TESTS_FAKES_CUDA_KERNELS_H
#define PCCL_TESTS_FAKES_CUDA_KERNELS_H

#include <stddef.h>

enum { FAKE_KERNEL_POINTERS = 40, FAKE_KERNEL_JOB_BYTES = 1024 };

struct fake_kernel {
    const char *name;
    unsigned threads; // of a block
    size_t job_bytes;
    void (*run)(const void *job);                  // one thread
    unsigned short pointers[FAKE_KERNEL_POINTERS]; // where the job has them, each + 1
};

// NULL: there is none of this name.
const struct fake_kernel *fake_kernel_find(const char *name);
// Runs all threads of all blocks. Aborts where threads wait for each other forever, or a block is too large.
void fake_kernel_run(const struct fake_kernel *kernel, unsigned blocks, const void *job);

#endif
