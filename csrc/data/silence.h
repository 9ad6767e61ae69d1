// Links that are silent though both processes live: a black hole in one direction, a thread that hangs, a reader that
// does not read.
//
// Time is counted in checks, SILENCE_CHECKS of them in the limit. A lane that has sent nothing since the last check
// says a heartbeat, so one that nothing was heard of for the whole limit is dead. What was handed to the kernel has to
// be acknowledged at some pace too: the bytes under way at one check, or DRAIN_BYTES where that is less, within the
// limit. Pure.
#ifndef PCCL_DATA_SILENCE_H
#define PCCL_DATA_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

enum { SILENCE_CHECKS = 4 };

// How long a lane has been silent, in checks. All 0 at the beginning.
struct silence {
    bool heard, spoke;     // since the last check
    uint32_t quiet, stuck; // checks without a byte heard; without enough bytes taken
    uint32_t worst, age;   // longest pause of late
    uint32_t parked;       // checks for which it has waited for an epoch
    uint64_t sent, goal;   // bytes handed to the kernel; of them to be acknowledged next
};

// This process was stopped: what came meanwhile is still unread.
void silence_excuse(struct silence *silence);
// A check. `parked`: the lane is not read, by our own choice; `queued`: bytes that the kernel has not got rid of, or
// NULL if it does not tell. Why the link is dead, or NULL.
const char *silence_check(struct silence *silence, bool parked, const uint64_t *queued);

#endif
