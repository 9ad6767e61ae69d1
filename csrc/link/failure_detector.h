// Failure detector of a link: finds links that are silent though both processes live. The cause may be a black hole in
// one direction, a thread that hangs, or a reader that does not read.
//
// A lane is checked FAILURE_DETECTOR_CHECKS times in the limit. One that has sent nothing since the last check sends a
// heartbeat, so one of which nothing was heard for the whole limit is dead. What was handed to the kernel has to be
// acknowledged at some pace too: the bytes under way at one check, or DRAIN_BYTES if that is less, within the limit.
// net/arrival says how far usual pauses stretch the limit. A long pause is given twice its length from then on, until
// it has faded. Pure.
#ifndef PCCL_LINK_FAILURE_DETECTOR_H
#define PCCL_LINK_FAILURE_DETECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "net/arrival.h"
#include "net/socket.h"

enum { FAILURE_DETECTOR_CHECKS = 4 };

// State of the detector for a lane. All 0 at the beginning.
struct failure_detector {
    bool heard, spoke;       // since the last check
    bool patient;            // the way lives, as another link shows: this one alone may be silent for long
    struct arrival arrivals; // as the checks saw them
    int64_t pause_ns;        // the longest of late
    int64_t taken_ns;        // when enough bytes had been taken
    int64_t parked_ns;       // since when it waits for an epoch; 0: it does not
    uint64_t sent, goal;     // bytes handed to the kernel; of them to be acknowledged next
};

// Excuses the peer's silence after this process was stopped: what arrived meanwhile is still unread.
void failure_detector_excuse(struct failure_detector *detector, int64_t now_ns);
// A check. `parked`: the lane is not read, by our own choice. Why the link is dead, or NULL.
const char *failure_detector_check(struct failure_detector *detector, bool parked, const struct gauge *gauge,
                                   int64_t now_ns, int64_t limit_ns);

#endif
