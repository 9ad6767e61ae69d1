#include "link/throttle.h"

#include "base/platform.h"

enum {
    LOOK_LEAST_MS = PACE_TICK_MS,
    LOOKS = 6,         // of half a round trip each, in a measurement
    FIRST = 4,         // measurements of which the largest counts: what sends is still getting faster
    LOW_MOST = 4,      // measurements with much less than before, after which the line carries less now
    HIGH_MOST = 2,     // likewise with much more
    CLEAR_MOST = 2,    // measurements without a queue, though they sent all that they might, after which they may more
    CLEAR_LONG = 20,   // likewise without a queue, whatever they sent
    STUBBORN_MOST = 8, // measurements with a long queue, after which that is somebody else's
    REST_MS = 30000,   // then they are not limited
};

// Queues, as parts of two looks, which are a round trip.
static const double TARGET = 0.15; // so long a one is to stay
static const double THERE = 0.1;   // one of this length is there
static const double LONG = 0.3;
// The part of an excess queue that goes, or comes, within a round trip; parts of the line rate.
static const double GAIN = 0.5, LEAST = 0.8, MOST = 1.08;
static const double LEARNS = 0.25;                   // so much a measurement counts
static const double ODD = 0.1;                       // one that differs by more is odd
static const double NARROW = 0.6;                    // of the widest that it was
static const double FULL = 0.93;                     // of what they may send: they send all of that
static const double GROWS = 0.02, GROWS_MOST = 0.25; // so much more the line may carry: twice as much each time

static const double SPREAD = 1.25;     // so much more than their windows hold in a round trip, which may double in it
static const double LANE_LEAST = 1e-5; // bytes per nanosecond that each may always send

static double between(double x, double least, double most) { return x < least ? least : x > most ? most : x; }

// All of them together would send that if nobody limited them.
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
    bool low = speed<t->line * (1 - ODD), high = speed> t->line * (1 + ODD);
    t->low = low ? t->low + 1 : 0;
    t->high = high ? t->high + 1 : 0;
    bool first = t->learned < FIRST;
    t->learned += first;
    // If not even that passes which they may send, it is the line that carries less.
    if (t->low >= LOW_MOST && speed < FULL * t->rate) t->widest = speed;
    if (first ? high : t->low >= LOW_MOST || t->high >= HIGH_MOST) t->line = speed;
    if (!low && !high) t->line += LEARNS * (speed - t->line);
    if (t->line > t->widest) t->widest = t->line;
}

// Without a queue the line may carry more, if they send all that they may. If they do not, the limit rises all the
// same, but later: BBR takes a limit for the rate of the line, and sends less.
static void grow(struct throttle *t, bool full) {
    bool grows = t->clear >= (full ? CLEAR_MOST : CLEAR_LONG);
    t->growing = grows ? t->growing + 1 : 0;
    double part = grows ? GROWS : 0;
    for (uint32_t i = 1; i < t->growing && part < GROWS_MOST; i++) part *= 2;
    t->line *= 1 + between(part, 0, GROWS_MOST);
}

// While a queue is there, what is acknowledged is what the way carries. Acknowledgements come later while the queue of
// the other direction grows, and earlier while it shrinks.
static void measure(struct throttle *t, const struct pace_total *total, int64_t now_ns) {
    double trip_us = 2 * (double)look_ns(total) / US_NS, span_us = (double)(now_ns - t->since_ns) / US_NS;
    double sent_us = span_us - ((double)total->coming_us - (double)t->coming_us);
    bool there = t->least_us > THERE * trip_us, clear = t->sum_us / LOOKS < THERE * trip_us;
    bool whole = total->lanes == t->lanes && total->acked >= t->acked && total->busy_us >= t->busy_us;
    bool busy = whole && (double)(total->busy_us - t->busy_us) / total->lanes > 0.9 * span_us;
    if (!busy || t->idle || span_us > LOOKS * trip_us || sent_us < span_us / 3) return;
    double speed = (double)(total->acked - t->acked) / (sent_us * 1e3);
    bool full = speed > FULL * t->rate;
    t->clear = clear && t->rate > 0 && t->rate < wanted(total) ? t->clear + 1 : 0;
    grow(t, full);
    // If all allowed bytes pass and the queue does not shrink, other senders keep it.
    bool stays = t->rate > 0 && t->rate < t->line && full && t->least_us > LONG * trip_us;
    t->stubborn = stays ? t->stubborn + 1 : 0;
    if (there) learn(t, speed);
    // Other senders keep the queue, too, if a shorter one makes these send ever less; or the path is longer than its
    // shortest round trip suggests.
    if (t->line < NARROW * t->widest) t->stubborn = STUBBORN_MOST;
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
    t->rate = t->line * between(1 - GAIN * (queue_us / trip_us - TARGET), LEAST, MOST);
}

double throttle_limit(const struct throttle *t, const struct pace_total *total, bool smooth) {
    if (total->lanes == 0 || total->smoothed_us == 0 || total->round_trip_us < PACE_FAR_US) return 0;
    if (total->models) return 0;
    double limit = smooth ? wanted(total) * SPREAD : 0;
    if (t->rate > 0 && t->rate < wanted(total)) limit = t->rate;
    double least = LANE_LEAST * total->lanes;
    return limit > 0 && limit < least ? least : limit;
}

uint32_t throttle_share(const struct throttle *t, const struct pace_total *total, uint32_t window) {
    if (t->rate == 0 || total->window == 0 || t->rate >= wanted(total)) return 0;
    double share = t->rate * window / (double)total->window;
    return (uint32_t)(between(share, LANE_LEAST, 2) * 1e9);
}
