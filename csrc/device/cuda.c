#define LOG_COMPONENT "config"
#include "device/cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// From the documentation of the driver API (docs.nvidia.com/cuda/cuda-driver-api).
enum {
    SUCCESS = 0,
    ERROR_INVALID_VALUE = 1,
    ERROR_NOT_INITIALIZED = 3,
    ERROR_DEINITIALIZED = 4,
    ERROR_INVALID_CONTEXT = 201,
    ATTRIBUTE_MEMORY_TYPE = 2,
    ATTRIBUTE_DEVICE_ORDINAL = 9,
    MEMORY_TYPE_DEVICE = 2,
};
typedef int pointer_attribute_function(void *data, int attribute, uint64_t pointer); // cuPointerGetAttribute

enum { PATH_BYTES = 1024, WHY_BYTES = 2 * PATH_BYTES };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(pointer_attribute_function *) pointer_attribute; // NULL: no driver is loaded
static atomic_ullong looked_at; // number of libraries that were loaded at the last look-up, and 1
static _Atomic(const struct cuda_library *) library;
static atomic_bool library_refused;
static char library_why[WHY_BYTES]; // written before `library_refused`

// A forked child takes the lock for each of its tensors, too.
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork); }

static void take_lock(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
}

// ---- the driver ----
const char *cuda_driver_name(void) {
    const char *other = getenv("PCCL_CUDA_DRIVER");
    return other == NULL || *other == 0 ? "libcuda.so.1" : other;
}

static int count_loaded(struct dl_phdr_info *info, size_t size, void *count) {
    (void)size;
    *(unsigned long long *)count = info->dlpi_adds;
    return 1;
}

// Returns the driver's function if this process has loaded the driver. Looks again only after a library was loaded.
static pointer_attribute_function *find_driver(void) {
    pointer_attribute_function *found = atomic_load(&pointer_attribute);
    if (found != NULL) return found;
    unsigned long long loaded = 0;
    dl_iterate_phdr(count_loaded, &loaded);
    if (atomic_load(&looked_at) == loaded + 1) return NULL;
    take_lock();
    void *driver = dlopen(cuda_driver_name(), RTLD_NOW | RTLD_NOLOAD);
    if (driver != NULL) *(void **)(void *)&found = dlsym(driver, "cuPointerGetAttribute");
    if (found != NULL)
        atomic_store(&pointer_attribute, found); // and the driver stays
    else if (driver != NULL)
        dlclose(driver);
    atomic_store(&looked_at, loaded + 1);
    pthread_mutex_unlock(&lock);
    return found;
}

bool cuda_owns(const void *memory) {
    pointer_attribute_function *ask = memory == NULL ? NULL : find_driver();
    unsigned type = 0;
    if (ask == NULL) return false;
    switch (ask(&type, ATTRIBUTE_MEMORY_TYPE, (uintptr_t)memory)) {
    case SUCCESS: return type == MEMORY_TYPE_DEVICE;
    case ERROR_INVALID_VALUE: // memory that CUDA has never heard of
    case ERROR_NOT_INITIALIZED:
    case ERROR_DEINITIALIZED:
    case ERROR_INVALID_CONTEXT: return false;
    default: return !memory_can_be_read(memory, 1); // a GPU has failed, and the driver tells nothing any more
    }
}

static int ordinal_of(const void *memory) {
    int ordinal = -1;
    return find_driver()(&ordinal, ATTRIBUTE_DEVICE_ORDINAL, (uintptr_t)memory) == SUCCESS ? ordinal : -1;
}

bool cuda_is_same(const void *one, const void *other) { return ordinal_of(one) == ordinal_of(other); }

// ---- the library ----
static const struct cuda_host host = {
#define CUDA_HOST_LEND(type, name, parameters, arguments) .name = name,
    CUDA_HOST_FUNCTIONS(CUDA_HOST_LEND)
#undef CUDA_HOST_LEND
        .detail_fail = detail_fail,
    .log_write = log_write,
};

// Writes the path of the library: PCCL_CUDA_LIBRARY, or beside the file that this code lies in, or, if it is not there,
// the name alone, for the system's search.
static void find_library(char path[PATH_BYTES]) {
    static const char name[] = "libpccl_cuda.so";
    const char *other = getenv("PCCL_CUDA_LIBRARY");
    Dl_info own;
    const char *slash = NULL;
    if (dladdr(&host, &own) != 0 && own.dli_fname != NULL) slash = strrchr(own.dli_fname, '/');
    if (other != NULL && *other != 0) {
        snprintf(path, PATH_BYTES, "%s", other);
        return;
    }
    if (slash != NULL) snprintf(path, PATH_BYTES, "%.*s/%s", (int)(slash - own.dli_fname), own.dli_fname, name);
    if (slash == NULL || access(path, F_OK) != 0) snprintf(path, PATH_BYTES, "%s", name);
}

// Returns NULL and writes the reason unless both sides have the same interface.
static const struct cuda_library *open_library(void *file, const char *path, char why[WHY_BYTES]) {
    static const struct cuda_abi wanted = CUDA_ABI;
    const struct cuda_abi *found = dlsym(file, CUDA_ABI_SYMBOL);
    cuda_open_function *begin;
    *(void **)(void *)&begin = dlsym(file, CUDA_OPEN_SYMBOL);
    if (found == NULL || begin == NULL) {
        snprintf(why, WHY_BYTES, "%s is not a CUDA library of pccl", path);
        return NULL;
    }
    bool comparable = found->bytes == wanted.bytes && found->revision == wanted.revision;
    if (!comparable || memcmp(found, &wanted, sizeof wanted) != 0) {
        snprintf(why, WHY_BYTES, "%s is from another build of pccl (%.*s, not %s)", path, (int)sizeof found->version,
                 comparable ? found->version : "unknown", wanted.version);
        return NULL;
    }
    const struct cuda_library *opened = begin(&host);
    if (opened == NULL) snprintf(why, WHY_BYTES, "%s is in use by another copy of pccl in this process", path);
    return opened;
}

// Threads of the library call the core, so neither is unloaded any more.
static void keep_core(void) {
    Dl_info own;
    if (dladdr(&host, &own) != 0 && own.dli_fname != NULL)
        (void)dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

static void load_library(void) {
    char path[PATH_BYTES] = "";
    find_library(path);
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *error = file == NULL ? dlerror() : NULL;
    const struct cuda_library *opened = NULL;
    Dl_info own;
    bool near = strchr(path, '/') == NULL && dladdr(&host, &own) != 0 && own.dli_fname != NULL;
    if (file == NULL)
        snprintf(library_why, sizeof library_why, "libpccl_cuda.so cannot be loaded: %s%s%s",
                 error == NULL ? path : error, near ? ", and it is not beside " : "", near ? own.dli_fname : "");
    else
        opened = open_library(file, path, library_why);
    if (opened != NULL) keep_core();
    atomic_store(&library, opened);
    atomic_store(&library_refused, opened == NULL);
}

const struct cuda_library *cuda_library_load(const char **why) {
    if (atomic_load(&library) == NULL && !atomic_load(&library_refused)) {
        take_lock();
        if (atomic_load(&library) == NULL && !atomic_load(&library_refused)) load_library();
        pthread_mutex_unlock(&lock);
    }
    *why = library_why;
    return atomic_load(&library);
}

void cuda_library_use(const struct cuda_library *linked) { atomic_store(&library, linked); }

// ---- a device that cannot be used ----
static bool cuda_refused_follow(struct device_queue *queue, void *stream) {
    (void)queue, (void)stream;
    return detail_fail(false,
                       "the tensor is on a GPU, and %s; install pccl again together with its CUDA library, or pass a "
                       "tensor on the CPU",
                       library_why);
}

static void cuda_refused_close(struct device_queue *queue) { (void)queue; }

static const struct device refused_device = {
    .name = "CUDA", .follow = cuda_refused_follow, .close = cuda_refused_close};
static struct device_queue refused_queue = {
    .device = &refused_device, .failed = true, .error = "CUDA: libpccl_cuda.so cannot be used"};

static struct device_queue *cuda_open(const void *tensor, int wake) {
    const char *why;
    const struct cuda_library *loaded = cuda_library_load(&why);
    return loaded == NULL ? &refused_queue : loaded->device->open(tensor, wake);
}

const struct device cuda_device = {.name = "CUDA", .owns = cuda_owns, .together = cuda_is_same, .open = cuda_open};

__attribute__((constructor)) static void cuda_add(void) { device_add(&cuda_device); }
