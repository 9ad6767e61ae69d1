// How fast the connections to one far neighbour may be together, over a model of a link; and the bucket that keeps them to it.
#include "link/throttle.h"

#include <math.h>

#include "base/platform.h"
#include "check.h"

enum { MEMORY_MS = 1024, LANES = 10, TICK_MS = PACE_TICK_MS };

// A way in one direction, in steps of a millisecond. The connections have windows for `window` bytes together, which
// nothing changes, and send what they may.
static struct way {
    double line; // bytes per nanosecond
    uint32_t trip_us;
    double window;
    double shy;        // this part of a limit is what they send
    double foreign_us; // a queue that somebody else keeps there; then all that they send passes
    double coming_us, coming_most_us;
    double queue; // bytes
    double delivered, delivered_at[MEMORY_MS], queue_us_at[MEMORY_MS];
    int64_t ms;
    struct throttle throttle;
    struct pace_total seen;
    double most_us; // the longest queue since this was 0
} way;

static void begin(double megabits, uint32_t trip_ms, double windows) {
    double line = megabits / 8e3;
    way = (struct way){
        .line = line, .trip_us = trip_ms * 1000, .window = windows * line * trip_ms * 1e6, .shy = 1, .ms = 1000};
    way.seen = (struct pace_total){.lanes = LANES, .round_trip_us = way.trip_us};
}

// What they send when nobody limits them.
static double wanted(void) {
    double trip_us = way.trip_us + way.queue / way.line / 1e3 + way.coming_us + way.foreign_us;
    return way.window / (trip_us * 1e3);
}

static void pass(bool may) {
    double rate = wanted(), limit = way.throttle.rate;
    if (limit > 0 && rate > limit * way.shy) rate = limit * way.shy;
    way.coming_us = way.coming_most_us * (1 + sin((double)way.ms / 200)) / 2;
    double arrived = rate * 1e6, most = way.line * 1e6;
    way.queue += arrived;
    double out = way.foreign_us > 0 || way.queue < most ? way.queue : most;
    way.queue -= out;
    way.delivered += out;
    double queue_us = way.queue / way.line / 1e3 + way.foreign_us;
    if (queue_us > way.most_us) way.most_us = queue_us;
    way.ms++;
    way.delivered_at[way.ms % MEMORY_MS] = way.delivered;
    way.queue_us_at[way.ms % MEMORY_MS] = queue_us;
    if (way.ms % TICK_MS != 0) return;
    int64_t then = way.ms - way.trip_us / 1000 - (int64_t)(way.coming_us / 1000);
    if (then < 1000) then = 1000;
    struct pace_total *seen = &way.seen;
    seen->acked = (uint64_t)way.delivered_at[then % MEMORY_MS];
    seen->smoothed_us = LANES * (uint64_t)(way.trip_us + way.queue_us_at[then % MEMORY_MS] + way.coming_us);
    seen->coming_us = (uint64_t)way.coming_us;
    seen->busy_us += LANES * TICK_MS * 1000;
    seen->window = (uint64_t)way.window;
    seen->waiting = 1;
    throttle_step(&way.throttle, seen, may, way.ms * MS_NS);
}

// The part of the line that was used in that time.
static double part_of_line(int ms) {
    double before = way.delivered;
    way.most_us = 0;
    for (int i = 0; i < ms; i++) pass(true);
    return (way.delivered - before) / (way.line * ms * 1e6);
}

static void test_settles(void) {
    static const struct {
        double megabits;
        uint32_t trip_ms;
        double windows, coming_us;
    } ways[] = {{1000, 80, 1.2, 0},    {1000, 80, 2, 0},    {1000, 80, 1.5, 50000}, {5000, 150, 1.5, 0},
                {5000, 150, 2, 80000}, {1000, 20, 2, 0},    {1000, 20, 3, 15000},   {200, 80, 1.5, 30000},
                {10000, 10, 2, 0},     {1000, 300, 1.5, 0}, {1000, 5, 3, 0}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        check_case("%g Mbit/s, %u ms, queues of %g us come", ways[i].megabits, ways[i].trip_ms, ways[i].coming_us);
        begin(ways[i].megabits, ways[i].trip_ms, ways[i].windows);
        way.coming_most_us = ways[i].coming_us;
        part_of_line(10000);
        double part = part_of_line(5000), trip_us = ways[i].trip_ms * 1e3;
        CHECK(part > 0.97);
        CHECK(way.most_us < (trip_us < 40000 ? 40000 : trip_us) * 0.25);
        CHECK(way.throttle.rate > 0);
    }
}

static void test_changes(void) {
    check_case("a line that carries half");
    begin(1000, 80, 2);
    part_of_line(10000);
    way.line /= 2;
    part_of_line(4000);
    CHECK(part_of_line(3000) > 0.97 && way.most_us < 20000);
    check_case("and one that carries twice as much");
    way.line *= 2;
    part_of_line(3000);
    CHECK(part_of_line(3000) > 0.97);
    check_case("a way that is longer by half");
    way.seen.round_trip_us = way.trip_us = 120000;
    part_of_line(3000);
    CHECK(part_of_line(3000) > 0.97);
}

// The part that they sent in that time of what they would have sent without a limit, beside somebody's queue that is
// there for `on_ms` of each `on_ms + off_ms`, with pauses of 150 ms after ops of `op_ms`; 0: without.
static double part_beside(double foreign_us, int on_ms, int off_ms, int op_ms, int seconds) {
    double sent = way.delivered, could = 0, window = way.window;
    for (int ms = 0; ms < seconds * 1000; ms++) {
        way.foreign_us = ms % (on_ms + off_ms) < on_ms ? foreign_us : 0;
        way.window = op_ms > 0 && ms % (op_ms + 150) >= op_ms ? 0 : window;
        could += wanted() < way.line ? wanted() * 1e6 : way.line * 1e6;
        pass(true);
    }
    way.window = window;
    return (way.delivered - sent) / could;
}

static void test_foreign(void) {
    static const double foreign_ms[] = {16, 20, 24, 30, 40, 60};
    for (size_t i = 0; i < sizeof foreign_ms / sizeof *foreign_ms; i++) {
        check_case("somebody else's queue of %g ms is left to him", foreign_ms[i]);
        begin(1000, 80, 0.4);
        CHECK(part_beside(foreign_ms[i] * 1e3, 1, 0, 0, 120) > 0.85);
        check_case("also in ops with pauses, after queues of %g ms", foreign_ms[i]);
        begin(1000, 80, 0.4);
        CHECK(part_beside(foreign_ms[i] * 1e3, 1, 0, 1000, 120) > 0.8);
        check_case("one of %g ms that comes and goes, too", foreign_ms[i]);
        begin(1000, 80, 0.4);
        CHECK(part_beside(foreign_ms[i] * 1e3, 1500, 500, 0, 120) > 0.75);
    }
    check_case("and when he has gone, the own one is kept short again");
    begin(1000, 80, 2);
    part_beside(40000, 1, 0, 0, 10);
    way.foreign_us = 0;
    part_of_line(40000);
    CHECK(way.throttle.rate > 0 && way.most_us > 0);
    part_of_line(5000);
    CHECK(way.most_us < 40000);
    check_case("a way that has become longer, of which only the shortest round trip is known");
    begin(1000, 80, 2);
    part_of_line(10000);
    way.trip_us = 100000; // and not what is seen
    CHECK(part_of_line(120000) > 0.8);
}

static void test_shy(void) {
    check_case("a limit that is too low does not stay, though they send less than they may");
    begin(1000, 80, 2);
    way.shy = 0.85;
    part_of_line(5000);
    way.throttle.line /= 10;
    part_of_line(10000);
    CHECK(part_of_line(3000) > 0.85);
}

static void test_limits(void) {
    check_case("an op that begins or ends is no narrow line");
    begin(1000, 80, 2);
    part_of_line(5000);
    for (int ops = 0; ops < 20; ops++) {
        double windows = way.window;
        way.window /= 4; // they have nothing to send for a while, and what the kernel says of the queue is old
        way.foreign_us = 20000;
        part_of_line(300);
        way.window = windows;
        way.foreign_us = 0;
        part_of_line(700);
    }
    CHECK(way.throttle.line > 0.95 * way.line && part_of_line(1000) > 0.97);
    check_case("not unless they may");
    begin(1000, 80, 2);
    for (int i = 0; i < 10000; i++) pass(false);
    CHECK(way.throttle.rate == 0 && way.throttle.line == 0);
    CHECK(throttle_limit(&way.throttle, &way.seen, false) == 0);
    check_case("nor when they may not any more");
    part_of_line(5000);
    CHECK(way.throttle.rate > 0);
    for (int i = 0; i < TICK_MS; i++) pass(false);
    CHECK(way.throttle.rate == 0);
    check_case("the limit is the rate that was found, smooth or not");
    begin(1000, 80, 2);
    part_of_line(5000);
    CHECK(throttle_limit(&way.throttle, &way.seen, false) == way.throttle.rate);
    CHECK(throttle_limit(&way.throttle, &way.seen, true) == way.throttle.rate);
    check_case("those that find a rate by themselves get shares of it by their windows");
    way.seen.models = true;
    CHECK(throttle_limit(&way.throttle, &way.seen, true) == 0);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < LANES; i++) {
        uint32_t share = throttle_share(&way.throttle, &way.seen, (uint32_t)(way.window / 45 * i));
        CHECK(share >= 10000);
        sum += share;
    }
    CHECK(fabs((double)sum / 1e9 - way.throttle.rate) < 0.01 * way.throttle.rate);
    way.seen.models = false;
    check_case("no limit where they send less anyway, but they are smooth, with room to grow");
    way.seen.window /= 4;
    double windows = (double)way.seen.window * way.seen.lanes / ((double)way.seen.smoothed_us * 1e3);
    CHECK(throttle_limit(&way.throttle, &way.seen, false) == 0);
    double smooth = throttle_limit(&way.throttle, &way.seen, true);
    CHECK(smooth > 1.1 * windows && smooth < 1.5 * windows);
    check_case("not for those that find a rate by themselves");
    way.seen.models = true;
    CHECK(throttle_limit(&way.throttle, &way.seen, true) == 0);
    way.seen.models = false;
    check_case("each may send something");
    way.seen.window = 1;
    CHECK(throttle_limit(&way.throttle, &way.seen, true) >= 1e-5 * way.seen.lanes);
    check_case("and no limit near by");
    way.seen.round_trip_us = 1000;
    throttle_step(&way.throttle, &way.seen, true, way.ms * MS_NS);
    CHECK(way.throttle.rate == 0 && throttle_limit(&way.throttle, &way.seen, true) == 0);
    way.seen.window = way.seen.smoothed_us = 0; // the kernel tells nothing
    way.throttle.rate = 1;
    CHECK(throttle_limit(&way.throttle, &way.seen, true) == 0);
    way.seen.lanes = 0;
    CHECK(throttle_limit(&way.throttle, &way.seen, true) == 0);
    check_case("others that are in use say nothing of the line");
    begin(1000, 80, 2);
    part_of_line(5000);
    double usual = way.throttle.line;
    way.seen.lanes++;
    for (int i = 0; i < MEMORY_MS; i++) way.delivered_at[i] += 5e9;
    way.delivered += 5e9;
    part_of_line(240);
    CHECK(fabs(way.throttle.line - usual) < 0.1 * usual);
    check_case("connections that were lost have taken their sums with them");
    begin(1000, 80, 2);
    part_of_line(5000);
    double line = way.throttle.line;
    way.delivered = 0;
    way.seen.busy_us = 0;
    for (int i = 0; i < MEMORY_MS; i++) way.delivered_at[i] = 0;
    part_of_line(1000);
    CHECK(fabs(way.throttle.line - line) < 0.1 * line);
}

// Sends frames for so many milliseconds, whenever the bucket has room, and returns the bytes.
static double send_for(struct throttle_bucket *bucket, int64_t *now_ns, int ms, size_t frame) {
    double sent = 0;
    for (int i = 0; i < ms; i++, *now_ns += THROTTLE_TICK_MS * MS_NS) {
        while (throttle_has_room(bucket, *now_ns)) {
            throttle_take(bucket, frame);
            sent += (double)frame;
        }
        CHECK(bucket->waits && bucket->empty_ns == *now_ns);
    }
    return sent;
}

static void test_bucket(void) {
    check_case("as much goes as the rate lets, whatever the frames are");
    static const size_t frames[] = {1000, 16 << 10, 256 << 10};
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct throttle_bucket bucket = {.rate = 0.125};
        int64_t now_ns = 5 * SECOND_NS;
        double sent = send_for(&bucket, &now_ns, 1000, frames[i]);
        CHECK(sent > 0.99 * 0.125e9 && sent < 0.125e9 + 1e6);
    }
    check_case("a pause lets out no more than a short burst");
    struct throttle_bucket bucket = {.rate = 0.125};
    int64_t now_ns = SECOND_NS;
    send_for(&bucket, &now_ns, 10, 1000);
    now_ns += 60 * SECOND_NS;
    CHECK(send_for(&bucket, &now_ns, 1, 1000) <= 0.125e9 * 0.002 + 1000);
    check_case("a slow one lets out whole frames, later");
    bucket = (struct throttle_bucket){.rate = 1e-4};
    CHECK(throttle_has_room(&bucket, now_ns));
    throttle_take(&bucket, 256 << 10);
    CHECK(!throttle_has_room(&bucket, now_ns + SECOND_NS) && bucket.waits);
    CHECK(throttle_has_room(&bucket, now_ns + 3 * SECOND_NS) && !bucket.waits);
}

static void test_bucket_without_rate(void) {
    check_case("without a rate nobody waits");
    struct throttle_bucket bucket = {0};
    for (int i = 0; i < 1000; i++) {
        CHECK(throttle_has_room(&bucket, SECOND_NS));
        throttle_take(&bucket, 1 << 20);
    }
    check_case("and nothing is owed for that later");
    bucket.rate = 0.125;
    CHECK(throttle_has_room(&bucket, SECOND_NS + MS_NS));
    check_case("who waits goes on when the rate is taken away");
    throttle_take(&bucket, 1 << 30);
    CHECK(!throttle_has_room(&bucket, 2 * SECOND_NS));
    bucket.rate = 0;
    CHECK(throttle_has_room(&bucket, 2 * SECOND_NS) && !bucket.waits);
    bucket.rate = 0.125;
    CHECK(throttle_has_room(&bucket, 2 * SECOND_NS));
}

int main(void) {
    test_settles();
    test_changes();
    test_foreign();
    test_shy();
    test_limits();
    test_bucket();
    test_bucket_without_rate();
    return check_status();
}
