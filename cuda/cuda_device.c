// Memory of GPUs, by way of the CUDA driver (cuda/cuda_driver), as a device of device/device.h.
//
// A tensor's bytes reach the wire, and come from it, through memory of the host (cuda/gpu), chunk by chunk, and are
// reduced on the host (cuda/cuda_queue), or by kernels (cuda/cuda_kernels). A chunk that has come from the wire is
// mostly sent on at once: a view of what was unstaged or reduced last is the memory of the host where it still lies, so
// it crosses the bus once.
#include <pccl.h>
#include <stdio.h>

#include "base/detail.h"
#include "base/memory.h"
#include "compute/kernels_levels.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_queue.h"

enum {
    LIST_LEAST = 16,
    HASH_AHEAD = 4, // leaves that are copied while one is hashed on the host
    HASH_LEAST = 8, // leaves: of fewer the few warps take longer than the copies
    HASH_MOST = 65536,
    HASH_SHORT_BYTES = 240, // of a leaf for which XXH3 has another way
    REDUCE_THREAD_BYTES = 16,
    REDUCE_BLOCKS_MOST = 32, // 128 KiB on their way over the bus, more than it takes to keep it busy
};

#define FENCE_OF_WINDOW (UINT64_C(1) << 63) // the rest is the number of a task, which is ready or no more

static const struct device gpu_device;

// ---- opening and closing ----
static struct device_queue *cuda_open(const void *tensor, int wake) {
    struct cuda_queue *q = cuda_queue_open(&gpu_device, tensor, wake);
    return q == NULL ? NULL : &q->queue;
}

static bool cuda_follow(struct device_queue *queue, void *stream) {
    return cuda_queue_follow((struct cuda_queue *)queue, stream);
}

static void forget_recent(struct cuda_queue *q) {
    gpu_drop(q->recent.host);
    q->recent.host = NULL;
}

static void cuda_close(struct device_queue *queue) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    cuda_queue_drain(q);
    forget_recent(q);
    while (q->given_count > 0) gpu_drop(q->given[--q->given_count]);
    while (q->room_count > 0) gpu_room_give(q->gpu, q->to_gpu.stream, q->rooms[--q->room_count]);
    pthread_mutex_unlock(&q->lock);
    cuda_queue_close(q);
}

// ---- fences ----
// Lock held.
static enum device_state state_of(const struct cuda_queue *q, uint64_t fence) {
    uint64_t number = fence & ~FENCE_OF_WINDOW;
    if (device_has_failed(&q->queue)) return DEVICE_FAILED;
    if (q->begun && q->done >= number) return DEVICE_DONE;
    if (fence == number) return DEVICE_BUSY;
    for (const struct cuda_task *task = q->first; task != NULL; task = task->next)
        if (task->number == number) return task->ready || task->stage == STAGE_DONE ? DEVICE_DONE : DEVICE_BUSY;
    return DEVICE_BUSY;
}

static enum device_state cuda_passed(struct device_queue *queue, uint64_t fence) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    enum device_state state = state_of(q, fence);
    pthread_mutex_unlock(&q->lock);
    return state;
}

static uint64_t cuda_mark(struct device_queue *queue) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    uint64_t fence = q->asked;
    pthread_mutex_unlock(&q->lock);
    return fence;
}

static bool cuda_await(struct device_queue *queue) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    cuda_queue_drain(q);
    pthread_mutex_unlock(&q->lock);
    return !device_has_failed(queue);
}

static bool cuda_await_fence(struct device_queue *queue, uint64_t fence) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    enum device_state state;
    pthread_mutex_lock(&q->lock);
    while ((state = state_of(q, fence)) == DEVICE_BUSY) pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return state == DEVICE_DONE;
}

static void cuda_set_wake(struct device_queue *queue, int wake) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    q->wake = wake;
    pthread_mutex_unlock(&q->lock);
}

// ---- asking; lock held ----
// Queues a task, and forgets what was unstaged last if the task writes over it.
static uint64_t ask(struct cuda_queue *q, struct cuda_task task) {
    if (cuda_overlap(task.to, task.bytes, q->recent.tensor, q->recent.bytes) ||
        cuda_overlap(task.residual_out, task.residual_bytes, q->recent.tensor, q->recent.bytes))
        forget_recent(q);
    return cuda_queue_ask(q, task);
}

// Memory of the host that the caller has until it gives it back. NULL: the queue has failed.
static void *lend(struct cuda_queue *q, void *host) {
    if (host != NULL && GROW(q->given, q->given_room, q->given_count, LIST_LEAST)) {
        q->given[q->given_count++] = host;
        return host;
    }
    gpu_drop(host);
    if (!device_has_failed(&q->queue)) cuda_queue_fail(q, "memory of the host for copies", CUDA_ERROR_OUT_OF_MEMORY);
    return NULL;
}

static void *host_new(struct cuda_queue *q, size_t bytes) {
    if (device_has_failed(&q->queue)) return NULL;
    void *host = cuda_queue_pinned(q, bytes);
    return host == NULL ? gpu_host_plain(bytes) : host;
}

// Takes memory back: the caller no longer has it, but it is still kept.
static void *take_back(struct cuda_queue *q, const void *host) {
    size_t at = 0;
    while (q->given[at] != host) at++;
    q->given[at] = q->given[--q->given_count];
    return (void *)(uintptr_t)host;
}

static void remember(struct cuda_queue *q, const void *tensor, size_t bytes, void *host, uint64_t number) {
    forget_recent(q);
    q->recent.tensor = tensor;
    q->recent.bytes = bytes;
    q->recent.number = number;
    if (number != 0) gpu_keep(q->recent.host = host);
}

// ---- to and from the wire ----
static const void *cuda_map(struct device_queue *queue, const void *tensor, size_t bytes, uint64_t *fence) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    bool is_here = q->recent.host != NULL && q->recent.tensor == tensor && q->recent.bytes == bytes;
    if (is_here) gpu_keep(q->recent.host);
    void *host = lend(q, is_here ? q->recent.host : host_new(q, bytes));
    if (host != NULL && is_here) {
        *fence = q->recent.number | FENCE_OF_WINDOW;
    } else if (host != NULL) {
        gpu_keep(host);
        *fence = ask(q, (struct cuda_task){.kind = TASK_WINDOW, .from = tensor, .bytes = bytes, .host = host});
        *fence |= FENCE_OF_WINDOW;
    }
    pthread_mutex_unlock(&q->lock);
    return host;
}

static void cuda_unmap(struct device_queue *queue, const void *place) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    gpu_drop(take_back(q, place));
    pthread_mutex_unlock(&q->lock);
}

static void *cuda_staging(struct device_queue *queue, size_t bytes) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    void *staging = lend(q, host_new(q, bytes));
    pthread_mutex_unlock(&q->lock);
    return staging;
}

static void cuda_unstage(struct device_queue *queue, void *tensor, void *staging, size_t bytes) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    void *host = take_back(q, staging);
    gpu_keep(host); // for `remember`
    uint64_t number =
        ask(q, (struct cuda_task){.kind = TASK_LAND, .to = tensor, .bytes = bytes, .host = host, .ready = true});
    remember(q, tensor, bytes, host, number);
    gpu_drop(host);
    pthread_mutex_unlock(&q->lock);
}

static bool are_aligned(const void *a, const void *b, size_t element) {
    return ((uintptr_t)a | (uintptr_t)b) % element == 0;
}

// A kernel cannot reach a room that had to be taken from the host, nor elements that are not aligned. Lock held.
static bool can_reduce_at_gpu(const struct cuda_queue *q, const void *host, const void *result, const void *input,
                              size_t count, size_t element) {
    if (count == 0 || q->gpu == NULL || !cuda_kernels_reduce(&q->gpu->kernels) || !gpu_host_is_pinned(host))
        return false;
    if (!are_aligned(result, input, element)) return false;
    for (size_t i = 0; i < q->room_count; i++) {
        const struct gpu_room *room = q->rooms[i];
        if (!room->is_at_gpu && cuda_overlap(result, count * element, room->memory, room->bytes)) return false;
    }
    return true;
}

static struct cuda_task reduce_at_gpu(void *host, size_t count, const struct device_sum *sum) {
    unsigned kernel = CUDA_KERNEL_reduce_u8 + (unsigned)sum->dtype;
    size_t threads = count * dtype_size(sum->dtype) / REDUCE_THREAD_BYTES + 1;
    size_t blocks = (threads - 1) / cuda_kernels_threads(kernel) + 1;
    return (struct cuda_task){
        .kind = TASK_KERNEL,
        .kernel = kernel,
        .blocks = blocks < REDUCE_BLOCKS_MOST ? (unsigned)blocks : REDUCE_BLOCKS_MOST,
        .job.reduce = {.both = host, .count = count, .op = (uint32_t)sum->op, .divisor = sum->divisor}};
}

// Lock held.
static struct cuda_task reduce_on_host(struct cuda_queue *q, size_t count, const struct device_sum *sum) {
    void *own = host_new(q, count * dtype_size(sum->dtype));
    if (own == NULL && !device_has_failed(&q->queue))
        cuda_queue_fail(q, "memory of the host for copies", CUDA_ERROR_OUT_OF_MEMORY);
    return (struct cuda_task){.kind = TASK_REDUCE, .input = own, .count = count, .sum = *sum};
}

static void cuda_reduce(struct device_queue *queue, void *result, void *staging, const void *input, size_t count,
                        const struct device_sum *sum) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    size_t bytes = count * dtype_size(sum->dtype);
    pthread_mutex_lock(&q->lock);
    void *host = take_back(q, staging);
    bool at_gpu = can_reduce_at_gpu(q, host, result, input, count, dtype_size(sum->dtype));
    struct cuda_task task = at_gpu ? reduce_at_gpu(host, count, sum) : reduce_on_host(q, count, sum);
    task.to = result;
    task.from = input;
    task.bytes = bytes;
    task.host = host;
    if (at_gpu) task.job.reduce.result = result, task.job.reduce.input = input;
    gpu_keep(host);
    remember(q, result, bytes, host, ask(q, task));
    gpu_drop(host);
    pthread_mutex_unlock(&q->lock);
}

// ---- codes ----
// The host that codes pass through on their way: those of the sum, then those of the terms one after another.
static size_t padded(size_t bytes) { return (bytes + 15) / 16 * 16; }

// NULL: none of the terms is the own input.
static const void *own_input(const struct device_codes *what) {
    return what->own < what->term_count ? what->input : NULL;
}

static bool can_code_at_gpu(const struct cuda_queue *q, const struct device_codes *what, const struct codec *codec) {
    return what->count > 0 && block_is_algorithm(codec->algorithm) &&
           are_aligned(what->result, own_input(what), dtype_size(what->sum.dtype)) &&
           are_aligned(what->residual_in, what->residual_out, sizeof(float)) && cuda_kernels_quantise(&q->gpu->kernels);
}

static struct codes_job codes_job_of(const struct device_codes *what, const struct codec *codec, bool encodes,
                                     size_t stride, uint8_t *host) {
    struct codes_job job = {
        .own = own_input(what),
        .residual_in = what->residual_in,
        .inputs = host + stride,
        .codes = encodes ? host : NULL,
        .result = what->result,
        .residual_out = what->residual_out,
        .count = what->count,
        .stride = stride,
        .terms = what->term_count,
        .own_term = what->own,
        .block = codec->block,
        .code = codec->algorithm - (uint32_t)pcclQuantBlockInt8,
        .dtype = (uint32_t)what->sum.dtype,
        .op = (uint32_t)what->sum.op,
        .divisor = what->sum.divisor,
        .is_stochastic = what->rounding != NULL,
        .times = (float)what->times,
    };
    if (what->rounding != NULL) job.seed = what->rounding->seed, job.index = what->rounding->index;
    return job;
}

// For what is not page-locked, or too much for it, the host is the place.
static enum device_coding cuda_code(struct device_queue *queue, const struct device_codes *what, const void **codes,
                                    uint64_t *fence) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    const struct codec *codec = codec_find(what->codec);
    if (device_has_failed(queue)) return DEVICE_CODING_FAILED;
    if (!can_code_at_gpu(q, what, codec)) return DEVICE_CODING_ELSEWHERE;
    size_t bytes = codec_bytes(codec, what->sum.dtype, what->count), stride = padded(bytes);
    uint32_t warps = (codec->block - 1) / KERNEL_CODES_EACH + 1; // of a block of the codec
    size_t at_once = cuda_kernels_threads(CUDA_KERNEL_codes) / KERNEL_WARP / warps * codec->block;
    struct cuda_task task = {.kind = TASK_KERNEL,
                             .kernel = CUDA_KERNEL_codes,
                             .blocks = (unsigned)((what->count - 1) / at_once + 1),
                             .to = what->result,
                             .from = own_input(what),
                             .bytes = what->count * dtype_size(what->sum.dtype),
                             .residual_out = what->residual_out,
                             .residual_in = what->residual_in,
                             .residual_bytes = what->count * sizeof *what->residual_in};
    pthread_mutex_lock(&q->lock);
    uint32_t last_is_own = what->own + 1 == what->term_count; // which has no codes
    uint8_t *host = host_new(q, (what->term_count + 1 - last_is_own) * stride);
    pthread_mutex_unlock(&q->lock);
    if (host == NULL || !gpu_host_is_pinned(host)) {
        gpu_drop(host);
        return device_has_failed(queue) ? DEVICE_CODING_FAILED : DEVICE_CODING_ELSEWHERE;
    }
    for (uint32_t i = 0; i < what->term_count; i++)
        if (i != what->own) memcpy(host + (i + 1) * stride, what->terms[i], bytes);
    task.host = host;
    task.job.codes = codes_job_of(what, codec, codes != NULL, stride, host);
    gpu_keep(host);
    pthread_mutex_lock(&q->lock);
    uint64_t number = ask(q, task);
    bool good = number != 0;
    if (good && codes != NULL) {
        *fence = number | FENCE_OF_WINDOW;
        good = (*codes = lend(q, host)) != NULL;
    } else {
        gpu_drop(host);
    }
    pthread_mutex_unlock(&q->lock);
    return good ? DEVICE_CODING_ASKED : DEVICE_CODING_FAILED;
}

// ---- rooms and copies ----
static void *cuda_take(struct device_queue *queue, size_t bytes) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    bool may = !device_has_failed(queue) && GROW(q->rooms, q->room_room, q->room_count, LIST_LEAST);
    // in the stream that first writes to it
    struct gpu_room *room = may ? gpu_room_take(q->gpu, q->to_gpu.stream, bytes) : NULL;
    if (room != NULL)
        q->rooms[q->room_count++] = room;
    else if (!device_has_failed(queue))
        cuda_queue_fail(q, "memory for the input", CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_unlock(&q->lock);
    return room == NULL ? NULL : room->memory;
}

static void cuda_give(struct device_queue *queue, void *memory) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    size_t at = 0;
    while (q->rooms[at]->memory != memory) at++;
    struct gpu_room *room = q->rooms[at];
    if (ask(q, (struct cuda_task){.kind = TASK_FREE_ROOM, .to = memory, .bytes = room->bytes, .room = room}) != 0)
        q->rooms[at] = q->rooms[--q->room_count]; // else it goes with the queue
    pthread_mutex_unlock(&q->lock);
}

static void cuda_copy(struct device_queue *queue, void *to, const void *from, size_t bytes) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    ask(q, (struct cuda_task){.kind = TASK_COPY, .to = to, .from = from, .bytes = bytes});
    pthread_mutex_unlock(&q->lock);
}

// ---- streams of the caller ----
static bool cuda_hold(struct device_queue *queue, void *stream) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    if (device_has_failed(queue)) return detail_fail(false, "%s", device_error(queue));
    struct gpu_hold *hold = gpu_hold_new(q->gpu, stream); // without the lock, which what ends a wait needs
    if (hold == NULL) return false;
    pthread_mutex_lock(&q->lock);
    gpu_holds_add(&q->holds, hold);
    pthread_mutex_unlock(&q->lock);
    return true;
}

static void cuda_release(struct device_queue *queue) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&q->lock);
    if (q->holds != NULL && ask(q, (struct cuda_task){.kind = TASK_RELEASE}) == 0) gpu_holds_release(&q->holds);
    pthread_mutex_unlock(&q->lock);
}

// ---- content ----
// Some leaves are copied while one is hashed.
static bool hash_on_host(struct cuda_queue *q, uint64_t *leaves, const void *content, uint64_t bytes, uint64_t first,
                         uint64_t count) {
    struct device_queue *queue = &q->queue;
    const void *views[HASH_AHEAD];
    uint64_t fences[HASH_AHEAD], shown = 0;
    bool good = true;
    for (uint64_t i = 0; i < count; i++) {
        for (; shown < count && shown < i + HASH_AHEAD; shown++) {
            uint64_t at = (first + shown) * HASH_LEAF_BYTES, length = bytes - at;
            if (length > HASH_LEAF_BYTES) length = HASH_LEAF_BYTES;
            views[shown % HASH_AHEAD] =
                cuda_map(queue, (const uint8_t *)content + at, length, &fences[shown % HASH_AHEAD]);
        }
        const void *view = views[i % HASH_AHEAD];
        uint64_t left = bytes - (first + i) * HASH_LEAF_BYTES;
        good = good && view != NULL && cuda_await_fence(queue, fences[i % HASH_AHEAD]);
        if (good) hash_leaves(&leaves[i], view, left < HASH_LEAF_BYTES ? left : HASH_LEAF_BYTES, 0, 1);
        if (view != NULL) cuda_unmap(queue, view);
    }
    return good;
}

// Some leaves at the GPU; only their hashes come to the host. False: there is no page-locked memory for these, or the
// queue has failed.
static bool hash_at_gpu(struct cuda_queue *q, uint64_t *leaves, const void *content, uint64_t bytes, uint64_t first,
                        uint64_t count) {
    struct cuda_task task = {.kind = TASK_KERNEL,
                             .kernel = CUDA_KERNEL_hash_leaves,
                             .from = (const uint8_t *)content + first * HASH_LEAF_BYTES};
    uint64_t left = bytes - first * HASH_LEAF_BYTES;
    task.bytes = left < count * HASH_LEAF_BYTES ? left : count * HASH_LEAF_BYTES;
    task.blocks = (unsigned)((count * KERNEL_WARP - 1) / cuda_kernels_threads(task.kernel) + 1);
    pthread_mutex_lock(&q->lock);
    task.host = host_new(q, count * sizeof *leaves);
    bool may = task.host != NULL && gpu_host_is_pinned(task.host);
    task.job.hash = (struct hash_leaves_job){content, task.host, bytes, first, count, {0}};
    memcpy(task.job.hash.secret, hash_get_secret(), sizeof task.job.hash.secret);
    if (may) gpu_keep(task.host);
    uint64_t number = may ? cuda_queue_ask(q, task) : 0;
    pthread_mutex_unlock(&q->lock);
    bool good = number != 0 && cuda_await_fence(&q->queue, number | FENCE_OF_WINDOW);
    if (good) memcpy(leaves, task.host, count * sizeof *leaves);
    gpu_drop(task.host);
    return good;
}

// Several threads may do this at once.
static bool cuda_hash(struct device_queue *queue, uint64_t *leaves, const void *content, uint64_t bytes, uint64_t first,
                      uint64_t count) {
    struct cuda_queue *q = (struct cuda_queue *)queue;
    while (q->gpu != NULL && q->gpu->kernels.usable && count >= HASH_LEAST) {
        uint64_t now = count < HASH_MOST ? count : HASH_MOST;
        if (bytes - (first + now - 1) * HASH_LEAF_BYTES <= HASH_SHORT_BYTES) now--; // the last one
        if (!hash_at_gpu(q, leaves, content, bytes, first, now)) break;
        leaves += now;
        first += now;
        count -= now;
    }
    return hash_on_host(q, leaves, content, bytes, first, count);
}

static const struct device gpu_device = {
    .name = "CUDA",
    .owns = cuda_owns,
    .together = cuda_is_same,
    .open = cuda_open,
    .follow = cuda_follow,
    .close = cuda_close,
    .passed = cuda_passed,
    .mark = cuda_mark,
    .await = cuda_await,
    .await_fence = cuda_await_fence,
    .set_wake = cuda_set_wake,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .staging = cuda_staging,
    .unstage = cuda_unstage,
    .reduce = cuda_reduce,
    .code = cuda_code,
    .take = cuda_take,
    .give = cuda_give,
    .copy = cuda_copy,
    .hash = cuda_hash,
    .hold = cuda_hold,
    .release = cuda_release,
};

// ---- the library ----
static int describe(char *text_out, size_t capacity) {
    char why[CUDA_WHY_BYTES], name[CUDA_WHY_BYTES] = "";
    int count = cuda_driver_open(why);
    size_t at = 0;
    snprintf(text_out, capacity, "%s", why);
    for (int i = 0; i < count && at < capacity; i++)
        if (cuda_driver_present()->device_name(name, sizeof name, i) == CUDA_SUCCESS)
            at += (size_t)snprintf(text_out + at, capacity - at, "%s%s", at > 0 ? ", " : "", name);
    return count;
}

static bool has_kernels(bool load, char *text_out, size_t capacity) {
    char why[CUDA_WHY_BYTES] = "";
    bool usable = load ? gpu_takes_kernels(why) : cuda_kernels_are_there(why);
    snprintf(text_out, capacity, "%s", why);
    return usable;
}

const struct cuda_library cuda_library = {&gpu_device, describe, has_kernels, cuda_kernels_bytes};
