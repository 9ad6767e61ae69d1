// What is seen of a neighbour: who begins later, and whose heartbeats are late.
#include "data/sight.h"

#include "base/platform.h"
#include "check.h"

// The other side's clock is years apart from this one.
static const uint64_t other_us = UINT64_C(1) << 52;

static void beat(struct sight *sight, int64_t at_ms, int64_t travel_us, bool loaded) {
    sight_beat(sight, other_us + (uint64_t)(at_ms * 1000 - travel_us), loaded, at_ms * MS_NS);
}

static void test_entries(void) {
    check_case("later and earlier, each by itself");
    struct sight sight = {0};
    sight_entered(&sight, 1000, 5000);
    sight_entered(&sight, 5000, 4000);
    sight_entered(&sight, 7000, 7000);
    sight_entered(&sight, 0, 7000); // not begun here
    CHECK_EQ(sight.entries, 3);
    CHECK_EQ(sight.late_ns, 4000);
    CHECK_EQ(sight.early_ns, 1000);
}

static void test_calls(void) {
    check_case("calls, one of which has ended while it was posted");
    struct sights sights = {0};
    CHECK(sights_posted(&sights));
    CHECK(!sights_posted(&sights)); // awake
    sights_ended(&sights, 1 * MS_NS, 3 * MS_NS);
    sights_ended(&sights, 0, 3 * MS_NS);
    CHECK_EQ(sights.ops, 2);
    CHECK_EQ(sights.op_us, 2000);
    CHECK(sights.moved);
}

static void test_beats(void) {
    check_case("the median of those under load, beyond the fastest of all");
    struct sight sight = {0};
    CHECK_EQ(sight_queue_us(&sight), 0);
    beat(&sight, 10, 2000, false);
    beat(&sight, 20, 1500, false);
    CHECK_EQ(sight_queue_us(&sight), 0);
    for (int i = 0; i < 5; i++) beat(&sight, 30 + i, i == 0 ? 900000 : 20000 + i, true);
    beat(&sight, 40, 1600, true);
    CHECK_EQ(sight_queue_us(&sight), 20002 - 1500);
    CHECK_EQ(sight_queue_us(&sight), 0); // of each report by itself
    sight_beat(&sight, 0, true, 50 * MS_NS);
    CHECK_EQ(sight_queue_us(&sight), 0);
    for (int i = 0; i < 100; i++) beat(&sight, 60 + i, 4000, true);
    CHECK_EQ(sight_queue_us(&sight), 2500);

    check_case("the fastest of the latest ones, whatever was reported");
    CHECK_EQ(sight_latest_queue_us(&sight, 160 * MS_NS), 2500);
    CHECK_EQ(sight_latest_queue_us(&sight, (160 + 2 * SIGHT_LATEST_MS) * MS_NS), 0);
    int64_t after_ms = 160 + 2 * SIGHT_LATEST_MS;
    for (int i = 0; i < SIGHT_LATEST; i++) {
        CHECK_EQ(sight_latest_queue_us(&sight, (after_ms + i) * MS_NS), 0); // too few
        beat(&sight, after_ms + i, i == 0 ? 900000 : 5500, true);
    }
    CHECK_EQ(sight_latest_queue_us(&sight, (after_ms + SIGHT_LATEST) * MS_NS), 4000);
    CHECK_EQ(sight_queue_us(&sight), 4000);

    check_case("a way that has become longer is the usual one after a while, and not at once");
    beat(&sight, SIGHT_BASE_MS + 1000, 9500, true);
    CHECK_EQ(sight_queue_us(&sight), 8000);
    beat(&sight, 2 * SIGHT_BASE_MS + 2000, 9500, true);
    CHECK_EQ(sight_queue_us(&sight), 0);
}

static void test_lies(void) {
    check_case("any clock");
    struct sight sight = {0};
    uint64_t seed = 5;
    for (int i = 0; i < 1000; i++) {
        sight_beat(&sight, check_random(&seed), true, 1 + (int64_t)(check_random(&seed) >> 2));
        sight_queue_us(&sight);
        sight_sent(&sight, check_random(&seed) >> check_random(&seed) % 64,
                   check_random(&seed) >> check_random(&seed) % 64);
        uint64_t again = check_random(&seed) >> check_random(&seed) % 64;
        if (i % 5 == 0) CHECK(sight_lost(&sight, check_random(&seed), again) <= again);
    }
    CHECK(sight.beats == 0);
}

// A report of ten looks at `segments` each, in which so many of a thousand are sent again in each `of`th look.
static uint64_t lost(uint64_t segments, uint64_t thousandths, int of) {
    static struct sight sight;
    uint64_t sent = 0, again = 0;
    for (int i = 0; i < 10; i++) {
        sent += segments;
        if (i % of == 0) again += segments * thousandths / 1000;
        sight_sent(&sight, sent, again);
    }
    return sight_lost(&sight, sent, again);
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
    struct sight sight = {0};
    CHECK_EQ(sight_lost(&sight, 100000, 700), 700);
    check_case("a lane is gone between two looks");
    sight_sent(&sight, 5000, 50);
    sight_sent(&sight, 1000, 10);
    for (uint64_t i = 1; i <= 5; i++) sight_sent(&sight, 1000 + i * 1000, 10 + i * 20);
    CHECK_EQ(sight_lost(&sight, 6000, 110), 110);
    check_case("more looks than there is room for");
    for (uint64_t i = 1; i <= 10 * SIGHT_LOOKS; i++) sight_sent(&sight, i * 1000, i * 10);
    CHECK_EQ(sight_lost(&sight, 160000, 1600), 1600);
}

int main(void) {
    test_entries();
    test_lost();
    test_calls();
    test_beats();
    test_lies();
    return check_status();
}
