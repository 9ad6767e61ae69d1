#define _GNU_SOURCE
#include "base/platform.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"

enum {
    OVERSLEPT_MS = 20,     // far below a heartbeat limit
    STACK_BYTES = 1 << 20, // five times the largest frame. With musl threads have 128 KiB, with glibc `ulimit -s`
};

int64_t platform_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
}

int platform_wait_ms(int64_t now_ns, int64_t at_ns) {
    if (at_ns == INT64_MAX) return -1;
    if (at_ns <= now_ns) return 0;
    int64_t ms = (at_ns - now_ns + MS_NS - 1) / MS_NS; // rounded up: waking early would spin
    return ms < 60000 ? (int)ms : 60000;
}

bool platform_overslept(int64_t began_ns, int wait_ms, int64_t now_ns) {
    return wait_ms >= 0 && now_ns > began_ns + (wait_ms + OVERSLEPT_MS) * MS_NS;
}

int64_t platform_thread_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
}

bool platform_random(void *out, size_t bytes) {
    uint8_t *at = out;
    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

unsigned platform_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int count = CPU_COUNT(&set);
        if (count > 0) return (unsigned)count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (unsigned)online : 1;
}

bool platform_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *arg) {
    pthread_attr_t attributes;
    size_t stack;
    if (pthread_attr_init(&attributes) != 0) return false;
    if (pthread_attr_getstacksize(&attributes, &stack) != 0 || stack < STACK_BYTES)
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
    // A new thread inherits the mask of its creator, so the creator blocks everything for a moment.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(out, &attributes, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0) return false;
    pthread_setname_np(*out, name);
    return true;
}

void platform_thread_lower_priority(void) { setpriority(PRIO_PROCESS, 0, 10); } // 0: to Linux this thread alone

bool platform_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) return false;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    bool made = pthread_cond_init(cond, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return made;
}

bool platform_cond_wait(pthread_cond_t *cond, pthread_mutex_t *held, int64_t deadline_ns) {
    if (deadline_ns == INT64_MAX) {
        pthread_cond_wait(cond, held);
        return true;
    }
    struct timespec until = {.tv_sec = deadline_ns / SECOND_NS, .tv_nsec = deadline_ns % SECOND_NS};
    return pthread_cond_timedwait(cond, held, &until) != ETIMEDOUT;
}

int wake_open(void) {
    descriptor_begin();
    return descriptor_end(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

void wake_signal(int wake) {
    if (wake < 0) return;
    int saved = errno;
    uint64_t one = 1;
    // A full counter is already readable, so a refused write loses nothing.
    ssize_t ignored = write(wake, &one, sizeof one);
    (void)ignored;
    errno = saved;
}

void wake_clear(int wake) {
    uint64_t count;
    ssize_t ignored = read(wake, &count, sizeof count);
    (void)ignored;
}

#ifdef PCCL_CHECKS

#ifndef __GLIBC__
#error "PCCL_CHECKS reads the owner that glibc records in a mutex"
#endif

void platform_check_held(const pthread_mutex_t *mutex, const char *name, const char *file, int line) {
    if (mutex->__data.__owner == gettid()) return;
    fprintf(stderr, "%s:%d: this thread does not hold %s\n", file, line, name);
    abort();
}

#endif
