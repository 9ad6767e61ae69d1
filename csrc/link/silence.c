#include "link/silence.h"

#include <stddef.h>

#include "base/platform.h"

enum {
    DRAIN_BYTES = 4096, // bytes that a peer has to acknowledge within the limit
    PAUSE_FACTOR = 2,   // times the longest recent pause: a longer one is a death
    PAUSE_LIVES = 64,   // checks after which the longest pause has faded by the time between two checks
};

static void note_heard(struct silence *silence, int64_t now_ns, int64_t limit_ns) {
    int64_t check_ns = limit_ns / SILENCE_CHECKS, pause_ns = now_ns - silence->arrivals.at_ns - check_ns;
    silence->pause_ns = platform_later(pause_ns, platform_later(silence->pause_ns - check_ns / PAUSE_LIVES, 0));
    arrival_note(&silence->arrivals, now_ns, limit_ns);
}

static int64_t wait_ns(const struct silence *silence, int64_t limit_ns) {
    int64_t most = ARRIVAL_STRETCH * limit_ns;
    if (silence->patient) return most;
    int64_t paused = PAUSE_FACTOR * silence->pause_ns;
    return platform_later(arrival_wait_ns(&silence->arrivals, limit_ns), platform_earlier(paused, most));
}

// Returns whether `since_ns` is too long ago. What a check sees may have come just after the check before.
static bool is_over(int64_t since_ns, int64_t wait_ns, int64_t now_ns, int64_t limit_ns) {
    return now_ns - since_ns > wait_ns + limit_ns / SILENCE_CHECKS;
}

static bool is_stuck(struct silence *silence, uint64_t queued, int64_t now_ns, int64_t limit_ns) {
    uint64_t drained = queued < silence->sent ? silence->sent - queued : 0;
    if (queued > 0 && drained < silence->goal)
        return is_over(silence->taken_ns, wait_ns(silence, limit_ns), now_ns, limit_ns);
    silence->taken_ns = now_ns;
    silence->goal = drained + (queued < DRAIN_BYTES ? queued : DRAIN_BYTES);
    return false;
}

void silence_excuse(struct silence *silence, int64_t now_ns) {
    silence->arrivals.at_ns = silence->taken_ns = now_ns;
    if (silence->parked_ns != 0) silence->parked_ns = now_ns;
}

const char *silence_check(struct silence *silence, bool parked, const struct gauge *gauge, int64_t now_ns,
                          int64_t limit_ns) {
    struct arrival *arrivals = &silence->arrivals;
    arrivals->round_trip_ns = gauge->round_trip_us * US_NS;
    if (silence->taken_ns == 0) silence_excuse(silence, now_ns); // the first check
    if (parked) {
        if (silence->parked_ns == 0) silence->parked_ns = now_ns;
        arrivals->at_ns = now_ns;
        if (is_over(silence->parked_ns, ARRIVAL_STRETCH * limit_ns, now_ns, limit_ns))
            return "its next epoch did not come";
    } else {
        silence->parked_ns = 0;
        if (silence->heard) note_heard(silence, now_ns, limit_ns);
        silence->heard = false;
        if (is_over(arrivals->at_ns, wait_ns(silence, limit_ns), now_ns, limit_ns)) return "silent";
    }
    return gauge->tells_queue && is_stuck(silence, gauge->queued, now_ns, limit_ns) ? "it acknowledges no bytes" : NULL;
}
