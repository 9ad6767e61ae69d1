// The plan of leaves, against a simulation of donors with speeds, deaths and wrong bytes.
#include "link/pace.h"
#include "state/delta.h"

#include "check.h"
#include "compute/hash.h"

enum { LEAF = HASH_LEAF_BYTES };

static uint64_t seed = 11;
static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

static struct delta_layout layout_of(const uint64_t *bytes, size_t count) {
    struct delta_layout layout = {.entries = calloc(count, sizeof *layout.entries), .count = count};
    REQUIRE(layout.entries != NULL);
    for (size_t i = 0; i < count; i++) layout.entries[i].bytes = bytes[i];
    delta_layout_number(&layout);
    return layout;
}

static void test_layout(void) {
    check_case("layout");
    static const uint64_t bytes[] = {0, 1, 0, 0, LEAF, LEAF + 1, 0, (UINT64_C(5) << 30) + 3, 0, 7, 0};
    struct delta_layout layout = layout_of(bytes, sizeof bytes / sizeof bytes[0]);
    uint64_t big = (UINT64_C(5) << 30) / LEAF + 1;
    CHECK_EQ(layout.leaf_count, 1 + 1 + 2 + big + 1);
    struct {
        uint64_t leaf;
        size_t entry;
        uint64_t offset;
        uint32_t length;
    } rows[] = {
        {0, 1, 0, 1},       {1, 4, 0, LEAF}, {2, 5, 0, LEAF},
        {3, 5, LEAF, 1},    {4, 7, 0, LEAF}, {4 + big - 1, 7, (big - 1) * LEAF, 3},
        {4 + big, 9, 0, 7},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("layout row %zu", i);
        struct delta_piece piece = delta_layout_find(&layout, rows[i].leaf);
        CHECK_EQ(piece.entry, rows[i].entry);
        CHECK_EQ(piece.offset, rows[i].offset);
        CHECK_EQ(piece.length, rows[i].length);
    }
    free(layout.entries);
    static const uint64_t nothing[] = {0, 0};
    layout = layout_of(nothing, 2);
    CHECK_EQ(layout.leaf_count, 0);
    struct delta *delta = delta_new(&layout, 1);
    REQUIRE(delta != NULL);
    delta_compare(delta, NULL, NULL);
    CHECK_EQ(delta_missing(delta), 0);
    CHECK(!delta_hopeless(delta));
    CHECK_EQ(delta_ask(delta, 0, 1).count, 0);
    delta_free(delta);
    free(layout.entries);
}

// ---- a simulated transfer ----
enum { DONORS = 4, QUEUE = 1 << 16 };

struct source {
    double bytes_per_ns;
    int64_t delay, free_at, dies_at; // 0: never
    uint64_t wrong_every;            // 0: never
    uint64_t sent, sent_bytes;
    struct {
        uint64_t leaf;
        int64_t at;
    } queue[QUEUE];
    size_t first, count;
    bool dead;
};

static struct source sources[DONORS];

static void fill(struct delta *delta, uint32_t donor, int64_t now, const struct delta_layout *layout) {
    struct source *s = &sources[donor];
    for (struct delta_range range; !s->dead && (range = delta_ask(delta, donor, now)).count > 0;) {
        CHECK(range.count <= DELTA_RUN_LEAVES);
        for (uint32_t i = 0; i < range.count; i++) {
            uint32_t length = delta_layout_find(layout, range.first + i).length;
            int64_t start = s->free_at > now + s->delay ? s->free_at : now + s->delay;
            s->free_at = start + (int64_t)((double)length / s->bytes_per_ns) + 1;
            REQUIRE(s->count < QUEUE);
            size_t at = (s->first + s->count++) % QUEUE;
            s->queue[at].leaf = range.first + i;
            s->queue[at].at = s->free_at;
        }
    }
}

// Runs until everything is here or nothing moves; returns the time.
static int64_t simulate(struct delta *delta, uint32_t donors, const struct delta_layout *layout) {
    int64_t now = 1;
    for (uint32_t d = 0; d < donors; d++) fill(delta, d, now, layout);
    while (delta_missing(delta) > 0 && !delta_hopeless(delta)) {
        uint32_t from = donors;
        for (uint32_t d = 0; d < donors; d++)
            if (!sources[d].dead && sources[d].count > 0 &&
                (from == donors || sources[d].queue[sources[d].first].at < sources[from].queue[sources[from].first].at))
                from = d;
        if (!CHECK(from < donors)) return now;
        struct source *s = &sources[from];
        uint64_t leaf = s->queue[s->first].leaf;
        now = s->queue[s->first].at;
        s->first = (s->first + 1) % QUEUE;
        s->count--;
        if (s->dies_at != 0 && now >= s->dies_at) {
            s->dead = true;
            delta_drop(delta, from);
            CHECK_EQ(delta_on_way(delta, from), 0);
        } else {
            s->sent++;
            s->sent_bytes += delta_layout_find(layout, leaf).length;
            if (s->wrong_every != 0 && s->sent % s->wrong_every == 0)
                delta_wrong(delta, leaf, from);
            else
                delta_arrived(delta, leaf, from, now);
        }
        for (uint32_t d = 0; d < donors; d++) fill(delta, d, now, layout);
    }
    return now;
}

static struct delta *all_wanted(const struct delta_layout *layout, uint32_t donors) {
    uint64_t *mine = calloc(layout->leaf_count + 1, 8), *theirs = malloc((layout->leaf_count + 1) * 8);
    REQUIRE(mine != NULL && theirs != NULL);
    memset(theirs, 0xff, layout->leaf_count * 8);
    struct delta *delta = delta_new(layout, donors);
    REQUIRE(delta != NULL);
    delta_compare(delta, mine, theirs);
    CHECK_EQ(delta_missing(delta), layout->leaf_count);
    CHECK_EQ(delta_missing_bytes(delta), layout->bytes);
    free(mine);
    free(theirs);
    return delta;
}

static uint64_t sent_bytes(void) {
    uint64_t sum = 0;
    for (int d = 0; d < DONORS; d++) sum += sources[d].sent_bytes;
    return sum;
}

static void test_weights(void) {
    check_case("shares");
    uint64_t bytes[] = {UINT64_C(1) << 30, 5, 300000};
    struct delta_layout layout = layout_of(bytes, 3);
    // Slow and fast links with short and long delays: near the sum of them all, and nothing travels twice.
    struct {
        double speeds[DONORS];
        int64_t delay;
    } rows[] = {
        {{0.025, 0.025, 0.025, 0.025}, 100000}, {{1, 1, 1, 1}, 50000},          {{0.1, 0.02, 0.02, 0.005}, 1000000},
        {{0.125, 0.125, 0.01, 0.01}, 50000000}, {{3, 0.001, 0.5, 0.5}, 100000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("shares row %zu", i);
        memset(sources, 0, sizeof sources);
        double sum = 0;
        for (int d = 0; d < DONORS; d++)
            sources[d].bytes_per_ns = rows[i].speeds[d], sources[d].delay = rows[i].delay, sum += rows[i].speeds[d];
        struct delta *delta = all_wanted(&layout, DONORS);
        int64_t took = simulate(delta, DONORS, &layout);
        CHECK_EQ(delta_missing(delta), 0);
        CHECK_EQ(sent_bytes(), layout.bytes);
        double ideal = (double)layout.bytes / sum + 4.0 * (double)rows[i].delay;
        if (i < 4) CHECK((double)took < 1.15 * ideal);
        // a start on a link a thousand times slower than the others costs its first window
        CHECK((double)took < 5 * ideal);
        delta_free(delta);
    }
    free(layout.entries);
}

static void test_deaths(void) {
    uint64_t bytes[] = {UINT64_C(200) << 20};
    struct delta_layout layout = layout_of(bytes, 1);
    check_case("a donor dies");
    memset(sources, 0, sizeof sources);
    for (int d = 0; d < DONORS; d++) sources[d].bytes_per_ns = 0.1, sources[d].delay = 100000;
    sources[1].dies_at = 100000000;
    struct delta *delta = all_wanted(&layout, DONORS);
    simulate(delta, DONORS, &layout);
    CHECK_EQ(delta_missing(delta), 0);
    CHECK_EQ(sent_bytes(), layout.bytes);
    delta_free(delta);

    check_case("all die");
    memset(sources, 0, sizeof sources);
    for (int d = 0; d < DONORS; d++) sources[d].bytes_per_ns = 0.1, sources[d].dies_at = 50000000 * (d + 1);
    delta = all_wanted(&layout, DONORS);
    simulate(delta, DONORS, &layout);
    CHECK(delta_hopeless(delta));
    CHECK(delta_missing(delta) > 0);
    delta_free(delta);

    check_case("stalls");
    memset(sources, 0, sizeof sources);
    delta = all_wanted(&layout, 2);
    CHECK(delta_ask(delta, 0, 1).count > 0);
    delta_shun(delta, 0);
    CHECK_EQ(delta_on_way(delta, 0), 0);
    CHECK_EQ(delta_ask(delta, 0, 1).count, 0);
    CHECK_EQ(delta_ask(delta, 1, 1).first, 0);
    delta_drop(delta, 1);
    CHECK(!delta_hopeless(delta));
    CHECK_EQ(delta_ask(delta, 0, 1).first, 0); // better than nobody
    delta_free(delta);
    free(layout.entries);
}

static void test_wrong(void) {
    uint64_t bytes[] = {UINT64_C(100) << 20};
    struct delta_layout layout = layout_of(bytes, 1);
    check_case("wrong leaves");
    memset(sources, 0, sizeof sources);
    for (int d = 0; d < DONORS; d++) sources[d].bytes_per_ns = 0.1;
    sources[2].wrong_every = 10;
    struct delta *delta = all_wanted(&layout, DONORS);
    simulate(delta, DONORS, &layout);
    CHECK_EQ(delta_missing(delta), 0);
    // What was on the way from it when it was found out came for nothing, and no more.
    CHECK(sent_bytes() <= layout.bytes + DELTA_WRONG_LEAVES * LEAF + PACE_FLOW_MOST / 8);
    CHECK(!delta_usable(delta, 2));
    delta_free(delta);

    check_case("a wrong leaf goes to another donor");
    delta = all_wanted(&layout, 2);
    struct delta_range range = delta_ask(delta, 0, 1);
    delta_wrong(delta, range.first, 0);
    CHECK(delta_ask(delta, 0, 1).first != range.first);
    CHECK_EQ(delta_ask(delta, 1, 1).first, range.first);
    delta_free(delta);

    check_case("the only donor may try again");
    delta = all_wanted(&layout, 1);
    range = delta_ask(delta, 0, 1);
    delta_wrong(delta, range.first, 0);
    CHECK_EQ(delta_ask(delta, 0, 1).first, range.first);
    delta_wrong(delta, range.first, 0);
    CHECK(delta_hopeless(delta));
    delta_free(delta);

    check_case("a leaf that does not come is anybody's");
    delta = all_wanted(&layout, 2);
    range = delta_ask(delta, 0, 1);
    uint64_t on_way = delta_on_way(delta, 0);
    delta_lost(delta, range.first);
    CHECK_EQ(delta_on_way(delta, 0), on_way - 1);
    delta_lost(delta, range.first); // asked of nobody: as it was
    CHECK_EQ(delta_on_way(delta, 0), on_way - 1);
    CHECK_EQ(delta_ask(delta, 1, 1).first, range.first);
    delta_arrived(delta, range.first, 1, 2);
    delta_lost(delta, range.first);
    CHECK(!delta_wants(delta, range.first));
    delta_free(delta);
    free(layout.entries);
}

// Many entries of any size, random differences, donors that die and lie: what is wanted comes, nothing else.
static void test_random(void) {
    for (int trial = 0; trial < 30; trial++) {
        check_case("random %d", trial);
        size_t count = trial == 0 ? 20000 : 1 + below(300);
        uint64_t *bytes = malloc(count * sizeof *bytes);
        REQUIRE(bytes != NULL);
        for (size_t i = 0; i < count; i++) bytes[i] = below(4) == 0 ? 0 : below(4) == 0 ? below(5 * LEAF) : below(100);
        struct delta_layout layout = layout_of(bytes, count);
        uint64_t *mine = calloc(layout.leaf_count + 1, 8), *theirs = calloc(layout.leaf_count + 1, 8), differ = 0,
                 differ_bytes = 0;
        REQUIRE(mine != NULL && theirs != NULL);
        for (uint64_t i = 0; i < layout.leaf_count; i++) {
            theirs[i] = trial == 0 ? 1 : below(3) == 0;
            differ += theirs[i] != 0;
            if (theirs[i] != 0) differ_bytes += delta_layout_find(&layout, i).length;
        }
        struct delta *delta = delta_new(&layout, DONORS);
        REQUIRE(delta != NULL);
        delta_compare(delta, mine, theirs);
        CHECK_EQ(delta_missing(delta), differ);
        CHECK_EQ(delta_missing_bytes(delta), differ_bytes);
        memset(sources, 0, sizeof sources);
        for (int d = 0; d < DONORS; d++) {
            sources[d].bytes_per_ns = 0.001 + (double)below(1000) / 1000;
            sources[d].delay = (int64_t)below(10000000);
            if (d > 0 && below(3) == 0) sources[d].dies_at = 1 + (int64_t)below(50000000);
            if (d > 0 && below(3) == 0) sources[d].wrong_every = 1 + below(20);
        }
        simulate(delta, DONORS, &layout);
        CHECK_EQ(delta_missing(delta), 0);
        for (uint32_t d = 0; d < DONORS; d++) CHECK_EQ(delta_on_way(delta, d), 0);
        delta_free(delta);
        free(layout.entries);
        free(bytes);
        free(mine);
        free(theirs);
    }
}

int main(void) {
    test_layout();
    test_weights();
    test_deaths();
    test_wrong();
    test_random();
    return check_status();
}
