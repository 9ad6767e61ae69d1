// The GPUs that tensors of this process lie at: one for each context, made when the first tensor there is seen, and
// kept. With each goes memory that is used again: page-locked memory of the host, of which there is at most
// PINNED_MOST_BYTES for all GPUs together, and rooms at the GPU for what ops save.
//
// To take memory of the driver, or to give it back, may wait for all that the GPU has to do. While a stream of the
// program waits for the library, that would never end. So rooms are allocated and freed in the order of a stream of the
// library, from a memory pool, which waits for nothing else. What has no such order (page-locked memory, and rooms at a
// GPU without pools) is neither taken nor given back meanwhile: plain memory of the host stands in for it.
//
// Any thread. Only gpu_keep, gpu_drop and gpu_host_bytes may be called in a context that does not work any more.
#ifndef PCCL_CUDA_GPU_H
#define PCCL_CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/cuda_driver.h"
#include "cuda/cuda_kernels.h"

enum { PINNED_MOST_BYTES = 64 << 20, POOL_KEPT_BYTES = 256 << 20, GPU_ROOMS_KEPT = 2 };

struct gpu {
    const struct cuda_driver *driver;
    CUcontext context;
    CUdevice ordinal;
    struct gpu *next;
    bool looked_for_kernels; // under a lock of cuda/gpu; before that nobody has the GPU
    struct cuda_kernels kernels;
    struct cuda_queue *idle; // those that are used again; under the lock of device/cuda
    // under locks of cuda/gpu
    bool looked;            // for pools
    CUmemoryPool pool;      // NULL: it has none
    struct gpu_room *rooms; // without a pool: that nobody has
};

struct gpu_room {
    struct gpu_room *next;
    void *memory;
    size_t bytes; // at least what was asked for
    bool is_at_gpu;
};

// Returns the GPU that owns this memory; NULL if the driver or the system refuses, with the reason in `why`.
struct gpu *gpu_of(const void *memory, char why[CUDA_WHY_BYTES]);
// Whether the first GPU of the machine takes the kernels of the library, in its primary context. If not, `why` says
// why.
bool gpu_takes_kernels(char why[CUDA_WHY_BYTES]);
// Between these two, which may be nested, the thread's CUDA calls are in the context of the GPU; and they neither fail
// for a CUDA graph that the program captures nor end its capture, unless they are about a stream that captures.
CUresult gpu_enter(const struct gpu *gpu);
void gpu_leave(const struct gpu *gpu);
// In the context of the GPU: whether the library may put something into this stream of the program. False, with its
// text in base/detail, which begins with `what`: it captures a CUDA graph, or *error is why the driver refuses it.
bool gpu_check_stream(const struct gpu *gpu, CUstream stream, const char *what, CUresult *error);

// Memory of the host, aligned to 64 bytes, which is given back when all that keep it have dropped it. Page-locked, so
// that copies to and from the GPU go on by themselves: what the driver has given and nobody has; NULL: there is none.
void *gpu_host_unused(size_t bytes);
void *gpu_host_plain(size_t bytes); // not page-locked; NULL: there is no memory
// Whether the limit allows more of the size that is for so many bytes.
bool gpu_host_may_add(size_t bytes);
// Takes one more of the driver, for gpu_host_unused. False: the driver, the limit or a stream that waits is against it.
bool gpu_host_add(const struct gpu *gpu, size_t bytes);
bool gpu_host_is_pinned(const void *host_memory); // then kernels reach it, at the same address
void gpu_keep(void *host_memory);
void gpu_drop(void *host_memory);
size_t gpu_host_bytes(void); // page-locked so far

// Memory at the GPU, or if that is full, of the host. It is there for what is put into the stream, one of the library,
// from now on, and for others once something of that is done. NULL: there is none.
struct gpu_room *gpu_room_take(struct gpu *gpu, CUstream stream, size_t bytes);
// Nothing uses it any more, but perhaps what is in the stream.
void gpu_room_give(struct gpu *gpu, CUstream stream, struct gpu_room *room);

// ---- streams of the program that wait for the library ----
struct gpu_hold;
// Makes later work in the stream wait for gpu_holds_release. Returns NULL, with its text in base/detail, if it does
// not. May block while the driver accepts no more work into the stream.
struct gpu_hold *gpu_hold_new(const struct gpu *gpu, CUstream stream);
void gpu_holds_add(struct gpu_hold **holds, struct gpu_hold *hold);
// Any thread; calls nothing of CUDA.
void gpu_holds_release(struct gpu_hold **holds);
// Whether none waits; then none is told to before gpu_quiet_end.
bool gpu_quiet_begin(void);
void gpu_quiet_end(void);

#endif
