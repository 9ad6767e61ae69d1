// How the core loads libpccl_cuda.so (csrc/device/cuda): the library of this build, and files that are not it. Each case
// is a process of its own, because the outcome of a load stays.
#include "device/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char text[1024];

// The reason why the library at `path` cannot be used; "" if it can.
static const char *refusal_of(const char *path) {
    const char *why;
    REQUIRE(setenv("PCCL_CUDA_LIBRARY", path, 1) == 0);
    if (cuda_library_load(&why) != NULL) return "";
    const char *again;
    CHECK(cuda_library_load(&again) == NULL && strcmp(why, again) == 0);
    return why;
}

static void own_build(const char *path) {
    CHECK(strcmp(refusal_of(path), "") == 0);
    const char *why;
    CHECK(cuda_library_load(&why)->device != NULL);
}

static void missing(const char *path) {
    (void)path;
    CHECK(strstr(refusal_of("/nowhere/libpccl_cuda.so"), "cannot be loaded: /nowhere/libpccl_cuda.so") != NULL);
    struct device_queue *queue = cuda_device.open(NULL, -1);
    REQUIRE(queue != NULL);
    CHECK(device_has_failed(queue) && !device_follow(queue, NULL));
    CHECK(strstr(detail_get(), "the tensor is on a GPU, and libpccl_cuda.so cannot be loaded: /nowhere/") != NULL);
    CHECK(strstr(detail_get(), "or pass a tensor on the CPU") != NULL);
    device_close(queue);
}

static void a_stranger(const char *path) {
    (void)path;
    CHECK(strcmp(refusal_of("libc.so.6"), "libc.so.6 is not a CUDA library of pccl") == 0);
}

static void another_build(const char *path) {
    snprintf(text, sizeof text, "%s is from another build of pccl (0.0.9, not %s)", path, PCCL_VERSION);
    CHECK(strcmp(refusal_of(path), text) == 0);
}

static void another_layout(const char *path) {
    snprintf(text, sizeof text, "%s is from another build of pccl (unknown, not %s)", path, PCCL_VERSION);
    CHECK(strcmp(refusal_of(path), text) == 0);
}

static void in_a_process(const char *name, void (*run)(const char *path), const char *path) {
    check_case("%s", name);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        run(path);
        _exit(check_status());
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
}

int main(void) {
    in_a_process("own build", own_build, getenv("PCCL_CUDA_LIBRARY"));
    in_a_process("missing", missing, NULL);
    in_a_process("a stranger", a_stranger, NULL);
    in_a_process("another build", another_build, getenv("TEST_OTHER_BUILD"));
    in_a_process("another layout", another_layout, getenv("TEST_OTHER_LAYOUT"));
    return check_status();
}
