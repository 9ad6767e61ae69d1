// Links that are silent though both processes live: a black hole in one direction, a thread that hangs, a reader that
// does not read.
//
// Time is counted in checks, CHECKS of them in the limit. A lane that has sent nothing since the last check says a
// heartbeat, so one that nothing was heard of for the whole limit is dead. What was handed to the kernel has to be
// acknowledged at some pace too: the bytes under way at one check, or DRAIN_BYTES where that is less, within the limit.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "data/engine_private.h"

enum {
    CHECKS = 4,              // in the limit
    CHECKS_MAX = 3 * CHECKS, // for a link that often pauses
    WORST_FACTOR = 2,        // a pause this many times as long as any of late is a death
    WORST_LIVES = 64,        // checks after which the worst pause fades by one
    DRAIN_BYTES = 4096,
};

void engine_set_silence(struct engine *engine, int64_t limit_ns) {
    pthread_mutex_lock(&engine->lock);
    engine->silence_ns = limit_ns / CHECKS > 0 ? limit_ns / CHECKS : 1;
    engine_wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

static uint32_t checks_allowed(const struct silence *silence) {
    uint32_t allowed = WORST_FACTOR * silence->worst;
    return allowed < CHECKS ? CHECKS : allowed > CHECKS_MAX ? CHECKS_MAX : allowed;
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

// Direct links: lock held.
static bool is_stuck(struct lane *lane) {
    struct silence *silence = &lane->silence;
    int waiting = 0;
    if (ioctl(lane->fd, SIOCOUTQ, &waiting) != 0) return false;
    uint64_t drained = (uint64_t)waiting < silence->sent ? silence->sent - (uint64_t)waiting : 0;
    if (waiting > 0 && drained < silence->goal) return ++silence->stuck > checks_allowed(silence);
    silence->stuck = 0;
    silence->goal = drained + (waiting < DRAIN_BYTES ? (uint64_t)waiting : DRAIN_BYTES);
    return false;
}

// Direct links: lock held.
static void say_something(struct lane *lane) {
    bool spoke = lane->silence.spoke;
    lane->silence.spoke = false;
    if (spoke || lane->sending != NULL || lane->queue.first != NULL) return;
    struct wire_op nothing = {0};
    struct frame *frame = frame_new(lane->engine, WIRE_LINK_HEARTBEAT, &nothing, 0);
    if (frame == NULL) return;
    lane_push(lane, frame);
    lane_heat(lane);
}

static const char *judge(struct lane *lane) {
    if (lane->receiving != LANE_PARKED) {
        lane->silence.parked = 0;
        if (is_quiet(&lane->silence)) return "silent";
    } else {
        lane->silence.quiet = 0; // unread by our own choice
        if (++lane->silence.parked > CHECKS_MAX) return "its epoch does not come";
    }
    return is_stuck(lane) ? "it takes no bytes" : NULL;
}

void silence_check(struct engine *engine) {
    if (engine->silence_ns == 0) return;
    int64_t now = platform_now_ns();
    if (now < engine->silence_at) return;
    // this process was stopped: what came meanwhile is still unread
    bool late = now > engine->silence_at + engine->silence_ns;
    engine->silence_at = now + engine->silence_ns;
    for (size_t i = 0; i < engine->lane_count; i++) {
        struct lane *lane = engine->lanes[i];
        if (lane->broken) continue;
        pthread_mutex_lock(&engine->lock);
        if (late) lane->silence.quiet = lane->silence.stuck = 0;
        const char *why = judge(lane);
        if (why == NULL) say_something(lane);
        pthread_mutex_unlock(&engine->lock);
        if (why != NULL) lane_break(lane, why, lane->receiving != LANE_PARKED);
    }
}

int silence_timeout_ms(const struct engine *engine, int timeout_ms) {
    if (engine->silence_ns == 0) return timeout_ms;
    int64_t left = (engine->silence_at - platform_now_ns()) / MS_NS + 1;
    int ms = left < 0 ? 0 : (int)left;
    return timeout_ms < 0 || ms < timeout_ms ? ms : timeout_ms;
}
