// For LD_PRELOAD: threads that are held up for a moment now and then, where they talk to the kernel, as on a machine
// that has too much to do. What depends on one thread being faster than another shows up within minutes (`make
// jitter`).
//
// JITTER=300: one call of so many takes up to JITTER_MS=40 longer; JITTER_LONG=4000: one of so many, 100 to 250 ms.
// JITTER_THREAD=pccl:master: in threads of that name only, so that all others are fast beside them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 16 };

static uint64_t rate = 300, longest_us = 40000, long_rate = 4000;
static const char *thread_name;

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    uint64_t value = text == NULL ? 0 : strtoull(text, NULL, 10);
    return value > 0 ? value : otherwise;
}

__attribute__((constructor)) static void begin(void) {
    rate = setting("JITTER", rate);
    longest_us = 1000 * setting("JITTER_MS", longest_us / 1000);
    long_rate = setting("JITTER_LONG", long_rate);
    thread_name = getenv("JITTER_THREAD");
}

static uint64_t draw(void) {
    static __thread uint64_t state;
    if (state == 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = (uint64_t)now.tv_nsec << 32 | (uint64_t)syscall(SYS_gettid);
    }
    state = state * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX
    return state >> 33;
}

static int is_meant(void) {
    char name[NAME_BYTES] = "";
    return thread_name == NULL || (prctl(PR_GET_NAME, name) == 0 && strcmp(name, thread_name) == 0);
}

static void hold_up(void) {
    uint64_t us = draw() % long_rate == 0 ? 100000 + draw() % 150000 : draw() % rate == 0 ? draw() % longest_us : 0;
    if (us == 0 || !is_meant()) return;
    int error = errno;
    struct timespec pause = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
    errno = error;
}

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

// After what gives something away, before what takes something: that is where others can be faster.
int epoll_wait(int poller, struct epoll_event *events, int count, int timeout_ms) {
    int (*call)(int, struct epoll_event *, int, int) = (int (*)(int, struct epoll_event *, int, int))next("epoll_wait");
    int got = call(poller, events, count, timeout_ms);
    hold_up();
    return got;
}

ssize_t send(int fd, const void *bytes, size_t length, int flags) {
    ssize_t (*call)(int, const void *, size_t, int) = (ssize_t (*)(int, const void *, size_t, int))next("send");
    ssize_t sent = call(fd, bytes, length, flags);
    hold_up();
    return sent;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    ssize_t (*call)(int, const struct msghdr *, int) = (ssize_t (*)(int, const struct msghdr *, int))next("sendmsg");
    ssize_t sent = call(fd, message, flags);
    hold_up();
    return sent;
}

ssize_t recv(int fd, void *bytes, size_t length, int flags) {
    ssize_t (*call)(int, void *, size_t, int) = (ssize_t (*)(int, void *, size_t, int))next("recv");
    hold_up();
    return call(fd, bytes, length, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    ssize_t (*call)(int, struct msghdr *, int) = (ssize_t (*)(int, struct msghdr *, int))next("recvmsg");
    hold_up();
    return call(fd, message, flags);
}
