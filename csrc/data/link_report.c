#include "data/link_report.h"

#include "base/platform.h"
#include "data/core.h"
#include "data/op_peer.h"
#include "link/connection.h"
#include "data/same_host.h"
#include "data/telemetry.h"

// The connections to a member, held so that the kernel can be asked without the lock.
struct held {
    int64_t since_ns; // of the report to the master that is being collected; 0: it says nothing of the rate
    uint32_t count;
    struct {
        struct transport *stream;
        uint64_t told; // bytes acknowledged as of the last report
        bool bulk;
    } lanes[WIRE_MAX_LANES + 1];
};

static void hold(const struct engine *engine, struct neighbour *peer, struct held *held, struct link_report *out) {
    engine_assert_locked(engine);
    for (uint32_t i = 0; i < peer->lane_end; i++) {
        const struct lane *lane = peer->lanes[i];
        if (lane == NULL) continue;
        bool bulk = lane_is_for_bulk(lane);
        out->lanes += i > 0;
        held->lanes[held->count].stream = transport_hold(lane->stream);
        held->lanes[held->count].told = lane->told.gauge.acked;
        held->lanes[held->count++].bulk = bulk;
    }
    out->connected = peer->lanes[0] != NULL;
    out->by_memory = neighbour_is_by_memory(peer);
    out->in_use = out->by_memory ? 0 : neighbour_lanes_in_use(peer);
    out->reason = out->by_memory ? PACE_MEMORY : neighbour_lanes_reason(peer);
    out->bytes_per_s = peer->stats.bytes_per_s;
    out->limit_bytes_per_s = peer->rate.throttle.rate * 1e9;
    // Between ops the last report to the master says it.
    held->since_ns = engine->call_table.live > 0 || out->bytes_per_s == 0 ? engine->op_stats.since_ns : 0;
}

static void add(struct gauge *sums, const struct gauge *gauge) {
    bool shorter = gauge->round_trip_us > 0 && gauge->round_trip_us < sums->round_trip_us;
    if (sums->round_trip_us == 0 || shorter) sums->round_trip_us = gauge->round_trip_us;
    sums->acked += gauge->acked;
    sums->busy_us += gauge->busy_us;
    sums->window_us += gauge->window_us;
    sums->buffer_us += gauge->buffer_us;
    sums->segments += gauge->segments;
    sums->retransmits += gauge->retransmits;
}

// Asks the kernel, and lets go.
static void read_held(const struct held *held, struct link_report *out) {
    uint64_t smoothed_us = 0, told = 0;
    uint32_t bulk = 0;
    for (uint32_t i = 0; i < held->count; i++) {
        struct gauge gauge = transport_gauge(held->lanes[i].stream);
        add(&out->sums, &gauge);
        told += held->lanes[i].told;
        bulk += held->lanes[i].bulk;
        smoothed_us += held->lanes[i].bulk ? gauge.smoothed_us : 0;
        if (out->congestion[0] == 0 && (held->lanes[i].bulk || i + 1 == held->count))
            transport_congestion(held->lanes[i].stream, out->congestion, sizeof out->congestion);
        transport_release(held->lanes[i].stream);
    }
    int64_t span_ns = platform_now_ns() - held->since_ns;
    if (held->since_ns != 0 && span_ns >= TELEMETRY_RATE_MS * MS_NS && out->sums.acked >= told)
        out->bytes_per_s = (double)(out->sums.acked - told) * 1e9 / (double)span_ns;
    out->smoothed_us = bulk == 0 ? 0 : (uint32_t)(smoothed_us / bulk);
    out->far = out->sums.round_trip_us >= PACE_FAR_US;
}

static uint32_t rank_of(const struct epoch_ring *ring, uint32_t place) {
    uint32_t rank = 0;
    for (uint32_t i = 0; i < ring->count; i++) rank += ring->members[i].join_number < ring->members[place].join_number;
    return rank;
}

size_t engine_report_links(struct engine *engine, struct link_report *out, size_t capacity) {
    engine_lock(engine);
    // The program may know of an epoch that the thread is about to enter.
    const struct epoch *epoch = epoch_get(engine->pending != NULL ? engine->pending : engine->call_table.now);
    engine_unlock(engine);
    const struct epoch_ring *ring = &epoch->ring;
    size_t count = 0;
    for (uint32_t i = 0; i < ring->count; i++) {
        if (i == ring->rank) continue;
        if (count++ >= capacity) continue;
        struct link_report *report = &out[count - 1];
        struct held held = {.count = 0};
        *report = (struct link_report){.member = ring->members[i], .rank = rank_of(ring, i), .reason = PACE_DIRECT};
        engine_lock(engine);
        struct neighbour *peer = neighbour_find(engine->lanes, &ring->members[i].id);
        if (peer != NULL && !peer->dropped) hold(engine, peer, &held, report);
        engine_unlock(engine);
        read_held(&held, report);
    }
    epoch_put(epoch);
    return count;
}
