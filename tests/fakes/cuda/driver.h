// A CUDA driver for tests (tests/fakes/cuda/driver.c): the functions of cuda/cuda_driver.h on memory of the
// host.
#ifndef PCCL_TESTS_FAKES_CUDA_DRIVER_H
#define PCCL_TESTS_FAKES_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_EXPORT __attribute__((visibility("default")))

enum { FAKE_GPUS = 2, FAKE_GPU_WITH_POOLS = 0 }; // the other GPU has no memory pools

struct fake_cuda_counts {
    int streams, events, host_blocks, device_blocks; // that are not freed
    int pending;                                     // commands that wait in streams
    int misuses;                                     // calls that the real driver forbids
    int risks;         // calls that may wait for the whole GPU, made while a stream waited for a value not yet written
    unsigned calls;    // that can fail, since the last fake_cuda_fail
    unsigned copies;   // that were begun
    unsigned launches; // of kernels of modules
    size_t copied;     // bytes that copies have moved
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
FAKE_EXPORT void fake_cuda_fail_copy(unsigned at); // the `at`-th copy from now on, counted from 1, cannot be begun
// The GPUs have failed: no command is carried out, no host function is called, and every call gives this error; 0: they
// work again.
FAKE_EXPORT void fake_cuda_break(int error);
FAKE_EXPORT void fake_cuda_refuse_memory(int refuse); // of GPUs
// Page-locked memory is given only when it is no longer held, at the latest after half a minute. How many calls wait
// for that.
FAKE_EXPORT int fake_cuda_hold_pinning(int hold);
// The GPUs pause: while they are held, streams get on to the next copy, kernel or wait for a value, and no further.
FAKE_EXPORT void fake_cuda_hold(int hold);
// Streams of one GPU and one priority share a hardware queue: what was put there later waits for what waits.
FAKE_EXPORT void fake_cuda_share_queues(int share);
// The stream captures a CUDA graph, in the mode "global". fake_cuda_capture_end: 0 if something has ended that before.
FAKE_EXPORT void fake_cuda_capture(void *stream);
FAKE_EXPORT int fake_cuda_capture_end(void *stream);
FAKE_EXPORT struct fake_cuda_counts fake_cuda_counts(void);
FAKE_EXPORT void fake_cuda_counts_into(struct fake_cuda_counts *out); // as fake_cuda_counts

// ---- for the rest of the driver ----
struct CUstream_st;
int fake_cuda_call(void); // that can fail: its result
// A kernel, into a stream of the current context.
int fake_cuda_put(struct CUstream_st *stream, void (*kernel)(void *), void *data);

#endif
