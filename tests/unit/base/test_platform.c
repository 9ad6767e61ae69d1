// In builds with PCCL_CHECKS: a thread that does not hold a lock does not pass.
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

int main(void) {
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
