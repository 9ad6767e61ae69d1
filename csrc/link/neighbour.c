// All connections to one member: which there are, how many of them carry bulk, and how fast they send together. The
// rate control drives the pure modules: pace (one connection, and their number) and throttle (the limit, the bucket).
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/platform.h"
#include "link/connection.h"

struct neighbour *neighbour_find(struct lanes *all, const struct wire_id *id) {
    lanes_assert_locked(all);
    struct neighbour *peer = all->neighbours;
    while (peer != NULL && !wire_id_equal(&peer->id, id)) peer = peer->next;
    return peer;
}

struct neighbour *neighbour_get(struct lanes *all, const struct wire_id *id) {
    lanes_assert_locked(all);
    struct neighbour *peer = neighbour_find(all, id);
    if (peer != NULL) {
        peer->dropped = false;
        return peer;
    }
    peer = calloc(1, all->neighbour_bytes);
    if (peer == NULL) {
        all->events->refused(all->context);
        return NULL;
    }
    peer->all = all;
    peer->id = *id;
    peer->next = all->neighbours;
    all->neighbours = peer;
    all->events->state(all->context, peer, NEIGHBOUR_NEW);
    return peer;
}

struct peer_label neighbour_label(const struct neighbour *peer) { return peer_label(&peer->id, &peer->name); }

void neighbour_schedule(struct neighbour *peer) {
    // If workers have the lanes, the direct link has no bulk data, and its thread need not wake for each chunk.
    uint32_t first = peer->lanes[1] != NULL && peer->lanes[1]->worker != NULL ? 1 : 0;
    uint32_t turn = peer->turn++, count = peer->lane_end - first;
    for (uint32_t i = 0; i < count; i++) {
        struct lane *lane = peer->lanes[first + (turn + i) % count];
        if (lane != NULL) lane_schedule(lane);
    }
}

struct lane *neighbour_lane(struct neighbour *peer, uint32_t index) {
    if (index <= WIRE_MAX_LANES && peer->lanes[index] != NULL) return peer->lanes[index];
    uint32_t lanes = 0;
    while (lanes < WIRE_MAX_LANES && peer->lanes[lanes + 1] != NULL) lanes++;
    return lanes == 0 ? peer->lanes[0] : peer->lanes[1 + (index - 1) % lanes];
}

void neighbours_free_dropped(struct lanes *all) {
    lanes_assert_locked(all);
    for (struct neighbour **at = &all->neighbours; *at != NULL;) {
        struct neighbour *peer = *at;
        if (peer->dropped && peer->lane_count == 0 && !all->events->keeps(all->context, peer)) {
            *at = peer->next;
            all->events->state(all->context, peer, NEIGHBOUR_FREED);
            free(peer);
        } else {
            at = &peer->next;
        }
    }
}

// ---- rate control ----
void neighbour_read_gauge(struct lane *lane, int64_t now_ns) {
    lanes_assert_thread(lane->all);
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

static bool models(const struct lane *lane) {
    char control[16];
    return transport_congestion(lane->stream, control, sizeof control) && strncmp(control, "bbr", 3) == 0;
}

void neighbour_tune(struct lane *lane) {
    int64_t now_ns = platform_now_ns();
    struct neighbour *peer = lane->peer;
    if (!pace_is_due(&lane->pace, now_ns)) return;
    lanes_lock(lane->all);
    neighbour_read_gauge(lane, now_ns);
    struct pace_total total = {
        .models = models(lane), .pauses = !lane->all->busy, .coming_us = stats_latest_queue_us(&peer->stats, now_ns)};
    uint32_t available = 0;
    for (uint32_t i = 1; i < peer->lane_end; i++) {
        struct lane *other = peer->lanes[i];
        if (other == NULL || !other->polled) continue;
        available = i;
        if (!lane_is_for_bulk(other)) continue;
        if (pace_is_due(&other->pace, now_ns)) neighbour_read_gauge(other, now_ns);
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

uint32_t neighbour_lanes_in_use(const struct neighbour *peer) {
    uint32_t count = 0;
    for (uint32_t i = 1; i < peer->lane_end; i++) {
        const struct lane *lane = peer->lanes[i];
        count += lane != NULL && lane_is_for_bulk(lane);
    }
    return count;
}

enum pace_reason neighbour_lanes_reason(const struct neighbour *peer) {
    if (peer->lanes[1] == NULL) return PACE_DIRECT;
    if (peer->all->fixed) return PACE_FIXED;
    if (peer->rate.throttle.rate > 0) return PACE_FULL;
    bool far = peer->lanes[0] != NULL && peer->lanes[0]->pace.far;
    return far && peer->rate.lanes.in_use == 0 ? PACE_BEGINS : peer->rate.lanes.reason; // not measured yet
}

double neighbour_speed(struct neighbour *peer) {
    lanes_assert_thread(peer->all);
    int64_t now_ns = platform_now_ns();
    if (now_ns - peer->rate.speed_ns < PACE_TICK_MS * MS_NS) return peer->rate.speed;
    double sum = 0;
    for (uint32_t i = 0; i < peer->lane_end; i++) {
        struct lane *lane = peer->lanes[i];
        if (lane == NULL) continue;
        if (pace_is_due(&lane->pace, now_ns)) neighbour_read_gauge(lane, now_ns);
        sum += lane->pace.speed;
    }
    peer->rate.speed = pace_mean(peer->rate.speed, sum);
    peer->rate.speed_ns = now_ns;
    return peer->rate.speed;
}
