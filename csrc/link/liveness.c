#define _GNU_SOURCE
#include "link/liveness.h"

#include "base/log.h"
#include "base/platform.h"
#include "device/device.h"
#include "link/lane.h"
#include "link/rate.h"

// Whether nothing of the frame at hand was sent, because its device has yet to give its bytes.
static bool waits_for_device(const struct lane *lane) {
    const struct frame *frame = lane->sending;
    return frame != NULL && frame->fence != 0 && lane->sent == 0 &&
           device_passed(frame->device, frame->fence) == DEVICE_BUSY;
}

bool liveness_is_quiet(const struct lane *lane) {
    lane_assert_guarded(lane);
    return lane->sending == NULL ? lane->queue.first == NULL : waits_for_device(lane);
}

void liveness_beat(struct lane *lane) {
    lane_assert_guarded(lane);
    struct lanes *all = lane->all;
    struct wire_head head = {
        .link_heartbeat = {.clock_us = (uint64_t)(platform_now_ns() / US_NS), .loaded = all->busy}};
    struct frame *beat = frame_new(&all->frames, WIRE_LINK_HEARTBEAT, &head, 0);
    if (beat == NULL) return;
    if (waits_for_device(lane)) {
        frame_put_back(&lane->queue, lane->sending);
        lane->sending = beat;
    } else {
        lane_push(lane, beat);
    }
    lane_schedule(lane);
}

static void say_something(struct lane *lane) {
    lane_assert_guarded(lane);
    bool spoke = lane->silence.spoke;
    lane->silence.spoke = false;
    if (!spoke && liveness_is_quiet(lane)) liveness_beat(lane);
}

// Returns true if the direct link is heard: the peer lives. With heavy packet loss, one connection alone may be silent
// for long, because its timeout doubles with each retransmission.
static bool is_heard_beside(const struct lane *lane, int64_t limit_ns, int64_t now_ns) {
    const struct lane *direct = lane->peer->lanes[0];
    return lane->pace.far && lane->index > 0 && direct != NULL && !direct->broken &&
           now_ns - direct->silence.arrivals.at_ns < limit_ns;
}

void liveness_check(struct lane *lane, int64_t limit_ns, bool excused) {
    int64_t now_ns = platform_now_ns();
    lanes_lock(lane->all);
    lane->silence.patient = is_heard_beside(lane, limit_ns, now_ns);
    rate_look(lane, now_ns);
    if (excused) silence_excuse(&lane->silence, now_ns);
    bool ahead = lane->receiving == LANE_AHEAD;
    lane->silence.heard |= lane->readable && !ahead; // what is there and unread has been said
    const char *why = silence_check(&lane->silence, ahead, &lane->pace.gauge, now_ns, limit_ns);
    if (why == NULL) say_something(lane);
    lanes_unlock(lane->all);
    if (why == NULL) return;
    LOG(LOG_DEBUG, "link %u: %llu bytes are not acknowledged, %u segments were sent again", lane->index,
        (unsigned long long)lane->pace.gauge.queued, lane->pace.gauge.retransmits);
    lane_break(lane, ahead ? WIRE_LINK_BROKEN : WIRE_LINK_SILENT, why);
}
