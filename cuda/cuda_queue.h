// A queue of a GPU: what it is asked for is a list of tasks, which a thread of its own, "pccl:cuda", brings about.
//
// The thread begins each task that touches nothing an earlier one is still to write, and writes nothing that an earlier
// one is still to read. So the tasks on chunks of a tensor overtake each other, and no others do. There are two
// streams, one for each direction, so that copies from and to the GPU and the sums, which the thread makes on the host
// where there are no kernels, go on at the same time. Kernels are in the one to the GPU. The program's default stream
// neither blocks them nor is blocked by them.
//
// A GPU has few hardware queues, and streams that share one wait for each other. The two streams have the highest
// priority, for which there are queues of their own, and nothing in them waits for a stream of the program, so they
// always get on. What waits for the program is a third stream, of ordinary priority.
//
// Open queues belong to whoever has opened them, one user; closed ones wait with their thread and streams to be opened
// again, unless they have failed.
#ifndef PCCL_CUDA_QUEUE_H
#define PCCL_CUDA_QUEUE_H

#include <pthread.h>

#include "device/device.h"
#include "cuda/gpu.h"

enum {
    CUDA_LOOK_MS = 100, // within which an error is found that the GPU has met while nobody called it
    CUDA_PIN_MS = 250,  // for which the data thread, whose links are silent then, waits for page-locked memory
};

enum cuda_kind { TASK_WINDOW, TASK_LAND, TASK_REDUCE, TASK_COPY, TASK_KERNEL, TASK_FREE_ROOM, TASK_RELEASE };
enum cuda_stage { STAGE_ASKED, STAGE_FROM_GPU, STAGE_TO_GPU, STAGE_DONE };

struct cuda_task {
    struct cuda_task *next;
    uint64_t number;
    enum cuda_kind kind;
    enum cuda_stage stage;
    bool ready;        // of what is in `host`
    uint64_t sequence; // of its copy under way, in the stream of its stage
    void *to;          // at the GPU
    const void *from;
    size_t bytes;
    void *residual_out; // of codes, likewise
    const void *residual_in;
    size_t residual_bytes;
    void *host, *input;    // of the host, kept: what goes to or from the GPU; of a reduction, the own input
    struct gpu_room *room; // to be given back
    size_t count;
    struct device_sum sum;
    enum cuda_kernel kernel; // of TASK_KERNEL, and the rest
    unsigned blocks;
    union cuda_job {
        struct hash_leaves_job hash;
        struct reduce_job reduce;
        struct codes_job codes;
    } job;
};

struct cuda_flow {
    CUstream stream;
    uint64_t asked;              // host functions that are in it, or were
    atomic_uint_fast64_t called; // of these
    uint64_t settled;            // up to here nothing is under way, whether they were called or not
    int bell;
};

struct cuda_queue {
    struct device_queue queue;      // first
    struct cuda_queue *next;        // among the idle
    struct gpu *gpu;                // NULL: none, the queue has failed at once
    bool has_thread, retired, left; // left: closed, and idle as soon as what its caller had queued is done
    int bell, wake;
    pthread_mutex_t lock; // of all that follows
    pthread_cond_t changed;
    struct cuda_flow from_gpu, to_gpu, program; // `program` waits for what its caller had queued
    bool begun;                                 // what its caller had queued is done
    uint64_t begins_at;
    struct cuda_task *first, **last;
    uint64_t asked, done; // numbers of tasks: of the last one; up to which all are done
    void **given;         // mapped views and staging buffers that were not given back
    size_t given_count, given_room;
    struct gpu_room **rooms; // likewise
    size_t room_count, room_room;
    struct gpu_hold *holds;
    struct {
        size_t bytes;      // that the thread is to take of the driver; 0: nothing
        bool late;         // somebody has waited for that in vain
        uint64_t refusals; // of the driver
    } pinning;
    struct {
        const void *tensor;
        size_t bytes;
        void *host; // kept, or NULL
        uint64_t number;
    } recent; // what was unstaged or reduced last
};

// Whether two ranges have bytes in common; nothing is in a range at NULL.
static inline bool cuda_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return a != NULL && b != NULL && (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

// Opens a queue for a tensor, of this device. NULL: the system refuses; a queue that the GPU refuses has failed
// already.
struct cuda_queue *cuda_queue_open(const struct device *device, const void *tensor, int wake);
// Like device_follow.
bool cuda_queue_follow(struct cuda_queue *q, CUstream stream);
// Nothing is under way. Nothing of the caller's is left in it.
void cuda_queue_close(struct cuda_queue *q);

// ---- lock held ----
// Waits until all tasks are done.
void cuda_queue_drain(struct cuda_queue *q);
// Adds a task, which takes over `host` and `input`. Its number; 0: the queue has failed.
uint64_t cuda_queue_ask(struct cuda_queue *q, struct cuda_task task);
// Page-locked memory of the host. More of it is taken by the thread, because the driver may wait for all that the GPU
// has to do; for that all together wait for CUDA_PIN_MS in 1.25 s at most, and nobody while the driver is late. Lets go
// of the lock meanwhile. NULL: there is none.
void *cuda_queue_pinned(struct cuda_queue *q, size_t bytes);
// The queue fails, for the error of this call.
void cuda_queue_fail(struct cuda_queue *q, const char *call, CUresult error);

#endif
