#define _GNU_SOURCE
#include "link/rate.h"

#include <string.h>

#include "base/log.h"
#include "base/platform.h"
#include "link/connection.h"
#include "link/neighbour.h"

void rate_look(struct lane *lane, int64_t now_ns) {
    struct gauge gauge = transport_gauge(lane->stream);
    pace_note(&lane->pace, &gauge, now_ns);
    uint32_t unsent = pace_unsent(&lane->pace),
             differs = unsent > lane->unsent ? unsent - lane->unsent : lane->unsent - unsent;
    if (differs <= lane->unsent / 4) return;
    transport_limit_unsent(lane->stream, unsent);
    lane->unsent = unsent;
}

// Sets how fast the lanes of a neighbour may send together. Several members of a site share its lines, and a burst of
// one is lost where those of another fill the queue. Thread.
static void limit(struct neighbour *peer, const struct pace_total *total) {
    bool smooth = pace_is_smooth(&peer->rate.lanes, total) || !peer->rate.alone;
    peer->rate.bucket.rate = throttle_limit(&peer->rate.throttle, total, smooth);
    if (!total->models) return;
    // BBR has the kernel pace each lane in any case. Without a limit of its own, each takes what it once sent alone for
    // its rate, and all together overflow the queue.
    for (uint32_t i = 1; i < peer->lane_end; i++) {
        struct lane *lane = peer->lanes[i];
        if (lane == NULL || !lane_is_for_bulk(lane)) continue;
        uint32_t share = throttle_share(&peer->rate.throttle, total, lane->pace.gauge.window);
        uint32_t most = share == 0 ? INT32_MAX : share,
                 differs = most > lane->paced ? most - lane->paced : lane->paced - most;
        if (differs <= lane->paced / 64) continue;
        transport_pace(lane->stream, most);
        lane->paced = most;
    }
}

bool rate_must_wait(const struct lane *lane) {
    struct bucket *bucket = &lane->peer->rate.bucket;
    if (lane->index == 0 || bucket_has_room(bucket, platform_now_ns())) return false;
    if (lane->worker != NULL) worker_wake(lane->all->workers, NULL); // the owner's thread looks when it has filled
    return true;
}

static bool models(const struct lane *lane) {
    char control[16];
    return transport_congestion(lane->stream, control, sizeof control) && strncmp(control, "bbr", 3) == 0;
}

void rate_tune(struct lane *lane) {
    int64_t now_ns = platform_now_ns();
    struct neighbour *peer = lane->peer;
    if (!pace_is_due(&lane->pace, now_ns)) return;
    lanes_lock(lane->all);
    rate_look(lane, now_ns);
    struct pace_total total = {
        .models = models(lane), .pauses = !lane->all->busy, .coming_us = stats_latest_queue_us(&peer->stats, now_ns)};
    uint32_t available = 0;
    for (uint32_t i = 1; i < peer->lane_end; i++) {
        struct lane *other = peer->lanes[i];
        if (other == NULL || !other->polled) continue;
        available = i;
        if (!lane_is_for_bulk(other)) continue;
        if (pace_is_due(&other->pace, now_ns)) rate_look(other, now_ns);
        pace_total_add(&total, &other->pace);
    }
    // A lane that waits for the bucket has something to send, though the kernel has nothing of it.
    if (peer->rate.bucket.empty_ns != 0 && now_ns - peer->rate.bucket.empty_ns < PACE_TICK_MS * MS_NS) total.waiting++;
    bool tuned = available > 0 && !lane->all->fixed;
    bool changed = tuned && pace_lanes_step(&peer->rate.lanes, &total, available, now_ns);
    if (tuned)
        throttle_step(&peer->rate.throttle, &total, peer->rate.alone && pace_is_wide(&peer->rate.lanes, &total),
                      now_ns);
    limit(peer, &total);
    if (changed) neighbour_schedule(peer);
    struct peer_label label = neighbour_label(peer);
    lanes_unlock(lane->all);
    if (changed) LOG(LOG_DEBUG, "%u of %u lanes to %s are in use", peer->rate.lanes.in_use, available, label.chars);
}

uint32_t rate_lanes_in_use(const struct neighbour *peer) {
    uint32_t count = 0;
    for (uint32_t i = 1; i < peer->lane_end; i++) {
        const struct lane *lane = peer->lanes[i];
        count += lane != NULL && lane_is_for_bulk(lane);
    }
    return count;
}

enum pace_reason rate_reason(const struct neighbour *peer) {
    if (peer->lanes[1] == NULL) return PACE_DIRECT;
    if (peer->all->fixed) return PACE_FIXED;
    if (peer->rate.throttle.rate > 0) return PACE_FULL;
    bool far = peer->lanes[0] != NULL && peer->lanes[0]->pace.far;
    return far && peer->rate.lanes.in_use == 0 ? PACE_BEGINS : peer->rate.lanes.reason; // no bulk has gone there
}

double rate_speed(struct neighbour *peer) {
    int64_t now_ns = platform_now_ns();
    if (now_ns - peer->rate.speed_ns < PACE_TICK_MS * MS_NS) return peer->rate.speed;
    double sum = 0;
    for (uint32_t i = 0; i < peer->lane_end; i++) {
        struct lane *lane = peer->lanes[i];
        if (lane == NULL) continue;
        if (pace_is_due(&lane->pace, now_ns)) rate_look(lane, now_ns);
        sum += lane->pace.speed;
    }
    peer->rate.speed = pace_mean(peer->rate.speed, sum);
    peer->rate.speed_ns = now_ns;
    return peer->rate.speed;
}
