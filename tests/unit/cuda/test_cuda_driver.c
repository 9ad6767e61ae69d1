// The look-up of the CUDA driver (cuda/cuda_driver) where there is none, in children that are forked meanwhile.
#define _GNU_SOURCE
#include "cuda/cuda_driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { FORKS = 100, CHILD_SECONDS = 20 };

static atomic_bool stop;

static void *look(void *argument) {
    char why[CUDA_WHY_BYTES];
    while (!atomic_load(&stop)) cuda_driver_open(why);
    return argument;
}

static void test_absent(void) {
    check_case("absent");
    char why[CUDA_WHY_BYTES];
    CHECK_EQ(cuda_driver_open(why), 0);
    CHECK(strcmp(why, "the CUDA driver /nowhere/libcuda.so is not installed") == 0);
    CHECK(cuda_driver_present() == NULL);
}

static void test_no_driver(void) {
    check_case("no driver");
    char why[CUDA_WHY_BYTES];
    REQUIRE(setenv("PCCL_CUDA_DRIVER", "/proc/self/cmdline", 1) == 0);
    CHECK_EQ(cuda_driver_open(why), 0);
    CHECK_MEM(why, "the CUDA driver cannot be loaded: /proc/self/cmdline: ", 53);
    REQUIRE(setenv("PCCL_CUDA_DRIVER", "libc.so.6", 1) == 0);
    CHECK_EQ(cuda_driver_open(why), 0);
    CHECK(strcmp(why, "libc.so.6 is not a CUDA driver: it lacks cuInit") == 0);
}

// A thread of the parent may be anywhere in a look-up.
static void test_forks(void) {
    check_case("forks");
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, look, NULL) == 0);
    int hung = 0;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
#ifdef __SANITIZE_THREAD__
        // A mapping of the sanitizer has 25 GB, which the kernel does not copy where there is less memory.
        if (child < 0 && errno == ENOMEM) break;
#endif
        REQUIRE(child >= 0);
        if (child == 0) {
            char why[CUDA_WHY_BYTES];
            alarm(CHILD_SECONDS);
            _exit(cuda_driver_open(why) != 0 || cuda_driver_present() != NULL);
        }
        int status = -1;
        waitpid(child, &status, 0);
        hung += status != 0;
        if (hung > 0) break;
    }
    CHECK_EQ(hung, 0);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}

int main(void) {
    REQUIRE(setenv("PCCL_CUDA_DRIVER", "/nowhere/libcuda.so", 1) == 0);
    test_absent();
    test_forks();
    test_no_driver();
    return check_status();
}
