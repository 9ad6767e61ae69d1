#define _GNU_SOURCE
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1024 };

static const char *const names[] = {"TRACE", "DEBUG", "INFO", "WARN", "ERR", "FATAL", "NONE"};
static enum log_level threshold;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_threshold(void) {
    const char *wanted = getenv("PCCL_LOG_LEVEL");
    threshold = wanted == NULL ? LOG_ERR : LOG_NONE;
    for (int i = 0; wanted != NULL && i <= LOG_NONE; i++)
        if (strcmp(wanted, names[i]) == 0) threshold = (enum log_level)i;
}

int log_enabled(enum log_level level) {
    pthread_once(&once, read_threshold);
    return level >= threshold && level < LOG_NONE;
}

void log_write(enum log_level level, const char *format, ...) {
    char line[LINE_BYTES];
    struct timespec now;
    struct tm broken;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &broken);
    size_t at = strftime(line, sizeof line, "%H:%M:%S", &broken);
    at += (size_t)snprintf(line + at, sizeof line - at, ".%03ld pccl %s [%d] ", now.tv_nsec / 1000000, names[level], (int)getpid());
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(line + at, sizeof line - at - 1, format, arguments);
    va_end(arguments);
    if (wrote > 0) at += (size_t)wrote;
    if (at > sizeof line - 2) at = sizeof line - 2;
    line[at++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, at);
    (void)ignored;
}
