// A driver without a GPU: device memory is memory of this process behind addresses that cannot be touched. Each stream
// has a thread, which carries its commands out one after another, each after a random delay, so that streams overtake
// each other wherever nothing orders them. Host functions are called one at a time, and may call nothing of CUDA. What
// waits for the whole GPU does so here, too, and a capture of a CUDA graph forbids what it forbids there.
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cuda/cuda_driver.h"

#define PROTOTYPE(member, symbol, parameters) FAKE_EXPORT CUresult symbol parameters;
CUDA_DRIVER_FUNCTIONS(PROTOTYPE)
CUDA_DRIVER_OPTIONAL(PROTOTYPE)

enum {
    BLOCKS_MAX = 4096,
    PINNING_HELD_S = 30,
    PRIORITY_GREATEST = -5, // the least is 0
    CONTEXTS_DEEP = 8,
    ERROR_ILLEGAL_ADDRESS = 700,
    ERROR_NOT_PERMITTED = 800,
    ERROR_INVALID_DEVICE = 101,
    LEGACY = 1 // the handle of the default stream
};

struct CUctx_st {
    int gpu;
    CUstream legacy;
};

enum kind {
    COMMAND_COPY,
    COMMAND_HOST,
    COMMAND_KERNEL,
    COMMAND_RECORD,
    COMMAND_WAIT_EVENT,
    COMMAND_WAIT_VALUE,
    COMMAND_ALLOC,
    COMMAND_FREE
};

struct command {
    struct command *next;
    enum kind kind;
    uint64_t place; // among all that were put into streams
    CUdeviceptr to, from;
    size_t bytes;
    void (*function)(void *);
    void *data;
    CUevent event;
    uint64_t number; // of the record
    uint32_t *flag;
    uint32_t value;
};

struct CUstream_st {
    CUstream next; // of all
    CUcontext context;
    int priority;
    enum { NO_CAPTURE, CAPTURE_ACTIVE, CAPTURE_INVALIDATED } capture; // in the mode "global"
    uint64_t blocked; // the number of the command that waits for another stream, or for a value
    struct command *first, **last;
    struct command *running; // no longer in the list; NULL: none
    bool destroyed;
    uint64_t random;
    pthread_t thread;
};

struct CUevent_st {
    CUcontext context;
    int references;
    uint64_t recorded, done;
};

// Of all that follows. `changed`: a command was added or is done.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, callbacks = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct CUctx_st contexts[FAKE_GPUS];
static struct block {
    uint8_t *address, *bytes; // of device memory, the same at two addresses; of host memory, one
    size_t length;
    int gpu;    // of host memory -1
    bool there; // of memory of a pool: its stream has got to it
    bool pooled;
} blocks[BLOCKS_MAX];
static struct fake_cuda_counts counts;
static int broken, refuses_memory, shares_queues, holds_pinning, pinning, held;
static unsigned copy_to_fail;
static uint64_t places;
static unsigned delay_us = 50, fail_at, fail_count;
static int fail_error;
static uint64_t seed = 88172645463325252;
static bool initialized;

static _Thread_local CUcontext stack[CONTEXTS_DEEP];
static _Thread_local int depth;
static _Thread_local bool in_callback;
static _Thread_local int capture_mode;

// ---- what may fail; lock held ----
static CUresult note_misuse(CUresult error, const char *where) {
    counts.misuses++;
    fprintf(stderr, "the CUDA driver was misused: %s, error %d\n", where, error);
    return error;
}

#define misuse(error) note_misuse(error, __func__)

static CUstream streams;

// Of a call that the mode of this thread forbids while a stream captures: it ends the capture.
static CUresult unsafe(void) {
    CUresult result = CUDA_SUCCESS;
    for (CUstream stream = streams; stream != NULL; stream = stream->next) {
        if (stream->capture == NO_CAPTURE || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
        stream->capture = CAPTURE_INVALIDATED;
        result = misuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    return result;
}

// Of a call that puts something into a stream, which the library does to no stream that captures.
static CUresult may_put(CUstream stream) {
    if (stream == NULL) return misuse(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture == NO_CAPTURE) return CUDA_SUCCESS;
    stream->capture = CAPTURE_INVALIDATED;
    return misuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

static bool has_come(const struct command *command) {
    return (int32_t)(__atomic_load_n(command->flag, __ATOMIC_ACQUIRE) - command->value) >= 0;
}

static bool lacks_value(const struct command *command) {
    return command != NULL && command->kind == COMMAND_WAIT_VALUE && !has_come(command);
}

// Whether a stream waits, now or when it gets there, for a value that is not there. A wait whose value has come ends
// without the host, however late the stream sees it.
static bool waits_for_value(CUstream stream) {
    if (lacks_value(stream->running)) return true;
    for (const struct command *command = stream->first; command != NULL; command = command->next)
        if (lacks_value(command)) return true;
    return false;
}

// Of a call that may wait for the whole GPU.
static void note_synchronizing(const char *where) {
    for (CUstream stream = streams; stream != NULL; stream = stream->next)
        if (waits_for_value(stream)) {
            counts.risks++;
            fprintf(stderr, "the CUDA driver may wait for the whole GPU: %s, while stream %p waits for a value (%s)\n",
                    where, (void *)stream, lacks_value(stream->running) ? "now" : "later");
            return;
        }
}

#define may_synchronize() note_synchronizing(__func__)

static CUresult may_call(bool can_fail) {
    if (in_callback) return misuse(ERROR_NOT_PERMITTED);
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if (broken != 0) return broken;
    if (!can_fail) return CUDA_SUCCESS;
    unsigned number = ++counts.calls;
    return fail_at != 0 && number >= fail_at && number - fail_at < fail_count ? fail_error : CUDA_SUCCESS;
}

static void await_pinning(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PINNING_HELD_S;
    pinning++;
    while (holds_pinning)
        if (pthread_cond_timedwait(&changed, &lock, &until) != 0) holds_pinning = 0;
    pinning--;
}

static CUcontext current(void) { return depth == 0 ? NULL : stack[depth - 1]; }

#define LOCKED(can_fail) \
    pthread_mutex_lock(&lock); \
    CUresult result = may_call(can_fail)

#define DONE \
    pthread_mutex_unlock(&lock); \
    return result

// ---- memory; lock held ----
static struct block *block_of(CUdeviceptr address) {
    for (int i = 0; i < BLOCKS_MAX; i++) {
        uint64_t begin = (uint64_t)(uintptr_t)blocks[i].address;
        if (begin != 0 && address >= begin && address < begin + blocks[i].length) return &blocks[i];
    }
    return NULL;
}

static struct block *block_new(uint8_t *address, uint8_t *bytes, size_t length, int gpu) {
    int i = 0;
    while (blocks[i].address != NULL)
        if (++i == BLOCKS_MAX) abort();
    blocks[i] = (struct block){address, bytes, length, gpu, true, false};
    *(gpu < 0 ? &counts.host_blocks : &counts.device_blocks) += 1;
    return &blocks[i];
}

static void block_free(struct block *block) {
    *(block->gpu < 0 ? &counts.host_blocks : &counts.device_blocks) -= 1;
    if (block->gpu < 0) free(block->address);
    if (block->gpu >= 0) munmap(block->address, block->length);
    if (block->gpu >= 0) munmap(block->bytes, block->length);
    *block = (struct block){0};
}

static void *device_new(int gpu, size_t length) {
    int fd = memfd_create("fake GPU", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)length + 1) != 0) return NULL;
    uint8_t *bytes = mmap(NULL, length + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *address = mmap(NULL, length + 1, PROT_NONE, MAP_SHARED, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED || address == MAP_FAILED) return NULL;
    return block_new(address, bytes, length + 1, gpu)->address;
}

// Where the bytes are; memory that the driver does not know is plain. NULL: beyond the end.
static uint8_t *reach(CUdeviceptr address, size_t length) {
    struct block *block = block_of(address);
    if (block == NULL) return (uint8_t *)(uintptr_t)address;
    size_t at = (size_t)(address - (uint64_t)(uintptr_t)block->address);
    return block->there && at + length <= block->length ? block->bytes + at : NULL;
}

// ---- streams ----
static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void pause_us(uint64_t microseconds) {
    nanosleep(&(struct timespec){(time_t)(microseconds / 1000000), (long)(microseconds % 1000000) * 1000}, NULL);
}

static void event_put(CUevent event) {
    if (--event->references == 0) free(event);
}

// Whether a stream of the same hardware queue waits, of which a command was put before.
static bool is_stuck(CUstream stream, const struct command *command) {
    for (CUstream other = shares_queues ? streams : NULL; other != NULL; other = other->next)
        if (other != stream && other->context == stream->context && other->priority == stream->priority &&
            other->blocked != 0 && other->blocked < command->place)
            return true;
    return false;
}

// Lock held, but let go of while it takes its time. False: it was not carried out.
static bool carry_out(CUstream stream, struct command *command) {
    uint64_t delay = delay_us == 0 ? 0 : next_random(&stream->random) % delay_us;
    if (command->kind == COMMAND_KERNEL) delay += command->value;
    pthread_mutex_unlock(&lock);
    if (delay > 0) pause_us(delay);
    pthread_mutex_lock(&lock);
    while (is_stuck(stream, command) && broken == 0) pthread_cond_wait(&changed, &lock);
    bool waits = command->kind == COMMAND_WAIT_EVENT || command->kind == COMMAND_WAIT_VALUE;
    if (waits) stream->blocked = command->place;
    if (command->kind == COMMAND_WAIT_EVENT)
        while (command->event->done < command->number && broken == 0) pthread_cond_wait(&changed, &lock);
    while (lacks_value(command) && broken == 0) {
        pthread_mutex_unlock(&lock);
        pause_us(200);
        pthread_mutex_lock(&lock);
    }
    bool pauses =
        command->kind == COMMAND_COPY || command->kind == COMMAND_KERNEL || command->kind == COMMAND_WAIT_VALUE;
    while (pauses && held && broken == 0) pthread_cond_wait(&changed, &lock);
    stream->blocked = 0;
    if (waits) pthread_cond_broadcast(&changed);
    if (broken != 0) return false;
    if (command->kind == COMMAND_ALLOC) block_of(command->to)->there = true;
    if (command->kind == COMMAND_FREE) block_free(block_of(command->to));
    if (command->kind == COMMAND_COPY) {
        uint8_t *to = reach(command->to, command->bytes), *from = reach(command->from, command->bytes);
        if (to == NULL || from == NULL) {
            broken = ERROR_ILLEGAL_ADDRESS;
            return false;
        }
        counts.copied += command->bytes;
        pthread_mutex_unlock(&lock);
        memcpy(to, from, command->bytes);
        pthread_mutex_lock(&lock);
    } else if (command->kind == COMMAND_HOST || command->kind == COMMAND_KERNEL) {
        pthread_mutex_unlock(&lock);
        if (command->kind == COMMAND_HOST) pthread_mutex_lock(&callbacks);
        in_callback = true;
        if (command->function != NULL) command->function(command->data);
        in_callback = false;
        if (command->kind == COMMAND_HOST) pthread_mutex_unlock(&callbacks);
        pthread_mutex_lock(&lock);
    } else if (command->kind == COMMAND_RECORD && command->event->done < command->number) {
        command->event->done = command->number;
    }
    return true;
}

static void *run(void *argument) {
    CUstream stream = argument;
    pthread_mutex_lock(&lock);
    while (!stream->destroyed || stream->first != NULL) {
        struct command *command = stream->first;
        if (command == NULL) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        stream->first = command->next;
        if (stream->first == NULL) stream->last = &stream->first;
        stream->running = command;
        carry_out(stream, command);
        stream->running = NULL;
        if (command->event != NULL) event_put(command->event);
        free(command);
        counts.pending--;
        pthread_cond_broadcast(&changed);
    }
    CUstream *at = &streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&lock);
    free(stream);
    return NULL;
}

static CUstream stream_new(CUcontext context, int priority) {
    CUstream stream = calloc(1, sizeof *stream);
    stream->context = context;
    stream->priority = priority;
    stream->next = streams;
    streams = stream;
    stream->last = &stream->first;
    stream->random = next_random(&seed);
    if (pthread_create(&stream->thread, NULL, run, stream) != 0) abort();
    pthread_detach(stream->thread);
    return stream;
}

// The stream that a handle stands for. NULL: it is not of the current context.
static CUstream stream_of(CUstream handle, CUcontext context) {
    if (handle != NULL && handle != (CUstream)LEGACY) return handle->context == context ? handle : NULL;
    if (context == NULL) return NULL;
    if (context->legacy == NULL) context->legacy = stream_new(context, 0);
    return context->legacy;
}

static void put(CUstream stream, struct command what) {
    struct command *command = malloc(sizeof *command);
    *command = what;
    command->next = NULL;
    command->place = ++places;
    *stream->last = command;
    stream->last = &command->next;
    counts.pending++;
    pthread_cond_broadcast(&changed);
}

static void await_idle(CUstream stream) {
    while (stream->first != NULL || stream->running != NULL) pthread_cond_wait(&changed, &lock);
}

// All streams of a GPU, as what waits for the whole of it does.
static void await_all(CUcontext context) {
    for (CUstream stream = streams; stream != NULL; stream = stream->next)
        if (stream->context == context && (stream->first != NULL || stream->running != NULL)) {
            pthread_cond_wait(&changed, &lock);
            stream = streams;
        }
}

// ---- for tests ----
void *fake_cuda_new(int gpu, size_t bytes) {
    pthread_mutex_lock(&lock);
    initialized = true;
    void *memory = device_new(gpu, bytes);
    pthread_mutex_unlock(&lock);
    return memory;
}

void fake_cuda_free(void *memory) {
    pthread_mutex_lock(&lock);
    block_free(block_of((CUdeviceptr)(uintptr_t)memory));
    pthread_mutex_unlock(&lock);
}

void *fake_cuda_bytes(const void *memory) {
    pthread_mutex_lock(&lock);
    void *bytes = reach((CUdeviceptr)(uintptr_t)memory, 0);
    pthread_mutex_unlock(&lock);
    return bytes;
}

void *fake_cuda_stream(int gpu) {
    pthread_mutex_lock(&lock);
    contexts[gpu].gpu = gpu;
    CUstream stream = stream_new(&contexts[gpu], 0);
    counts.streams++;
    pthread_mutex_unlock(&lock);
    return stream;
}

void fake_cuda_stream_free(void *stream) { cuStreamDestroy_v2(stream); }

void fake_cuda_launch(int gpu, void *stream, unsigned microseconds, void (*kernel)(void *), void *data) {
    pthread_mutex_lock(&lock);
    contexts[gpu].gpu = gpu;
    CUstream found = stream_of(stream, &contexts[gpu]);
    struct command command = {.kind = COMMAND_KERNEL, .function = kernel, .data = data, .value = microseconds};
    put(found, command);
    pthread_mutex_unlock(&lock);
}

void fake_cuda_synchronize(void *stream) {
    pthread_mutex_lock(&lock);
    await_idle(stream);
    pthread_mutex_unlock(&lock);
}

void fake_cuda_delay(unsigned most_microseconds) {
    pthread_mutex_lock(&lock);
    delay_us = most_microseconds;
    pthread_mutex_unlock(&lock);
}

int fake_cuda_hold_pinning(int hold) {
    pthread_mutex_lock(&lock);
    holds_pinning = hold;
    pthread_cond_broadcast(&changed);
    int holding = pinning;
    pthread_mutex_unlock(&lock);
    return holding;
}

void fake_cuda_fail(unsigned at, unsigned count, int error) {
    pthread_mutex_lock(&lock);
    fail_at = at;
    fail_count = count;
    fail_error = error;
    counts.calls = 0;
    pthread_mutex_unlock(&lock);
}

void fake_cuda_fail_copy(unsigned at) {
    pthread_mutex_lock(&lock);
    copy_to_fail = at;
    pthread_mutex_unlock(&lock);
}

void fake_cuda_break(int error) {
    pthread_mutex_lock(&lock);
    broken = error;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void fake_cuda_hold(int hold) {
    pthread_mutex_lock(&lock);
    held = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void fake_cuda_share_queues(int share) {
    pthread_mutex_lock(&lock);
    shares_queues = share;
    pthread_mutex_unlock(&lock);
}

void fake_cuda_capture(void *stream) {
    pthread_mutex_lock(&lock);
    ((CUstream)stream)->capture = CAPTURE_ACTIVE;
    pthread_mutex_unlock(&lock);
}

int fake_cuda_capture_end(void *handle) {
    pthread_mutex_lock(&lock);
    CUstream stream = handle;
    int good = stream->capture == CAPTURE_ACTIVE;
    stream->capture = NO_CAPTURE;
    pthread_mutex_unlock(&lock);
    return good;
}

void fake_cuda_refuse_memory(int refuse) {
    pthread_mutex_lock(&lock);
    refuses_memory = refuse;
    pthread_mutex_unlock(&lock);
}

struct fake_cuda_counts fake_cuda_counts(void) {
    pthread_mutex_lock(&lock);
    struct fake_cuda_counts now = counts;
    pthread_mutex_unlock(&lock);
    return now;
}

void fake_cuda_counts_into(struct fake_cuda_counts *out) { *out = fake_cuda_counts(); }
// ---- for modules ----
int fake_cuda_call(void) {
    LOCKED(true);
    DONE;
}

int fake_cuda_put(CUstream handle, void (*kernel)(void *), void *data) {
    LOCKED(false);
    CUstream stream = stream_of(handle, current());
    if (result == CUDA_SUCCESS) result = may_put(stream);
    if (result == CUDA_SUCCESS) {
        put(stream, (struct command){.kind = COMMAND_KERNEL, .function = kernel, .data = data});
        counts.launches++;
    }
    DONE;
}

// ---- the driver ----
CUresult cuInit(unsigned flags) {
    pthread_mutex_lock(&lock);
    initialized = true;
    pthread_mutex_unlock(&lock);
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDriverGetVersion(int *version) {
    *version = 12040;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    LOCKED(false);
    if (result == CUDA_SUCCESS) *count = FAKE_GPUS;
    DONE;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    LOCKED(false);
    if (result == CUDA_SUCCESS && (device < 0 || device >= FAKE_GPUS)) result = ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS && length > 0) strncpy(name, "fake GPU", (size_t)length);
    DONE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    LOCKED(true);
    if (result == CUDA_SUCCESS && (device < 0 || device >= FAKE_GPUS)) result = ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS) {
        contexts[device].gpu = device;
        *context = &contexts[device];
    }
    DONE;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == ERROR_ILLEGAL_ADDRESS  ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                              : NULL;
    return *name == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
            : error == ERROR_ILLEGAL_ADDRESS  ? "an illegal memory access was encountered"
                                              : NULL;
    return *text == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer) {
    LOCKED(false);
    const struct block *block = block_of(pointer);
    if (result == CUDA_SUCCESS && block == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = block->gpu < 0 ? 1 : CU_MEMORYTYPE_DEVICE; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = block->gpu; break;
        case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = NULL; break;
        default: result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    DONE;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    LOCKED(false);
    if (result == CUDA_SUCCESS) *context = current();
    DONE;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    LOCKED(false);
    if (result == CUDA_SUCCESS && current() == NULL) result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS) *device = current()->gpu;
    DONE;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    LOCKED(false);
    if (result == CUDA_SUCCESS && (context == NULL || depth == CONTEXTS_DEEP))
        result = misuse(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS) stack[depth++] = context;
    DONE;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    pthread_mutex_lock(&lock);
    CUresult result = depth == 0 ? misuse(CUDA_ERROR_INVALID_CONTEXT) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) *context = stack[--depth];
    DONE;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    LOCKED(true);
    *least = 0;
    *greatest = PRIORITY_GREATEST;
    DONE;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    LOCKED(true);
    if (result == CUDA_SUCCESS && current() == NULL) result = misuse(CUDA_ERROR_INVALID_CONTEXT);
    if (result == CUDA_SUCCESS && flags > CU_STREAM_NON_BLOCKING) result = misuse(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS) *stream = stream_new(current(), priority);
    if (result == CUDA_SUCCESS) counts.streams++;
    DONE;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    pthread_mutex_lock(&lock);
    stream->destroyed = true;
    counts.streams--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
    LOCKED(false);
    if (result == CUDA_SUCCESS) result = unsafe();
    CUstream stream = stream_of(handle, current());
    if (result == CUDA_SUCCESS && stream == NULL) result = misuse(CUDA_ERROR_INVALID_HANDLE);
    if (result == CUDA_SUCCESS && (stream->first != NULL || stream->running != NULL)) result = CUDA_ERROR_NOT_READY;
    DONE;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    LOCKED(true);
    CUstream stream = stream_of(handle, current());
    if (result == CUDA_SUCCESS && flags != 0) result = misuse(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS) result = may_put(stream);
    if (result == CUDA_SUCCESS) {
        event->references++;
        put(stream, (struct command){.kind = COMMAND_WAIT_EVENT, .event = event, .number = event->recorded});
    }
    DONE;
}

CUresult cuStreamIsCapturing(CUstream handle, int *status) {
    LOCKED(true);
    CUstream stream = stream_of(handle, current());
    if (result == CUDA_SUCCESS && stream == NULL) result = CUDA_ERROR_INVALID_HANDLE;
    for (CUstream other = streams; result == CUDA_SUCCESS && other != NULL; other = other->next)
        if (stream == current()->legacy && other->context == current() && other->capture != NO_CAPTURE)
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (result == CUDA_SUCCESS) *status = (int)stream->capture;
    DONE;
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
    LOCKED(true);
    if (result == CUDA_SUCCESS && (current() == NULL || flags != CU_EVENT_DISABLE_TIMING))
        result = misuse(CUDA_ERROR_INVALID_CONTEXT);
    if (result == CUDA_SUCCESS) {
        *event = calloc(1, sizeof **event);
        (*event)->context = current();
        (*event)->references = 1;
        counts.events++;
    }
    DONE;
}

CUresult cuEventDestroy_v2(CUevent event) {
    pthread_mutex_lock(&lock);
    counts.events--;
    event_put(event);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
    LOCKED(true);
    CUstream stream = stream_of(handle, current());
    if (result == CUDA_SUCCESS) result = may_put(stream);
    if (result == CUDA_SUCCESS && stream->context != event->context) result = misuse(CUDA_ERROR_INVALID_HANDLE);
    if (result == CUDA_SUCCESS) {
        event->references++;
        put(stream, (struct command){.kind = COMMAND_RECORD, .event = event, .number = ++event->recorded});
    }
    DONE;
}

CUresult cuEventQuery(CUevent event) {
    LOCKED(false);
    if (result == CUDA_SUCCESS) result = unsafe();
    if (result == CUDA_SUCCESS && event->done < event->recorded) result = CUDA_ERROR_NOT_READY;
    DONE;
}

// As the real one, it has to wait for memory of the host that is not page-locked.
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
    LOCKED(true);
    CUstream stream = stream_of(handle, current());
    if (result == CUDA_SUCCESS) result = may_put(stream);
    if (result == CUDA_SUCCESS && copy_to_fail > 0 && --copy_to_fail == 0) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        counts.copies++;
        put(stream, (struct command){.kind = COMMAND_COPY, .to = to, .from = from, .bytes = bytes});
        if (block_of(to) == NULL || block_of(from) == NULL) await_idle(stream);
    }
    DONE;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user_data) {
    LOCKED(true);
    CUstream stream = stream_of(handle, current());
    if (result == CUDA_SUCCESS) result = may_put(stream);
    if (result == CUDA_SUCCESS)
        put(stream, (struct command){.kind = COMMAND_HOST, .function = function, .data = user_data});
    DONE;
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, uint32_t value, unsigned flags) {
    LOCKED(true);
    CUstream stream = stream_of(handle, current());
    if (result == CUDA_SUCCESS) result = may_put(stream);
    if (result == CUDA_SUCCESS && (flags != CU_STREAM_WAIT_VALUE_GEQ || block_of(address) == NULL))
        result = misuse(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS)
        put(stream,
            (struct command){.kind = COMMAND_WAIT_VALUE, .flag = (uint32_t *)(uintptr_t)address, .value = value});
    DONE;
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    LOCKED(true);
    may_synchronize();
    await_pinning();
    if (result == CUDA_SUCCESS) result = unsafe();
    if (result == CUDA_SUCCESS && (current() == NULL || (flags & CU_MEMHOSTALLOC_PORTABLE) == 0))
        result = misuse(CUDA_ERROR_INVALID_CONTEXT);
    if (result == CUDA_SUCCESS) {
        uint8_t *made = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        *memory = made;
        block_new(made, made, bytes, -1);
    }
    DONE;
}

CUresult cuMemAlloc_v2(CUdeviceptr *memory, size_t bytes) {
    LOCKED(true);
    may_synchronize();
    if (result == CUDA_SUCCESS) result = unsafe();
    if (result == CUDA_SUCCESS && current() == NULL) result = misuse(CUDA_ERROR_INVALID_CONTEXT);
    if (result == CUDA_SUCCESS && refuses_memory) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) *memory = (CUdeviceptr)(uintptr_t)device_new(current()->gpu, bytes);
    DONE;
}

CUresult cuMemFree_v2(CUdeviceptr memory) {
    LOCKED(false);
    may_synchronize();
    if (result == CUDA_SUCCESS) result = unsafe();
    const struct block *block = block_of(memory);
    if (result == CUDA_SUCCESS && (block == NULL || block->gpu < 0 || block->pooled))
        result = misuse(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS) await_all(&contexts[block->gpu]);
    if (result == CUDA_SUCCESS) block_free(block_of(memory));
    DONE;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    LOCKED(false);
    if (result == CUDA_SUCCESS && attribute != CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
        result = misuse(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS) *value = device == FAKE_GPU_WITH_POOLS;
    DONE;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct cuda_pool_properties *properties) {
    static char pools[FAKE_GPUS];
    LOCKED(true);
    bool good = properties->allocation_type == CU_MEM_ALLOCATION_TYPE_PINNED && properties->handle_types == 0 &&
                properties->location_type == CU_MEM_LOCATION_TYPE_DEVICE && properties->location == FAKE_GPU_WITH_POOLS;
    if (result == CUDA_SUCCESS && !good) result = misuse(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS) *pool = (CUmemoryPool)(void *)&pools[properties->location];
    DONE;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    LOCKED(true);
    if (result == CUDA_SUCCESS && (pool == NULL || attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD || value == NULL))
        result = misuse(CUDA_ERROR_INVALID_VALUE);
    DONE;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *memory, size_t bytes, CUmemoryPool pool, CUstream handle) {
    LOCKED(true);
    CUstream stream = stream_of(handle, current());
    if (result == CUDA_SUCCESS) result = may_put(stream);
    if (result == CUDA_SUCCESS && (pool == NULL || stream->context->gpu != FAKE_GPU_WITH_POOLS))
        result = misuse(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS && refuses_memory) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        *memory = (CUdeviceptr)(uintptr_t)device_new(FAKE_GPU_WITH_POOLS, bytes);
        struct block *block = block_of(*memory);
        block->there = false;
        block->pooled = true;
        put(stream, (struct command){.kind = COMMAND_ALLOC, .to = *memory});
    }
    DONE;
}

CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream handle) {
    LOCKED(false);
    CUstream stream = stream_of(handle, current());
    const struct block *block = block_of(memory);
    if (result == CUDA_SUCCESS) result = may_put(stream);
    if (result == CUDA_SUCCESS && (block == NULL || !block->pooled)) result = misuse(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS) put(stream, (struct command){.kind = COMMAND_FREE, .to = memory});
    DONE;
}
