#include "link/throttle.h"

#include "base/platform.h"

enum {
    LOOK_LEAST_MS = PACE_TICK_MS, // ms between two looks, at least
    LOOKS = 6,                    // looks per measurement, half a round trip each
    MAXIMUM_OF = 4,               // first measurements of which the largest counts: senders still speed up
    LOW_MOST = 4,                 // measurements in a row far below the line rate, after which the line is slower
    HIGH_MOST = 2,                // measurements in a row far above it, after which the line is faster
    CLEAR_MOST = 2,               // measurements without a queue at the full rate, after which the rate may grow
    CLEAR_LONG = 20,              // measurements without a queue at any rate, after which it may grow
    STUBBORN_MOST = 8,            // measurements with a long queue, after which the queue belongs to others
    REST_MS = 30000,              // ms without a limit after that
    BUCKET_MS = 2,                // ms at the rate: a late wake-up loses nothing
    BUCKET_LEAST = 64000,         // bytes, depth at least
};

static const double QUEUE_TARGET = 0.15; // of a round trip: the queue that the controller keeps
static const double QUEUE_PRESENT = 0.1; // of a round trip: a shorter queue counts as none
static const double QUEUE_LONG = 0.3;    // of a round trip: a longer queue delays others
static const double GAIN = 0.5;          // of the queue error, corrected per round trip
static const double LEAST = 0.8;         // of the line rate: lowest limit
static const double MOST = 1.08;         // of the line rate: highest limit
static const double LINE_GAIN = 0.25;    // weight of a measurement in the mean line rate
static const double OUTLIER = 0.1;       // of the line rate: a measurement that differs by more does not enter the mean
static const double LINE_NARROW = 0.6;   // of the widest rate: below it the queue belongs to others
static const double RATE_USED = 0.93;    // of the limit: a sender that reaches it uses all of it
static const double LINE_GROWTH = 0.02;  // of the line rate: first step of growth, doubled each time
static const double LINE_GROWTH_MOST = 0.25; // of the line rate: largest step
static const double PACING_ROOM = 1.25;      // times cwnd / RTT: windows may double within a round trip
static const double LANE_LEAST = 1e-5;       // bytes per ns that each lane may always send

static double between(double x, double least, double most) { return x < least ? least : x > most ? most : x; }

// Returns the unlimited rate of all lanes together, cwnd / RTT, in bytes per ns.
static double wanted(const struct pace_total *total) {
    return (double)total->window * total->lanes / ((double)total->smoothed_us * 1e3);
}

static int64_t look_ns(const struct pace_total *total) {
    int64_t half_ns = (int64_t)total->round_trip_us * US_NS / 2;
    return half_ns < LOOK_LEAST_MS * MS_NS ? LOOK_LEAST_MS * MS_NS : half_ns;
}

static void begin(struct throttle *t, const struct pace_total *total, int64_t now_ns) {
    t->since_ns = now_ns;
    t->lanes = total->lanes;
    t->acked = total->acked;
    t->busy_us = total->busy_us;
    t->coming_us = total->coming_us;
    t->looks = 0;
    t->sum_us = 0;
    t->idle = false;
}

// A line that is taken for too narrow is worse than one that is taken for too wide, and more often so: what is measured
// while something begins or ends is less than the line carries.
static void learn(struct throttle *t, double speed) {
    bool low = speed<t->line * (1 - OUTLIER), high = speed> t->line * (1 + OUTLIER);
    t->low = low ? t->low + 1 : 0;
    t->high = high ? t->high + 1 : 0;
    bool first = t->learned < MAXIMUM_OF;
    t->learned += first;
    // If not even that passes which they may send, it is the line that carries less.
    if (t->low >= LOW_MOST && speed < RATE_USED * t->rate) t->widest = speed;
    if (first ? high : t->low >= LOW_MOST || t->high >= HIGH_MOST) t->line = speed;
    if (!low && !high) t->line += LINE_GAIN * (speed - t->line);
    if (t->line > t->widest) t->widest = t->line;
}

// Without a queue the line may carry more, if they send all that they may. If they do not, the limit rises all the
// same, but later: BBR takes a limit for the rate of the line, and sends less.
static void grow(struct throttle *t, bool full) {
    bool grows = t->clear >= (full ? CLEAR_MOST : CLEAR_LONG);
    t->growing = grows ? t->growing + 1 : 0;
    double part = grows ? LINE_GROWTH : 0;
    for (uint32_t i = 1; i < t->growing && part < LINE_GROWTH_MOST; i++) part *= 2;
    t->line *= 1 + between(part, 0, LINE_GROWTH_MOST);
}

// While a queue is there, what is acknowledged is what the way carries. Acknowledgements come later while the queue of
// the other direction grows, and earlier while it shrinks.
static void measure(struct throttle *t, const struct pace_total *total, int64_t now_ns) {
    double trip_us = 2 * (double)look_ns(total) / US_NS, span_us = (double)(now_ns - t->since_ns) / US_NS;
    double sent_us = span_us - ((double)total->coming_us - (double)t->coming_us);
    bool there = t->least_us > QUEUE_PRESENT * trip_us, clear = t->sum_us / LOOKS < QUEUE_PRESENT * trip_us;
    bool whole = total->lanes == t->lanes && total->acked >= t->acked && total->busy_us >= t->busy_us;
    bool busy = whole && (double)(total->busy_us - t->busy_us) / total->lanes > 0.9 * span_us;
    if (!busy || t->idle || span_us > LOOKS * trip_us || sent_us < span_us / 3) return;
    double speed = (double)(total->acked - t->acked) / (sent_us * 1e3);
    bool full = speed > RATE_USED * t->rate;
    t->clear = clear && t->rate > 0 && t->rate < wanted(total) ? t->clear + 1 : 0;
    grow(t, full);
    // If all allowed bytes pass and the queue does not shrink, other senders keep it.
    bool stays = t->rate > 0 && t->rate < t->line && full && t->least_us > QUEUE_LONG * trip_us;
    t->stubborn = stays ? t->stubborn + 1 : 0;
    if (there) learn(t, speed);
    // Other senders keep the queue, too, if a shorter one makes these send ever less; or the path is longer than its
    // shortest round trip suggests.
    if (t->line < LINE_NARROW * t->widest) t->stubborn = STUBBORN_MOST;
}

void throttle_step(struct throttle *t, const struct pace_total *total, bool may, int64_t now_ns) {
    bool rests = !may || total->lanes == 0 || total->round_trip_us < PACE_FAR_US || now_ns < t->rests_until;
    if (!rests && t->stubborn >= STUBBORN_MOST) t->rests_until = now_ns + REST_MS * MS_NS;
    if (rests || t->stubborn >= STUBBORN_MOST) {
        *t = (struct throttle){.rests_until = t->rests_until};
        return;
    }
    t->idle |= total->waiting == 0;
    t->queue_us += pace_queue_us(total);
    t->samples++;
    if (now_ns - t->looked_ns < look_ns(total)) return;
    double queue_us = (double)t->queue_us / (double)t->samples, trip_us = 2 * (double)look_ns(total) / US_NS;
    t->sum_us += queue_us;
    t->least_us = t->looks == 0 || queue_us < t->least_us ? queue_us : t->least_us;
    t->looks++;
    t->looked_ns = now_ns;
    t->queue_us = t->samples = 0;
    if (t->looks == LOOKS) measure(t, total, now_ns);
    if (t->looks == LOOKS || t->since_ns == 0) begin(t, total, now_ns);
    t->rate = t->line * between(1 - GAIN * (queue_us / trip_us - QUEUE_TARGET), LEAST, MOST);
}

double throttle_limit(const struct throttle *t, const struct pace_total *total, bool smooth) {
    if (total->lanes == 0 || total->smoothed_us == 0 || total->round_trip_us < PACE_FAR_US) return 0;
    if (total->models) return 0;
    double limit = smooth ? wanted(total) * PACING_ROOM : 0;
    if (t->rate > 0 && t->rate < wanted(total)) limit = t->rate;
    double least = LANE_LEAST * total->lanes;
    return limit > 0 && limit < least ? least : limit;
}

uint32_t throttle_share(const struct throttle *t, const struct pace_total *total, uint32_t window) {
    if (t->rate == 0 || total->window == 0 || t->rate >= wanted(total)) return 0;
    double share = t->rate * window / (double)total->window;
    return (uint32_t)(between(share, LANE_LEAST, 2) * 1e9);
}

bool throttle_has_room(struct throttle_bucket *bucket, int64_t now_ns) {
    double depth = bucket->rate * BUCKET_MS * MS_NS;
    if (depth < BUCKET_LEAST) depth = BUCKET_LEAST;
    bucket->room += bucket->rate * (double)(now_ns - bucket->filled_ns);
    if (bucket->room > depth || bucket->rate == 0) bucket->room = depth;
    bucket->filled_ns = now_ns;
    bucket->waits = bucket->rate > 0 && bucket->room <= 0;
    if (bucket->waits) bucket->empty_ns = now_ns;
    return !bucket->waits;
}
