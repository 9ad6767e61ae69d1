// How ops are divided.
#include "check.h"
#include "compute/codec.h"
#include "net/wire.h"
#include "ops/plan.h"

static void check_division(uint64_t count, size_t element) {
    check_case("%llu elements of %zu bytes", (unsigned long long)count, element);
    uint32_t segments = plan_segments(count, element);
    CHECK(segments >= 1 && segments <= PLAN_SEGMENTS);
    CHECK((segments == 1) == (count < plan_segmented_min / element));
    uint64_t at = 0, most = plan_segment(count, element, 0).end;
    for (uint32_t i = 0; i < segments; i++) {
        struct plan_range range = plan_segment(count, element, i);
        uint64_t size = range.end - range.begin;
        CHECK(range.begin == at);
        at = range.end;
        if (segments == 1) continue;
        CHECK(size * element >= PLAN_SEGMENT_MIN);
        CHECK(size * element > PLAN_SMALL_MAX); // a segment is never sent as a small op
        CHECK(range.begin * element % 64 == 0);
        CHECK(i + 1 == segments ? size >= most && size < 2 * most : size == most);
    }
    CHECK_EQ(at, count);
    // What a loss costs: never more than a tenth of the op, once there are enough segments.
    if (segments >= PLAN_SEGMENTS - 1) CHECK(most * PLAN_SEGMENTS_AHEAD <= count / 10);
}

static void test_segments(void) {
    static const uint64_t counts[] = {
        0,       1,        1000,     1 << 18,    (1 << 20) - 1,    1 << 20, (1 << 20) + 1, 3333333, (4 << 20) - 1,
        4 << 20, 67108864, 67108863, 1000000007, UINT64_C(1) << 40};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (size_t element = 1; element <= 8; element *= 2) check_division(counts[i], element);
    uint64_t seed = 1;
    for (int i = 0; i < 2000; i++)
        check_division(check_random(&seed) >> (20 + check_random(&seed) % 44), (size_t)1 << check_random(&seed) % 4);
}

// Within a host a few for all ops together; on a long link what it holds while verdicts come.
static void test_extra_segments(void) {
    CHECK_EQ(plan_extra_segments(2, 1, 1), PLAN_SEGMENTS_AHEAD);
    CHECK_EQ(plan_extra_segments(4, 100, 3000), PLAN_SEGMENTS_AHEAD + 1);
    for (uint32_t members = 2; members < 6; members++) {
        uint64_t held = (uint64_t)80000 * 1250 * 2; // 10 Gbit/s, there and back
        CHECK(plan_extra_segments(members, 80000, 1250) >= held / PLAN_SEGMENT_MIN);
    }
    CHECK_EQ(plan_extra_segments(60000, UINT32_MAX, UINT32_MAX), UINT32_MAX);
}

// However long the way, one round of it costs less than five.
static const struct wire_fingerprint sum = {.codec = CODEC_RAW}, quantised = {.codec = CODEC_MINMAX_UINT8},
                                     broadcast = {.kind = PLAN_BROADCAST}, reduce = {.kind = PLAN_REDUCE},
                                     scattered = {.kind = PLAN_REDUCE_SCATTER};

static void test_choice_at_long_delays(void) {
    for (uint32_t latency_us = 1000; latency_us <= 20 * 1000 * 1000; latency_us += 100 * 1000)
        for (uint32_t members = 2; members < 5; members++)
            CHECK_EQ(plan_path_of(&sum, PLAN_SMALL_ANY, members, latency_us, 1000, false), PLAN_SMALL);
}

static void test_choice(void) {
    static const struct {
        const char *name;
        uint64_t bytes;
        uint32_t members, latency_us;
        enum plan_path path;
    } rows[] = {
        {"two members send each other what a ring of two sends", PLAN_SMALL_MAX, 2, 1, PLAN_SMALL},
        {"one byte more than a member buffers", PLAN_SMALL_MAX + 1, 2, 1000, PLAN_RING},
        {"three members, half from each", PLAN_SMALL_MAX / 2, 3, 1000, PLAN_SMALL},
        {"three members, more than half from each", PLAN_SMALL_MAX / 2 + 1, 3, 1000, PLAN_RING},
        {"many members", PLAN_SMALL_ANY, 64, 100000, PLAN_SMALL},
        {"many members, one byte more", PLAN_SMALL_ANY + 1, 64, 100000, PLAN_RING},
        {"four members, where bytes cost more than rounds", PLAN_SMALL_ANY, 4, 5, PLAN_RING},
        {"four members on one host: a round costs a wake-up", 64 * 1024, 4, 1, PLAN_SMALL},
        {"the largest there is", UINT64_MAX, 1024, 1, PLAN_RING},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        CHECK_EQ(plan_path_of(&sum, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false), rows[i].path);
        CHECK_EQ(plan_path_of(&quantised, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false),
                 PLAN_SHARDED);
        bool small = rows[i].bytes <= PLAN_SMALL_ANY / (rows[i].members - 1);
        bool sent = rows[i].bytes <= PLAN_SMALL_ANY && rows[i].bytes <= PLAN_SMALL_MAX / (rows[i].members - 1);
        CHECK_EQ(plan_path_of(&broadcast, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false),
                 sent ? PLAN_SMALL : PLAN_CHAIN);
        CHECK_EQ(plan_path_of(&reduce, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false),
                 small ? PLAN_SMALL : PLAN_RING);
        CHECK_EQ(plan_path_of(&scattered, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false),
                 small ? PLAN_SMALL : PLAN_RING);
    }
}

// Where the others' kinds end to be small; bytes of all parts together, or of one member's input.
static void test_small_kinds(void) {
    static const struct {
        const char *name;
        uint8_t kind;
        uint64_t most;
        uint32_t members;
    } rows[] = {
        {"all-gather, two", PLAN_ALL_GATHER, PLAN_SMALL_ANY, 2},
        {"all-gather, four", PLAN_ALL_GATHER, 2 * PLAN_SMALL_ANY, 4},
        {"all-gather, many", PLAN_ALL_GATHER, 2 * PLAN_SMALL_ANY, 1024},
        {"gather", PLAN_GATHER, PLAN_SMALL_ANY, 4},
        {"scatter", PLAN_SCATTER, PLAN_SMALL_ANY / 3, 4},
        {"all-to-all, two", PLAN_ALL_TO_ALL, PLAN_SMALL_ANY, 2},
        {"all-to-all, three", PLAN_ALL_TO_ALL, PLAN_SMALL_ANY, 3},
        {"all-to-all, five", PLAN_ALL_TO_ALL, PLAN_SMALL_ANY / 2, 5},
        {"send", PLAN_SEND, PLAN_SMALL_ANY, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        struct wire_fingerprint what = {.kind = rows[i].kind};
        CHECK_EQ(plan_path_of(&what, rows[i].most, rows[i].members, 1, 1000, false), PLAN_SMALL);
        CHECK_EQ(plan_path_of(&what, rows[i].most + 1, rows[i].members, 1, 1000, false), PLAN_PIECES);
        CHECK_EQ(plan_path_of(&what, UINT64_MAX, rows[i].members, 1, 1000, false), PLAN_PIECES);
    }
}

int main(void) {
    test_small_kinds();
    test_choice_at_long_delays();
    test_choice();
    test_segments();
    test_extra_segments();
    return check_status();
}
