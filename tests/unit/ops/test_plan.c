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
            CHECK_EQ(plan_choose(&sum, PLAN_SMALL_ANY, members, latency_us, 1000, false), PLAN_SMALL);
}

static void test_choice(void) {
    static const struct {
        const char *name;
        uint64_t bytes;
        uint32_t members, latency_us;
        enum plan_algorithm algorithm;
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
        CHECK_EQ(plan_choose(&sum, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false), rows[i].algorithm);
        CHECK_EQ(plan_choose(&quantised, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false),
                 PLAN_SHARDED);
        bool small = rows[i].bytes <= PLAN_SMALL_ANY / (rows[i].members - 1);
        bool sent = rows[i].bytes <= PLAN_SMALL_ANY && rows[i].bytes <= PLAN_SMALL_MAX / (rows[i].members - 1);
        CHECK_EQ(plan_choose(&broadcast, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false),
                 sent ? PLAN_SMALL : PLAN_CHAIN);
        CHECK_EQ(plan_choose(&reduce, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false),
                 small ? PLAN_SMALL : PLAN_RING);
        CHECK_EQ(plan_choose(&scattered, rows[i].bytes, rows[i].members, rows[i].latency_us, 1000, false),
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
        CHECK_EQ(plan_choose(&what, rows[i].most, rows[i].members, 1, 1000, false), PLAN_SMALL);
        CHECK_EQ(plan_choose(&what, rows[i].most + 1, rows[i].members, 1, 1000, false), PLAN_PIECES);
        CHECK_EQ(plan_choose(&what, UINT64_MAX, rows[i].members, 1, 1000, false), PLAN_PIECES);
    }
}

// ---- shards by weights, and the trees of their blocks: pure properties ----
enum { MOST = 40, ROUNDS = 4000, ALIGN = 16 };

static uint64_t seed = 7;

static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

static struct plan_weights *draw(uint16_t *weights, uint16_t *sites, uint32_t members) {
    uint64_t most = below(2) == 0 ? 3 : 65536, places = 1 + below(6);
    for (uint32_t i = 0; i < members; i++) {
        weights[i] = (uint16_t)below(most);
        sites[i] = (uint16_t)below(places);
    }
    weights[below(members)] = (uint16_t)(1 + below(65535));
    struct plan_weights *weighted = plan_weights_new(weights, sites, members);
    REQUIRE(weighted != NULL);
    return weighted;
}

static double exact(const uint16_t *weights, uint32_t members, uint32_t shard, uint64_t count) {
    double total = 0;
    for (uint32_t i = 0; i < members; i++) total += weights[i];
    return (double)count * weights[shard] / total;
}

static void check_shards(const struct plan_weights *weighted, const uint16_t *weights, uint32_t members,
                         uint64_t count) {
    uint64_t at = 0;
    for (uint32_t shard = 0; shard < members; shard++) {
        struct plan_range range = plan_weights_shard(weighted, count, members, shard);
        CHECK_EQ(range.begin, at);
        CHECK(range.end >= range.begin && (range.begin % ALIGN == 0 || range.begin == count));
        if (weights[shard] == 0) CHECK_EQ(range.end, range.begin);
        double owned = (double)(range.end - range.begin), differs = owned - exact(weights, members, shard, count);
        CHECK(count > UINT64_C(1) << 50 || (differs < ALIGN + 1 && differs > -ALIGN - 1));
        at = range.end;
    }
    CHECK_EQ(at, count);
}

// Every member's way leads to the owner, over an agent of its own site at most, and nothing of a site leaves it twice.
static void check_tree(const struct plan_weights *weighted, const uint16_t *sites, uint32_t members, uint32_t shard,
                       uint64_t block) {
    uint32_t children[MOST] = {0}, leaving[6] = {0};
    for (uint32_t member = 0; member < members; member++) {
        uint32_t to = plan_weights_parent(weighted, shard, block, member);
        if (member == shard) {
            CHECK_EQ(to, shard);
            continue;
        }
        children[to]++;
        if (to == shard) {
            bool common = sites[member] != 0 && sites[member] == sites[shard];
            if (!common && sites[member] != 0) leaving[sites[member]]++;
        } else {
            CHECK(sites[to] == sites[member] && sites[to] != sites[shard]);
            CHECK_EQ(plan_weights_parent(weighted, shard, block, to), shard);
        }
    }
    for (uint32_t site = 1; site < 6; site++) CHECK(leaving[site] <= 1);
    for (uint32_t member = 0; member < members; member++)
        CHECK_EQ(plan_weights_children(weighted, shard, block, member), children[member]);
}

static void test_random(void) {
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint16_t weights[MOST], sites[MOST];
        uint32_t members = 1 + (uint32_t)below(MOST);
        check_case("round %u: %u members", round, members);
        struct plan_weights *weighted = draw(weights, sites, members);
        uint64_t count = round % 4 == 0 ? UINT64_MAX - below(1000) : below(UINT64_C(1) << below(50));
        check_shards(weighted, weights, members, count);
        check_tree(weighted, sites, members, (uint32_t)below(members), below(1 << 20));
        plan_weights_free(weighted);
    }
}

static void test_even(void) {
    check_case("no weights");
    for (uint32_t shard = 0; shard < 3; shard++) {
        struct plan_range range = plan_weights_shard(NULL, 1000, 3, shard), ring = plan_shard(1000, 3, shard);
        CHECK(range.begin == ring.begin && range.end == ring.end);
    }
    plan_weights_free(NULL);
}

// How often each of a site stands for it, of so many blocks.
static void test_agents(void) {
    enum { BLOCKS = 1000, MEMBERS = 5 };
    static const struct {
        const char *name;
        uint16_t weights[MEMBERS];
        uint32_t least[MEMBERS], most[MEMBERS];
    } rows[] = {
        {"by weights", {9, 1, 0, 3, 0}, {0, 240, 0, 740, 0}, {0, 260, 0, 760, 0}},
        {"without any", {9, 0, 0, 0, 0}, {0, 240, 240, 240, 240}, {0, 260, 260, 260, 260}},
    };
    static const uint16_t sites[MEMBERS] = {1, 2, 2, 2, 2};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        uint32_t agents[MEMBERS] = {0};
        struct plan_weights *weighted = plan_weights_new(rows[i].weights, sites, MEMBERS);
        REQUIRE(weighted != NULL);
        for (uint64_t block = 0; block < BLOCKS; block++)
            for (uint32_t member = 1; member < MEMBERS; member++)
                agents[member] += plan_weights_parent(weighted, 0, block, member) == 0;
        for (uint32_t member = 1; member < MEMBERS; member++)
            CHECK(agents[member] >= rows[i].least[member] && agents[member] <= rows[i].most[member]);
        plan_weights_free(weighted);
    }
}

// How many members of the second site stand for it where a member of the first one owns the block.
static void test_opposite(void) {
    enum { BLOCKS = 1000, MEMBERS = 7 };
    static const struct {
        const char *name;
        uint16_t weights[MEMBERS], sites[MEMBERS];
        uint32_t pairs; // of an owner and one that sends to it
    } rows[] = {
        {"as many", {5, 5, 5, 5, 5, 5, 9}, {1, 2, 1, 2, 2, 1, 3}, 3},
        {"3 and 2, with a fast member", {3, 9, 3, 1, 5, 0, 0}, {1, 2, 1, 2, 1, 0, 0}, 4},
        {"all beside one", {7, 1, 1, 1, 1, 1, 1}, {1, 2, 2, 2, 2, 2, 2}, 6},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        struct plan_weights *weighted = plan_weights_new(rows[i].weights, rows[i].sites, MEMBERS);
        REQUIRE(weighted != NULL);
        uint32_t pairs = 0;
        for (uint32_t owner = 0; owner < MEMBERS; owner++)
            for (uint32_t member = 0; member < MEMBERS; member++) {
                bool opposite = rows[i].sites[owner] == 1 && rows[i].sites[member] == 2, meets = false;
                for (uint64_t block = 0; opposite && block < BLOCKS; block++)
                    meets |= plan_weights_parent(weighted, owner, block, member) == owner;
                pairs += meets;
            }
        CHECK_EQ(pairs, rows[i].pairs);
        plan_weights_free(weighted);
    }
}

int main(void) {
    test_small_kinds();
    test_choice_at_long_delays();
    test_choice();
    test_segments();
    test_extra_segments();
    test_random();
    test_opposite();
    test_even();
    test_agents();
    return check_status();
}
