#include "device/cuda_holds.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/detail.h"

struct cuda_hold {
    struct cuda_hold *next;
    uint32_t *flag; // the stream waits until it is 1
    CUevent passed; // behind the wait; NULL: nobody knows when that is over, and the flag is not used again
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_hold *released; // under the lock

void cuda_holds_release(struct cuda_hold **holds) {
    // all of them before the lock, whose owner may be in a call of the driver that one of these streams holds up
    for (struct cuda_hold *hold = *holds; hold != NULL; hold = hold->next)
        __atomic_store_n(hold->flag, 1, __ATOMIC_RELEASE);
    while (*holds != NULL) {
        struct cuda_hold *hold = *holds;
        *holds = hold->next;
        pthread_mutex_lock(&lock);
        hold->next = released;
        released = hold;
        pthread_mutex_unlock(&lock);
    }
}

// One that its stream has passed; its event is perhaps of another GPU, and is made anew.
static struct cuda_hold *take_passed(const struct cuda_driver *driver) {
    pthread_mutex_lock(&lock);
    struct cuda_hold **at = &released;
    while (*at != NULL && ((*at)->passed == NULL || driver->event_query((*at)->passed) != CUDA_SUCCESS))
        at = &(*at)->next;
    struct cuda_hold *hold = *at;
    if (hold != NULL) *at = hold->next;
    pthread_mutex_unlock(&lock);
    if (hold != NULL) driver->event_destroy(hold->passed);
    if (hold != NULL) hold->passed = NULL;
    return hold;
}

static struct cuda_hold *hold_new(const struct cuda_driver *driver, CUresult *error) {
    struct cuda_hold *hold = take_passed(driver);
    if (hold != NULL || (hold = calloc(1, sizeof *hold)) == NULL) return hold;
    void *flag = NULL;
    *error = driver->host_alloc(&flag, sizeof *hold->flag, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    hold->flag = flag;
    if (*error == CUDA_SUCCESS) return hold;
    free(hold);
    return NULL;
}

// In the context of the GPU. The call that failed; NULL: none.
static const char *add(struct cuda_hold **holds, const struct cuda_driver *driver, CUstream stream, CUresult *error) {
    *error = CUDA_ERROR_OUT_OF_MEMORY;
    struct cuda_hold *hold = hold_new(driver, error);
    if (hold == NULL) return "cuMemHostAlloc";
    __atomic_store_n(hold->flag, 0, __ATOMIC_RELEASE);
    *error = driver->stream_wait_value(stream, (CUdeviceptr)(uintptr_t)hold->flag, 1, CU_STREAM_WAIT_VALUE_GEQ);
    if (*error != CUDA_SUCCESS) {
        driver->host_free(hold->flag);
        free(hold);
        return "cuStreamWaitValue32";
    }
    hold->next = *holds;
    *holds = hold;
    if (driver->event_create(&hold->passed, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        hold->passed = NULL;
    } else if (driver->event_record(hold->passed, stream) != CUDA_SUCCESS) {
        driver->event_destroy(hold->passed);
        hold->passed = NULL;
    }
    return NULL;
}

bool cuda_holds_add(struct cuda_hold **holds, const struct gpu *gpu, CUstream stream) {
    const struct cuda_driver *driver = gpu->driver;
    if (driver->stream_wait_value == NULL)
        return detail_fail(false, "the CUDA driver is older than 11.7, so a stream cannot wait for an op: let the host "
                                  "wait for it");
    CUresult error = gpu_enter(gpu);
    const char *call = "cuCtxPushCurrent";
    if (error == CUDA_SUCCESS) {
        call = add(holds, driver, stream, &error);
        gpu_leave(gpu);
    }
    if (call == NULL) return true;
    char why[CUDA_WHY_BYTES];
    cuda_driver_describe(driver, call, error, why, sizeof why);
    return detail_fail(false, "the stream cannot wait for the op: %s", why);
}
