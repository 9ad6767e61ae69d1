// How long a silent connection is waited for.
#include "base/platform.h"
#include "check.h"
#include "net/arrival.h"

enum { LIMIT_MS = 1000 };
#define LIMIT (LIMIT_MS * MS_NS)

static int64_t now = 5 * LIMIT;

static void arrive(struct arrival *arrival, int64_t gap_ms, int times) {
    for (int i = 0; i < times; i++) arrival_note(arrival, now += gap_ms * MS_NS, LIMIT);
}

static int64_t wait_ms(const struct arrival *arrival) { return arrival_wait_ns(arrival, LIMIT) / MS_NS; }

static void test_calm(void) {
    check_case("on a calm connection the limit is the limit");
    struct arrival arrival = {0};
    arrive(&arrival, 0, 1);
    CHECK_EQ(wait_ms(&arrival), LIMIT_MS);
    arrive(&arrival, LIMIT_MS / 5, 100);
    CHECK_EQ(wait_ms(&arrival), LIMIT_MS);
    CHECK_EQ(arrival_deadline_ns(&arrival, LIMIT), now + LIMIT);
    arrive(&arrival, 0, 100);
    CHECK_EQ(wait_ms(&arrival), LIMIT_MS);
}

static void test_single_pause(void) {
    check_case("one pause does not stretch it");
    struct arrival arrival = {0};
    arrive(&arrival, LIMIT_MS / 5, 50);
    arrive(&arrival, LIMIT_MS * 9 / 10, 1);
    CHECK_EQ(wait_ms(&arrival), LIMIT_MS);
}

static void test_pauses(void) {
    check_case("pauses that recur stretch it, up to a bound, and are forgotten");
    struct arrival arrival = {0};
    for (int i = 0; i < 20; i++) {
        arrive(&arrival, LIMIT_MS * 9 / 10, 1);
        arrive(&arrival, LIMIT_MS / 5, 1);
        arrive(&arrival, 1, 30); // a burst hides nothing
    }
    CHECK(wait_ms(&arrival) > 3 * LIMIT_MS / 2);
    CHECK(wait_ms(&arrival) <= ARRIVAL_STRETCH * LIMIT_MS);
    for (int i = 0; i < 20; i++) {
        arrive(&arrival, 5 * LIMIT_MS, 1);
        arrive(&arrival, LIMIT_MS, 1);
    }
    CHECK_EQ(wait_ms(&arrival), ARRIVAL_STRETCH * LIMIT_MS);
    arrive(&arrival, LIMIT_MS / 5, 60);
    CHECK_EQ(wait_ms(&arrival), LIMIT_MS);
}

static void test_round_trip(void) {
    check_case("a long round trip stretches it");
    struct arrival arrival = {.round_trip_ns = LIMIT / 4};
    CHECK_EQ(wait_ms(&arrival), 2 * LIMIT_MS);
    arrival.round_trip_ns = LIMIT / 10;
    CHECK_EQ(wait_ms(&arrival), LIMIT_MS);
    arrival.round_trip_ns = INT64_C(3600000) * MS_NS;
    CHECK_EQ(wait_ms(&arrival), ARRIVAL_STRETCH * LIMIT_MS);
}

static void test_clock(void) {
    check_case("an arrival that is told late changes nothing");
    struct arrival arrival = {0};
    arrive(&arrival, LIMIT_MS, 1);
    arrival_note(&arrival, now - LIMIT, LIMIT);
    CHECK_EQ(arrival.at_ns, now);
}

int main(void) {
    test_calm();
    test_single_pause();
    test_pauses();
    test_round_trip();
    test_clock();
    return check_status();
}
