// Standard error, for threads that must never block: a full pipe, or a terminal stopped by Ctrl-S, costs lines, not
// time.
//
// Other processes share the file behind descriptor 2, so its flags stay as they are.
#ifndef PCCL_BASE_LOG_OUTPUT_H
#define PCCL_BASE_LOG_OUTPUT_H

#include <stddef.h>

enum { LOG_LINE_BYTES = 1024 }; // with the end of the line

// Writes one line, of at most LOG_LINE_BYTES, unless there is no room for it now. Counts lines without room, and
// reports their number before the next line that has room. Any thread; never blocks, except on a regular file.
void log_output(const char *line, size_t length);

#endif
