// Where two lists of entries differ, and the plan of leaves, against a simulation of donors with speeds, deaths and
// wrong bytes.
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

// ---- where two lists of entries begin to differ; an entry is a number, in the table a letter ----
enum { ENTRIES_MOST = 20001 };

struct list {
    uint64_t count;
    uint32_t entries[ENTRIES_MOST];
};

static struct wire_outline outline_of(const struct list *list) {
    struct wire_outline outline;
    memset(&outline, 0xaa, sizeof outline); // what is not written is not looked at
    struct delta_outline made = delta_outline_begin(&outline, list->count);
    for (uint64_t i = 0; i < list->count; i++) delta_outline_add(&made, &list->entries[i], sizeof list->entries[i]);
    return outline;
}

static bool differ(const struct list *mine, const struct list *other, struct wire_sync_differs *out) {
    struct wire_outline a = outline_of(mine), b = outline_of(other);
    return delta_outline_differ(&a, &b, out);
}

static void test_outline_table(void) {
    static const struct {
        const char *name, *mine, *other;
        int64_t at; // -1: nowhere
    } rows[] = {
        {"equal", "abc", "abc", -1},
        {"empty", "", "", -1},
        {"another one in front", "abc", "xbc", 0},
        {"in the middle", "abcd", "abxd", 2},
        {"at the end", "abc", "abx", 2},
        {"two of them", "abcde", "axcxe", 1},
        {"swapped", "abcd", "acbd", 1},
        {"turned round", "abc", "cba", 0},
        {"one more at the end", "abcd", "abc", 3},
        {"one less at the end: it would be there", "abc", "abcd", 3},
        {"one more in front", "xabc", "abc", 0},
        {"one less in the middle", "acd", "abcd", 1},
        {"one more in the middle", "abcd", "acd", 1},
        {"shorter, and another one", "ax", "abc", 1},
        {"nothing beside something", "", "a", 0},
        {"something beside nothing", "a", "", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        static struct list mine, other;
        mine.count = strlen(rows[i].mine);
        other.count = strlen(rows[i].other);
        for (uint64_t k = 0; k < mine.count; k++) mine.entries[k] = (uint32_t)rows[i].mine[k];
        for (uint64_t k = 0; k < other.count; k++) other.entries[k] = (uint32_t)rows[i].other[k];
        struct wire_sync_differs at = {77, 77};
        CHECK_EQ(differ(&mine, &other, &at), rows[i].at >= 0);
        CHECK_EQ(at.first, rows[i].at >= 0 ? rows[i].at : 77);
        CHECK_EQ(at.last, rows[i].at >= 0 ? rows[i].at : 77);
    }
}

static uint64_t distance(const struct list *list) { return UINT64_C(1) << wire_outline_shift(list->count); }

// One change at a known place: it lies in the range, which is one entry for short lists, and no wider than the hashes
// lie apart.
static void check_at(const struct list *mine, const struct list *other, uint64_t place) {
    struct wire_sync_differs at;
    if (!CHECK(differ(mine, other, &at))) return;
    check_case("%zu and %zu entries, at %zu: %zu to %zu", (size_t)mine->count, (size_t)other->count, (size_t)place,
               (size_t)at.first, (size_t)at.last);
    CHECK(at.first <= place && place <= at.last);
    CHECK(at.last <= mine->count);
    uint64_t apart = distance(mine) > distance(other) ? distance(mine) : distance(other);
    CHECK(at.last - at.first < apart);
}

static void test_outline_long(void) {
    static const uint64_t counts[] = {1, 2, 3, 511, 512, 513, 514, 1023, 1024, 1025, 1500, 4097, 20000};
    static struct list plain, other;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        plain.count = counts[i];
        for (uint64_t k = 0; k < plain.count; k++) plain.entries[k] = (uint32_t)k;
        uint64_t places[] = {
            0, plain.count - 1, plain.count / 2, below(plain.count), below(plain.count), below(plain.count)};
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            uint64_t place = places[p];
            other = plain;
            other.entries[place] = UINT32_MAX;
            check_at(&plain, &other, place);

            other.count++; // one more, at that place
            memmove(&other.entries[place + 1], &plain.entries[place], (plain.count - place) * sizeof plain.entries[0]);
            check_at(&plain, &other, place);
            check_at(&other, &plain, place);
        }
        other = plain;
        other.entries[other.count++] = UINT32_MAX;
        check_at(&plain, &other, plain.count);
        check_at(&other, &plain, plain.count);
        struct wire_sync_differs at;
        check_case("%zu equal entries", (size_t)plain.count);
        bool covered = plain.count % distance(&plain) == 0; // else nothing is known of the last ones
        CHECK_EQ(differ(&plain, &plain, &at), !covered);
        if (!covered) CHECK_EQ(at.last, plain.count - 1);
    }
}

// A list may be told as anything.
static void test_outline_lies(void) {
    check_case("lies");
    static const uint64_t counts[] = {0, 1, 511, 512, 513, UINT32_MAX, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX};
    enum { COUNTS = sizeof counts / sizeof counts[0] };
    static struct wire_outline outlines[2];
    for (uint32_t round = 0; round < 20000; round++) {
        for (size_t i = 0; i < 2; i++) {
            outlines[i].entries = below(4) > 0 ? counts[below(COUNTS)] : check_random(&seed) >> below(64);
            for (size_t k = 0; k < WIRE_MAX_OUTLINE; k++)
                outlines[i].hashes[k] = round % 3 == 0 ? 7 : (uint32_t)below(40) / 39;
        }
        struct wire_sync_differs at;
        if (!delta_outline_differ(&outlines[0], &outlines[1], &at)) {
            CHECK_EQ(outlines[0].entries, outlines[1].entries);
            continue;
        }
        CHECK(at.first <= at.last && at.last <= outlines[0].entries && at.last <= outlines[1].entries);
    }
}

int main(void) {
    test_outline_table();
    test_outline_long();
    test_outline_lies();
    test_layout();
    test_weights();
    test_deaths();
    test_wrong();
    test_random();
    return check_status();
}
