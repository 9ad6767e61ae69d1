// The log, filtered by PCCL_LOG_LEVEL: TRACE, DEBUG, INFO, NOTICE, WARN, ERR, FATAL or NONE, in any letter case. NOTICE
// is the default: errors, warnings, and events that the operator of a job wants to know. An unknown value is reported
// once, and the default is used. Lines go to standard error, or to the program (log_capture_begin).
// A line that finds no room there is dropped and counted; no call blocks. Control characters in a line become '?'. Any
// thread.
//
// A file names its component before it includes this header, unless it belongs to a peer: #define LOG_COMPONENT
// "master"
#ifndef PCCL_BASE_LOG_H
#define PCCL_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_TRACE, LOG_DEBUG, LOG_INFO, LOG_NOTICE, LOG_WARN, LOG_ERR, LOG_FATAL, LOG_NONE };

// For lines that others can cause: at most `lines` of them in `seconds`. The first line after that says how many were
// left out. Guarded by the caller.
struct log_limit {
    uint32_t lines, seconds;
    uint32_t written, left_out; // left_out: not yet told
    int64_t since_ns;
};

int log_enabled(enum log_level level);
// Sets the least level that is written, unless PCCL_LOG_LEVEL names one.
void log_prefer(enum log_level level);
void log_write(enum log_level level, const char *component, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void log_write_limited(struct log_limit *limit, enum log_level level, const char *component, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// ---- lines for a program that has a log of its own ----
// The library's threads only copy a line into a bounded queue. The program's thread waits for the descriptor, takes the
// lines and writes them where it likes, for as long as that may take.

enum { LOG_CAPTURE_LINES = 512, LOG_COMPONENT_BYTES = 16, LOG_TEXT_BYTES = 960 };

struct log_line {
    int64_t time_ns;  // since 1970
    int level;        // enum log_level
    uint32_t dropped; // lines before this one that found the queue full
    char component[LOG_COMPONENT_BYTES];
    char text[LOG_TEXT_BYTES];
};

// Begins to queue lines, or goes on with it. Returns a descriptor that polls readable when there are some, or -errno.
// The descriptor is closed only in a forked child, which writes to standard error again.
int log_capture_begin(void);
// Lines go to standard error again. Those that are queued stay to be taken.
void log_capture_end(void);
// Takes the oldest line. False: there is none.
bool log_capture_take(struct log_line *out);
// Writes a captured line to standard error.
void log_write_captured(const struct log_line *line);
// Replaces control characters, which a terminal would interpret.
void log_clean(char *text, size_t length);

#ifndef LOG_COMPONENT
#define LOG_COMPONENT "peer"
#endif

#define LOG(level, ...) \
    do { \
        if (log_enabled(level)) log_write(level, LOG_COMPONENT, __VA_ARGS__); \
    } while (0)

#define LOG_LIMITED(limit, level, ...) \
    do { \
        if (log_enabled(level)) log_write_limited(limit, level, LOG_COMPONENT, __VA_ARGS__); \
    } while (0)

#endif
