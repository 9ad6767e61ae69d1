#include "cuda/cuda_holds.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/detail.h"

enum { FLAGS_MOST = 4096 };

struct cuda_hold {
    struct cuda_hold *next;
    uint32_t *flag; // the stream waits until it is 1
    CUevent passed; // behind the wait; NULL: nobody knows when that is over, and the flag is not used again
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of what follows
static struct cuda_hold *released;
static uint32_t *flags; // page-locked, all of them at once: while a stream waits nothing more can be had
static size_t flags_used;

void cuda_holds_release(struct cuda_hold **holds) {
    // all of them before the lock, whose owner may be in a call of the driver that one of these streams holds up
    for (struct cuda_hold *hold = *holds; hold != NULL; hold = hold->next) {
        __atomic_store_n(hold->flag, 1, __ATOMIC_RELEASE);
        gpu_wait_remove();
    }
    while (*holds != NULL) {
        struct cuda_hold *hold = *holds;
        *holds = hold->next;
        pthread_mutex_lock(&lock);
        hold->next = released;
        released = hold;
        pthread_mutex_unlock(&lock);
    }
}

// Lock held. One that its stream has passed; its event is perhaps of another GPU, and is made anew.
static struct cuda_hold *take_passed(const struct cuda_driver *driver) {
    struct cuda_hold **at = &released;
    while (*at != NULL && ((*at)->passed == NULL || driver->event_query((*at)->passed) != CUDA_SUCCESS))
        at = &(*at)->next;
    struct cuda_hold *hold = *at;
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
static struct cuda_hold *take_new(const struct cuda_driver *driver) {
    pthread_mutex_lock(&lock);
    struct cuda_hold *hold = take_passed(driver);
    uint32_t *flag = hold == NULL ? new_flag(driver) : NULL;
    pthread_mutex_unlock(&lock);
    if (flag == NULL || (hold = calloc(1, sizeof *hold)) == NULL) return hold;
    hold->flag = flag;
    return hold;
}

// In the context of the GPU. NULL: this call has failed.
static struct cuda_hold *put_into(CUstream stream, const struct cuda_driver *driver, const char **call,
                                  CUresult *error) {
    struct cuda_hold *hold = take_new(driver);
    *error = CUDA_ERROR_OUT_OF_MEMORY;
    *call = "memory for a wait";
    if (hold == NULL) return NULL;
    // made first: then nothing can fail behind the wait but its record
    if (driver->event_create(&hold->passed, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) hold->passed = NULL;
    gpu_wait_add();
    __atomic_store_n(hold->flag, 0, __ATOMIC_RELEASE);
    *call = "cuStreamWaitValue32";
    *error = driver->stream_wait_value(stream, (CUdeviceptr)(uintptr_t)hold->flag, 1, CU_STREAM_WAIT_VALUE_GEQ);
    if (*error != CUDA_SUCCESS) {
        cuda_holds_release(&hold);
        return NULL;
    }
    if (hold->passed != NULL && driver->event_record(hold->passed, stream) != CUDA_SUCCESS) {
        driver->event_destroy(hold->passed);
        hold->passed = NULL;
    }
    return hold;
}

struct cuda_hold *cuda_hold_new(const struct gpu *gpu, CUstream stream) {
    static const char refusal[] = "the stream cannot wait for the operation";
    const struct cuda_driver *driver = gpu->driver;
    if (driver->stream_wait_value == NULL) {
        detail_fail(0, "%s: the CUDA driver is older than 11.7; wait on the host", refusal);
        return NULL;
    }
    struct cuda_hold *hold = NULL;
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

void cuda_holds_add(struct cuda_hold **holds, struct cuda_hold *hold) {
    hold->next = *holds;
    *holds = hold;
}
