// An epoch as one member of it knows it; lists of members, and who of them takes part in an epoch.
#include "ops/members.h"

#include "check.h"

// ---- an epoch ----
static struct wire_id numbered(uint8_t number) { return (struct wire_id){.bytes = {number}}; }

static struct wire_member listed[] = {
    {.id = {{5}}, .group = 1, .lanes = 4},
    {.id = {{3}}, .group = 2, .lanes = 8},
    {.id = {{1}}, .group = 2, .lanes = 2, .weight = 3, .site = 4},
    {.id = {{2}}, .group = 2, .lanes = 4},
    {.id = {{4}}, .group = 7, .lanes = 1},
};
static const struct wire_epoch listed_epoch = {
    .number = 9, .group_epoch = 8, .latency_us = 50, .megabytes_per_s = 100, .count = 5, .members = listed};

static void test_ring(void) {
    static const struct {
        uint8_t self;
        uint32_t first, count, rank;
    } cases[] = {{5, 0, 1, 0}, {3, 1, 3, 0}, {1, 1, 3, 1}, {2, 1, 3, 2}, {4, 4, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_id self = numbered(cases[i].self);
        struct epoch_ring ring;
        REQUIRE(epoch_find_ring(&listed_epoch, &self, &ring));
        CHECK_EQ(ring.members - listed, cases[i].first);
        CHECK_EQ(ring.count, cases[i].count);
        CHECK_EQ(ring.rank, cases[i].rank);
    }
    struct wire_id stranger = numbered(6);
    struct epoch_ring untouched;
    CHECK(!epoch_find_ring(&listed_epoch, &stranger, &untouched));
}

static void test_copy(void) {
    struct wire_id self = numbered(1);
    struct wire_header header = {.run = 3, .generation = 4};
    struct epoch_ring ring;
    REQUIRE(epoch_find_ring(&listed_epoch, &self, &ring));
    struct epoch *epoch = epoch_new(&listed_epoch, &ring, &header, true);
    REQUIRE(epoch != NULL);
    struct wire_member first = listed[1];
    listed[1].id = numbered(77); // the copy is its own
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
    listed[1] = first;
    CHECK(epoch_get(NULL) == NULL);
    epoch_put(NULL);
}

// ---- subgroups and teams ----
enum { MOST = 8, MARKS = 200000 };

static struct wire_id id_of(uint8_t number) { return (struct wire_id){.bytes = {0, number}}; }

static struct subgroup *group_of(const char *numbers, uint32_t rank) {
    struct wire_id ids[MOST] = {0};
    uint32_t count = 0;
    for (; numbers[count] != '\0'; count++) ids[count] = id_of((uint8_t)numbers[count]);
    struct subgroup *subgroup = subgroup_new(ids, count, rank);
    REQUIRE(subgroup != NULL);
    for (uint32_t i = 0; i < count; i++) ids[i] = id_of(0); // the copy is its own
    return subgroup;
}

static struct op_member others[MOST]; // by ring rank

// Members in the order of the ring; `self`: the own rank in it.
static const struct epoch *epoch_of(const char *numbers, uint32_t self, struct op_member *members[MOST]) {
    static struct wire_member told[MOST];
    uint32_t count = 0;
    for (; numbers[count] != '\0'; count++) {
        told[count].id = id_of((uint8_t)numbers[count]);
        others[count] = (struct op_member){.id = told[count].id, .rank = count};
        members[count] = count == self ? NULL : &others[count];
    }
    struct wire_epoch whole = {.number = 1, .group_epoch = 1, .count = count, .members = told};
    struct epoch_ring ring = {told, count, self};
    const struct epoch *epoch = epoch_new(&whole, &ring, &(struct wire_header){0}, false);
    REQUIRE(epoch != NULL);
    return epoch;
}

static void test_life(void) {
    check_case("a list is copied and counted");
    struct subgroup *subgroup = group_of("cab", 1);
    CHECK(subgroup->count == 3 && subgroup->rank == 1);
    CHECK_EQ(subgroup->ids[0].bytes[1], 'c');
    CHECK(subgroup_get(subgroup) == subgroup);
    subgroup_put(subgroup);
    CHECK_EQ(subgroup->ids[2].bytes[1], 'b');
    subgroup_put(subgroup);
    CHECK(subgroup_get(NULL) == NULL);
    subgroup_put(NULL);
}

static void test_hash(void) {
    check_case("lists are told apart by members and by order, not by the own rank");
    struct subgroup *subgroup = group_of("abc", 0), *same = group_of("abc", 2);
    CHECK_EQ(subgroup->hash, same->hash);
    static const char *const lists[] = {"", "a", "ab", "acb", "abd", "abcd"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        struct subgroup *other = group_of(lists[i], 0);
        CHECK(other->hash != subgroup->hash && subgroup_mark(other->hash) != subgroup_mark(subgroup->hash));
        subgroup_put(other);
    }
    subgroup_put(subgroup);
    subgroup_put(same);
    check_case("the mark 0 is of no list");
    uint32_t none = 0;
    for (uint32_t i = 0; i < MARKS; i++) {
        struct wire_id id = {.bytes = {(uint8_t)i, (uint8_t)(i >> 8), (uint8_t)(i >> 16)}};
        struct subgroup *one = subgroup_new(&id, 1, 0);
        REQUIRE(one != NULL);
        none += subgroup_mark(one->hash) == 0;
        subgroup_put(one);
    }
    CHECK_EQ(none, 0);
}

static void test_living(void) {
    check_case("a list may name members that are lost, and others that never were");
    struct op_member *members[MOST];
    struct subgroup *subgroup = group_of("dxab", 2);
    const struct epoch *all = epoch_of("abcd", 0, members), *some = epoch_of("cab", 1, members);
    struct wire_id x = id_of('x'), c = id_of('c');
    CHECK(subgroup_names(subgroup, &x) && !subgroup_names(subgroup, &c));
    CHECK(subgroup_has(subgroup, 0, all) && !subgroup_has(subgroup, 1, all));
    CHECK(!subgroup_has(subgroup, 0, some) && subgroup_has(subgroup, 2, some) && subgroup_has(subgroup, 3, some));
    CHECK_EQ(subgroup_living(subgroup, all), 3);
    CHECK_EQ(subgroup_living(subgroup, some), 2);
    subgroup->team = team_new(subgroup, some, members); // it is asked no more, but only of that epoch
    REQUIRE(subgroup->team != NULL);
    CHECK_EQ(subgroup_living(subgroup, some), 2);
    CHECK_EQ(subgroup_living(subgroup, all), 3);
    epoch_put(all);
    epoch_put(some);
    subgroup_put(subgroup); // and with it the team, which holds the epoch
}

static void check_team(const struct team *team, uint32_t place, const char *numbers, const char *ranks) {
    uint32_t count = 0;
    for (; numbers[count] != '\0'; count++) {
        if (!CHECK(count < team->count)) return;
        CHECK_EQ(team->ranks[count], (uint32_t)(ranks[count] - '0'));
        if (count == place)
            CHECK(team->members[count] == NULL);
        else
            CHECK(team->members[count] != NULL && team->members[count]->id.bytes[1] == (uint8_t)numbers[count]);
        if (count != place) CHECK_EQ(team_place(team, team->members[count]), count);
    }
    CHECK(team->count == count && team->place == place);
}

static void test_team(void) {
    struct op_member *members[MOST];
    check_case("the team of a list is in the order of the ring");
    struct subgroup *subgroup = group_of("daxb", 1);
    const struct epoch *epoch = epoch_of("badc", 1, members);
    struct team *team = team_new(subgroup, epoch, members);
    REQUIRE(team != NULL);
    CHECK(team->epoch == epoch);
    check_team(team, 1, "bad", "310");
    CHECK_EQ(team_place(team, members[3]), (uint32_t)SUBGROUP_NOBODY); // not named
    members[0]->rank = UINT32_MAX;
    CHECK_EQ(team_place(team, members[0]), (uint32_t)SUBGROUP_NOBODY); // lost since
    team_free(team);
    epoch_put(epoch);
    check_case("without those of a list that are lost the places close up, and the ranks stay");
    epoch = epoch_of("cbda", 3, members);
    team = team_new(subgroup, epoch, members);
    REQUIRE(team != NULL);
    check_team(team, 2, "bda", "301");
    team_free(team);
    epoch_put(epoch);
    epoch = epoch_of("ca", 1, members);
    team = team_new(subgroup, epoch, members);
    REQUIRE(team != NULL);
    check_team(team, 0, "a", "1"); // alone
    team_free(team);
    check_case("without a list everybody is in it, by ring rank");
    team = team_new(NULL, epoch, members);
    REQUIRE(team != NULL);
    check_team(team, 1, "ca", "01");
    team_free(team);
    team_free(NULL);
    epoch_put(epoch);
    subgroup_put(subgroup);
}

int main(void) {
    test_ring();
    test_copy();
    test_life();
    test_hash();
    test_living();
    test_team();
    return check_status();
}
