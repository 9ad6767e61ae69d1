#include "base/log_capture.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/descriptor.h"
#include "base/platform.h"

static atomic_bool capturing, made;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of what follows; held for the copy of a line
static struct log_line *lines;                           // LOG_CAPTURE_LINES; made once
static uint32_t first, count, dropped;
static int event = -1;
static uint32_t forks; // of the process that captures, see descriptor_forks

// A forked child may find the lock taken, and has no thread that empties the queue.
static bool is_own(void) { return atomic_load(&capturing) && forks == descriptor_forks(); }

static int begin(void) {
    if (lines == NULL) lines = calloc(LOG_CAPTURE_LINES, sizeof *lines);
    if (lines == NULL) return -ENOMEM;
    if (event < 0) event = wake_open();
    return event;
}

int log_capture_begin(void) {
    if (atomic_load(&made) && forks != descriptor_forks()) return -ECHILD;
    pthread_mutex_lock(&lock);
    int fd = begin();
    pthread_mutex_unlock(&lock);
    if (fd < 0) return fd;
    forks = descriptor_forks();
    atomic_store(&made, true);
    atomic_store(&capturing, true);
    return fd;
}

void log_capture_end(void) {
    if (!is_own()) return;
    atomic_store(&capturing, false);
    pthread_mutex_lock(&lock); // who found it on has put its line
    pthread_mutex_unlock(&lock);
}

bool log_capture_put(const struct log_line *line) {
    if (!is_own()) return false;
    pthread_mutex_lock(&lock);
    bool captured = atomic_load(&capturing);
    if (captured && count == LOG_CAPTURE_LINES) {
        dropped++;
    } else if (captured) {
        struct log_line *place = &lines[(first + count++) % LOG_CAPTURE_LINES];
        *place = *line;
        place->dropped = dropped;
        dropped = 0;
    }
    pthread_mutex_unlock(&lock);
    if (captured) wake_signal(event);
    return captured;
}

bool log_capture_take(struct log_line *out) {
    if (!atomic_load(&made) || forks != descriptor_forks()) return false;
    pthread_mutex_lock(&lock);
    bool taken = count > 0;
    if (taken) {
        *out = lines[first];
        first = (first + 1) % LOG_CAPTURE_LINES;
        count--;
    }
    pthread_mutex_unlock(&lock);
    return taken;
}
