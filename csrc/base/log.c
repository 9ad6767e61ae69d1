#define _GNU_SOURCE
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"

enum { LINE_BYTES = 1024 };

static const char *const names[] = {"TRACE", "DEBUG", "INFO", "WARN", "NOTICE", "ERR", "FATAL", "NONE"};
static enum log_level threshold;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_threshold(void) {
    const char *wanted = getenv("PCCL_LOG_LEVEL");
    threshold = LOG_NOTICE;
    if (wanted == NULL || *wanted == 0) return;
    for (int i = 0; i <= LOG_NONE; i++)
        if (strcasecmp(wanted, names[i]) == 0) {
            threshold = (enum log_level)i;
            return;
        }
    log_write(LOG_ERR,
              "PCCL_LOG_LEVEL=%.64s is not one of TRACE, DEBUG, INFO, WARN, NOTICE, ERR, FATAL and NONE: using the "
              "default, NOTICE",
              wanted);
}

int log_enabled(enum log_level level) {
    pthread_once(&once, read_threshold);
    return level >= threshold && level < LOG_NONE;
}

void log_clean(char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i], before = i > 0 ? (unsigned char)text[i - 1] : 0;
        bool c1 = byte >= 0x80 && byte < 0xa0 && (before < 0x80 || before == 0xc2); // by itself, or in UTF-8
        if (byte < 0x20 || byte == 0x7f || c1) text[i] = '?';
    }
}

static void write_line(enum log_level level, uint32_t left_out, const char *format, va_list arguments) {
    char line[LINE_BYTES], more[40] = "";
    struct timespec now;
    struct tm broken;
    clock_gettime(CLOCK_REALTIME, &now);
    platform_local_time(&now.tv_sec, &broken);
    if (left_out > 0) snprintf(more, sizeof more, " (and %u more like this)", left_out);
    size_t room = sizeof line - 1 - strlen(more); // and the end of the line
    size_t at = strftime(line, room, "%Y-%m-%d %H:%M:%S", &broken);
    at += (size_t)snprintf(line + at, room - at, ".%03ld pccl %s [%d] ", now.tv_nsec / 1000000, names[level],
                           (int)getpid());
    int wrote = vsnprintf(line + at, room - at, format, arguments);
    size_t text = at;
    if (wrote > 0) at = (size_t)wrote < room - at ? at + (size_t)wrote : room - 1;
    log_clean(line + text, at - text);
    memcpy(line + at, more, strlen(more));
    at += strlen(more);
    line[at++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, at);
    (void)ignored;
}

void log_write(enum log_level level, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line(level, 0, format, arguments);
    va_end(arguments);
}

void log_write_limited(struct log_limit *limit, enum log_level level, const char *format, ...) {
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
    write_line(level, limit->left_out, format, arguments);
    va_end(arguments);
    limit->left_out = 0;
}
