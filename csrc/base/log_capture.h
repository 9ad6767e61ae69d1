// Log lines for a program that has a log of its own: a bounded queue that its thread empties.
//
// The library's threads only copy a line into the queue. The program's thread waits for the descriptor, takes the lines
// and writes them where it likes, for as long as that may take.
#ifndef PCCL_BASE_LOG_CAPTURE_H
#define PCCL_BASE_LOG_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

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
// Queues a line. False: lines are not queued now.
bool log_capture_put(const struct log_line *line);
// Takes the oldest line. False: there is none.
bool log_capture_take(struct log_line *out);

#endif
