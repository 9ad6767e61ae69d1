#include "link/failure_detector.h"

#include <stddef.h>

#include "base/platform.h"

enum {
    DRAIN_BYTES = 4096, // bytes that a peer has to acknowledge within the limit
    PAUSE_FACTOR = 2,   // times the longest recent pause: a longer one is a death
    PAUSE_LIVES = 64,   // checks after which the longest pause has faded by the time between two checks
};

static void note_heard(struct failure_detector *detector, int64_t now_ns, int64_t limit_ns) {
    int64_t check_ns = limit_ns / FAILURE_DETECTOR_CHECKS, pause_ns = now_ns - detector->arrivals.at_ns - check_ns;
    detector->pause_ns = platform_later(pause_ns, platform_later(detector->pause_ns - check_ns / PAUSE_LIVES, 0));
    arrival_note(&detector->arrivals, now_ns, limit_ns);
}

static int64_t wait_ns(const struct failure_detector *detector, int64_t limit_ns) {
    int64_t most = ARRIVAL_STRETCH * limit_ns;
    if (detector->patient) return most;
    int64_t paused = PAUSE_FACTOR * detector->pause_ns;
    return platform_later(arrival_wait_ns(&detector->arrivals, limit_ns), platform_earlier(paused, most));
}

// Returns whether `since_ns` is too long ago. What a check sees may have come just after the check before.
static bool is_over(int64_t since_ns, int64_t wait_ns, int64_t now_ns, int64_t limit_ns) {
    return now_ns - since_ns > wait_ns + limit_ns / FAILURE_DETECTOR_CHECKS;
}

static bool is_stuck(struct failure_detector *detector, uint64_t queued, int64_t now_ns, int64_t limit_ns) {
    uint64_t drained = queued < detector->sent ? detector->sent - queued : 0;
    if (queued > 0 && drained < detector->goal)
        return is_over(detector->taken_ns, wait_ns(detector, limit_ns), now_ns, limit_ns);
    detector->taken_ns = now_ns;
    detector->goal = drained + (queued < DRAIN_BYTES ? queued : DRAIN_BYTES);
    return false;
}

void failure_detector_excuse(struct failure_detector *detector, int64_t now_ns) {
    detector->arrivals.at_ns = detector->taken_ns = now_ns;
    if (detector->parked_ns != 0) detector->parked_ns = now_ns;
}

const char *failure_detector_check(struct failure_detector *detector, bool parked, const struct gauge *gauge,
                                   int64_t now_ns, int64_t limit_ns) {
    struct arrival *arrivals = &detector->arrivals;
    arrivals->round_trip_ns = gauge->round_trip_us * US_NS;
    if (detector->taken_ns == 0) failure_detector_excuse(detector, now_ns); // the first check
    if (parked) {
        if (detector->parked_ns == 0) detector->parked_ns = now_ns;
        arrivals->at_ns = now_ns;
        if (is_over(detector->parked_ns, ARRIVAL_STRETCH * limit_ns, now_ns, limit_ns))
            return "its next epoch did not come";
    } else {
        detector->parked_ns = 0;
        if (detector->heard) note_heard(detector, now_ns, limit_ns);
        detector->heard = false;
        if (is_over(arrivals->at_ns, wait_ns(detector, limit_ns), now_ns, limit_ns)) return "silent";
    }
    return gauge->tells_queue && is_stuck(detector, gauge->queued, now_ns, limit_ns) ? "it acknowledges no bytes"
                                                                                     : NULL;
}
