// Sets of ranges against a set of bits.
#include "ops/ranges.h"

#include <string.h>

#include "check.h"

enum { BITS = 64 };

static bool model[BITS];

static void check_same(const struct ranges *ranges) {
    uint64_t at = 0;
    for (size_t i = 0; i < ranges->count; i++) {
        const struct plan_range *range = &ranges->list[i];
        CHECK(range->begin < range->end && (i == 0 || range->begin > ranges->list[i - 1].end));
        for (; at < range->begin; at++) CHECK(!model[at]);
        for (; at < range->end; at++) CHECK(model[at]);
    }
    for (; at < BITS; at++) CHECK(!model[at]);
}

static void check_gap(const struct ranges *ranges, uint64_t begin, uint64_t end) {
    struct plan_range gap;
    uint64_t from = begin, to;
    while (from < end && model[from]) from++;
    for (to = from; to < end && !model[to];) to++;
    CHECK_EQ(ranges_gap(ranges, begin, end, &gap), from < end);
    if (from < end) CHECK(gap.begin == from && gap.end == to);
}

static void test_random(uint64_t seed) {
    check_case("seed %d", (int)seed);
    struct ranges ranges = {0};
    memset(model, 0, sizeof model);
    for (int step = 0; step < 60; step++) {
        uint64_t begin = check_random(&seed) % BITS, end = begin + check_random(&seed) % (BITS - begin + 1);
        if (step % 3 != 0 && end > begin + 5) end = begin + 5;
        check_gap(&ranges, begin, end);
        bool clear = true, take = check_random(&seed) % 2;
        for (uint64_t i = begin; i < end; i++) clear &= !model[i];
        if (take)
            CHECK_EQ(ranges_take(&ranges, begin, end), clear);
        else
            CHECK(ranges_add(&ranges, begin, end));
        for (uint64_t i = begin; i < end && (!take || clear); i++) model[i] = true;
        check_same(&ranges);
    }
    ranges_clear(&ranges);
    CHECK(ranges_take(&ranges, 0, UINT64_MAX));
    ranges_fini(&ranges);
}

// What a few lanes bring in turns stays a few ranges.
static void test_strands(void) {
    check_case("strands");
    struct ranges ranges = {0};
    for (uint64_t i = 0; i < 1000; i++)
        for (uint64_t strand = 0; strand < 4; strand++)
            CHECK(ranges_take(&ranges, strand * 5000 + i * 5, strand * 5000 + i * 5 + 5));
    CHECK_EQ(ranges.count, 1);
    CHECK(ranges.room <= 16);
    CHECK(!ranges_take(&ranges, 19999, 20001));
    ranges_fini(&ranges);
}

int main(void) {
    for (uint64_t seed = 1; seed <= 300; seed++) test_random(seed);
    test_strands();
    return check_status();
}
