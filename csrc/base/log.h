// Logging to stderr, filtered by PCCL_LOG_LEVEL: TRACE, DEBUG, INFO, WARN, NOTICE, ERR, FATAL or NONE, in any letter
// case. NOTICE is the default: errors, and what whoever runs a job wants to know of it. An unknown value is told once,
// and the default is used. One line per call, written with a single write; control characters in it become '?'. Any
// thread.
#ifndef PCCL_BASE_LOG_H
#define PCCL_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_TRACE, LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_NOTICE, LOG_ERR, LOG_FATAL, LOG_NONE };

// For lines that others can cause: at most `lines` of them in `seconds`. The first line after that says how many were
// left out. Guarded by the caller.
struct log_limit {
    uint32_t lines, seconds;
    uint32_t written, left_out; // left_out: not yet told
    int64_t since_ns;
};

int log_enabled(enum log_level level);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_write_limited(struct log_limit *limit, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Replaces control characters, which a terminal would obey.
void log_clean(char *text, size_t length);

#define LOG(level, ...) \
    do { \
        if (log_enabled(level)) log_write(level, __VA_ARGS__); \
    } while (0)

#define LOG_LIMITED(limit, level, ...) \
    do { \
        if (log_enabled(level)) log_write_limited(limit, level, __VA_ARGS__); \
    } while (0)

#endif
