// A block of threads is one thread of the host, and each of its threads a context of its own (ucontext), which goes on
// until it waits for others. So kernels without exchanges run through in a single context, one thread after another.
#define _GNU_SOURCE
#include "kernels.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

// ---- what the kernels have of CUDA ----
#define KERNEL(name, threads) \
    enum { THREADS_OF_##name = threads }; \
    static void name

struct index {
    unsigned x;
};

static _Thread_local struct index threadIdx, blockIdx, blockDim, gridDim;

typedef struct {
    _Alignas(16) unsigned long long x;
    unsigned long long y;
} ulonglong2;

static inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 u128;
    return (uint64_t)((u128)a * b >> 64);
}

static uint64_t __shfl_xor_sync(unsigned threads, uint64_t value, unsigned with);
static void __syncthreads(void);
#define __clz(number) __builtin_clz((unsigned)(number))
#define __shared__ static _Thread_local
#define KERNEL_UNROLL

#include "cuda/kernels/kernels.cu"

// ---- the kernels by name ----
#define POINTER(job, member) offsetof(struct job, member) + 1
#define RUN(name, job) \
    static void run_##name(const void *what) { \
        struct job job_of_kernel; \
        memcpy(&job_of_kernel, what, sizeof job_of_kernel); \
        pccl_##name(job_of_kernel); \
    }
#define ENTRY(name, job, ...) \
    { \
        "pccl_" #name, THREADS_OF_pccl_##name, sizeof(struct job), run_##name, { __VA_ARGS__ } \
    }

RUN(hash_leaves, hash_leaves_job)
RUN(codes, codes_job)
#define RUN_REDUCTION(name, threads) RUN(name, reduce_job)
DEVICE_REDUCTIONS(RUN_REDUCTION)

static const struct fake_kernel kernels[] = {
    ENTRY(hash_leaves, hash_leaves_job, POINTER(hash_leaves_job, content), POINTER(hash_leaves_job, leaves)),
    ENTRY(codes, codes_job, POINTER(codes_job, own), POINTER(codes_job, residual_in), POINTER(codes_job, inputs),
          POINTER(codes_job, codes), POINTER(codes_job, result), POINTER(codes_job, residual_out)),
#define REDUCTION(name, threads) \
    ENTRY(name, reduce_job, POINTER(reduce_job, result), POINTER(reduce_job, both), POINTER(reduce_job, input)),
    DEVICE_REDUCTIONS(REDUCTION)};

const struct fake_kernel *fake_kernel_find(const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

// ---- a block ----
enum { THREADS_MOST = 512, STACK_BYTES = 64 << 10 };
enum state { NEW, READY, WAITS_FOR_WARP, WAITS_FOR_ALL, DONE };

static _Thread_local struct {
    const struct fake_kernel *kernel;
    const void *job;
    unsigned threads, begun, done, now; // of the block; those that were begun; that have returned; the one that runs
    unsigned contexts;
    ucontext_t scheduler, context[THREADS_MOST];
    void *stack[THREADS_MOST]; // of the contexts
    struct {
        enum state state;
        unsigned context, exchanges;
        uint64_t shown[2]; // in turn, so that no exchange overwrites what the one before still reads
    } thread[THREADS_MOST];
} block;

static void take_turn(unsigned thread) {
    block.now = thread;
    threadIdx.x = thread;
}

// In a context: threads one after another, as long as there are any.
static void run_threads(void) {
    unsigned context = block.contexts - 1;
    while (block.begun < block.threads) {
        take_turn(block.begun++);
        block.thread[block.now].context = context;
        block.kernel->run(block.job);
        block.thread[block.now].state = DONE;
        block.done++;
    }
}

static void wait_in(enum state state) {
    block.thread[block.now].state = state;
    swapcontext(&block.context[block.thread[block.now].context], &block.scheduler);
}

static uint64_t __shfl_xor_sync(unsigned threads, uint64_t value, unsigned with) {
    unsigned thread = block.now, turn = block.thread[thread].exchanges++ % 2;
    if (threads != KERNEL_ALL_THREADS || with >= KERNEL_WARP) abort();
    block.thread[thread].shown[turn] = value;
    wait_in(WAITS_FOR_WARP);
    return block.thread[thread ^ with].shown[turn];
}

static void __syncthreads(void) { wait_in(WAITS_FOR_ALL); }

static void begin_context(void) {
    unsigned i = block.contexts++;
    if (block.stack[i] == NULL) block.stack[i] = malloc(STACK_BYTES);
    if (block.stack[i] == NULL || getcontext(&block.context[i]) != 0) abort();
    block.context[i].uc_stack = (stack_t){.ss_sp = block.stack[i], .ss_size = STACK_BYTES};
    block.context[i].uc_link = &block.scheduler;
    makecontext(&block.context[i], run_threads, 0);
    swapcontext(&block.scheduler, &block.context[i]);
}

// Lets these threads go on if all of them wait for this.
static bool release(unsigned first, unsigned count, enum state state) {
    for (unsigned i = first; i < first + count; i++)
        if (block.thread[i].state != state) return false;
    for (unsigned i = first; i < first + count; i++) block.thread[i].state = READY;
    return true;
}

// False: none can go on.
static bool release_some(void) {
    bool released = release(0, block.threads, WAITS_FOR_ALL);
    for (unsigned first = 0; first < block.threads; first += KERNEL_WARP)
        released |= release(first, KERNEL_WARP, WAITS_FOR_WARP);
    return released;
}

static void run_block(void) {
    memset(block.thread, 0, sizeof block.thread);
    block.begun = block.done = block.contexts = 0;
    while (block.done < block.threads) {
        while (block.begun < block.threads) begin_context();
        for (unsigned i = 0; i < block.threads; i++) {
            if (block.thread[i].state != READY) continue;
            take_turn(i);
            swapcontext(&block.scheduler, &block.context[block.thread[i].context]);
        }
        if (block.done < block.threads && !release_some()) {
            fputs("fake kernel: threads wait for each other forever\n", stderr);
            abort();
        }
    }
}

void fake_kernel_run(const struct fake_kernel *kernel, unsigned blocks, const void *job) {
    if (kernel->threads > THREADS_MOST || kernel->threads % KERNEL_WARP != 0) abort();
    block.kernel = kernel;
    block.job = job;
    block.threads = blockDim.x = kernel->threads;
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) run_block();
    for (unsigned i = 0; i < THREADS_MOST; i++) {
        free(block.stack[i]);
        block.stack[i] = NULL;
    }
}
