// Tells when a copy is done: a host function behind each copy in the stream counts and wakes the thread. It takes no
// lock and calls nothing of CUDA, as the driver demands. In a context that has failed, host functions are not called,
// so a waiting thread polls its streams now and then.
#include "cuda/cuda_queue.h"

#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "base/descriptor.h"
#include "base/detail.h"
#include "base/platform.h"

enum {
    PAUSE_US = 100,
    PIN_REST = 4, // for so many times what was waited for page-locked memory, that much less is waited for more
};

static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER; // of the lists of idle queues; taken last

static atomic_uint late;              // queues with pinning.late
static atomic_int_fast64_t rested_ns; // when somebody may wait for page-locked memory for all of CUDA_PIN_MS again

static CUdeviceptr address_of(const void *memory) { return (CUdeviceptr)(uintptr_t)memory; }

static const struct cuda_driver *driver_of(const struct cuda_queue *q) { return q->gpu->driver; }

static void tell(struct cuda_queue *q) {
    pthread_cond_broadcast(&q->changed);
    if (q->wake >= 0) wake_signal(q->wake);
}

void cuda_queue_fail(struct cuda_queue *q, const char *call, CUresult error) {
    char why[DEVICE_ERROR_BYTES];
    cuda_driver_describe(driver_of(q), call, error, why, sizeof why);
    device_fail(&q->queue, why);
    tell(q);
}

// ---- streams; lock held ----
// On a thread of the driver.
static void called(void *user_data) {
    struct cuda_flow *flow = user_data;
    atomic_fetch_add_explicit(&flow->called, 1, memory_order_release);
    wake_signal(flow->bell);
}

static bool has_passed(const struct cuda_flow *flow, uint64_t sequence) {
    return sequence <= flow->settled || sequence <= atomic_load_explicit(&flow->called, memory_order_acquire);
}

// Behind what is in the stream. What was put into it is under way whatever this gives, so an error here is none of the
// queue's: then the thread itself waits for the stream. Lock not held: a full stream blocks.
static uint64_t announce(struct cuda_queue *q, struct cuda_flow *flow) {
    CUresult state = driver_of(q)->launch_host(flow->stream, called, flow);
    flow->asked++;
    if (state == CUDA_SUCCESS) return flow->asked;
    while ((state = driver_of(q)->stream_query(flow->stream)) == CUDA_ERROR_NOT_READY)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_US * US_NS}, NULL);
    if (state != CUDA_SUCCESS) {
        pthread_mutex_lock(&q->lock);
        cuda_queue_fail(q, "cuStreamQuery", state);
        pthread_mutex_unlock(&q->lock);
    }
    atomic_fetch_add(&flow->called, 1);
    return flow->settled = flow->asked;
}

// A call of the driver may block: a copy from or to memory that is not page-locked, or into a full stream. So the lock
// is let go of, as nobody else takes tasks out of the list. False: the queue has failed, and the copy was not begun.
static bool copy(struct cuda_queue *q, struct cuda_task *task, enum cuda_stage stage, void *to, const void *from) {
    struct cuda_flow *flow = stage == STAGE_FROM_GPU ? &q->from_gpu : &q->to_gpu;
    CUresult error = CUDA_SUCCESS;
    pthread_mutex_unlock(&q->lock);
    if (task->bytes > 0) error = driver_of(q)->copy(address_of(to), address_of(from), task->bytes, flow->stream);
    if (error == CUDA_SUCCESS) task->sequence = announce(q, flow);
    pthread_mutex_lock(&q->lock);
    if (error != CUDA_SUCCESS) {
        cuda_queue_fail(q, "cuMemcpyAsync", error);
        return false;
    }
    task->stage = stage;
    return true;
}

// Launches a kernel in the same way. Kernels run in the stream to the GPU, whatever they move.
static bool launch(struct cuda_queue *q, struct cuda_task *task) {
    pthread_mutex_unlock(&q->lock);
    CUresult error =
        cuda_kernels_launch(&q->gpu->kernels, driver_of(q), task->kernel, task->blocks, &task->job, q->to_gpu.stream);
    if (error == CUDA_SUCCESS) task->sequence = announce(q, &q->to_gpu);
    pthread_mutex_lock(&q->lock);
    if (error != CUDA_SUCCESS) {
        cuda_queue_fail(q, "cuLaunchKernel", error);
        return false;
    }
    task->stage = STAGE_TO_GPU;
    return true;
}

// Whether anything is under way of which nobody has told, and will not.
static void look_at(struct cuda_queue *q, struct cuda_flow *flow) {
    if (has_passed(flow, flow->asked)) return;
    CUresult state = driver_of(q)->stream_query(flow->stream);
    if (state == CUDA_ERROR_NOT_READY) return;
    if (state != CUDA_SUCCESS) cuda_queue_fail(q, "cuStreamQuery", state);
    if (device_has_failed(&q->queue)) flow->settled = flow->asked;
}

// ---- tasks; lock held ----
static bool writes(const struct cuda_task *task, const void *at, size_t bytes) {
    return cuda_overlap(at, bytes, task->to, task->bytes) ||
           cuda_overlap(at, bytes, task->residual_out, task->residual_bytes);
}

static bool touches(const struct cuda_task *task, const void *at, size_t bytes) {
    return writes(task, at, bytes) || cuda_overlap(at, bytes, task->from, task->bytes) ||
           cuda_overlap(at, bytes, task->residual_in, task->residual_bytes);
}

static bool must_follow(const struct cuda_task *task, const struct cuda_task *earlier) {
    if (earlier->stage == STAGE_DONE) return false;
    return task->kind == TASK_RELEASE || touches(earlier, task->to, task->bytes) ||
           touches(earlier, task->residual_out, task->residual_bytes) || writes(earlier, task->from, task->bytes) ||
           writes(earlier, task->residual_in, task->residual_bytes);
}

static void finish(struct cuda_task *task) {
    gpu_drop(task->host);
    gpu_drop(task->input);
    task->stage = STAGE_DONE;
}

static void begin(struct cuda_queue *q, struct cuda_task *task) {
    bool begun = false;
    switch (task->kind) {
    case TASK_WINDOW: begun = copy(q, task, STAGE_FROM_GPU, task->host, task->from); break;
    case TASK_REDUCE: begun = copy(q, task, STAGE_FROM_GPU, task->input, task->from); break;
    case TASK_LAND: begun = copy(q, task, STAGE_TO_GPU, task->to, task->host); break;
    case TASK_COPY: begun = copy(q, task, STAGE_TO_GPU, task->to, task->from); break;
    case TASK_KERNEL: begun = launch(q, task); break;
    case TASK_FREE_ROOM: gpu_room_give(q->gpu, q->to_gpu.stream, task->room); break;
    case TASK_RELEASE: gpu_holds_release(&q->holds); break;
    }
    if (!begun) finish(task);
}

// The lock is let go of meanwhile: only this thread takes tasks out of the list.
static void reduce(struct cuda_queue *q, struct cuda_task *task) {
    const struct kernels *kernels = kernels_get();
    pthread_mutex_unlock(&q->lock);
    kernels->reduce[task->sum.op][task->sum.dtype](task->host, task->host, task->input, task->count);
    if (task->sum.divisor != 0) kernels->divide[task->sum.dtype](task->host, task->count, task->sum.divisor);
    pthread_mutex_lock(&q->lock);
    task->ready = true;
    tell(q);
}

static bool advance(struct cuda_queue *q, struct cuda_task *task) {
    enum cuda_stage before = task->stage;
    switch (task->stage) {
    case STAGE_ASKED:
        for (const struct cuda_task *earlier = q->first; earlier != task; earlier = earlier->next)
            if (must_follow(task, earlier)) return false;
        if (device_has_failed(&q->queue) && task->kind != TASK_FREE_ROOM && task->kind != TASK_RELEASE)
            finish(task);
        else
            begin(q, task);
        break;
    case STAGE_FROM_GPU:
        if (!has_passed(&q->from_gpu, task->sequence)) return false;
        if (task->kind == TASK_REDUCE && !device_has_failed(&q->queue)) {
            reduce(q, task);
            if (!device_has_failed(&q->queue) && copy(q, task, STAGE_TO_GPU, task->to, task->host)) return false;
        }
        finish(task);
        break;
    case STAGE_TO_GPU:
        if (!has_passed(&q->to_gpu, task->sequence)) return false;
        finish(task);
        break;
    case STAGE_DONE: return false;
    }
    return task->stage == STAGE_DONE && before != STAGE_DONE;
}

// Whether something is under way.
static bool step(struct cuda_queue *q) {
    bool got_on = false;
    if (!q->begun && has_passed(&q->program, q->begins_at)) q->begun = got_on = true;
    for (struct cuda_task *task = q->begun ? q->first : NULL; task != NULL; task = task->next)
        got_on |= advance(q, task);
    while (q->first != NULL && q->first->stage == STAGE_DONE) {
        struct cuda_task *task = q->first;
        q->first = task->next;
        if (q->first == NULL) q->last = &q->first;
        q->done = task->number;
        free(task);
    }
    if (got_on) tell(q);
    return q->first != NULL || !q->begun;
}

// A stream is idle only once its last host function has returned, which may still be in `called`.
static void stream_free(const struct cuda_driver *driver, CUstream stream) {
    while (driver->stream_query(stream) == CUDA_ERROR_NOT_READY)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_US * US_NS}, NULL);
    driver->stream_destroy(stream);
}

// In the context of the GPU.
static void streams_free(struct cuda_queue *q) {
    struct cuda_flow *flows[] = {&q->from_gpu, &q->to_gpu, &q->program};
    for (size_t i = 0; i < sizeof flows / sizeof *flows; i++) {
        if (flows[i]->stream != NULL) stream_free(driver_of(q), flows[i]->stream);
        flows[i]->stream = NULL;
    }
}

// Lock held, or nobody else has the queue.
static void be_late(struct cuda_queue *q, bool is_late) {
    if (is_late && !q->pinning.late) atomic_fetch_add(&late, 1);
    if (!is_late && q->pinning.late) atomic_fetch_sub(&late, 1);
    q->pinning.late = is_late;
}

static void queue_free(struct cuda_queue *q) {
    be_late(q, false);
    if (q->bell >= 0) descriptor_close(q->bell);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q->given);
    free(q->rooms);
    free(q);
}

// Lock held. Nothing is under way. One that has failed ends.
static void become_idle(struct cuda_queue *q) {
    q->left = false;
    q->asked = q->done = 0;
    q->retired = device_has_failed(&q->queue);
    if (q->retired) return;
    pthread_mutex_lock(&idle_lock);
    q->next = q->gpu->idle;
    q->gpu->idle = q;
    pthread_mutex_unlock(&idle_lock);
}

// Lock held, but let go of meanwhile.
static void pin(struct cuda_queue *q) {
    size_t bytes = q->pinning.bytes;
    pthread_mutex_unlock(&q->lock);
    bool added = gpu_host_add(q->gpu, bytes);
    pthread_mutex_lock(&q->lock);
    q->pinning.bytes = 0;
    be_late(q, false);
    if (!added) q->pinning.refusals++;
    pthread_cond_broadcast(&q->changed);
}

void *cuda_queue_pinned(struct cuda_queue *q, size_t bytes) {
    void *host = gpu_host_unused(bytes);
    if (host != NULL) return host;
    int64_t begun_ns = platform_now_ns(), rested = atomic_load(&rested_ns);
    if (rested < begun_ns) rested = begun_ns;
    int64_t until_ns = begun_ns + CUDA_PIN_MS * MS_NS - (rested - begun_ns);
    uint64_t refusals = q->pinning.refusals;
    while (atomic_load(&late) == 0 && q->pinning.refusals == refusals && gpu_host_may_add(bytes)) {
        if (q->pinning.bytes == 0) {
            q->pinning.bytes = bytes;
            wake_signal(q->bell);
        }
        if (!platform_cond_wait(&q->changed, &q->lock, until_ns) && q->pinning.bytes != 0) be_late(q, true);
        if ((host = gpu_host_unused(bytes)) != NULL) break;
    }
    atomic_store(&rested_ns, rested + PIN_REST * (platform_now_ns() - begun_ns));
    return host;
}

static void *work(void *argument) {
    struct cuda_queue *q = argument;
    struct pollfd bell = {.fd = q->bell, .events = POLLIN};
    CUresult entered = gpu_enter(q->gpu);
    kernels_enter();
    pthread_mutex_lock(&q->lock);
    if (entered != CUDA_SUCCESS) cuda_queue_fail(q, "cuCtxPushCurrent", entered);
    while (!q->retired) {
        if (q->pinning.bytes != 0) pin(q);
        bool busy = step(q);
        if (q->left && q->begun) become_idle(q);
        if (q->retired) break;
        pthread_mutex_unlock(&q->lock);
        int pause_ms = device_has_failed(&q->queue) ? 1 : CUDA_LOOK_MS;
        bool rung = poll(&bell, 1, busy ? pause_ms : -1) > 0;
        wake_clear(q->bell);
        pthread_mutex_lock(&q->lock);
        if (!rung || device_has_failed(&q->queue)) {
            look_at(q, &q->from_gpu);
            look_at(q, &q->to_gpu);
            look_at(q, &q->program);
        }
    }
    pthread_mutex_unlock(&q->lock);
    // The streams can only be asked about, and freed, in their context.
    while (entered != CUDA_SUCCESS && (entered = gpu_enter(q->gpu)) != CUDA_SUCCESS)
        nanosleep(&(struct timespec){.tv_nsec = CUDA_LOOK_MS * MS_NS}, NULL);
    streams_free(q);
    queue_free(q);
    return NULL;
}

// ---- opening and closing ----
static struct cuda_queue *take_idle(struct gpu *gpu) {
    pthread_mutex_lock(&idle_lock);
    struct cuda_queue *q = gpu->idle;
    if (q != NULL) gpu->idle = q->next;
    pthread_mutex_unlock(&idle_lock);
    return q;
}

static struct cuda_queue *queue_new(struct gpu *gpu) {
    struct cuda_queue *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    q->gpu = gpu;
    q->bell = q->wake = -1;
    q->last = &q->first;
    pthread_mutex_init(&q->lock, NULL);
    platform_cond_init(&q->changed);
    return q;
}

static CUresult urgent_stream(const struct cuda_driver *driver, CUstream *stream) {
    int least, greatest;
    if (driver->stream_priorities(&least, &greatest) == CUDA_SUCCESS &&
        driver->stream_create_urgent(stream, CU_STREAM_NON_BLOCKING, greatest) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    return driver->stream_create(stream, CU_STREAM_NON_BLOCKING);
}

// In the context of the GPU. The call that failed, or NULL.
static const char *equip(struct cuda_queue *q, CUresult *error) {
    const struct cuda_driver *driver = driver_of(q);
    pthread_t thread;
    *error = urgent_stream(driver, &q->from_gpu.stream);
    if (*error == CUDA_SUCCESS) *error = urgent_stream(driver, &q->to_gpu.stream);
    if (*error == CUDA_SUCCESS) *error = driver->stream_create(&q->program.stream, CU_STREAM_NON_BLOCKING);
    if (*error != CUDA_SUCCESS) return "cuStreamCreate";
    *error = CUDA_ERROR_OUT_OF_MEMORY;
    q->bell = q->from_gpu.bell = q->to_gpu.bell = q->program.bell = wake_open();
    if (q->bell < 0) return "a descriptor for the queue";
    q->has_thread = platform_thread_start(&thread, "pccl:cuda", work, q);
    if (!q->has_thread) return "a thread for the queue";
    pthread_detach(thread);
    return NULL;
}

static void start(struct cuda_queue *q) {
    CUresult error = gpu_enter(q->gpu);
    const char *call = "cuCtxPushCurrent";
    if (error == CUDA_SUCCESS) {
        call = equip(q, &error);
        if (call != NULL) streams_free(q);
        gpu_leave(q->gpu);
    }
    if (call != NULL) cuda_queue_fail(q, call, error);
}

struct cuda_queue *cuda_queue_open(const struct device *device, const void *tensor, int wake) {
    char why[CUDA_WHY_BYTES];
    struct gpu *gpu = gpu_of(tensor, why);
    struct cuda_queue *q = gpu == NULL ? NULL : take_idle(gpu);
    if (q == NULL) q = queue_new(gpu);
    if (q == NULL) return NULL;
    pthread_mutex_lock(&q->lock);
    q->queue.device = device;
    q->wake = wake;
    q->begun = true; // cuda_queue_follow may say otherwise
    pthread_mutex_unlock(&q->lock);
    if (gpu == NULL) {
        device_fail(&q->queue, why);
        tell(q);
    } else if (!q->has_thread) {
        start(q);
    }
    return q;
}

// Whether this error of a call about a stream of the program is that stream's, and none of the GPU.
static bool blames_stream(CUresult error) {
    return error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_INVALID_CONTEXT ||
           error == CUDA_ERROR_INVALID_HANDLE || error == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
           (error >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && error <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
}

// In the context of the GPU. The stream was checked. The call that failed, or NULL: what is in the stream comes before
// what is put into that of the queue.
static const char *follow(struct cuda_queue *q, CUstream stream, CUresult *error) {
    const struct cuda_driver *driver = driver_of(q);
    CUevent event;
    *error = driver->event_create(&event, CU_EVENT_DISABLE_TIMING);
    if (*error != CUDA_SUCCESS) return "cuEventCreate";
    const char *call = "cuEventRecord";
    *error = driver->event_record(event, stream);
    if (*error == CUDA_SUCCESS) {
        call = "cuStreamWaitEvent";
        *error = driver->stream_wait_event(q->program.stream, event, 0);
    }
    driver->event_destroy(event); // when it has passed
    if (*error != CUDA_SUCCESS) return call;
    *error = driver->launch_host(q->program.stream, called, &q->program);
    return *error == CUDA_SUCCESS ? NULL : "cuLaunchHostFunc";
}

bool cuda_queue_follow(struct cuda_queue *q, CUstream stream) {
    static const char refusal[] = "the operation cannot follow the work of its stream";
    if (device_has_failed(&q->queue)) return true; // what is asked of it will tell
    CUresult error = gpu_enter(q->gpu);
    const char *call = "cuCtxPushCurrent";
    bool good = true;
    if (error == CUDA_SUCCESS) {
        call = "cuStreamIsCapturing";
        good = gpu_check_stream(q->gpu, stream, refusal, &error);
        if (good) call = follow(q, stream, &error);
        gpu_leave(q->gpu);
    }
    if (!good && (error == CUDA_SUCCESS || blames_stream(error))) return false;
    if (call != NULL && blames_stream(error)) {
        char why[CUDA_WHY_BYTES];
        cuda_driver_describe(driver_of(q), call, error, why, sizeof why);
        return detail_fail(false, "%s: %s", refusal, why);
    }
    pthread_mutex_lock(&q->lock);
    if (call == NULL) {
        q->begins_at = ++q->program.asked;
        q->begun = false;
        wake_signal(q->bell);
    } else {
        cuda_queue_fail(q, call, error);
    }
    pthread_mutex_unlock(&q->lock);
    return true;
}

void cuda_queue_drain(struct cuda_queue *q) {
    while (q->first != NULL) pthread_cond_wait(&q->changed, &q->lock);
}

void cuda_queue_close(struct cuda_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->wake = -1;
    gpu_holds_release(&q->holds);
    bool has_thread = q->has_thread;
    q->left = true;
    if (has_thread && q->begun) become_idle(q);
    if (has_thread && (q->left || q->retired)) wake_signal(q->bell);
    pthread_mutex_unlock(&q->lock);
    if (!has_thread) queue_free(q);
}

uint64_t cuda_queue_ask(struct cuda_queue *q, struct cuda_task what) {
    struct cuda_task *task = device_has_failed(&q->queue) ? NULL : malloc(sizeof *task);
    if (task == NULL) {
        if (!device_has_failed(&q->queue)) cuda_queue_fail(q, "memory for a task", CUDA_ERROR_OUT_OF_MEMORY);
        gpu_drop(what.host);
        gpu_drop(what.input);
        return 0;
    }
    *task = what;
    task->number = ++q->asked;
    *q->last = task;
    q->last = &task->next;
    wake_signal(q->bell);
    return task->number;
}
