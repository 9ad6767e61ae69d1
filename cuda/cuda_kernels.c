#define LOG_COMPONENT "config"
#include "cuda/cuda_kernels.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/log.h"

static const struct {
    const char *name;
    unsigned threads;
} table[CUDA_KERNELS] = {
#define CUDA_KERNEL_ENTRY(name, threads) {"pccl_" #name, threads},
    DEVICE_KERNELS(CUDA_KERNEL_ENTRY)
#undef CUDA_KERNEL_ENTRY
};

static struct cuda_image chosen; // written once, by choose()
static char chosen_why_not[CUDA_WHY_BYTES];
static bool reduces, quantises = true; // kernels; written once, by choose_place()
static pthread_once_t chosen_once = PTHREAD_ONCE_INIT, place_once = PTHREAD_ONCE_INIT;

// Kept for as long as the process lives. A byte of 0 is behind it, as the driver expects of texts.
static bool read_file(const char *path) {
    struct stat about;
    descriptor_begin();
    int fd = descriptor_end(open(path, O_RDONLY | O_CLOEXEC));
    size_t length = fd >= 0 && fstat(fd, &about) == 0 && about.st_size > 0 ? (size_t)about.st_size : 0, got = 0;
    char *bytes = length > 0 ? calloc(1, length + 1) : NULL;
    for (ssize_t now = 1; bytes != NULL && got < length && now > 0; got += now > 0 ? (size_t)now : 0)
        now = read(fd, bytes + got, length - got);
    descriptor_close(fd);
    if (length > 0 && got == length)
        chosen = (struct cuda_image){.bytes = bytes, .length = length};
    else
        free(bytes);
    return length > 0 && got == length;
}

static void choose(void) {
    const char *other = getenv("PCCL_CUDA_KERNELS");
    if (other == NULL || *other == 0) {
        chosen = cuda_image;
        if (chosen.length == 0) snprintf(chosen_why_not, sizeof chosen_why_not, "%s", chosen.why_not);
    } else if (strcmp(other, "off") == 0) {
        snprintf(chosen_why_not, sizeof chosen_why_not, "PCCL_CUDA_KERNELS=off");
    } else if (!read_file(other)) {
        snprintf(chosen_why_not, sizeof chosen_why_not, "PCCL_CUDA_KERNELS: %.80s cannot be read", other);
    }
}

bool cuda_kernels_are_there(char why_not[CUDA_WHY_BYTES]) {
    pthread_once(&chosen_once, choose);
    memcpy(why_not, chosen_why_not, CUDA_WHY_BYTES);
    return chosen.length > 0;
}

const void *cuda_kernels_bytes(void) {
    pthread_once(&chosen_once, choose);
    return chosen.length > 0 ? chosen.bytes : NULL;
}

void cuda_kernels_load(struct cuda_kernels *kernels, const struct cuda_driver *driver) {
    CUmodule module;
    if (!cuda_kernels_are_there(kernels->why_not)) return;
    const char *call = "cuModuleLoadData";
    CUresult error = driver->module_load(&module, chosen.bytes);
    for (int i = 0; error == CUDA_SUCCESS && i < CUDA_KERNELS; i++) {
        call = table[i].name;
        error = driver->module_function(&kernels->functions[i], module, table[i].name);
        if (error == CUDA_SUCCESS && driver->function_load != NULL)
            error = driver->function_load(kernels->functions[i]);
    }
    kernels->usable = error == CUDA_SUCCESS;
    if (!kernels->usable) cuda_driver_describe(driver, call, error, kernels->why_not, sizeof kernels->why_not);
}

static void choose_place(void) {
    const char *asked = getenv("PCCL_CUDA_REDUCE");
    if (asked == NULL || *asked == 0) return;
    bool is_gpu = strcmp(asked, "gpu") == 0, is_host = strcmp(asked, "host") == 0;
    reduces = is_gpu;
    quantises = !is_host;
    if (!is_gpu && !is_host) LOG(LOG_ERR, "PCCL_CUDA_REDUCE=%s is ignored; set it to gpu or host", asked);
}

bool cuda_kernels_reduce(const struct cuda_kernels *kernels) {
    pthread_once(&place_once, choose_place);
    return kernels->usable && reduces;
}

bool cuda_kernels_quantise(const struct cuda_kernels *kernels) {
    pthread_once(&place_once, choose_place);
    return kernels->usable && quantises;
}

unsigned cuda_kernels_threads(enum cuda_kernel which) { return table[which].threads; }

CUresult cuda_kernels_launch(const struct cuda_kernels *kernels, const struct cuda_driver *driver,
                             enum cuda_kernel which, unsigned blocks, const void *job, CUstream stream) {
    void *parameters[] = {(void *)(uintptr_t)job};
    return driver->launch(kernels->functions[which], blocks, 1, 1, table[which].threads, 1, 1, 0, stream, parameters,
                          NULL);
}
