#include "data/silence.h"

#include <stddef.h>

enum {
    CHECKS_MAX = 3 * SILENCE_CHECKS, // for a link that often pauses
    WORST_FACTOR = 2,                // a pause this many times as long as any of late is a death
    WORST_LIVES = 64,                // checks after which the worst pause fades by one
    DRAIN_BYTES = 4096,
};

static uint32_t checks_allowed(const struct silence *silence) {
    uint32_t allowed = WORST_FACTOR * silence->worst;
    return allowed < SILENCE_CHECKS ? SILENCE_CHECKS : allowed > CHECKS_MAX ? CHECKS_MAX : allowed;
}

static bool is_quiet(struct silence *silence) {
    if (!silence->heard) return ++silence->quiet > checks_allowed(silence);
    silence->heard = false;
    if (silence->quiet > silence->worst)
        silence->worst = silence->quiet;
    else if (++silence->age % WORST_LIVES == 0 && silence->worst > 0)
        silence->worst--;
    silence->quiet = 0;
    return false;
}

static bool is_stuck(struct silence *silence, uint64_t queued) {
    uint64_t drained = queued < silence->sent ? silence->sent - queued : 0;
    if (queued > 0 && drained < silence->goal) return ++silence->stuck > checks_allowed(silence);
    silence->stuck = 0;
    silence->goal = drained + (queued < DRAIN_BYTES ? queued : DRAIN_BYTES);
    return false;
}

void silence_excuse(struct silence *silence) { silence->quiet = silence->stuck = 0; }

const char *silence_check(struct silence *silence, bool parked, const uint64_t *queued) {
    if (!parked) {
        silence->parked = 0;
        if (is_quiet(silence)) return "silent";
    } else {
        silence->quiet = 0;
        if (++silence->parked > CHECKS_MAX) return "its epoch does not come";
    }
    return queued != NULL && is_stuck(silence, *queued) ? "it takes no bytes" : NULL;
}
