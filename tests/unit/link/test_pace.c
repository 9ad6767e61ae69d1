// How fast a link is taken to be, and how much it may take, by tables of figures.
#include <string.h>

#include "base/platform.h"
#include "check.h"
#include "link/pace.h"

#define TICK (PACE_TICK_MS * MS_NS)
#define MIB (UINT64_C(1) << 20)

// ---- one link ----
static int64_t now = 7 * SECOND_NS;

static double speed_after(struct pace *pace, int64_t ns, uint64_t acked, uint64_t busy_us) {
    struct gauge gauge = pace->gauge;
    gauge.acked += acked;
    gauge.busy_us += busy_us;
    pace_note(pace, &gauge, now += ns);
    return pace->speed;
}

static void test_speed(void) {
    struct pace pace = {0};
    check_case("the first reading is where it begins");
    CHECK(pace_is_due(&pace, now));
    CHECK(speed_after(&pace, TICK, 5 * MIB, 20000) == 0);
    CHECK(!pace_is_due(&pace, now) && pace_is_due(&pace, now + TICK));
    check_case("only the time in which it had something to send counts");
    CHECK(speed_after(&pace, TICK, 10 * 1000 * 1000, 10000) == 1);
    CHECK(speed_after(&pace, 100 * TICK, 10 * 1000 * 1000, 10000) == 1);
    check_case("too short a time is no measurement, and not lost");
    CHECK(speed_after(&pace, TICK, 3000 * 1000, 3000) == 0);
    CHECK(speed_after(&pace, TICK, 0, 3000) == 0.5);
    check_case("a reading between two ticks measures nothing");
    CHECK(speed_after(&pace, TICK / 2, 40 * 1000 * 1000, 10000) == 0.5);
    CHECK_EQ(pace.gauge.acked, 5 * MIB + 63 * 1000 * 1000);
    CHECK(speed_after(&pace, TICK / 2, 0, 0) == 4);
    check_case("a kernel that tells nothing");
    struct pace dark = {0};
    for (int i = 0; i < 5; i++) CHECK(speed_after(&dark, TICK, 0, 0) == 0);
}

static void test_mean(void) {
    check_case("mean");
    CHECK(pace_mean(0, 0) == 0);
    CHECK(pace_mean(0, 3) == 3);
    CHECK(pace_mean(3, 0) == 3);
    CHECK(pace_mean(3, 1) == 2);
}

// ---- one giver ----
static void test_flow(void) {
    struct pace_flow flow = {0};
    check_case("nothing is known");
    CHECK_EQ(pace_flow_window(&flow), PACE_FLOW_LEAST);
    pace_flow_came(&flow, 100 * MIB, now); // unasked
    CHECK(flow.speed == 0);
    check_case("a giver of 500 MB/s that is 10 ms away");
    pace_flow_pause(&flow);
    pace_flow_begin(&flow, now);
    pace_flow_delayed(&flow, 30 * MS_NS);
    pace_flow_delayed(&flow, 10 * MS_NS);
    pace_flow_delayed(&flow, 20 * MS_NS);
    CHECK_EQ(flow.delay_ns, 10 * MS_NS);
    for (int i = 0; i < 20; i++) pace_flow_came(&flow, MS_NS / 2, now += MS_NS);
    CHECK(flow.speed == 0.5);
    CHECK_EQ(pace_flow_window(&flow), 35 * MS_NS); // two delays and what it may be ahead
    check_case("idle time is no slowness");
    pace_flow_pause(&flow);
    now += 5 * SECOND_NS;
    pace_flow_begin(&flow, now);
    pace_flow_begin(&flow, now + 10 * MS_NS); // is under way already
    for (int i = 0; i < 20; i++) pace_flow_came(&flow, MS_NS / 2, now += MS_NS);
    CHECK(flow.speed == 0.5);
    check_case("bounds");
    flow.speed = 1e-6;
    CHECK_EQ(pace_flow_window(&flow), PACE_FLOW_LEAST);
    flow.speed = 1e6;
    CHECK_EQ(pace_flow_window(&flow), PACE_FLOW_MOST);
    flow = (struct pace_flow){0};
    pace_flow_delayed(&flow, 0);
    CHECK(flow.delay_ns > 0); // 0 is unknown
}

// ---- far links ----
static void test_frames(void) {
    struct pace pace = {0};
    struct gauge gauge = {.round_trip_us = 100, .window = 14480};
    check_case("a near link has whole chunks, and its socket's own limit");
    pace_note(&pace, &gauge, now += TICK);
    CHECK_EQ(pace_frame(&pace), PACE_CHUNK_MAX);
    CHECK_EQ(pace_unsent(&pace), 0);
    check_case("a far one has parts of its window");
    gauge.round_trip_us = 80000;
    for (uint64_t window = 1000; window < UINT64_C(1) << 31; window = window * 2 + 100) {
        gauge.window = (uint32_t)window;
        pace_note(&pace, &gauge, now += TICK);
        CHECK(pace_frame(&pace) > 0 && pace_frame(&pace) <= PACE_CHUNK_MAX && pace_frame(&pace) % 64 == 0);
        CHECK(pace_unsent(&pace) > 0 && pace_unsent(&pace) <= 1 << 20);
        if (window > 100000) CHECK(pace_frame(&pace) <= window / 3 && pace_unsent(&pace) <= window / 3);
    }
}

// Each connection has moved its part of `megabytes` by now; `queue_us` lie before the link, and this part of the
// segments was sent again.
static struct pace_lanes tuned;
static struct pace_total figures;

static bool later(int64_t ns, uint32_t lanes, double megabytes, uint64_t queue_us, double again, double busy) {
    uint64_t trip_us = figures.round_trip_us, segments = (uint64_t)(megabytes * 1000);
    figures.lanes = lanes;
    figures.smoothed_us = lanes * (trip_us + queue_us);
    figures.acked += (uint64_t)(megabytes * 1e6);
    figures.busy_us += (uint64_t)((double)(lanes * ns / 1000) * busy);
    figures.segments += segments;
    figures.retransmits += (uint64_t)((double)segments * again);
    return pace_lanes_step(&tuned, &figures, 64, now += ns);
}

// How wide the way is has been found out.
static void begin_far(uint32_t trip_us) {
    tuned = (struct pace_lanes){0};
    figures = (struct pace_total){.lanes = 6, .round_trip_us = trip_us};
    CHECK(pace_lanes_step(&tuned, &figures, 64, now += SECOND_NS));
    CHECK_EQ(tuned.in_use, 6);
    CHECK_EQ(tuned.reason, PACE_BEGINS);
    tuned.ramped = true;
}

static void test_lanes(void) {
    check_case("all are for a near neighbour");
    figures = (struct pace_total){.lanes = 4, .round_trip_us = 100};
    tuned = (struct pace_lanes){0};
    CHECK(!pace_lanes_step(&tuned, &figures, 4, now += SECOND_NS));
    CHECK_EQ(tuned.in_use, 0);
    check_case("few of few");
    figures.round_trip_us = 80000;
    CHECK(pace_lanes_step(&tuned, &figures, 2, now += SECOND_NS));
    CHECK_EQ(tuned.in_use, 2);
    check_case("more where they are the limit, but not while they still get faster");
    begin_far(80000);
    CHECK(later(SECOND_NS, 6, 10, 0, 0, 1) && tuned.in_use == 12);
    later(SECOND_NS, 12, 10, 0, 0, 1); // the measurement of as many begins
    CHECK(!later(SECOND_NS, 12, 20, 50000, 0, 1));
    check_case("fewer while a long queue stays, as many as fill the way and half of a round trip more");
    CHECK(!later(SECOND_NS, 12, 20, 50000, 0, 1));
    CHECK(later(SECOND_NS, 12, 20, 70000, 0, 1) && tuned.in_use == 9); // 12 * 1.5 / 1.875
    CHECK_EQ(tuned.reason, PACE_REDUCED);
    check_case("a queue of half a round trip may stay");
    later(SECOND_NS, 9, 20, 0, 0, 0.5); // the measurement of as many begins
    for (int i = 0; i < 40; i++) CHECK(!later(SECOND_NS, 9, 20, 40000, 0, 1));
    CHECK_EQ(tuned.in_use, 9);
    check_case("half of them at once, not more");
    for (int i = 0; i < 4; i++) later(SECOND_NS, 9, 20, 0, 0, 1);
    uint32_t many = tuned.in_use;
    for (int i = 0; i < 10 && tuned.in_use == many; i++) later(SECOND_NS, many, 20, 5000000, 0, 1);
    CHECK(many > 12 && tuned.in_use == many / 2);
    check_case("the first ones, as soon as they are there");
    tuned = (struct pace_lanes){0};
    figures = (struct pace_total){.round_trip_us = 80000};
    for (uint32_t made = 1; made < 10; made++) {
        figures.lanes = tuned.in_use;
        pace_lanes_step(&tuned, &figures, made, now += 20 * MS_NS);
        CHECK_EQ(tuned.in_use, made < 6 ? made : 6);
    }
    begin_far(80000);
    later(SECOND_NS, 6, 10, 30000, 0, 1);
    CHECK(!later(SECOND_NS, 6, 20, 0, 0, 1) && !later(SECOND_NS, 6, 40, 0, 0, 1));
    CHECK_EQ(tuned.reason, PACE_RAMPS);
    CHECK(later(SECOND_NS, 6, 41, 0, 1e-4, 1) && tuned.in_use == 12);
    CHECK_EQ(tuned.reason, PACE_ADDED);
    check_case("never above what there is");
    for (int i = 0; i < 40; i++) later(SECOND_NS, tuned.in_use, 40.0 * tuned.in_use, 0, 1e-4, 1);
    CHECK_EQ(tuned.in_use, 64);
    CHECK_EQ(tuned.reason, PACE_ALL);
    check_case("a measurement takes its time");
    begin_far(80000);
    for (int i = 0; i < 23; i++) CHECK(!later(20 * MS_NS, 6, 1, 0, 0, 1));
    check_case("not where they have nothing to send");
    begin_far(80000);
    for (int i = 0; i < 40; i++) CHECK(!later(SECOND_NS, 6, 10, 0, 0, 0.5));
    CHECK_EQ(tuned.reason, PACE_ENOUGH);
    check_case("a pause between two ops says nothing of why there are so many");
    begin_far(80000);
    for (int i = 0; i < 4; i++) later(SECOND_NS, 6, 10, 50000, 0, 1);
    figures.pauses = true;
    later(SECOND_NS, 6, 0, 0, 0, 0.1);
    CHECK_EQ(tuned.reason, PACE_QUEUES);
    check_case("nor where there is a queue");
    begin_far(80000);
    for (int i = 0; i < 40; i++) CHECK(!later(SECOND_NS, 6, 10, 50000, 1e-4, 1));
    CHECK_EQ(tuned.reason, PACE_QUEUES);
    check_case("a third more after that, and twice as many once the queue stays away");
    later(SECOND_NS, 6, 10, 0, 0, 1);
    CHECK_EQ(tuned.in_use, 8);
    later(SECOND_NS, 8, 10, 0, 0, 1);
    later(SECOND_NS, 8, 12, 0, 0, 1);
    CHECK_EQ(tuned.in_use, 16);
    check_case("few more where a short one stays, as where somebody else keeps one");
    begin_far(80000);
    CHECK(later(SECOND_NS, 6, 10, 15000, 0, 1) && tuned.in_use == 7);
    check_case("a queue that stays takes all but the first ones");
    for (int i = 0; i < 40; i++) later(SECOND_NS, tuned.in_use, 10, 50000, 0, 1);
    CHECK_EQ(tuned.in_use, 6);
    CHECK_EQ(tuned.reason, PACE_QUEUES);
    check_case("the queue of the other direction is none");
    begin_far(80000);
    figures.coming_us = 46000;
    CHECK(later(SECOND_NS, 6, 10, 50000, 0, 1) && tuned.in_use == 12);
    figures.coming_us = 0;
    check_case("a queue counts for as long as it was there");
    begin_far(80000);
    for (int i = 1; i < 24; i++) CHECK(!later(20 * MS_NS, 6, 1, 0, 0, 1));
    CHECK(later(20 * MS_NS, 6, 1, 70000, 0, 1) && tuned.in_use == 12);
    begin_far(80000);
    for (int i = 1; i < 24; i++) CHECK(!later(20 * MS_NS, 6, 1, 70000, 0, 1));
    CHECK(!later(20 * MS_NS, 6, 1, 0, 0, 1));
    CHECK_EQ(tuned.reason, PACE_QUEUES);
    check_case("those that find out the rate by themselves double until the first queue only");
    begin_far(80000);
    figures.models = true;
    later(SECOND_NS, 6, 10, 0, 0, 1);
    CHECK(later(SECOND_NS, 6, 10, 0, 0, 1) && tuned.in_use == 12);
    for (int i = 0; i < 4; i++) later(SECOND_NS, tuned.in_use, 10, 50000, 0, 1);
    uint32_t few = tuned.in_use;
    for (int i = 0; i < 4; i++) later(SECOND_NS, tuned.in_use, 10, 0, 0, 1);
    CHECK(tuned.in_use <= few + 2);
    figures.models = false;
    check_case("fewer where much is sent again, but not at once");
    begin_far(80000);
    int measured = 0;
    while (tuned.in_use == 6 && measured < 10) measured += !later(SECOND_NS, 6, 10, 50000, 0.05, 1);
    CHECK(measured == 2 && tuned.in_use == 4);
    CHECK_EQ(tuned.reason, PACE_REDUCED);
    for (int i = 0; i < 100; i++) later(SECOND_NS, tuned.in_use, 10, 50000, 0.05, 1);
    CHECK_EQ(tuned.in_use, 1);
    check_case("loss without a queue is no congestion");
    begin_far(80000);
    for (int i = 0; i < 100; i++) later(SECOND_NS, tuned.in_use, 10.0 * tuned.in_use, 0, 0.05, 1);
    CHECK_EQ(tuned.in_use, 64);
    check_case("where more of them bring nothing, they go again, and others are tried much later");
    begin_far(80000);
    CHECK(later(SECOND_NS, 6, 10, 0, 0, 1) && tuned.in_use == 12);
    later(SECOND_NS, 12, 10, 0, 0, 1);
    CHECK(later(SECOND_NS, 12, 10, 0, 0, 1) && tuned.in_use == 24); // so few are not asked
    later(SECOND_NS, 24, 10, 0, 0, 1);
    CHECK(later(SECOND_NS, 24, 10, 0, 0, 1) && tuned.in_use == 48);
    later(SECOND_NS, 48, 9, 0, 0, 1);
    CHECK(!later(SECOND_NS, 48, 9, 0, 0, 1)); // their beginning
    CHECK(later(SECOND_NS, 48, 9, 0, 0, 1) && tuned.in_use == 24);
    CHECK_EQ(tuned.reason, PACE_VAIN);
    int tries = 0;
    for (int i = 0; i < 100; i++)
        tries += later(SECOND_NS, tuned.in_use, tuned.in_use > 24 ? 9 : 10, 0, 0, 1) && tuned.in_use > 24;
    CHECK(tries >= 8 && tries <= 16);
    check_case("those that were slow at first only stay");
    for (int i = 0; i < 10 && tuned.in_use == 24; i++) later(SECOND_NS, 24, 10, 0, 0, 1);
    CHECK_EQ(tuned.in_use, 48);
    later(SECOND_NS, 48, 10, 0, 0, 1);
    CHECK(!later(SECOND_NS, 48, 10, 0, 0, 1));
    CHECK(later(SECOND_NS, 48, 12, 0, 0, 1) && tuned.in_use == 64);
    check_case("a neighbour that comes near");
    figures.round_trip_us = 100;
    CHECK(pace_lanes_step(&tuned, &figures, 64, now += SECOND_NS));
    CHECK_EQ(tuned.in_use, 0);
    CHECK_EQ(tuned.reason, PACE_NEAR);
    check_case("each reason has its sentence");
    for (enum pace_reason i = 0; i < PACE_REASONS; i++)
        CHECK(strlen(pace_reason_text(i)) > 20 && strlen(pace_reason_text(i)) < 160);
    CHECK(strcmp(pace_reason_text(PACE_REASONS), "unknown") == 0);
}

// Nothing is known of the way yet. `window`: of each connection, in bytes.
static void begin_ramp(uint32_t trip_us, uint32_t window) {
    begin_far(trip_us);
    tuned.ramped = false;
    figures.window = 6 * (uint64_t)window;
}

static bool trip_later(uint32_t window, uint64_t queue_us, double again) {
    figures.window = (uint64_t)tuned.in_use * window;
    return later(figures.round_trip_us * US_NS, tuned.in_use, 1, queue_us, again, 1);
}

static bool is_smooth(uint32_t lanes) {
    struct pace_total seen = figures;
    seen.lanes = lanes;
    return pace_is_smooth(&tuned, &seen);
}

// A way of this rate, in bytes per microsecond, whose connections begin with 14 KB each, and double what they have
// under way with each round trip until it is one and a half times what the way holds.
static uint32_t ramp_over(double rate, uint32_t trip_us, bool *smooth) {
    double sent[64], holds = rate * trip_us;
    for (int i = 0; i < 64; i++) sent[i] = 14e3;
    begin_ramp(trip_us, 14000);
    for (int measurements = 0; !tuned.ramped && measurements < 30; measurements++) {
        double window = 0;
        uint32_t spent_us = 0;
        while (spent_us < 60000 && window < 1.5 * holds) {
            window = 0;
            for (uint32_t i = 0; i < tuned.in_use; i++) window += sent[i] *= 2;
            spent_us += trip_us;
        }
        figures.window = (uint64_t)window;
        later((spent_us < 60000 ? 60000 : spent_us) * US_NS, tuned.in_use, 1,
              window > holds ? (uint64_t)((window - holds) / rate) : 0, 0, 1);
    }
    CHECK(tuned.ramped);
    *smooth = is_smooth(1);
    return tuned.in_use;
}

static void test_ramp(void) {
    check_case("they double with each round trip, and from the second time on all of them send smoothly");
    begin_ramp(80000, 128 << 10);
    CHECK(!is_smooth(6) && is_smooth(7));
    static const uint32_t steps[] = {12, 24, 48, 64};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        CHECK(trip_later(128 << 10, 0, 0.005));
        CHECK_EQ(tuned.in_use, steps[i]);
        CHECK_EQ(tuned.reason, PACE_ADDED);
        CHECK_EQ(is_smooth(1), steps[i] > 12);
    }
    CHECK(is_smooth(1));
    check_case("not within one");
    begin_ramp(80000, 128 << 10);
    for (int i = 0; i < 3; i++) {
        figures.window = 6 * 128 << 10;
        CHECK(!later(20 * MS_NS, 6, 1, 0, 0, 1));
    }
    CHECK(later(20 * MS_NS, 6, 1, 0, 0, 1) && tuned.in_use == 12);
    check_case("not while their windows are small and grow");
    begin_ramp(80000, 14 << 10);
    for (uint32_t window = 16 << 10; window < 96 << 10; window = window * 5 / 4) {
        CHECK(!trip_later(window, 0, 0));
        CHECK(!tuned.ramped && tuned.reason == PACE_RAMPS && !is_smooth(6));
    }
    check_case("where losses keep windows small, whether more of them help is measured");
    begin_ramp(80000, 14 << 10);
    CHECK(!trip_later(28 << 10, 0, 0.005) && !tuned.ramped);
    CHECK(!trip_later(29 << 10, 0, 0.005) && tuned.ramped && tuned.reason == PACE_BEGINS);
    for (int i = 0; i < 20; i++) later(SECOND_NS, tuned.in_use, 10.0 * tuned.in_use, 0, 0.005, 1);
    CHECK_EQ(tuned.in_use, 64);
    check_case("nor do all of them wait for more when their windows grow no more");
    begin_ramp(80000, 128 << 10);
    for (int i = 0; i < 4; i++) CHECK(trip_later(128 << 10, 0, 0.005));
    CHECK(!trip_later(160 << 10, 0, 0.005) && !tuned.ramped && tuned.reason == PACE_ALL);
    CHECK(!trip_later(160 << 10, 0, 0.005) && tuned.ramped);
    CHECK(!later(SECOND_NS, 64, 64, 0, 0.005, 1));
    CHECK(!later(SECOND_NS, 64, 64, 0, 0.005, 1) && tuned.in_use == 64);
    CHECK_EQ(tuned.reason, PACE_ALL);
    check_case("nor while they have nothing to send");
    begin_ramp(80000, 128 << 10);
    for (int i = 0; i < 40; i++) CHECK(!later(80 * MS_NS, 6, 10, 0, 0, 0.5));
    CHECK_EQ(tuned.reason, PACE_ENOUGH);
    CHECK(!tuned.ramped);
    CHECK(trip_later(128 << 10, 0, 0) && tuned.in_use == 12);
    CHECK(!later(80 * MS_NS, 12, 10, 0, 0, 0.5) && tuned.reason == PACE_ENOUGH);
    check_case("until there is a queue");
    begin_ramp(80000, 128 << 10);
    CHECK(!trip_later(128 << 10, 50000, 0));
    CHECK(tuned.ramped && tuned.in_use == 6 && tuned.reason == PACE_QUEUES && !is_smooth(6));
    check_case("of the own direction");
    begin_ramp(80000, 128 << 10);
    figures.coming_us = 46000;
    CHECK(trip_later(128 << 10, 50000, 0) && tuned.in_use == 12);
    check_case("or much is lost");
    begin_ramp(80000, 128 << 10);
    CHECK(!trip_later(128 << 10, 0, 0.02));
    CHECK(tuned.ramped && tuned.in_use == 6);
    check_case("one that is lost takes its sums with it, so the measurement begins anew");
    begin_ramp(80000, 128 << 10);
    figures.busy_us = figures.acked = figures.segments = 0;
    for (int i = 0; i < 4; i++) CHECK(!later(20 * MS_NS, 5, 1, 0, 0, 1));
    CHECK(later(20 * MS_NS, 5, 1, 0, 0, 1) && tuned.in_use == 12);
    figures.retransmits = figures.busy_us = figures.acked = figures.segments = 0; // of one of the five
    CHECK(!later(80 * MS_NS, 11, 1, 0, 0, 1) && !tuned.ramped);
    check_case("a queue that is there before the first ones are does not keep them out");
    tuned = (struct pace_lanes){0};
    figures = (struct pace_total){.lanes = 3, .round_trip_us = 80000, .smoothed_us = 3 * 130000};
    for (int i = 0; i < 3; i++) {
        pace_lanes_step(&tuned, &figures, 3, now += 80 * MS_NS);
        figures.busy_us += 3 * 80000;
    }
    CHECK(tuned.ramped && tuned.in_use == 3);
    CHECK(pace_lanes_step(&tuned, &figures, 64, now += 20 * MS_NS) && tuned.in_use == 6);
    check_case("those that come up meanwhile count as soon as they are there");
    tuned = (struct pace_lanes){0};
    figures = (struct pace_total){.round_trip_us = 80000};
    for (uint32_t made = 1; made < 20; made++) {
        figures.lanes = tuned.in_use;
        figures.window = (uint64_t)tuned.in_use * (128 << 10);
        figures.busy_us += tuned.in_use * 20000;
        pace_lanes_step(&tuned, &figures, made, now += 20 * MS_NS);
        CHECK(tuned.in_use >= (made < 6 ? made : 6) && tuned.in_use <= made);
    }
    CHECK(tuned.in_use >= 12);
    check_case(
        "which tells a wide way from a narrow one, as their windows do where they find out the rate by themselves");
    figures.window = 3 << 20;
    CHECK(pace_is_wide(&tuned, &figures) == tuned.wide);
    figures.models = true;
    CHECK(!pace_is_wide(&tuned, &figures));
    figures.window = 20 << 20;
    CHECK(pace_is_wide(&tuned, &figures));
    check_case("those that find out the rate by themselves are few");
    begin_ramp(80000, 128 << 10);
    figures.models = true;
    tuned = (struct pace_lanes){0};
    CHECK(pace_lanes_step(&tuned, &figures, 64, now += SECOND_NS) && tuned.ramped);
    check_case("a narrow way gets the first ones alone, a wide one many");
    static const struct {
        double megabits;
        uint32_t trip_us, least, most;
    } ways[] = {{100, 30000, 6, 6},   {20, 120000, 6, 6},   {50, 80000, 6, 6},     {1000, 10000, 6, 6},
                {200, 80000, 12, 24}, {1000, 30000, 6, 24}, {1000, 80000, 48, 64}, {5000, 150000, 64, 64}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bool smooth;
        uint32_t lanes = ramp_over(ways[i].megabits / 8, ways[i].trip_us, &smooth);
        CHECK(lanes >= ways[i].least && lanes <= ways[i].most);
        CHECK_EQ(smooth, lanes > 12);
    }
}

// ---- rings ----
// A chunk is never empty, never above its limit, and begins where a cache line of an aligned tensor does.
static void test_chunks(void) {
    for (size_t element = 1; element <= 8; element *= 2)
        for (uint64_t shard = 1; shard < UINT64_C(1) << 34; shard = shard * 3 + 7) {
            check_case("%llu elements of %zu bytes", (unsigned long long)shard, element);
            uint64_t plain = pace_chunk(shard, element, PACE_CHUNK_MAX, false);
            CHECK(plain * element >= PACE_CHUNK_MIN && plain * element <= PACE_CHUNK_MAX);
            CHECK_EQ(plain * element % 64, 0);
            CHECK_EQ(pace_chunk(shard, element, PACE_CHUNK_MAX, true) * element, PACE_CHUNK_MAX);
            CHECK_EQ(pace_block(shard, element, PACE_FAR_US / 2 - 1), plain);
            CHECK(pace_block(shard, element, PACE_FAR_US / 2) * element < PACE_CHUNK_MIN);
            CHECK_EQ(pace_block(shard, element, UINT32_MAX) * element % 64, 0);
        }
}

static void test_window(void) {
    check_case("window");
    CHECK(pace_window(2, 1, 1) >= 2 * PACE_CHUNK_MAX);
    CHECK(pace_window(4, 20, 1000) < 3 * PACE_CHUNK_MAX); // within a host: what the caches hold
    // 40 ms each way at 1 Gbit/s, whatever one connection was measured to give
    CHECK(pace_window(2, 40000, 1) >= UINT64_C(10) * 1000 * 1000);
    CHECK(pace_window(2, 20, 1000) >= 4 * PACE_CHUNK_MAX); // each of two carries a larger part of the ring
    CHECK(pace_window(4, 1000, 10000) > 3 * pace_window(4, 1000, 1000));
    CHECK(pace_window(1024, UINT32_MAX, UINT32_MAX) == UINT64_MAX);
}

int main(void) {
    test_speed();
    test_mean();
    test_flow();
    test_frames();
    test_lanes();
    test_ramp();
    test_chunks();
    test_window();
    return check_status();
}
