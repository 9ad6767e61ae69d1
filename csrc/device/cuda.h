// Memory of GPUs, as far as every process needs to know it: whose memory a tensor is. The rest is in libpccl_cuda.so
// (cuda/), which is built with the core, and loaded when a program first passes a tensor on a GPU or asks for GPUs.
//
// A process that has not loaded the CUDA driver has no memory on a GPU, and this module does not load the driver: that
// would cost time and memory, and CUDA does not work in a child that is forked afterwards.
#ifndef PCCL_DEVICE_CUDA_H
#define PCCL_DEVICE_CUDA_H

#include <stdbool.h>

#include "base/descriptor.h"
#include "base/detail.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/platform.h"
#include "device/device.h"

// The device of all GPUs. It is among those of device_of in every program that links this module. If the library cannot
// be used, device_follow refuses its queues, with the reason in base/detail.
extern const struct device cuda_device;

// The driver library's name: libcuda.so.1, or PCCL_CUDA_DRIVER of the environment.
const char *cuda_driver_name(void);
// Whether the driver of this process knows the memory as a GPU's; managed memory is. Loads nothing, and is quick.
bool cuda_owns(const void *memory);
bool cuda_is_same(const void *one, const void *other); // whether both, memory of GPUs, are on the same one

// ---- the interface between the core and the library ----
// The library does not link to the core, which is a part of the Python module, of libpccl.so or of a program. So the
// core lends it the functions of struct cuda_host. Neither side calls the other before struct cuda_abi agrees.

// Functions of the core that the library calls: result, name, parameters, arguments.
#define CUDA_HOST_FUNCTIONS(F) \
    F(void, descriptor_begin, (void), ()) \
    F(int, descriptor_end, (int opened), (opened)) \
    F(void, descriptor_close, (int fd), (fd)) \
    F(int, log_enabled, (enum log_level level), (level)) \
    F(int64_t, platform_now_ns, (void), ()) \
    F(bool, platform_thread_start, (pthread_t * out, const char *name, void *(*run)(void *), void *arg), \
      (out, name, run, arg)) \
    F(bool, platform_cond_init, (pthread_cond_t * cond), (cond)) \
    F(bool, platform_cond_wait, (pthread_cond_t * cond, pthread_mutex_t * held, int64_t deadline_ns), \
      (cond, held, deadline_ns)) \
    F(int, wake_open, (void), ()) \
    F(void, wake_signal, (int wake), (wake)) \
    F(void, wake_clear, (int wake), (wake)) \
    F(const struct kernels *, kernels_get, (void), ()) \
    F(size_t, dtype_size, (int dtype), (dtype)) \
    F(const struct codec *, codec_find, (uint8_t id), (id)) \
    F(size_t, codec_bytes, (const struct codec *codec, int dtype, size_t count), (codec, dtype, count)) \
    F(bool, block_is_algorithm, (int algorithm), (algorithm)) \
    F(void, hash_leaves, (uint64_t *leaves, const void *content, uint64_t bytes, uint64_t first, uint64_t count), \
      (leaves, content, bytes, first, count)) \
    F(const uint8_t *, hash_get_secret, (void), ()) \
    F(bool, memory_grow, (void *array, size_t *room, size_t count, size_t size, size_t least), \
      (array, room, count, size, least)) \
    F(const char *, cuda_driver_name, (void), ()) \
    F(bool, cuda_owns, (const void *memory), (memory)) \
    F(bool, cuda_is_same, (const void *one, const void *other), (one, other)) \
    F(void, device_fail, (struct device_queue * queue, const char *why), (queue, why))

struct cuda_host {
#define CUDA_HOST_MEMBER(type, name, parameters, arguments) type(*name) parameters;
    CUDA_HOST_FUNCTIONS(CUDA_HOST_MEMBER)
#undef CUDA_HOST_MEMBER
    pcclResult_t (*detail_fail)(pcclResult_t code, const char *format, ...);
    void (*log_write)(enum log_level level, const char *component, const char *format, ...);
};

struct cuda_library {
    const struct device *device;
    // See pccl_ext_cuda, pccl_ext_cuda_kernels and pccl_ext_cuda_fatbin.
    int (*describe)(char *text_out, size_t capacity);
    bool (*has_kernels)(bool load, char *text_out, size_t capacity);
    const void *(*kernels)(void);
};

// Agreement of both sides. Raise the revision if a struct that they share changes its meaning but not its size.
enum { CUDA_REVISION = 1 };

struct cuda_abi {
    uint32_t bytes; // of this struct
    uint32_t revision;
    char version[24];                                             // of pccl
    uint32_t host, library, device, queue, codes, kernels, codec; // sizes of structs
};

#define CUDA_ABI \
    { \
        .bytes = sizeof(struct cuda_abi), \
        .revision = CUDA_REVISION, \
        .version = PCCL_VERSION, \
        .host = sizeof(struct cuda_host), \
        .library = sizeof(struct cuda_library), \
        .device = sizeof(struct device), \
        .queue = sizeof(struct device_queue), \
        .codes = sizeof(struct device_codes), \
        .kernels = sizeof(struct kernels), \
        .codec = sizeof(struct codec), \
    }

// Symbols of the library.
#define CUDA_ABI_SYMBOL "pccl_cuda_abi"   // const struct cuda_abi
#define CUDA_OPEN_SYMBOL "pccl_cuda_open" // cuda_open_function
// Returns NULL if the library serves another copy of the core in this process already.
typedef const struct cuda_library *cuda_open_function(const struct cuda_host *host);

// Returns the library, loaded on the first call; NULL, with the reason in *why, if it cannot be used. The outcome stays
// for as long as the process lives.
const struct cuda_library *cuda_library_load(const char **why);
// Takes a library that is linked into the program, in place of a file. For tests.
void cuda_library_use(const struct cuda_library *library);

#endif
