#include "device/gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/memory.h"

// ---- whose memory it is ----
static CUdeviceptr address_of(const void *memory) { return (CUdeviceptr)(uintptr_t)memory; }

bool gpu_owns(const void *memory) {
    const struct cuda_driver *driver = memory == NULL ? NULL : cuda_driver_present();
    unsigned type = 0;
    if (driver == NULL) return false;
    switch (driver->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(memory))) {
    case CUDA_SUCCESS: return type == CU_MEMORYTYPE_DEVICE;
    case CUDA_ERROR_INVALID_VALUE: // memory that CUDA has never heard of
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT: return false;
    default: return !memory_can_be_read(memory, 1); // a GPU has failed, and the driver tells nothing any more
    }
}

static CUdevice ordinal_of(const struct cuda_driver *driver, const void *memory) {
    int ordinal = -1;
    CUresult error = driver->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address_of(memory));
    return error == CUDA_SUCCESS ? ordinal : -1;
}

bool gpu_is_same(const void *one, const void *other) {
    const struct cuda_driver *driver = cuda_driver_present();
    return ordinal_of(driver, one) == ordinal_of(driver, other);
}

// ---- contexts ----
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of what follows; no call of the driver is made with it
static struct gpu *gpus;

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
    return driver->primary_context(out, ordinal); // for as long as the process lives
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

struct gpu *gpu_of(const void *memory, char why[CUDA_WHY_BYTES]) {
    const struct cuda_driver *driver = cuda_driver_present();
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
    return gpu;
}

CUresult gpu_enter(const struct gpu *gpu) { return gpu->driver->context_push(gpu->context); }

void gpu_leave(const struct gpu *gpu) {
    CUcontext context;
    gpu->driver->context_pop(&context);
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

static struct host *host_of(void *memory) {
    return (struct host *)(void *)((char *)memory - offsetof(struct host, bytes));
}

static struct host *pinned_new(const struct gpu *gpu, int size) {
    size_t bytes = sizeof(struct host) + sizes[size];
    void *memory = NULL;
    pthread_mutex_lock(&lock);
    bool may = pinned_bytes + bytes <= PINNED_MOST_BYTES;
    if (may) pinned_bytes += bytes;
    pthread_mutex_unlock(&lock);
    if (!may) return NULL;
    if (gpu_enter(gpu) == CUDA_SUCCESS) {
        unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        if (gpu->driver->host_alloc(&memory, bytes, flags) != CUDA_SUCCESS) memory = NULL;
        gpu_leave(gpu);
    }
    if (memory != NULL) return memory;
    pthread_mutex_lock(&lock);
    pinned_bytes -= bytes;
    pthread_mutex_unlock(&lock);
    return NULL;
}

void *gpu_host_new(const struct gpu *gpu, size_t bytes) {
    int size = 0;
    while (size < SIZES && sizes[size] < bytes) size++;
    struct host *host = NULL;
    if (size < SIZES) {
        pthread_mutex_lock(&lock);
        host = unused[size];
        if (host != NULL) unused[size] = host->next;
        pthread_mutex_unlock(&lock);
        if (host == NULL) host = pinned_new(gpu, size);
    }
    if (host == NULL) {
        size = NO_SIZE;
        host = aligned_alloc(64, (sizeof *host + bytes + 63) / 64 * 64);
    }
    if (host == NULL) return NULL;
    host->next = NULL;
    host->size = size;
    atomic_init(&host->kept, 1);
    return host->bytes;
}

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
static void room_free(const struct gpu *gpu, void *room) {
    if (room == NULL) return;
    if (!gpu_owns(room)) {
        free(room);
    } else if (gpu_enter(gpu) == CUDA_SUCCESS) {
        gpu->driver->free(address_of(room));
        gpu_leave(gpu);
    }
}

void *gpu_room_take(struct gpu *gpu, size_t *bytes) {
    struct gpu_room *best = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < GPU_ROOMS_KEPT; i++) {
        struct gpu_room *kept = &gpu->rooms[i];
        if (kept->memory != NULL && kept->bytes >= *bytes && (best == NULL || kept->bytes < best->bytes)) best = kept;
    }
    struct gpu_room found = best == NULL ? (struct gpu_room){0} : *best;
    if (best != NULL) *best = (struct gpu_room){0};
    pthread_mutex_unlock(&lock);
    if (found.memory != NULL) {
        *bytes = found.bytes;
        return found.memory;
    }
    CUdeviceptr made = 0;
    if (gpu_enter(gpu) == CUDA_SUCCESS) {
        if (gpu->driver->alloc(&made, *bytes) != CUDA_SUCCESS) made = 0;
        gpu_leave(gpu);
    }
    return made != 0 ? (void *)(uintptr_t)made : malloc(*bytes); // slower, but the program has filled the GPU
}

// The smallest that is too many goes.
void gpu_room_give(struct gpu *gpu, void *room, size_t bytes) {
    struct gpu_room spare = {room, bytes};
    if (gpu_owns(room)) {
        pthread_mutex_lock(&lock);
        for (int i = 0; i < GPU_ROOMS_KEPT && spare.memory != NULL; i++) {
            struct gpu_room kept = gpu->rooms[i];
            if (kept.memory != NULL && kept.bytes >= spare.bytes) continue;
            gpu->rooms[i] = spare;
            spare = kept;
        }
        pthread_mutex_unlock(&lock);
    }
    room_free(gpu, spare.memory);
}
