// An epoch as one member of it knows it.
#include "ops/epoch.h"

#include "check.h"

static struct wire_id id_of(uint8_t number) { return (struct wire_id){.bytes = {number}}; }

static struct wire_member members[] = {
    {.id = {{5}}, .group = 1, .lanes = 4},
    {.id = {{3}}, .group = 2, .lanes = 8},
    {.id = {{1}}, .group = 2, .lanes = 2, .weight = 3, .site = 4},
    {.id = {{2}}, .group = 2, .lanes = 4},
    {.id = {{4}}, .group = 7, .lanes = 1},
};
static const struct wire_epoch told = {
    .number = 9, .group_epoch = 8, .latency_us = 50, .megabytes_per_s = 100, .count = 5, .members = members};

static void test_ring(void) {
    static const struct {
        uint8_t self;
        uint32_t first, count, rank;
    } cases[] = {{5, 0, 1, 0}, {3, 1, 3, 0}, {1, 1, 3, 1}, {2, 1, 3, 2}, {4, 4, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_id self = id_of(cases[i].self);
        struct epoch_ring ring;
        REQUIRE(epoch_find_ring(&told, &self, &ring));
        CHECK_EQ(ring.members - members, cases[i].first);
        CHECK_EQ(ring.count, cases[i].count);
        CHECK_EQ(ring.rank, cases[i].rank);
    }
    struct wire_id stranger = id_of(6);
    struct epoch_ring untouched;
    CHECK(!epoch_find_ring(&told, &stranger, &untouched));
}

static void test_copy(void) {
    struct wire_id self = id_of(1);
    struct wire_header header = {.run = 3, .generation = 4};
    struct epoch_ring ring;
    REQUIRE(epoch_find_ring(&told, &self, &ring));
    struct epoch *epoch = epoch_new(&told, &ring, &header, true);
    REQUIRE(epoch != NULL);
    struct wire_member first = members[1];
    members[1].id = id_of(77); // the copy is its own
    CHECK(epoch_get(epoch) == epoch);
    epoch_put(epoch);
    CHECK_EQ(epoch->ring.members[0].id.bytes[0], 3);
    CHECK_EQ(epoch->ring.rank, 1);
    CHECK(epoch->ring.members[1].weight == 3 && epoch->ring.members[1].site == 4);
    CHECK_EQ(epoch->count, 5);
    CHECK_EQ(epoch->run, 3);
    CHECK_EQ(epoch->generation, 4);
    CHECK_EQ(epoch->number, 9);
    CHECK_EQ(epoch->group_epoch, 8);
    CHECK(epoch->lost);
    epoch_put(epoch);
    members[1] = first;
    CHECK(epoch_get(NULL) == NULL);
    epoch_put(NULL);
}

int main(void) {
    test_ring();
    test_copy();
    return check_status();
}
