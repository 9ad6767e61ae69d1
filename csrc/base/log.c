#define _GNU_SOURCE
#define LOG_COMPONENT "config"
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/log_capture.h"
#include "base/log_output.h"
#include "base/platform.h"

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

void log_write_captured(const struct log_line *line) {
    char out[LOG_LINE_BYTES];
    struct tm broken;
    time_t seconds = (time_t)(line->time_ns / SECOND_NS);
    platform_local_time(&seconds, &broken);
    size_t room = sizeof out - 1; // and the end of the line
    size_t at = strftime(out, room, "%Y-%m-%d %H:%M:%S", &broken);
    int wrote = snprintf(out + at, room - at, ".%03d pccl %s [%d] %s: %s", (int)(line->time_ns % SECOND_NS / MS_NS),
                         names[line->level], (int)getpid(), line->component, line->text);
    if (wrote > 0) at = (size_t)wrote < room - at ? at + (size_t)wrote : room - 1;
    out[at++] = '\n';
    log_output(out, at);
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
    if (!log_capture_put(&line)) log_write_captured(&line);
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
