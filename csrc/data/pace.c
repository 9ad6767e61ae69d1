#include "data/pace.h"

#include "base/platform.h"

enum {
    BUSY_LEAST_US = 4000, // a measurement: the kernel counts in ticks
    SPAN_MS = 20,         // likewise, of what comes
    AHEAD_MS = 50,        // what a giver may always be ahead
    CHUNK_ALIGN = 64,     // bytes
    CHUNKS_PER_SHARD = 4,
    CHUNKS_PER_SEGMENT_SHARD = 1,
    WINDOW_CHUNKS = 2, // among many; twice as many between two
    // megabytes per second: the rate of a link is that of one connection, and a ring may have many
    RATE_UNKNOWN = 1000,
};

double pace_mean(double mean, double newest) {
    if (newest == 0) return mean;
    return mean == 0 ? newest : (mean + newest) / 2;
}

// ---- one link ----
bool pace_is_due(const struct pace *pace, int64_t now_ns) {
    return pace->measured_ns == 0 || now_ns - pace->measured_ns >= PACE_TICK_MS * MS_NS;
}

void pace_note(struct pace *pace, const struct gauge *gauge, int64_t now_ns) {
    uint64_t busy_us = gauge->busy_us - pace->busy_us;
    bool first = pace->busy_us == 0;
    pace->gauge = *gauge;
    if (!pace_is_due(pace, now_ns)) return;
    pace->measured_ns = now_ns;
    pace->speed = 0;
    if (!first && busy_us < BUSY_LEAST_US) return;
    if (!first) pace->speed = (double)(gauge->acked - pace->acked) / ((double)busy_us * 1e3);
    pace->acked = gauge->acked;
    pace->busy_us = gauge->busy_us;
}

// ---- one giver ----
void pace_flow_begin(struct pace_flow *flow, int64_t now_ns) {
    if (flow->since_ns == 0) flow->since_ns = now_ns;
}

void pace_flow_delayed(struct pace_flow *flow, int64_t delay_ns) {
    if (delay_ns <= 0) delay_ns = 1;
    if (flow->delay_ns == 0 || delay_ns < flow->delay_ns) flow->delay_ns = delay_ns;
}

void pace_flow_came(struct pace_flow *flow, uint64_t bytes, int64_t now_ns) {
    flow->came += bytes;
    if (flow->since_ns == 0 || now_ns - flow->since_ns < SPAN_MS * MS_NS) return;
    flow->speed = pace_mean(flow->speed, (double)flow->came / (double)(now_ns - flow->since_ns));
    flow->since_ns = now_ns;
    flow->came = 0;
}

void pace_flow_pause(struct pace_flow *flow) {
    flow->since_ns = 0;
    flow->came = 0;
}

uint64_t pace_flow_window(const struct pace_flow *flow) {
    // Twice what keeps a link of this speed and delay busy, or it could never show that it is faster.
    double wanted = flow->speed * (double)(2 * flow->delay_ns + AHEAD_MS * MS_NS);
    if (wanted <= PACE_FLOW_LEAST) return PACE_FLOW_LEAST;
    return wanted < PACE_FLOW_MOST ? (uint64_t)wanted : PACE_FLOW_MOST;
}

// ---- rings ----
uint64_t pace_window(uint32_t members, uint32_t latency_us, uint32_t megabytes_per_s) {
    uint64_t rate = megabytes_per_s < RATE_UNKNOWN ? RATE_UNKNOWN : megabytes_per_s; // bytes per microsecond
    uint64_t once = rate * latency_us, chunks = WINDOW_CHUNKS * members / (members - 1) * (uint64_t)PACE_CHUNK_MAX;
    return once > (UINT64_MAX - chunks) / members ? UINT64_MAX : chunks + members * once;
}

uint64_t pace_chunk(uint64_t shard_elements, size_t element_bytes, size_t max_bytes, bool segment) {
    uint64_t bytes = shard_elements * element_bytes / (segment ? CHUNKS_PER_SEGMENT_SHARD : CHUNKS_PER_SHARD);
    uint64_t least = segment ? PACE_CHUNK_MAX : PACE_CHUNK_MIN;
    if (bytes < least) bytes = least;
    if (bytes > max_bytes) bytes = max_bytes;
    return bytes / CHUNK_ALIGN * CHUNK_ALIGN / element_bytes;
}
