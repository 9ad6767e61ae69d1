// Streams of the program that wait for an op, while the host goes on.
//
// An event could not be recorded before the work that it stands for is known, and a host function that waits would hold
// up the thread of the driver that the op itself needs. So the GPU waits at the stream's place for a number in
// page-locked memory of the host, which is written when the op has ended.
#ifndef PCCL_CUDA_HOLDS_H
#define PCCL_CUDA_HOLDS_H

#include "cuda/gpu.h"

struct cuda_hold;

// Makes later work in the stream wait for cuda_holds_release. Returns NULL, with its text in base/detail, if it does
// not. May block while the driver accepts no more work into the stream.
struct cuda_hold *cuda_hold_new(const struct gpu *gpu, CUstream stream);
void cuda_holds_add(struct cuda_hold **holds, struct cuda_hold *hold);
// Any thread; calls nothing of CUDA.
void cuda_holds_release(struct cuda_hold **holds);

#endif
