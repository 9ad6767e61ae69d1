#include "link/pace.h"

#include "base/platform.h"

enum {
    BUSY_LEAST_US = 4000,    // us of a measurement of a rate, at least: the kernel counts in ticks
    SPAN_MS = 20,            // ms of a measurement of received bytes, at least
    AHEAD_MS = 50,           // ms that a giver may be ahead
    CHUNK_ALIGN = 64,        // bytes; sizes of chunks are multiples
    FRAME_LEAST = 16 << 10,  // bytes of a frame to a far peer, at least
    UNSENT_LEAST = 32 << 10, // bytes that a socket takes ahead, at least
    UNSENT_MOST = 1 << 20,   // bytes that a socket takes ahead, at most
    LANES_FIRST = 6,         // lanes in use at the beginning
    LANES_UNTESTED = 24,     // lanes, above which more have to be faster
    LANES_PART = 8,          // divisor: this part of the lanes in use is added at once
    LANES_CLEAR_PART = 3,    // divisor: likewise if no queue was seen
    PERIOD_TRIPS = 6,        // round trips of a measurement, which lasts for PERIOD_MS at least
    PERIOD_MS = 100,         // ms of a measurement, at least
    RAMP_MS = 60,            // a measurement of one round trip, at least
    RAMP_WINDOW = 96 << 10,  // bytes; as long as windows are smaller, those in use find out by themselves what fits
    WIDE_WINDOW = 4 << 20,   // bytes, of those together that find out the rate by themselves: twice what the way holds
    RETRANSMITS_PART = 100,  // more than one segment of these sent again is much
    STRAINED_MOST = 3,       // measurements with that: filling a link for the first time is one
    LONG_MOST = 3,           // measurements with a long queue: windows that lose a packet become smaller by themselves
    EMPTY_PART = 16,         // divisor of a round trip: a shorter queue counts as none
    SHORT_PART = 4,          // divisor of a round trip: a longer queue shows that the path is full
    LONG_PART = 2,           // divisor of a round trip: a longer queue delays others for nothing
    RESTS = 4,               // measurements after more lanes that brought nothing
    CLEAR_LEAST = 2,         // measurements without any, after which it is as if there had never been one
    CHUNKS_PER_SHARD = 4,    // chunks of one shard of a ring
    CHUNKS_PER_SEGMENT_SHARD = 1, // chunks of one shard of a segment
    FAR_BLOCK = 64 << 10,         // bytes of a block of a weighted all-reduce between distant members
    GRANTED_LEAST = 8 << 20,      // bytes granted by one owner of a shard, at least
    WINDOW_CHUNKS = 2,            // chunks under way among many members; twice as many between two
    // megabytes per second: the rate of a link is that of one connection, and a ring may have many
    RATE_UNKNOWN = 1000, // MB/s of a link that was not measured: one connection, of which a ring may have many
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
    pace->far = gauge->round_trip_us >= PACE_FAR_US;
    if (!pace_is_due(pace, now_ns)) return;
    pace->measured_ns = now_ns;
    pace->speed = 0;
    if (!first && busy_us < BUSY_LEAST_US) return;
    if (!first) pace->speed = (double)(gauge->acked - pace->acked) / ((double)busy_us * 1e3);
    pace->acked = gauge->acked;
    pace->busy_us = gauge->busy_us;
}

static uint32_t within(uint32_t bytes, uint32_t least, uint32_t most) {
    return bytes < least ? least : bytes > most ? most : bytes;
}

size_t pace_frame(const struct pace *pace) {
    if (!pace->far) return PACE_CHUNK_MAX;
    return within(pace->gauge.window / 4, FRAME_LEAST, PACE_CHUNK_MAX) / CHUNK_ALIGN * CHUNK_ALIGN;
}

uint32_t pace_unsent(const struct pace *pace) {
    return pace->far ? within(pace->gauge.window / 4, UNSENT_LEAST, UNSENT_MOST) : 0;
}

// ---- the connections to one neighbour ----
// Faster by this much than in the measurement before: they still find out how fast they can be.
static const double RAMPS = 1.5;
// The windows become larger by this much in a round trip: they do not yet hold all that they could.
static const double GROWS = 1.1;
// More lanes that make them faster by less than this bring nothing.
static const double GAINS = 1.02;

void pace_total_add(struct pace_total *total, const struct pace *pace) {
    const struct gauge *gauge = &pace->gauge;
    if (total->lanes == 0 || gauge->round_trip_us < total->round_trip_us) total->round_trip_us = gauge->round_trip_us;
    total->lanes++;
    total->acked += gauge->acked;
    total->busy_us += gauge->busy_us;
    total->smoothed_us += gauge->smoothed_us;
    total->segments += gauge->segments;
    total->retransmits += gauge->retransmits;
    total->window += gauge->window;
    total->waiting += gauge->waiting;
}

const char *pace_reason_text(enum pace_reason reason) {
    static const char *const texts[PACE_REASONS] = {
        [PACE_NEAR] = "all lanes carry data: the round trip is below 2 ms",
        [PACE_BEGINS] = "the first measurement is not complete",
        [PACE_ENOUGH] = "the lanes did not always have data to send, so more lanes would not help",
        [PACE_RAMPS] = "the lanes are still speeding up, so it is too early to add more",
        [PACE_ADDED] = "lanes were added: they always had data to send, and the path had no queue",
        [PACE_ALL] = "all available lanes carry data, and more would help",
        [PACE_QUEUES] = "the path has a queue, which more lanes would lengthen",
        [PACE_REDUCED] = "lanes were removed: the path has a lasting queue, or one with more than 1 % of the "
                         "segments retransmitted",
        [PACE_FIXED] = "all lanes carry data: the program set their number",
        [PACE_DIRECT] = "no lanes: no large tensors pass between the two members, and the control connection "
                        "carries the rest",
        [PACE_VAIN] = "more lanes were tried and were no faster",
        [PACE_FULL] = "the rate of all lanes together is limited to what the path carries, which keeps queues short",
        [PACE_MEMORY] = "large tensors pass through shared memory, and little through connections",
    };
    return (unsigned)reason < PACE_REASONS ? texts[reason] : "unknown";
}

bool pace_is_smooth(const struct pace_lanes *pace, const struct pace_total *total) {
    return pace->wide || total->lanes > LANES_FIRST;
}

bool pace_is_wide(const struct pace_lanes *pace, const struct pace_total *total) {
    return total->models ? total->window >= WIDE_WINDOW : pace->wide;
}

static uint32_t more(uint32_t lanes, uint32_t part) { return lanes + (lanes + part - 1) / part; }

static uint32_t fewer(uint32_t lanes) { return lanes - (lanes > 1 ? (lanes + 3) / 4 : 0); }

// Returns the number of connections that keeps a queue of half a round trip. Removes at most half of them at a time.
static uint32_t without_queue(uint32_t lanes, uint64_t trip_us, uint64_t queue_us) {
    uint64_t kept = lanes * (trip_us + trip_us / LONG_PART) / (trip_us + queue_us);
    if (kept < lanes / 2) kept = lanes / 2;
    return kept < LANES_FIRST ? LANES_FIRST : (uint32_t)kept;
}

static uint64_t queue_of(const struct pace_total *total, uint64_t coming_us) {
    uint64_t now_us = total->smoothed_us / total->lanes, least_us = total->round_trip_us + coming_us;
    return now_us > least_us ? now_us - least_us : 0;
}

uint64_t pace_queue_us(const struct pace_total *total) { return queue_of(total, total->coming_us); }

static bool is_queue(uint64_t queue_us, uint32_t trip_us) {
    return queue_us > trip_us / SHORT_PART && queue_us > PACE_FAR_US;
}

static void begin(struct pace_lanes *pace, const struct pace_total *total, int64_t now_ns) {
    pace->lanes = total->lanes;
    pace->since_ns = now_ns;
    pace->acked = total->acked;
    pace->busy_us = total->busy_us;
    pace->segments = total->segments;
    pace->retransmits = total->retransmits;
    pace->window = total->window;
    pace->queue_us = pace->samples = 0;
}

// A lane that was lost has taken its sums with it.
static bool goes_on(const struct pace_lanes *since, const struct pace_total *total) {
    bool same = total->lanes == since->lanes, more = !since->ramped && total->lanes > since->lanes;
    return since->lanes > 0 && (same || more) && total->acked >= since->acked && total->busy_us >= since->busy_us &&
           total->segments >= since->segments && total->retransmits >= since->retransmits;
}

// Nobody knows yet how wide the way is: they double with each round trip, until a queue shows, or much is lost. On a
// narrow way the queue is there before the windows of the first ones are large, or when there are twice as many. Where
// losses keep windows small, they do not grow, and whether more lanes help has to be measured.
static bool ramp(struct pace_lanes *pace, const struct pace_total *total, uint64_t window, bool queued, bool lossy,
                 uint32_t available) {
    uint32_t before = pace->in_use;
    bool small = total->window / total->lanes < RAMP_WINDOW;
    bool grows = (double)total->window > GROWS * (double)window;
    if (queued || lossy || (!grows && (small || before == available))) {
        pace->ramped = true;
        pace->filled = queued;
        pace->reason = queued && before >= LANES_FIRST ? PACE_QUEUES : PACE_BEGINS;
        pace->lanes = 0;
        return false;
    }
    pace->reason = small ? PACE_RAMPS : before == available ? PACE_ALL : PACE_ADDED;
    if (small || before == available) return false;
    pace->wide = before > LANES_FIRST;
    pace->in_use = 2 * before < available ? 2 * before : available;
    return true;
}

// Returns whether more of them, or fewer, send more: so many are to be in use.
static uint32_t search(struct pace_lanes *pace, const struct pace_total *total, uint64_t queue_us, bool lossy,
                       double speed, uint32_t available) {
    const struct pace_lanes since = *pace;
    uint32_t before = pace->in_use, trip_us = total->round_trip_us;
    bool queued = is_queue(queue_us, trip_us);
    bool ramps = since.speed == 0 ? total->models : speed > since.speed * RAMPS;
    pace->speed = speed;
    // Other senders may keep a queue, which even the shortest round trip then includes; only the part above it varies.
    bool empty = queue_us <= trip_us / EMPTY_PART;
    pace->clear = empty ? pace->clear + 1 : 0;
    pace->filled = queued || (pace->filled && (pace->clear < CLEAR_LEAST || total->models));
    pace->strained = queued && lossy ? pace->strained + 1 : 0;
    pace->lengthy = queued && queue_us > trip_us / LONG_PART ? pace->lengthy + 1 : 0;
    if (queued) pace->reason = PACE_QUEUES;
    if (!queued && ramps && since.speed != 0) pace->reason = PACE_RAMPS;
    // The first measurement with more lanes still has their beginning in it.
    bool tested = since.tried >= LANES_UNTESTED && since.tried_lanes < since.lanes,
         settles = tested && since.speed == 0;
    bool vain = tested && !settles && speed < since.tried_speed * GAINS;
    uint32_t in_use = before;
    if (!settles) pace->tried = 0;
    if (since.rests > 0) pace->rests--;
    if (vain) {
        in_use = since.tried;
        pace->rests = RESTS;
        pace->reason = PACE_VAIN;
    } else if (!queued && !ramps && since.rests > 0) {
        pace->reason = PACE_VAIN;
    } else if (!queued && !ramps && !settles) {
        pace->reason = before == available ? PACE_ALL : PACE_ADDED;
        pace->tried = before;
        pace->tried_lanes = since.lanes;
        pace->tried_speed = speed;
        bool carefully = pace->filled || lossy || !empty;
        in_use = more(before, !carefully ? 1 : empty && !total->models ? LANES_CLEAR_PART : LANES_PART);
    } else if (pace->strained == STRAINED_MOST) {
        in_use = fewer(before);
        pace->strained = 0;
    } else if (pace->lengthy >= LONG_MOST && before > LANES_FIRST) {
        in_use = without_queue(before, trip_us, queue_us);
        pace->lengthy = 0;
    }
    if (in_use < before && !vain) {
        pace->reason = PACE_REDUCED;
        pace->tried = 0;
    }
    return in_use < available ? in_use : available;
}

bool pace_lanes_step(struct pace_lanes *pace, const struct pace_total *total, uint32_t available, int64_t now_ns) {
    uint32_t before = pace->in_use, trip_us = total->round_trip_us;
    if (trip_us < PACE_FAR_US) {
        *pace = (struct pace_lanes){0};
        return before != 0;
    }
    if (before == 0) {
        pace->reason = PACE_BEGINS;
        pace->ramped = total->models;
    }
    bool begins = pace->reason == PACE_BEGINS || !pace->ramped;
    if (begins && pace->in_use < LANES_FIRST) pace->in_use = available < LANES_FIRST ? available : LANES_FIRST;
    if (pace->in_use > available) pace->in_use = available;
    if (total->lanes > 0) {
        pace->queue_us += total->models ? queue_of(total, 0) : pace_queue_us(total);
        pace->samples++;
    }
    const struct pace_lanes since = *pace;
    int64_t spent_ns = now_ns - since.since_ns,
            period_ns = (since.ramped ? PERIOD_TRIPS : 1) * (int64_t)trip_us * US_NS,
            least_ns = (since.ramped ? PERIOD_MS : RAMP_MS) * MS_NS;
    bool measured = goes_on(&since, total), changed = pace->in_use != before;
    if (measured && spent_ns < (period_ns < least_ns ? least_ns : period_ns)) return changed;
    begin(pace, total, now_ns);
    if (!measured) return changed;
    // Connections that sometimes had nothing to send were not the limit.
    int64_t busy_ns = (int64_t)(total->busy_us - since.busy_us) * US_NS;
    if (busy_ns / total->lanes < spent_ns / 4 * 3) {
        if (!total->pauses) pace->reason = PACE_ENOUGH;
        pace->tried = 0; // what they bring now says nothing of then
        return changed;
    }
    uint64_t queue_us = since.queue_us / since.samples, acked = total->acked - since.acked;
    uint64_t segments = total->segments - since.segments, again = total->retransmits - since.retransmits;
    bool queued = is_queue(queue_us, trip_us), lossy = again * RETRANSMITS_PART > segments;
    if (!since.ramped) return ramp(pace, total, since.window, queued, lossy, available) || changed;
    double speed = (double)acked / (double)(busy_ns / total->lanes);
    pace->in_use = search(pace, total, queue_us, lossy, speed, available);
    if (pace->in_use == before) return false;
    pace->lanes = 0; // others are measured from now on
    pace->speed = 0;
    return true;
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

// ---- what is spread ----
uint64_t pace_granted(uint32_t members, uint32_t latency_us, uint32_t megabytes_per_s) {
    uint64_t rate = megabytes_per_s < RATE_UNKNOWN ? RATE_UNKNOWN : megabytes_per_s; // bytes per microsecond
    uint64_t most = PACE_GRANTED_MOST, trips_us = 4 * (uint64_t)latency_us;
    uint64_t wanted = trips_us > most / rate ? most : GRANTED_LEAST + rate * trips_us;
    return (wanted < most ? wanted : most) / (members - 1);
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

uint64_t pace_block(uint64_t shard_elements, size_t element_bytes, uint32_t latency_us) {
    if (2 * (uint64_t)latency_us < PACE_FAR_US) return pace_chunk(shard_elements, element_bytes, PACE_CHUNK_MAX, false);
    return FAR_BLOCK / element_bytes;
}
