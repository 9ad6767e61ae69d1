// Where two lists of entries begin to differ, from their outlines. An entry is a number; in the table, a letter.
#include "state/outline.h"

#include "check.h"

enum { MOST = 20001 };

static uint64_t seed = 5;
static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

struct list {
    uint64_t count;
    uint32_t entries[MOST];
};

static struct wire_outline outline_of(const struct list *list) {
    struct wire_outline outline;
    memset(&outline, 0xaa, sizeof outline); // what is not written is not looked at
    struct outline_maker maker = outline_begin(&outline, list->count);
    for (uint64_t i = 0; i < list->count; i++) outline_add(&maker, &list->entries[i], sizeof list->entries[i]);
    return outline;
}

static bool differ(const struct list *mine, const struct list *other, struct wire_sync_differs *out) {
    struct wire_outline a = outline_of(mine), b = outline_of(other);
    return outline_differ(&a, &b, out);
}

static void test_table(void) {
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

static void test_long(void) {
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
static void test_lies(void) {
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
        if (!outline_differ(&outlines[0], &outlines[1], &at)) {
            CHECK_EQ(outlines[0].entries, outlines[1].entries);
            continue;
        }
        CHECK(at.first <= at.last && at.last <= outlines[0].entries && at.last <= outlines[1].entries);
    }
}

int main(void) {
    test_table();
    test_long();
    test_lies();
    return check_status();
}
