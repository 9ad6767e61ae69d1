// Shards by weights, and the trees of their blocks: pure properties.
#include "ops/weighted.h"

#include "check.h"

enum { MOST = 40, ROUNDS = 4000, ALIGN = 16 };

static uint64_t seed = 7;

static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

static struct weighted *draw(uint16_t *weights, uint16_t *sites, uint32_t members) {
    uint64_t most = below(2) == 0 ? 3 : 65536, places = 1 + below(6);
    for (uint32_t i = 0; i < members; i++) {
        weights[i] = (uint16_t)below(most);
        sites[i] = (uint16_t)below(places);
    }
    weights[below(members)] = (uint16_t)(1 + below(65535));
    struct weighted *weighted = weighted_new(weights, sites, members);
    REQUIRE(weighted != NULL);
    return weighted;
}

static double exact(const uint16_t *weights, uint32_t members, uint32_t shard, uint64_t count) {
    double total = 0;
    for (uint32_t i = 0; i < members; i++) total += weights[i];
    return (double)count * weights[shard] / total;
}

static void check_shards(const struct weighted *weighted, const uint16_t *weights, uint32_t members, uint64_t count) {
    uint64_t at = 0;
    for (uint32_t shard = 0; shard < members; shard++) {
        struct plan_range range = weighted_shard(weighted, count, members, shard);
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
static void check_tree(const struct weighted *weighted, const uint16_t *sites, uint32_t members, uint32_t shard,
                       uint64_t block) {
    uint32_t children[MOST] = {0}, leaving[6] = {0};
    for (uint32_t member = 0; member < members; member++) {
        uint32_t to = weighted_parent(weighted, shard, block, member);
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
            CHECK_EQ(weighted_parent(weighted, shard, block, to), shard);
        }
    }
    for (uint32_t site = 1; site < 6; site++) CHECK(leaving[site] <= 1);
    for (uint32_t member = 0; member < members; member++)
        CHECK_EQ(weighted_children(weighted, shard, block, member), children[member]);
}

static void test_random(void) {
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint16_t weights[MOST], sites[MOST];
        uint32_t members = 1 + (uint32_t)below(MOST);
        check_case("round %u: %u members", round, members);
        struct weighted *weighted = draw(weights, sites, members);
        uint64_t count = round % 4 == 0 ? UINT64_MAX - below(1000) : below(UINT64_C(1) << below(50));
        check_shards(weighted, weights, members, count);
        check_tree(weighted, sites, members, (uint32_t)below(members), below(1 << 20));
        weighted_free(weighted);
    }
}

static void test_even(void) {
    check_case("no weights");
    for (uint32_t shard = 0; shard < 3; shard++) {
        struct plan_range range = weighted_shard(NULL, 1000, 3, shard), ring = plan_shard(1000, 3, shard);
        CHECK(range.begin == ring.begin && range.end == ring.end);
    }
    weighted_free(NULL);
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
        struct weighted *weighted = weighted_new(rows[i].weights, sites, MEMBERS);
        REQUIRE(weighted != NULL);
        for (uint64_t block = 0; block < BLOCKS; block++)
            for (uint32_t member = 1; member < MEMBERS; member++)
                agents[member] += weighted_parent(weighted, 0, block, member) == 0;
        for (uint32_t member = 1; member < MEMBERS; member++)
            CHECK(agents[member] >= rows[i].least[member] && agents[member] <= rows[i].most[member]);
        weighted_free(weighted);
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
        struct weighted *weighted = weighted_new(rows[i].weights, rows[i].sites, MEMBERS);
        REQUIRE(weighted != NULL);
        uint32_t pairs = 0;
        for (uint32_t owner = 0; owner < MEMBERS; owner++)
            for (uint32_t member = 0; member < MEMBERS; member++) {
                bool opposite = rows[i].sites[owner] == 1 && rows[i].sites[member] == 2, meets = false;
                for (uint64_t block = 0; opposite && block < BLOCKS; block++)
                    meets |= weighted_parent(weighted, owner, block, member) == owner;
                pairs += meets;
            }
        CHECK_EQ(pairs, rows[i].pairs);
        weighted_free(weighted);
    }
}

int main(void) {
    test_random();
    test_opposite();
    test_even();
    test_agents();
    return check_status();
}
