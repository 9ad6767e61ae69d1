#include "base/platform.h"

#include <stdatomic.h>
#include <unistd.h>

#include "check.h"

struct other {
    _Atomic pid_t id;
    _Atomic bool stop;
    int pipe[2];
};

static void *spin(void *context) {
    struct other *other = context;
    atomic_store(&other->id, platform_thread_id());
    while (!atomic_load(&other->stop)) continue;
    return NULL;
}

static void *sleep_in_kernel(void *context) {
    struct other *other = context;
    char byte;
    atomic_store(&other->id, platform_thread_id());
    while (read(other->pipe[0], &byte, 1) < 0) continue;
    return NULL;
}

static pid_t start(struct other *other, void *(*run)(void *), pthread_t *thread) {
    REQUIRE(platform_thread_start(thread, "test", run, other));
    while (atomic_load(&other->id) == 0) usleep(1000);
    return atomic_load(&other->id);
}

static void test_a_thread_that_runs(void) {
    check_case("a thread that runs, or would");
    struct other other = {0};
    pthread_t thread;
    pid_t id = start(&other, spin, &thread);
    for (int i = 0; i < 100; i++) CHECK(!platform_thread_sleeps(id));
    atomic_store(&other.stop, true);
    pthread_join(thread, NULL);
}

static void test_a_thread_that_sleeps(void) {
    check_case("a thread that sleeps in the kernel");
    struct other other = {0};
    REQUIRE(pipe(other.pipe) == 0);
    pthread_t thread;
    pid_t id = start(&other, sleep_in_kernel, &thread);
    int64_t limit = platform_now_ns() + 20 * SECOND_NS;
    while (!platform_thread_sleeps(id) && platform_now_ns() < limit) usleep(1000);
    CHECK(platform_thread_sleeps(id));
    CHECK(write(other.pipe[1], "", 1) == 1);
    pthread_join(thread, NULL);
    close(other.pipe[0]);
    close(other.pipe[1]);
}

static void test_a_thread_that_is_none(void) {
    check_case("no thread of this process");
    CHECK(platform_thread_sleeps(1 << 30));
}

int main(void) {
    test_a_thread_that_runs();
    test_a_thread_that_sleeps();
    test_a_thread_that_is_none();
    return check_status();
}
