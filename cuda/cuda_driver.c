#include "cuda/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda.h"

static struct cuda_driver driver;
static _Atomic(const struct cuda_driver *) present;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// A child of a fork takes it, too.
static void hold(void) { pthread_mutex_lock(&lock); }
static void let_go(void) { pthread_mutex_unlock(&lock); }
static void watch_forks(void) { pthread_atfork(hold, let_go, let_go); }

static void take_lock(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    hold();
}

// Lock held. The first symbol that is missing; NULL: none is, and the driver is present from now on.
static const char *take(void *library) {
#define LOOK_UP(member, symbol, parameters) *(void **)(void *)&driver.member = dlsym(library, #symbol);
    CUDA_DRIVER_FUNCTIONS(LOOK_UP)
    CUDA_DRIVER_OPTIONAL(LOOK_UP)
#undef LOOK_UP
#define DEMAND(member, symbol, parameters) \
    if (driver.member == NULL) return #symbol;
    CUDA_DRIVER_FUNCTIONS(DEMAND)
#undef DEMAND
    atomic_store(&present, &driver);
    return NULL;
}

const struct cuda_driver *cuda_driver_present(void) { return atomic_load(&present); }

// `error` begins with the file that is not there, which may be one that the library needs.
static void say_why_not(const char *error, char why[CUDA_WHY_BYTES]) {
    const char *name = cuda_driver_name();
    bool own = error != NULL && strncmp(error, name, strlen(name)) == 0;
    if (own && strstr(error, "No such file") != NULL)
        snprintf(why, CUDA_WHY_BYTES, "the CUDA driver %s is not installed", name);
    else
        snprintf(why, CUDA_WHY_BYTES, "the CUDA driver cannot be loaded: %s", error == NULL ? name : error);
}

const struct cuda_driver *cuda_driver_load(char why[CUDA_WHY_BYTES]) {
    why[0] = 0;
    take_lock();
    if (atomic_load(&present) == NULL) {
        void *library = dlopen(cuda_driver_name(), RTLD_NOW);
        const char *missing = library == NULL ? NULL : take(library);
        if (library == NULL)
            say_why_not(dlerror(), why);
        else if (missing != NULL && strcmp(missing, "cuInit") == 0)
            snprintf(why, CUDA_WHY_BYTES, "%s is not a CUDA driver: it lacks %s", cuda_driver_name(), missing);
        else if (missing != NULL)
            snprintf(why, CUDA_WHY_BYTES, "the CUDA driver is too old: it lacks %s", missing);
        if (missing != NULL) dlclose(library);
    }
    let_go();
    return atomic_load(&present);
}

int cuda_driver_open(char why[CUDA_WHY_BYTES]) {
    if (cuda_driver_load(why) == NULL) return 0;
    int count = 0;
    const char *call = "cuInit";
    CUresult error = driver.init(0);
    if (error == CUDA_SUCCESS) {
        call = "cuDeviceGetCount";
        error = driver.device_count(&count);
    }
    if (error != CUDA_SUCCESS) {
        cuda_driver_describe(&driver, call, error, why, CUDA_WHY_BYTES);
        return 0;
    }
    if (count == 0) snprintf(why, CUDA_WHY_BYTES, "the CUDA driver found no GPU");
    return count;
}

void cuda_driver_describe(const struct cuda_driver *d, const char *call, CUresult error, char *out, size_t room) {
    const char *name = NULL, *text = NULL;
    d->error_name(error, &name);
    d->error_string(error, &text);
    if (name == NULL)
        snprintf(out, room, "%s: error %d", call, error);
    else
        snprintf(out, room, "%s: %s: %s", call, name, text == NULL ? "" : text);
}
