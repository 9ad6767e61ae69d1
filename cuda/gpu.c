#include "cuda/gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/detail.h"

static CUdeviceptr address_of(const void *memory) { return (CUdeviceptr)(uintptr_t)memory; }

// ---- contexts ----
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of what follows; no call of the driver is made with it
static struct gpu *gpus;

static _Thread_local struct {
    int depth, mode; // the program's, if depth > 0
} capture;

static void capture_relax(const struct cuda_driver *driver) {
    if (capture.depth++ > 0) return;
    capture.mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->exchange_capture_mode(&capture.mode);
}

static void capture_restore(const struct cuda_driver *driver) {
    if (--capture.depth == 0) driver->exchange_capture_mode(&capture.mode);
}

// The caller's current one, if it is of this GPU; else the one that the memory was allocated in, or, for memory of no
// context (of a pool, or mapped), the primary one.
static CUresult find_context(const struct cuda_driver *driver, const void *memory, CUdevice ordinal, CUcontext *out,
                             const char **call) {
    CUdevice current = -1;
    *out = NULL;
    if (driver->context_current(out) == CUDA_SUCCESS && *out != NULL &&
        driver->context_device(&current) == CUDA_SUCCESS && current == ordinal)
        return CUDA_SUCCESS;
    *out = NULL;
    if (driver->pointer_attribute(out, CU_POINTER_ATTRIBUTE_CONTEXT, address_of(memory)) == CUDA_SUCCESS &&
        *out != NULL)
        return CUDA_SUCCESS;
    *call = "cuDevicePrimaryCtxRetain";
    capture_relax(driver);
    CUresult error = driver->primary_context(out, ordinal); // for as long as the process lives
    capture_restore(driver);
    return error;
}

static struct gpu *gpu_at(const struct cuda_driver *driver, CUcontext context, CUdevice ordinal) {
    pthread_mutex_lock(&lock);
    struct gpu *gpu = gpus;
    while (gpu != NULL && gpu->context != context) gpu = gpu->next;
    if (gpu == NULL && (gpu = calloc(1, sizeof *gpu)) != NULL) {
        *gpu = (struct gpu){.driver = driver, .context = context, .ordinal = ordinal, .next = gpus};
        gpus = gpu;
    }
    pthread_mutex_unlock(&lock);
    return gpu;
}

// Loads the kernels if no other thread has loaded them for this context. Other threads wait for it.
static void load_kernels(struct gpu *gpu) {
    static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&loading);
    if (!gpu->looked_for_kernels && gpu_enter(gpu) == CUDA_SUCCESS) {
        cuda_kernels_load(&gpu->kernels, gpu->driver);
        gpu->looked_for_kernels = true;
        gpu_leave(gpu);
    }
    pthread_mutex_unlock(&loading);
}

struct gpu *gpu_of(const void *memory, char why[CUDA_WHY_BYTES]) {
    const struct cuda_driver *driver = cuda_driver_load(why);
    if (driver == NULL) return NULL;
    const char *call = "cuPointerGetAttribute";
    CUcontext context;
    int ordinal = -1;
    CUresult error = driver->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address_of(memory));
    if (error == CUDA_SUCCESS) error = find_context(driver, memory, ordinal, &context, &call);
    if (error != CUDA_SUCCESS) {
        cuda_driver_describe(driver, call, error, why, CUDA_WHY_BYTES);
        return NULL;
    }
    struct gpu *gpu = gpu_at(driver, context, ordinal);
    if (gpu == NULL) snprintf(why, CUDA_WHY_BYTES, "the system refused memory");
    if (gpu != NULL) load_kernels(gpu);
    return gpu;
}

bool gpu_takes_kernels(char why[CUDA_WHY_BYTES]) {
    CUcontext context;
    if (!cuda_kernels_are_there(why) || cuda_driver_open(why) == 0) return false;
    const struct cuda_driver *driver = cuda_driver_present();
    CUresult error = driver->primary_context(&context, 0);
    if (error != CUDA_SUCCESS) {
        cuda_driver_describe(driver, "cuDevicePrimaryCtxRetain", error, why, CUDA_WHY_BYTES);
        return false;
    }
    struct gpu *gpu = gpu_at(driver, context, 0);
    if (gpu == NULL) return snprintf(why, CUDA_WHY_BYTES, "the system refused memory"), false;
    load_kernels(gpu);
    memcpy(why, gpu->kernels.why_not, CUDA_WHY_BYTES);
    return gpu->kernels.usable;
}

CUresult gpu_enter(const struct gpu *gpu) {
    CUresult error = gpu->driver->context_push(gpu->context);
    if (error == CUDA_SUCCESS) capture_relax(gpu->driver);
    return error;
}

void gpu_leave(const struct gpu *gpu) {
    CUcontext context;
    capture_restore(gpu->driver);
    gpu->driver->context_pop(&context);
}

bool gpu_check_stream(const struct gpu *gpu, CUstream stream, const char *what, CUresult *error) {
    int capturing = 0;
    *error = gpu->driver->stream_is_capturing(stream, &capturing);
    if (*error == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return detail_fail(false,
                           "%s: it is the default stream, and a stream that waits for it is capturing a CUDA graph; "
                           "use a stream made with the flag non-blocking",
                           what);
    if (*error != CUDA_SUCCESS) {
        char why[CUDA_WHY_BYTES];
        cuda_driver_describe(gpu->driver, "cuStreamIsCapturing", *error, why, sizeof why);
        return detail_fail(false, "%s: %s", what, why);
    }
    if (capturing == 0) return true;
    return detail_fail(false, "%s: it is capturing a CUDA graph, and operations cannot be part of one", what);
}

// ---- streams of the program that wait ----
// An event could not be recorded before the work that it stands for is known, and a host function that waits would hold
// up the thread of the driver that the op itself needs. So the GPU waits at the stream's place for a number in
// page-locked memory of the host, which is written when the op has ended.
static pthread_mutex_t quiet = PTHREAD_MUTEX_INITIALIZER; // held in calls of the driver that may wait for the GPU
static atomic_uint waits;

bool gpu_quiet_begin(void) {
    pthread_mutex_lock(&quiet);
    if (atomic_load(&waits) == 0) return true;
    pthread_mutex_unlock(&quiet);
    return false;
}

void gpu_quiet_end(void) { pthread_mutex_unlock(&quiet); }

// Before a stream is told to wait: waits for what gpu_quiet_begin has let begin.
static void add_wait(void) {
    pthread_mutex_lock(&quiet);
    atomic_fetch_add(&waits, 1);
    pthread_mutex_unlock(&quiet);
}

enum { FLAGS_MOST = 4096 };

struct gpu_hold {
    struct gpu_hold *next;
    uint32_t *flag; // the stream waits until it is 1
    CUevent passed; // behind the wait; NULL: nobody knows when that is over, and the flag is not used again
};

static pthread_mutex_t holding = PTHREAD_MUTEX_INITIALIZER; // of what follows
static struct gpu_hold *released;
static uint32_t *flags; // page-locked, all of them at once: while a stream waits nothing more can be had
static size_t flags_used;

void gpu_holds_release(struct gpu_hold **holds) {
    // all of them before the lock, whose owner may be in a call of the driver that one of these streams holds up
    for (struct gpu_hold *hold = *holds; hold != NULL; hold = hold->next) {
        __atomic_store_n(hold->flag, 1, __ATOMIC_RELEASE);
        atomic_fetch_sub(&waits, 1);
    }
    while (*holds != NULL) {
        struct gpu_hold *hold = *holds;
        *holds = hold->next;
        pthread_mutex_lock(&holding);
        hold->next = released;
        released = hold;
        pthread_mutex_unlock(&holding);
    }
}

// Lock held. One that its stream has passed; its event is perhaps of another GPU, and is made anew.
static struct gpu_hold *take_passed(const struct cuda_driver *driver) {
    struct gpu_hold **at = &released;
    while (*at != NULL && ((*at)->passed == NULL || driver->event_query((*at)->passed) != CUDA_SUCCESS))
        at = &(*at)->next;
    struct gpu_hold *hold = *at;
    if (hold == NULL) return NULL;
    *at = hold->next;
    hold->next = NULL;
    driver->event_destroy(hold->passed);
    hold->passed = NULL;
    return hold;
}

// Lock held. A flag that was never used; NULL: there is none.
static uint32_t *new_flag(const struct cuda_driver *driver) {
    if (flags == NULL && gpu_quiet_begin()) {
        void *made = NULL;
        unsigned how = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        if (driver->host_alloc(&made, FLAGS_MOST * sizeof *flags, how) == CUDA_SUCCESS) flags = made;
        gpu_quiet_end();
    }
    return flags == NULL || flags_used == FLAGS_MOST ? NULL : &flags[flags_used++];
}

// In the context of the GPU.
static struct gpu_hold *take_new(const struct cuda_driver *driver) {
    pthread_mutex_lock(&holding);
    struct gpu_hold *hold = take_passed(driver);
    uint32_t *flag = hold == NULL ? new_flag(driver) : NULL;
    pthread_mutex_unlock(&holding);
    if (flag == NULL || (hold = calloc(1, sizeof *hold)) == NULL) return hold;
    hold->flag = flag;
    return hold;
}

// In the context of the GPU. NULL: this call has failed.
static struct gpu_hold *put_into(CUstream stream, const struct cuda_driver *driver, const char **call,
                                 CUresult *error) {
    struct gpu_hold *hold = take_new(driver);
    *error = CUDA_ERROR_OUT_OF_MEMORY;
    *call = "memory for a wait";
    if (hold == NULL) return NULL;
    // made first: then nothing can fail behind the wait but its record
    if (driver->event_create(&hold->passed, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) hold->passed = NULL;
    add_wait();
    __atomic_store_n(hold->flag, 0, __ATOMIC_RELEASE);
    *call = "cuStreamWaitValue32";
    *error = driver->stream_wait_value(stream, (CUdeviceptr)(uintptr_t)hold->flag, 1, CU_STREAM_WAIT_VALUE_GEQ);
    if (*error != CUDA_SUCCESS) {
        gpu_holds_release(&hold);
        return NULL;
    }
    if (hold->passed != NULL && driver->event_record(hold->passed, stream) != CUDA_SUCCESS) {
        driver->event_destroy(hold->passed);
        hold->passed = NULL;
    }
    return hold;
}

struct gpu_hold *gpu_hold_new(const struct gpu *gpu, CUstream stream) {
    static const char refusal[] = "the stream cannot wait for the operation";
    const struct cuda_driver *driver = gpu->driver;
    if (driver->stream_wait_value == NULL) {
        detail_fail(0, "%s: the CUDA driver is older than 11.7; wait on the host", refusal);
        return NULL;
    }
    struct gpu_hold *hold = NULL;
    const char *call = "cuCtxPushCurrent";
    CUresult error = gpu_enter(gpu);
    if (error == CUDA_SUCCESS) {
        bool good = gpu_check_stream(gpu, stream, refusal, &error);
        if (good) hold = put_into(stream, driver, &call, &error);
        gpu_leave(gpu);
        if (!good) return NULL;
    }
    if (hold == NULL) {
        char why[CUDA_WHY_BYTES];
        cuda_driver_describe(driver, call, error, why, sizeof why);
        detail_fail(0, "%s: %s", refusal, why);
    }
    return hold;
}

void gpu_holds_add(struct gpu_hold **holds, struct gpu_hold *hold) {
    hold->next = *holds;
    *holds = hold;
}

// ---- memory of the host ----
static const size_t sizes[] = {64 << 10, 256 << 10, 1 << 20};

enum { SIZES = sizeof sizes / sizeof sizes[0], NO_SIZE = -1 };

struct host {
    struct host *next;
    atomic_uint kept;
    int size; // an index of `sizes`, page-locked; NO_SIZE: plain memory
    _Alignas(64) unsigned char bytes[];
};

static struct host *unused[SIZES];
static size_t pinned_bytes;

static struct host *host_of(const void *memory) {
    return (struct host *)((uintptr_t)memory - offsetof(struct host, bytes));
}

// The smallest size for so many bytes; SIZES: they are too many.
static int size_for(size_t bytes) {
    int size = 0;
    while (size < SIZES && sizes[size] < bytes) size++;
    return size;
}

static bool is_below_limit(int size) { return pinned_bytes + sizeof(struct host) + sizes[size] <= PINNED_MOST_BYTES; }

static void *host_begin(struct host *host, int size) {
    host->next = NULL;
    host->size = size;
    atomic_init(&host->kept, 1);
    return host->bytes;
}

void *gpu_host_unused(size_t bytes) {
    int size = size_for(bytes);
    if (size == SIZES) return NULL;
    pthread_mutex_lock(&lock);
    struct host *host = unused[size];
    if (host != NULL) unused[size] = host->next;
    pthread_mutex_unlock(&lock);
    return host == NULL ? NULL : host_begin(host, size);
}

void *gpu_host_plain(size_t bytes) {
    struct host *host = aligned_alloc(64, (sizeof *host + bytes + 63) / 64 * 64);
    return host == NULL ? NULL : host_begin(host, NO_SIZE);
}

bool gpu_host_may_add(size_t bytes) {
    int size = size_for(bytes);
    if (size == SIZES) return false;
    pthread_mutex_lock(&lock);
    bool may = is_below_limit(size);
    pthread_mutex_unlock(&lock);
    return may;
}

bool gpu_host_add(const struct gpu *gpu, size_t bytes) {
    int size = size_for(bytes);
    if (size == SIZES) return false;
    size_t length = sizeof(struct host) + sizes[size];
    void *memory = NULL;
    pthread_mutex_lock(&lock);
    bool may = is_below_limit(size);
    if (may) pinned_bytes += length;
    pthread_mutex_unlock(&lock);
    if (!may) return false;
    if (gpu_quiet_begin()) {
        if (gpu_enter(gpu) == CUDA_SUCCESS) {
            unsigned how = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
            if (gpu->driver->host_alloc(&memory, length, how) != CUDA_SUCCESS) memory = NULL;
            gpu_leave(gpu);
        }
        gpu_quiet_end();
    }
    if (memory != NULL) {
        gpu_drop(host_begin(memory, size));
        return true;
    }
    pthread_mutex_lock(&lock);
    pinned_bytes -= length;
    pthread_mutex_unlock(&lock);
    return false;
}

bool gpu_host_is_pinned(const void *host_memory) { return host_of(host_memory)->size != NO_SIZE; }

void gpu_keep(void *host_memory) { atomic_fetch_add(&host_of(host_memory)->kept, 1); }

void gpu_drop(void *host_memory) {
    struct host *host = host_memory == NULL ? NULL : host_of(host_memory);
    if (host == NULL || atomic_fetch_sub(&host->kept, 1) != 1) return;
    if (host->size == NO_SIZE) {
        free(host);
        return;
    }
    pthread_mutex_lock(&lock);
    host->next = unused[host->size];
    unused[host->size] = host;
    pthread_mutex_unlock(&lock);
}

size_t gpu_host_bytes(void) {
    pthread_mutex_lock(&lock);
    size_t bytes = pinned_bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}

// ---- rooms ----
static pthread_mutex_t pools = PTHREAD_MUTEX_INITIALIZER; // of gpu->pool, gpu->looked; held while a pool is made

static CUmemoryPool pool_new(const struct gpu *gpu) {
    const struct cuda_driver *driver = gpu->driver;
    int has_pools = 0;
    bool knows = driver->pool_create != NULL && driver->pool_set != NULL && driver->pool_alloc != NULL &&
                 driver->pool_free != NULL;
    if (!knows ||
        driver->device_attribute(&has_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, gpu->ordinal) !=
            CUDA_SUCCESS ||
        has_pools == 0)
        return NULL;
    struct cuda_pool_properties properties = {
        .allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location_type = CU_MEM_LOCATION_TYPE_DEVICE,
        .location = gpu->ordinal,
    };
    CUmemoryPool pool = NULL;
    if (driver->pool_create(&pool, &properties) != CUDA_SUCCESS) return NULL;
    uint64_t kept = POOL_KEPT_BYTES; // the driver gives back what is beyond, when the program waits for it
    driver->pool_set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept);
    return pool;
}

static CUmemoryPool pool_of(struct gpu *gpu) {
    pthread_mutex_lock(&pools);
    if (!gpu->looked) gpu->pool = pool_new(gpu);
    gpu->looked = true;
    CUmemoryPool pool = gpu->pool;
    pthread_mutex_unlock(&pools);
    return pool;
}

// The smallest that is large enough, of those that nobody has.
static struct gpu_room *take_kept(struct gpu *gpu, size_t bytes) {
    struct gpu_room **best = NULL;
    pthread_mutex_lock(&lock);
    for (struct gpu_room **at = &gpu->rooms; *at != NULL; at = &(*at)->next)
        if ((*at)->bytes >= bytes && (best == NULL || (*at)->bytes < (*best)->bytes)) best = at;
    struct gpu_room *room = best == NULL ? NULL : *best;
    if (room != NULL) *best = room->next;
    pthread_mutex_unlock(&lock);
    return room;
}

// The smallest, if there are more than are kept.
static struct gpu_room *take_spare(struct gpu *gpu) {
    struct gpu_room **least = &gpu->rooms;
    int count = 0;
    pthread_mutex_lock(&lock);
    for (struct gpu_room **at = &gpu->rooms; *at != NULL; at = &(*at)->next, count++)
        if ((*at)->bytes < (*least)->bytes) least = at;
    struct gpu_room *room = count > GPU_ROOMS_KEPT ? *least : NULL;
    if (room != NULL) *least = room->next;
    pthread_mutex_unlock(&lock);
    return room;
}

// 0: there is none.
static CUdeviceptr allocate(struct gpu *gpu, CUstream stream, size_t bytes) {
    CUdeviceptr made = 0;
    if (gpu_enter(gpu) != CUDA_SUCCESS) return 0;
    CUmemoryPool pool = pool_of(gpu);
    if (pool != NULL) {
        if (gpu->driver->pool_alloc(&made, bytes, pool, stream) != CUDA_SUCCESS) made = 0;
    } else if (gpu_quiet_begin()) {
        if (gpu->driver->alloc(&made, bytes) != CUDA_SUCCESS) made = 0;
        gpu_quiet_end();
    }
    gpu_leave(gpu);
    return made;
}

struct gpu_room *gpu_room_take(struct gpu *gpu, CUstream stream, size_t bytes) {
    struct gpu_room *room = take_kept(gpu, bytes);
    if (room != NULL || (room = calloc(1, sizeof *room)) == NULL) return room;
    room->bytes = bytes;
    room->memory = (void *)(uintptr_t)allocate(gpu, stream, bytes);
    room->is_at_gpu = room->memory != NULL;
    if (!room->is_at_gpu) room->memory = malloc(bytes); // slower, but the program has filled the GPU
    if (room->memory != NULL) return room;
    free(room);
    return NULL;
}

void gpu_room_give(struct gpu *gpu, CUstream stream, struct gpu_room *room) {
    if (!room->is_at_gpu) {
        free(room->memory);
        free(room);
        return;
    }
    bool entered = gpu_enter(gpu) == CUDA_SUCCESS; // else the GPU has failed, and its memory with it
    if (!entered || pool_of(gpu) != NULL) {
        if (entered) gpu->driver->pool_free(address_of(room->memory), stream);
        free(room);
    } else {
        pthread_mutex_lock(&lock);
        room->next = gpu->rooms;
        gpu->rooms = room;
        pthread_mutex_unlock(&lock);
        while (gpu_quiet_begin()) {
            struct gpu_room *spare = take_spare(gpu);
            if (spare != NULL) gpu->driver->free(address_of(spare->memory));
            gpu_quiet_end();
            free(spare);
            if (spare == NULL) break;
        }
    }
    if (entered) gpu_leave(gpu);
}
