// In builds with PCCL_CHECKS: a thread that does not hold a lock does not pass. Threads have room for the largest frames,
// also where the system gives them little.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "base/platform.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *pass(void *argument) {
    lock_assert_held(&lock);
    return argument;
}

static void pass_here(void) { pass(NULL); }

static void pass_elsewhere(void) {
    pthread_t thread;
    pthread_mutex_lock(&lock);
    if (pthread_create(&thread, NULL, pass, NULL) == 0) pthread_join(thread, NULL);
    pthread_mutex_unlock(&lock);
}

// Returns whether the process that runs `what` is aborted.
static bool aborts(void (*what)(void)) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        what();
        _exit(0);
    }
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void *take_stack(void *bytes) {
    pthread_attr_t own;
    void *lowest;
    REQUIRE(pthread_getattr_np(pthread_self(), &own) == 0);
    CHECK_EQ(pthread_attr_getstack(&own, &lowest, bytes), 0);
    pthread_attr_destroy(&own);
    return NULL;
}

static void check_stacks(void) {
    static const size_t defaults[] = {128 << 10, 4 << 20};
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        size_t bytes = 0;
#ifdef __GLIBC__
        pthread_attr_t given;
        REQUIRE(pthread_attr_init(&given) == 0 && pthread_attr_setstacksize(&given, defaults[i]) == 0 &&
                pthread_setattr_default_np(&given) == 0);
        pthread_attr_destroy(&given);
#endif
        REQUIRE(platform_thread_start(&thread, "stack", take_stack, &bytes) && pthread_join(thread, NULL) == 0);
        check_case("threads have %zu bytes by default, and this one %zu", defaults[i], bytes);
        CHECK(bytes >= 1 << 20);
    }
}

int main(void) {
    check_stacks();
#ifdef PCCL_CHECKS
    bool checks = true;
#else
    bool checks = false;
#endif
    pthread_mutex_lock(&lock);
    lock_assert_held(&lock);
    pthread_mutex_unlock(&lock);
    check_case("held by nobody");
    CHECK(aborts(pass_here) == checks);
    check_case("held by another thread");
    CHECK(aborts(pass_elsewhere) == checks);
    return check_status();
}
