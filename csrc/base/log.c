#define _GNU_SOURCE
#define LOG_COMPONENT "config"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/platform.h"

enum { LOG_LINE_BYTES = 1024 }; // with the end of the line

// ---- standard error ----
// Threads must never block: a full pipe, or a terminal stopped by Ctrl-S, costs lines, not time. Other processes share
// the file behind descriptor 2, so its flags stay as they are.

enum { REPORT_BYTES = 128, TIME_BYTES = 23 }; // a line begins with its time

static atomic_uint_least32_t lost_lines; // not reported yet
static atomic_bool cut;                  // a terminal took the beginning of a line only

static bool is_refused(ssize_t wrote) {
    return wrote < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL);
}

// Another open file of the same pipe or terminal, with flags of its own. It is closed at once: a copy that stayed open
// would keep the reader from seeing the end of the pipe.
static ssize_t write_reopened(const char *bytes, size_t length) {
    descriptor_begin();
    int fd = descriptor_end(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (fd >= 0) {
        ssize_t wrote = write(fd, bytes, length);
        int error = errno;
        descriptor_close(fd);
        errno = error;
        return wrote;
    }
    // The pipe or terminal is another user's. Only other writers of it could take the room between these two calls.
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0) return write(STDERR_FILENO, bytes, length);
    errno = EAGAIN;
    return -1;
}

#pragma weak pwritev2 // NULL with musl before 1.2.5

static ssize_t write_now(const char *bytes, size_t length) {
    struct stat file;
    if (fstat(STDERR_FILENO, &file) != 0) return -1;
    if (S_ISSOCK(file.st_mode)) return send(STDERR_FILENO, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (S_ISFIFO(file.st_mode) && pwritev2 != NULL) {
        struct iovec all = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
        ssize_t wrote = pwritev2(STDERR_FILENO, &all, 1, -1, RWF_NOWAIT); // Linux 6.4
        return is_refused(wrote) ? write_reopened(bytes, length) : wrote;
    }
    if (S_ISFIFO(file.st_mode) || (S_ISCHR(file.st_mode) && isatty(STDERR_FILENO)))
        return write_reopened(bytes, length);
    return write(STDERR_FILENO, bytes, length);
}

// Writes one line, of at most LOG_LINE_BYTES, unless there is no room for it now. Counts lines without room, and
// reports their number before the next line that has room. Never blocks, except on a regular file.
static void write_stderr(const char *line, size_t length) {
    char all[REPORT_BYTES + LOG_LINE_BYTES];
    uint_least32_t lost = atomic_exchange(&lost_lines, 0);
    int at = 0;
    if (lost > 0)
        at = snprintf(all, REPORT_BYTES, "%s%.*s pccl WARN [%d] log: dropped %u log lines: stderr was full\n",
                      atomic_exchange(&cut, false) ? "\n" : "", TIME_BYTES, line, (int)getpid(), (unsigned)lost);
    memcpy(all + at, line, length);
    size_t total = (size_t)at + length;
    ssize_t wrote = write_now(all, total);
    if (wrote == (ssize_t)total) return;
    if (wrote > 0) atomic_store(&cut, true);
    atomic_fetch_add(&lost_lines, lost + 1);
}

// ---- a queue for the program ----
static atomic_bool capturing, made;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of what follows; held for the copy of a line
static struct log_line *lines;                           // LOG_CAPTURE_LINES; made once
static uint32_t first, count, dropped;
static int event = -1;
static uint32_t forks; // of the process that captures, see descriptor_forks

// A forked child may find the lock taken, and has no thread that empties the queue.
static bool is_capturing(void) { return atomic_load(&capturing) && forks == descriptor_forks(); }

static int make_queue(void) {
    if (lines == NULL) lines = calloc(LOG_CAPTURE_LINES, sizeof *lines);
    if (lines == NULL) return -ENOMEM;
    if (event < 0) event = wake_open();
    return event;
}

int log_capture_begin(void) {
    if (atomic_load(&made) && forks != descriptor_forks()) return -ECHILD;
    pthread_mutex_lock(&lock);
    int fd = make_queue();
    pthread_mutex_unlock(&lock);
    if (fd < 0) return fd;
    forks = descriptor_forks();
    atomic_store(&made, true);
    atomic_store(&capturing, true);
    return fd;
}

void log_capture_end(void) {
    if (!is_capturing()) return;
    atomic_store(&capturing, false);
    pthread_mutex_lock(&lock); // who found it on has put its line
    pthread_mutex_unlock(&lock);
}

// Queues a line. Returns false if lines are not queued now.
static bool capture(const struct log_line *line) {
    if (!is_capturing()) return false;
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

// ---- lines ----
static const char *const names[] = {"TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "ERR", "FATAL", "NONE"};
static atomic_int threshold = LOG_NOTICE;
static bool chosen; // by the environment
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_threshold(void) {
    const char *wanted = getenv("PCCL_LOG_LEVEL");
    if (wanted == NULL || *wanted == 0) return;
    for (int i = 0; i <= LOG_NONE; i++)
        if (strcasecmp(wanted, names[i]) == 0) {
            threshold = i;
            chosen = true;
            return;
        }
    log_write(LOG_ERR, LOG_COMPONENT,
              "PCCL_LOG_LEVEL=%.64s is not one of TRACE, DEBUG, INFO, NOTICE, WARN, ERR, FATAL and NONE: using the "
              "default, NOTICE",
              wanted);
}

int log_enabled(enum log_level level) {
    pthread_once(&once, read_threshold);
    return (int)level >= atomic_load_explicit(&threshold, memory_order_relaxed) && level < LOG_NONE;
}

void log_prefer(enum log_level level) {
    pthread_once(&once, read_threshold);
    if (!chosen) atomic_store(&threshold, (int)level);
}

void log_clean(char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i], before = i > 0 ? (unsigned char)text[i - 1] : 0;
        bool c1 = byte >= 0x80 && byte < 0xa0 && (before < 0x80 || before == 0xc2); // by itself, or in UTF-8
        if (byte < 0x20 || byte == 0x7f || c1) text[i] = '?';
    }
}

static pthread_once_t local_time_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t local_time_lock = PTHREAD_MUTEX_INITIALIZER;

static void hold_local_time(void) { pthread_mutex_lock(&local_time_lock); }

static void release_local_time(void) { pthread_mutex_unlock(&local_time_lock); }

static void watch_forks(void) { pthread_atfork(hold_local_time, release_local_time, release_local_time); }

// localtime_r; a fork waits for it, since the C library's lock in it, taken in another thread, would stay taken in the
// child.
static void local_time(const time_t *seconds, struct tm *out) {
    pthread_once(&local_time_once, watch_forks);
    hold_local_time();
    localtime_r(seconds, out);
    release_local_time();
}

void log_write_captured(const struct log_line *line) {
    char out[LOG_LINE_BYTES];
    struct tm broken;
    time_t seconds = (time_t)(line->time_ns / SECOND_NS);
    local_time(&seconds, &broken);
    size_t room = sizeof out - 1; // and the end of the line
    size_t at = strftime(out, room, "%Y-%m-%d %H:%M:%S", &broken);
    int wrote = snprintf(out + at, room - at, ".%03d pccl %s [%d] %s: %s", (int)(line->time_ns % SECOND_NS / MS_NS),
                         names[line->level], (int)getpid(), line->component, line->text);
    if (wrote > 0) at = (size_t)wrote < room - at ? at + (size_t)wrote : room - 1;
    out[at++] = '\n';
    write_stderr(out, at);
}

static void write_line(enum log_level level, const char *component, uint32_t left_out, const char *format,
                       va_list arguments) {
    struct log_line line = {.level = (int)level};
    struct timespec now;
    char more[40] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    line.time_ns = now.tv_sec * SECOND_NS + now.tv_nsec;
    snprintf(line.component, sizeof line.component, "%s", component);
    if (left_out > 0) snprintf(more, sizeof more, " (and %u more like this)", left_out);
    vsnprintf(line.text, sizeof line.text - strlen(more), format, arguments);
    log_clean(line.text, strlen(line.text));
    strcat(line.text, more); // NOLINT: the room was left
    if (!capture(&line)) log_write_captured(&line);
}

void log_write(enum log_level level, const char *component, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line(level, component, 0, format, arguments);
    va_end(arguments);
}

void log_write_limited(struct log_limit *limit, enum log_level level, const char *component, const char *format, ...) {
    int64_t now_ns = platform_now_ns();
    if (limit->written == 0 || now_ns >= limit->since_ns + (int64_t)limit->seconds * 1000 * MS_NS) {
        limit->since_ns = now_ns;
        limit->written = 0;
    }
    if (limit->written == limit->lines) {
        limit->left_out++;
        return;
    }
    limit->written++;
    va_list arguments;
    va_start(arguments, format);
    write_line(level, component, limit->left_out, format, arguments);
    va_end(arguments);
    limit->left_out = 0;
}
