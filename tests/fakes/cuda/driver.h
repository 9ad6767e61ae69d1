// A CUDA driver for tests (tests/fakes/cuda/driver.c): the functions of csrc/device/cuda_driver.h on memory of the
// host.
#ifndef PCCL_TESTS_FAKES_CUDA_DRIVER_H
#define PCCL_TESTS_FAKES_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_EXPORT __attribute__((visibility("default")))

enum { FAKE_GPUS = 2 };

struct fake_cuda_counts {
    int streams, events, host_blocks, device_blocks; // that are not freed
    int pending;                                     // commands that wait in streams
    int misuses;                                     // calls that the real driver forbids
    unsigned calls;                                  // that can fail, since the last fake_cuda_fail
    size_t copied;                                   // bytes that copies have moved
};

// Memory of this GPU, which cannot be touched at its address; NULL: the system refuses. It is of no context, or of the
// primary one.
FAKE_EXPORT void *fake_cuda_new(int gpu, size_t bytes);
FAKE_EXPORT void fake_cuda_free(void *memory);
// Where a test finds its bytes.
FAKE_EXPORT void *fake_cuda_bytes(const void *memory);
// A stream of the program, to be destroyed by fake_cuda_stream_free.
FAKE_EXPORT void *fake_cuda_stream(int gpu);
FAKE_EXPORT void fake_cuda_stream_free(void *stream);
// Puts a kernel into a stream (NULL: the default one of that GPU): it takes so long and then calls the function.
FAKE_EXPORT void fake_cuda_launch(int gpu, void *stream, unsigned microseconds, void (*kernel)(void *), void *data);
FAKE_EXPORT void fake_cuda_synchronize(void *stream);

// Each command of a stream begins after a random time of at most this.
FAKE_EXPORT void fake_cuda_delay(unsigned most_microseconds);
// From now on the `at`-th call that can fail, counted from 1, gives this error, and so do the `count` - 1 after it.
FAKE_EXPORT void fake_cuda_fail(unsigned at, unsigned count, int error);
// The GPUs have failed: no command is carried out, no host function is called, and every call gives this error; 0: they
// work again.
FAKE_EXPORT void fake_cuda_break(int error);
FAKE_EXPORT void fake_cuda_refuse_memory(int refuse); // of GPUs
FAKE_EXPORT struct fake_cuda_counts fake_cuda_counts(void);

#endif
