// Logging to stderr, filtered by PCCL_LOG_LEVEL (TRACE DEBUG INFO WARN ERR FATAL NONE; default ERR; other values act as NONE).
// One line per call, written with a single write. Any thread.
#ifndef PCCL_BASE_LOG_H
#define PCCL_BASE_LOG_H

enum log_level { LOG_TRACE,
                 LOG_DEBUG,
                 LOG_INFO,
                 LOG_WARN,
                 LOG_ERR,
                 LOG_FATAL,
                 LOG_NONE };

int log_enabled(enum log_level level);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define LOG(level, ...) \
    do { \
        if (log_enabled(level)) log_write(level, __VA_ARGS__); \
    } while (0)

#endif
