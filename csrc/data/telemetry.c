#include "data/telemetry.h"

#include <stdio.h>
#include <string.h>

#include "base/platform.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/algorithm.h"
#include "net/socket.h"

enum {
    TELEMETRY_TELL_MS = 1000, // between two reports; less where the heartbeat limit is short
    TELEMETRY_LOOK_MS = 100,  // between two looks at the links while a large op runs
    TELEMETRY_BEAT_MS = 20,   // between two heartbeats to a far member meanwhile; to a near one, one at every look
    TELEMETRY_KEEP_MS = 1000, // for so long after a large op, the windows of its lanes are kept
    TELEMETRY_RATE_MS = 250,  // of ops, for the rate of a link; of a pause that spoils it
    TELEMETRY_BEAT_PEERS = 8, // who gets heartbeats: the neighbours in the ring, and those that follow
};

static uint64_t microseconds(int64_t ns) { return ns <= 0 ? 0 : (uint64_t)(ns / US_NS); }

static uint64_t bounded(uint64_t number) { return number < WIRE_MOST_SEEN ? number : WIRE_MOST_SEEN; }

// The other members, by a number from 1 on: the neighbours in the ring first. NULL: it is no member any more.
static struct neighbour *other_member(const struct engine *engine, uint32_t number) {
    const struct epoch_ring *ring = &engine->call_table.now->ring;
    uint32_t step = number == 1 ? 1 : number == 2 ? ring->count - 1 : number - 1;
    struct op_member *member = engine->call_table.members[(ring->rank + step) % ring->count];
    return member == NULL ? NULL : neighbour_of(member);
}

// ---- looking ----
// Sends heartbeats to far members, and with `near` to near ones too. Bytes that wait on a path delay the heartbeats on
// it, so these tell where bytes wait. Returns true if there are far members.
static bool say_beats(struct engine *engine, bool near) {
    bool far = false;
    engine_lock(engine);
    for (uint32_t i = 1; i < engine->call_table.now->ring.count && i <= TELEMETRY_BEAT_PEERS; i++) {
        struct neighbour *peer = other_member(engine, i);
        struct lane *lane = peer == NULL ? NULL : peer->lanes[0];
        if (lane == NULL || !lane->polled || lane->broken) continue;
        far |= lane->pace.far;
        if ((near || lane->pace.far) && lane_is_quiet(lane)) lane_beat(lane);
    }
    engine_unlock(engine);
    return far;
}

// Keeps the windows of lanes to far members: the kernel resets the window of a connection that sends nothing for longer
// than its time-out. A lane that has carried bulk, and may carry more, sends a heartbeat when it was quiet between two
// looks: within an op, and from one op to the next. It need not have been measured by the rate control, because
// bulk that is gone within PACE_TICK_MS of a reading is not measured.
static void keep_windows(struct engine *engine) {
    struct lanes *all = engine->lanes;
    engine_lock(engine);
    for (size_t i = 0; i < all->count; i++) {
        struct lane *lane = all->list[i];
        bool quiet = lane->detector.sent == lane->looked_sent && lane_is_quiet(lane);
        lane->looked_sent = lane->detector.sent;
        if (quiet && lane->carried && lane->pace.far && lane->index > 0 && !lane->broken && lane_is_for_bulk(lane))
            lane_beat(lane);
    }
    engine_unlock(engine);
}

static bool is_seen(const struct lane *lane) {
    return !lane->broken && op_peer_of(lane->peer)->member.rank != UINT32_MAX;
}

static bool has_sent(const struct lane *lane) { return lane->detector.sent != lane->reported.sent; }

// Reads what the kernel says of the lanes that have sent something since the last report. Others may take the lock
// meanwhile: there can be many lanes, and each takes a call of the system.
static void read_gauges(struct engine *engine) {
    struct lanes *all = engine->lanes;
    engine_lock(engine); // of the direct links
    for (size_t i = 0; i < all->count; i++) {
        struct lane *lane = all->list[i];
        lane->read.fresh = is_seen(lane) && has_sent(lane);
        lane->read.sent = lane->detector.sent;
        lane->read.holds = lane->sending != NULL;
    }
    engine_unlock(engine);
    for (size_t i = 0; i < all->count; i++)
        if (all->list[i]->read.fresh) all->list[i]->read.gauge = transport_gauge(all->list[i]->stream);
}

static void look(struct engine *engine) {
    struct lanes *all = engine->lanes;
    read_gauges(engine);
    for (size_t i = 0; i < all->count; i++) {
        const struct lane *lane = all->list[i];
        struct link_stats *stats = &lane->peer->stats;
        if (!lane->read.fresh) continue;
        stats->sampled = true;
        stats->backlogs |= lane->read.holds || lane->read.gauge.waiting > 0;
        if (lane->read.gauge.smoothed_us > stats->round_trip_us) stats->round_trip_us = lane->read.gauge.smoothed_us;
        stats->segments += lane->read.gauge.segments - lane->reported.gauge.segments;
        stats->retransmits += lane->read.gauge.retransmits - lane->reported.gauge.retransmits;
    }
    engine_lock(engine); // of the list
    for (struct neighbour *peer = all->neighbours; peer != NULL; peer = peer->next) {
        struct link_stats *stats = &peer->stats;
        stats->samples += stats->sampled;
        stats->backlogged += stats->backlogs;
        if (stats->backlogs) stats->delay_us += stats->round_trip_us;
        if (stats->sampled) stats_sent(stats, stats->segments, stats->retransmits);
        stats->sampled = stats->backlogs = false;
        stats->round_trip_us = 0;
        stats->segments = stats->retransmits = 0;
    }
    engine_unlock(engine);
}

// ---- telling ----
// Adds what the kernel counted for a lane since the last report. Several lanes work at the same time, and not all of
// them all the time: the busiest one tells for how long the neighbour was sent to.
static void add_lane(struct wire_seen *seen, struct lane *lane) {
    const struct gauge *now = &lane->read.gauge, *before = &lane->reported.gauge;
    uint64_t busy_us = now->busy_us - before->busy_us;
    seen->acked += now->acked - before->acked;
    if (busy_us > seen->busy_us) {
        seen->busy_us = busy_us;
        seen->window_us = now->window_us - before->window_us;
    }
    seen->segments += now->segments - before->segments;
    seen->retransmits += now->retransmits - before->retransmits;
    if (seen->round_trip_us == 0 || now->round_trip_us < seen->round_trip_us) seen->round_trip_us = now->round_trip_us;
    lane->reported.gauge = *now;
    lane->reported.sent = lane->read.sent;
    lane->read.fresh = false;
}

static void add_lanes(struct neighbour *peer, struct wire_seen *seen) {
    for (uint32_t i = 0; i < peer->lane_end; i++) {
        struct lane *lane = peer->lanes[i];
        if (lane != NULL && lane->read.fresh) add_lane(seen, lane);
    }
}

// A report in which no op ran, or whose ops had ended long before it, would tell of the pause.
static void note_rate(struct link_stats *stats, const struct op_stats *t, uint64_t acked, int64_t now_ns) {
    int64_t end_ns = t->live > 0 ? now_ns : t->moved_ns, span_ns = end_ns - t->since_ns;
    bool ran = t->live > 0 || t->ops > 0, lasted = now_ns - end_ns < TELEMETRY_RATE_MS * MS_NS;
    if (ran && span_ns > 0 && (lasted || stats->bytes_per_s == 0))
        stats->bytes_per_s = (double)acked * 1e9 / (double)span_ns;
}

// Fills in the report for a member. If a report cannot hold all members, the statistics of the rest restart as well.
static void see(const struct engine *engine, struct neighbour *peer, int64_t now_ns, struct wire_telemetry *out) {
    engine_assert_locked(engine);
    struct link_stats *stats = &peer->stats;
    bool by_memory = neighbour_is_by_memory(peer);
    struct wire_seen seen = {
        .samples = stats->samples,
        .backlogged = stats->backlogged,
        .delay_us = bounded(stats->delay_us),
        .entries = stats->entries,
        .late_us = bounded(stats->late_ns / US_NS),
        .early_us = bounded(stats->early_ns / US_NS),
        .queue_us = bounded(stats_queue_us(stats)),
        .awaited = stats->awaited,
        .lanes = by_memory ? 0 : (uint16_t)neighbour_lanes_in_use(peer),
        .reason = (uint8_t)(by_memory ? PACE_MEMORY : neighbour_lanes_reason(peer)),
    };
    add_lanes(peer, &seen);
    note_rate(stats, &engine->op_stats, seen.acked, now_ns);
    seen.retransmits = stats_lost(stats, seen.segments, seen.retransmits);
    stats->samples = stats->backlogged = stats->delay_us = stats->entries = stats->late_ns = stats->early_ns = 0;
    stats->awaited = 0;
    bool tells = seen.acked > 0 || seen.samples > 0 || seen.entries > 0 || seen.awaited > 0 || seen.queue_us > 0;
    if (out->count == WIRE_MAX_SEEN || !tells) return;
    seen.acked = bounded(seen.acked);
    seen.busy_us = bounded(seen.busy_us);
    seen.window_us = bounded(seen.window_us);
    out->others[out->count].id = peer->id;
    out->others[out->count++].seen = seen;
}

static void note_live(struct call_table *call_table, struct op *op) {
    struct op_stats *t = &((struct engine *)call_table->driver.context)->op_stats;
    if (op->phase == OP_ENDED) return;
    bool begins = op->phase == OP_RUNNING && !op->frozen && op->team->count > 1; // and may wait for others
    for (uint32_t place = 0; begins && place < op->team->count; place++)
        if (algorithm_misses(op, place)) algorithm_peer(op, place)->stats.awaited++;
    if (op->parent != NULL) return;
    t->live++;
    if (t->oldest_ns == 0 || op->posted_ns < t->oldest_ns) t->oldest_ns = op->posted_ns;
}

static void tell(struct engine *engine, int64_t now_ns) {
    struct op_stats *t = &engine->op_stats;
    const struct epoch_ring *ring = &engine->call_table.now->ring;
    int64_t processor_ns = platform_thread_ns();
    struct wire_telemetry out = {.count = 0};
    read_gauges(engine);
    engine_lock(engine);
    t->live = 0;
    t->oldest_ns = 0;
    call_table_for_each(&engine->call_table, note_live);
    out.ops = (struct wire_ops_seen){
        .span_us = bounded(microseconds(now_ns - t->since_ns)),
        .ops = t->ops,
        .op_us = bounded(t->op_us),
        .processor_us = bounded(microseconds(processor_ns - t->processor_ns)),
        .live = t->live,
        .oldest_us = t->live == 0 ? 0 : bounded(microseconds(now_ns - t->oldest_ns)),
        .still_us = bounded(microseconds(now_ns - t->moved_ns)),
        .epoch = engine_header(engine).epoch,
    };
    for (uint32_t i = 1; i < ring->count; i++) {
        struct neighbour *peer = other_member(engine, i);
        if (peer != NULL) see(engine, peer, now_ns, &out);
    }
    bool idle = t->live == 0 && t->ops == 0;
    t->ops = t->op_us = 0;
    t->since_ns = now_ns;
    t->processor_ns = processor_ns;
    if (idle) {
        t->since_ns = 0;
        atomic_store(&t->awake, false);
    }
    if (ring->count > 1 && engine_is_open(engine))
        wire_encode_telemetry(&engine->for_master, engine_header(engine), &out);
    engine_unlock(engine);
    engine_tell(engine);
}

// At most a fifth of the heartbeat limit, which is twice what a link may be silent.
static int64_t pause_ns(const struct engine *engine) {
    int64_t fifth = lanes_silence_limit_ns(engine->lanes) * 2 / 5, most = TELEMETRY_TELL_MS * MS_NS;
    return fifth == 0 || fifth > most ? most : fifth;
}

int telemetry_step(struct engine *engine, int timeout_ms) {
    engine_assert_thread(engine);
    struct op_stats *t = &engine->op_stats;
    if (!atomic_load_explicit(&t->awake, memory_order_relaxed)) return timeout_ms;
    int64_t now_ns = platform_now_ns();
    if (atomic_exchange_explicit(&t->moved, false, memory_order_relaxed) || t->moved_ns == 0) t->moved_ns = now_ns;
    if (t->since_ns == 0) {
        t->since_ns = t->moved_ns = now_ns;
        t->processor_ns = platform_thread_ns();
        t->tells_at = now_ns + pause_ns(engine);
        t->looks_at = now_ns;
    }
    bool runs = engine->running.first != NULL;
    if (runs) t->ran_ns = now_ns;
    bool looks = now_ns - t->ran_ns < TELEMETRY_KEEP_MS * MS_NS;
    bool due = looks && now_ns >= t->looks_at;
    if (runs && (due || now_ns >= t->beats_at)) {
        bool far = say_beats(engine, due);
        t->beats_at = now_ns + (far ? TELEMETRY_BEAT_MS : TELEMETRY_LOOK_MS) * MS_NS;
    }
    if (due) {
        t->looks_at = now_ns + TELEMETRY_LOOK_MS * MS_NS;
        if (runs) look(engine);
        keep_windows(engine);
    }
    if (now_ns >= t->tells_at) {
        t->tells_at = now_ns + pause_ns(engine);
        tell(engine, now_ns);
    }
    int64_t at_ns = t->tells_at;
    if (looks) at_ns = platform_earlier(at_ns, t->looks_at);
    if (runs) at_ns = platform_earlier(at_ns, t->beats_at);
    int wait_ms = platform_wait_ms(now_ns, at_ns);
    return timeout_ms < 0 || wait_ms < timeout_ms ? wait_ms : timeout_ms;
}

// ---- for a program that asks ----
static double seconds(uint64_t us) { return (double)us / 1e6; }

// The connections to a member, held so that the kernel can be asked without the lock.
struct held {
    int64_t since_ns; // of the report to the master that is being collected; 0: it says nothing of the rate
    uint32_t count;
    struct {
        struct transport *stream;
        uint64_t reported; // bytes acknowledged as of the last report
        bool bulk;
    } lanes[WIRE_MAX_LANES + 1];
};

static void tell_reason(struct link_report *out, enum pace_reason reason) {
    snprintf(out->reason, sizeof out->reason, "%s", pace_reason_text(reason));
}

static void hold_lanes(const struct engine *engine, struct neighbour *peer, struct held *held,
                       struct link_report *out) {
    engine_assert_locked(engine);
    for (uint32_t i = 0; i < peer->lane_end; i++) {
        const struct lane *lane = peer->lanes[i];
        if (lane == NULL) continue;
        bool bulk = lane_is_for_bulk(lane);
        out->lanes += i > 0;
        held->lanes[held->count].stream = transport_hold(lane->stream);
        held->lanes[held->count].reported = lane->reported.gauge.acked;
        held->lanes[held->count++].bulk = bulk;
    }
    out->connected = peer->lanes[0] != NULL;
    out->by_memory = neighbour_is_by_memory(peer);
    out->lanes_in_use = out->by_memory ? 0 : neighbour_lanes_in_use(peer);
    tell_reason(out, out->by_memory ? PACE_MEMORY : neighbour_lanes_reason(peer));
    out->bytes_per_second = peer->stats.bytes_per_s;
    out->limit_bytes_per_second = peer->rate.throttle.rate * 1e9;
    // Between ops the last report to the master says it.
    held->since_ns = engine->call_table.live > 0 || out->bytes_per_second == 0 ? engine->op_stats.since_ns : 0;
}

static void add_gauge(struct link_report *out, const struct gauge *gauge) {
    double round_trip_s = seconds(gauge->round_trip_us), least_s = out->shortest_round_trip_s;
    if (least_s == 0 || (round_trip_s > 0 && round_trip_s < least_s)) out->shortest_round_trip_s = round_trip_s;
    out->acked_bytes += (double)gauge->acked;
    out->segments += (double)gauge->segments;
    out->retransmits += (double)gauge->retransmits;
    out->busy_s += seconds(gauge->busy_us);
    out->window_limited_s += seconds(gauge->window_us);
    out->buffer_limited_s += seconds(gauge->buffer_us);
}

static void add_path(struct link_report *out, const struct transport *stream) {
    struct wire_address local, remote;
    struct link_path path = {.connections = 1};
    if (!transport_local_address(stream, &local) || !transport_remote_address(stream, &remote)) return;
    local.port = remote.port = 0;
    socket_address_format(path.local, sizeof path.local, &local);
    socket_address_format(path.remote, sizeof path.remote, &remote);
    uint32_t i = 0;
    while (i < out->path_count &&
           (strcmp(out->paths[i].local, path.local) != 0 || strcmp(out->paths[i].remote, path.remote) != 0))
        i++;
    if (i == LINK_PATHS) return;
    if (i == out->path_count)
        out->paths[out->path_count++] = path;
    else
        out->paths[i].connections++;
    out->relayed |= transport_is_relayed(stream);
}

// Asks the kernel, and lets go.
static void read_held(const struct held *held, struct link_report *out) {
    double reported = 0;
    uint64_t smoothed_us = 0;
    uint32_t bulk = 0;
    for (uint32_t i = 0; i < held->count; i++) {
        struct gauge gauge = transport_gauge(held->lanes[i].stream);
        add_gauge(out, &gauge);
        add_path(out, held->lanes[i].stream);
        reported += (double)held->lanes[i].reported;
        bulk += held->lanes[i].bulk;
        smoothed_us += held->lanes[i].bulk ? gauge.smoothed_us : 0;
        if (out->congestion_control[0] == 0 && (held->lanes[i].bulk || i + 1 == held->count))
            transport_congestion(held->lanes[i].stream, out->congestion_control, sizeof out->congestion_control);
        transport_release(held->lanes[i].stream);
    }
    int64_t span_ns = platform_now_ns() - held->since_ns;
    if (held->since_ns != 0 && span_ns >= TELEMETRY_RATE_MS * MS_NS && out->acked_bytes >= reported)
        out->bytes_per_second = (out->acked_bytes - reported) * 1e9 / (double)span_ns;
    out->round_trip_s = bulk == 0 ? 0 : seconds(smoothed_us / bulk);
    out->far = out->shortest_round_trip_s >= PACE_FAR_US / 1e6;
}

static void describe_member(const struct wire_member *member, struct link_report *out) {
    memcpy(out->uuid.data, member->id.bytes, sizeof out->uuid.data);
    memcpy(out->name, member->name.chars, sizeof out->name);
    socket_address_format(out->address, sizeof out->address, &member->address);
}

size_t telemetry_report_links(struct engine *engine, struct link_report *out, size_t capacity) {
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
        *report = (struct link_report){.rank = epoch_ring_rank(ring, ring->members[i].join_number)};
        describe_member(&ring->members[i], report);
        tell_reason(report, PACE_DIRECT);
        engine_lock(engine);
        struct neighbour *peer = neighbour_find(engine->lanes, &ring->members[i].id);
        if (peer != NULL && !peer->dropped) hold_lanes(engine, peer, &held, report);
        engine_unlock(engine);
        read_held(&held, report);
    }
    epoch_put(epoch);
    return count;
}
