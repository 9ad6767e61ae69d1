// The GPUs that tensors of this process lie at: one for each context, made when the first tensor there is seen, and
// kept. With each goes memory that is used again: page-locked memory of the host, of which there is at most
// PINNED_MOST_BYTES for all GPUs together, and rooms at the GPU for what ops save, of which it keeps a few.
//
// Any thread. Only gpu_keep, gpu_drop and gpu_host_bytes may be called in a context that does not work any more.
#ifndef PCCL_DEVICE_GPU_H
#define PCCL_DEVICE_GPU_H

#include <stdbool.h>
#include <stddef.h>

#include "device/cuda_driver.h"

enum { PINNED_MOST_BYTES = 64 << 20, GPU_ROOMS_KEPT = 2 };

struct gpu {
    const struct cuda_driver *driver;
    CUcontext context;
    CUdevice ordinal;
    struct gpu *next;
    struct cuda_queue *idle; // those that are used again; under the lock of device/cuda
    struct gpu_room {
        void *memory;
        size_t bytes;
    } rooms[GPU_ROOMS_KEPT]; // that nobody has; under the lock of device/gpu
};

// Whether memory of the process is that of a GPU; managed memory is. NULL is not.
bool gpu_owns(const void *memory);
bool gpu_is_same(const void *one, const void *other); // of memory of GPUs
// Of this memory. NULL: the driver or the system refuses, and `why` says why.
struct gpu *gpu_of(const void *memory, char why[CUDA_WHY_BYTES]);
// Between these two, the thread's CUDA calls are in the context of the GPU.
CUresult gpu_enter(const struct gpu *gpu);
void gpu_leave(const struct gpu *gpu);

// Memory of the host, aligned to 64 bytes: page-locked, if the limit and the system allow, so that copies to and from
// the GPU go on by themselves. NULL: there is no memory. It is given back when all that keep it have dropped it.
void *gpu_host_new(const struct gpu *gpu, size_t bytes);
void gpu_keep(void *host_memory);
void gpu_drop(void *host_memory);
size_t gpu_host_bytes(void); // page-locked so far

// Memory at the GPU, or if that is full, of the host; *bytes becomes what it has. NULL: there is none.
void *gpu_room_take(struct gpu *gpu, size_t *bytes);
void gpu_room_give(struct gpu *gpu, void *room, size_t bytes); // nothing uses it any more

#endif
