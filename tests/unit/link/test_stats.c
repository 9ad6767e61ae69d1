// What is seen of a neighbour: who begins later, and whose heartbeats are late.
#include "link/stats.h"

#include "base/platform.h"
#include "check.h"
#include "data/core.h"

// The other side's clock is years apart from this one.
static const uint64_t other_us = UINT64_C(1) << 52;

static void beat(struct link_stats *stats, int64_t at_ms, int64_t travel_us, bool loaded) {
    stats_beat(stats, other_us + (uint64_t)(at_ms * 1000 - travel_us), loaded, at_ms * MS_NS);
}

static void test_entries(void) {
    check_case("later and earlier, each by itself");
    struct link_stats stats = {0};
    stats_entered(&stats, 1000, 5000);
    stats_entered(&stats, 5000, 4000);
    stats_entered(&stats, 7000, 7000);
    stats_entered(&stats, 0, 7000); // not begun here
    CHECK_EQ(stats.entries, 3);
    CHECK_EQ(stats.late_ns, 4000);
    CHECK_EQ(stats.early_ns, 1000);
}

static void test_calls(void) {
    check_case("calls, one of which has ended while it was posted");
    struct op_stats op_stats = {0};
    CHECK(op_stats_posted(&op_stats));
    CHECK(!op_stats_posted(&op_stats)); // awake
    op_stats_ended(&op_stats, 1 * MS_NS, 3 * MS_NS);
    op_stats_ended(&op_stats, 0, 3 * MS_NS);
    CHECK_EQ(op_stats.ops, 2);
    CHECK_EQ(op_stats.op_us, 2000);
    CHECK(op_stats.moved);
}

static void test_beats(void) {
    check_case("the median of those under load, beyond the fastest of all");
    struct link_stats stats = {0};
    CHECK_EQ(stats_queue_us(&stats), 0);
    beat(&stats, 10, 2000, false);
    beat(&stats, 20, 1500, false);
    CHECK_EQ(stats_queue_us(&stats), 0);
    for (int i = 0; i < 5; i++) beat(&stats, 30 + i, i == 0 ? 900000 : 20000 + i, true);
    beat(&stats, 40, 1600, true);
    CHECK_EQ(stats_queue_us(&stats), 20002 - 1500);
    CHECK_EQ(stats_queue_us(&stats), 0); // of each report by itself
    stats_beat(&stats, 0, true, 50 * MS_NS);
    CHECK_EQ(stats_queue_us(&stats), 0);
    for (int i = 0; i < 100; i++) beat(&stats, 60 + i, 4000, true);
    CHECK_EQ(stats_queue_us(&stats), 2500);

    check_case("the fastest of the latest ones, whatever was reported");
    CHECK_EQ(stats_latest_queue_us(&stats, 160 * MS_NS), 2500);
    CHECK_EQ(stats_latest_queue_us(&stats, (160 + 2 * STATS_LATEST_MS) * MS_NS), 0);
    int64_t after_ms = 160 + 2 * STATS_LATEST_MS;
    for (int i = 0; i < STATS_LATEST; i++) {
        CHECK_EQ(stats_latest_queue_us(&stats, (after_ms + i) * MS_NS), 0); // too few
        beat(&stats, after_ms + i, i == 0 ? 900000 : 5500, true);
    }
    CHECK_EQ(stats_latest_queue_us(&stats, (after_ms + STATS_LATEST) * MS_NS), 4000);
    CHECK_EQ(stats_queue_us(&stats), 4000);

    check_case("a way that has become longer is the usual one after a while, and not at once");
    beat(&stats, STATS_BASE_MS + 1000, 9500, true);
    CHECK_EQ(stats_queue_us(&stats), 8000);
    beat(&stats, 2 * STATS_BASE_MS + 2000, 9500, true);
    CHECK_EQ(stats_queue_us(&stats), 0);
}

static void test_lies(void) {
    check_case("any clock");
    struct link_stats stats = {0};
    uint64_t seed = 5;
    for (int i = 0; i < 1000; i++) {
        stats_beat(&stats, check_random(&seed), true, 1 + (int64_t)(check_random(&seed) >> 2));
        stats_queue_us(&stats);
        stats_sent(&stats, check_random(&seed) >> check_random(&seed) % 64,
                   check_random(&seed) >> check_random(&seed) % 64);
        uint64_t again = check_random(&seed) >> check_random(&seed) % 64;
        if (i % 5 == 0) CHECK(stats_lost(&stats, check_random(&seed), again) <= again);
    }
    CHECK(stats.beats == 0);
}

// A report of ten looks at `segments` each, in which so many of a thousand are sent again in each `of`th look.
static uint64_t lost(uint64_t segments, uint64_t thousandths, int of) {
    static struct link_stats stats;
    uint64_t sent = 0, again = 0;
    for (int i = 0; i < 10; i++) {
        sent += segments;
        if (i % of == 0) again += segments * thousandths / 1000;
        stats_sent(&stats, sent, again);
    }
    return stats_lost(&stats, sent, again);
}

static void test_lost(void) {
    check_case("what is lost on the way is sent again all the time");
    CHECK_EQ(lost(1000, 10, 1), 100);
    check_case("what a queue that overflows loses, at times");
    CHECK_EQ(lost(1000, 300, 3), 0);
    CHECK_EQ(lost(1000, 300, 2), 0);
    CHECK_EQ(lost(1000, 10, 1), 100);
    check_case("looks at few segments are taken together");
    CHECK_EQ(lost(100, 10, 1), 10);
    CHECK_EQ(lost(100, 30, 3), 10);
    CHECK_EQ(lost(150, 300, 5), 0);
    check_case("all of it, where there are too few, or no looks");
    CHECK_EQ(lost(20, 100, 5), 4);
    struct link_stats stats = {0};
    CHECK_EQ(stats_lost(&stats, 100000, 700), 700);
    check_case("a lane is gone between two looks");
    stats_sent(&stats, 5000, 50);
    stats_sent(&stats, 1000, 10);
    for (uint64_t i = 1; i <= 5; i++) stats_sent(&stats, 1000 + i * 1000, 10 + i * 20);
    CHECK_EQ(stats_lost(&stats, 6000, 110), 110);
    check_case("more looks than there is room for");
    for (uint64_t i = 1; i <= 10 * STATS_LOOKS; i++) stats_sent(&stats, i * 1000, i * 10);
    CHECK_EQ(stats_lost(&stats, 160000, 1600), 1600);
}

int main(void) {
    test_entries();
    test_lost();
    test_calls();
    test_beats();
    test_lies();
    return check_status();
}
