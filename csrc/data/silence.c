#include "data/silence.h"

#include <stddef.h>

#include "base/platform.h"

enum { DRAIN_BYTES = 4096 };

// Whether `since_ns` is too long ago. What a check sees may have come just after the check before.
static bool is_over(int64_t since_ns, int64_t wait_ns, int64_t now_ns, int64_t limit_ns) {
    return now_ns - since_ns > wait_ns + limit_ns / SILENCE_CHECKS;
}

static bool is_stuck(struct silence *silence, uint64_t queued, int64_t now_ns, int64_t limit_ns) {
    uint64_t drained = queued < silence->sent ? silence->sent - queued : 0;
    if (queued > 0 && drained < silence->goal)
        return is_over(silence->taken_ns, arrival_wait_ns(&silence->arrivals, limit_ns), now_ns, limit_ns);
    silence->taken_ns = now_ns;
    silence->goal = drained + (queued < DRAIN_BYTES ? queued : DRAIN_BYTES);
    return false;
}

void silence_excuse(struct silence *silence, int64_t now_ns) { silence->arrivals.at_ns = silence->taken_ns = now_ns; }

const char *silence_check(struct silence *silence, bool parked, const struct gauge *gauge, int64_t now_ns,
                          int64_t limit_ns) {
    struct arrival *arrivals = &silence->arrivals;
    arrivals->round_trip_ns = gauge->round_trip_us * US_NS;
    if (silence->taken_ns == 0) silence_excuse(silence, now_ns); // the first check
    if (parked) {
        if (silence->parked_ns == 0) silence->parked_ns = now_ns;
        arrivals->at_ns = now_ns;
        if (is_over(silence->parked_ns, ARRIVAL_STRETCH * limit_ns, now_ns, limit_ns)) return "its epoch does not come";
    } else {
        silence->parked_ns = 0;
        if (silence->heard) arrival_note(arrivals, now_ns, limit_ns);
        silence->heard = false;
        if (is_over(arrivals->at_ns, arrival_wait_ns(arrivals, limit_ns), now_ns, limit_ns)) return "silent";
    }
    return gauge->tells_queue && is_stuck(silence, gauge->queued, now_ns, limit_ns) ? "it takes no bytes" : NULL;
}
