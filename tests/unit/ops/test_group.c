// Lists of members, and who of them takes part in an epoch.
#include "ops/group.h"

#include "check.h"

enum { MOST = 8, MARKS = 200000 };

static struct wire_id id_of(uint8_t number) { return (struct wire_id){.bytes = {0, number}}; }

static struct group *group_of(const char *numbers, uint32_t rank) {
    struct wire_id ids[MOST] = {0};
    uint32_t count = 0;
    for (; numbers[count] != '\0'; count++) ids[count] = id_of((uint8_t)numbers[count]);
    struct group *group = group_new(ids, count, rank);
    REQUIRE(group != NULL);
    for (uint32_t i = 0; i < count; i++) ids[i] = id_of(0); // the copy is its own
    return group;
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
    struct group *group = group_of("cab", 1);
    CHECK(group->count == 3 && group->rank == 1);
    CHECK_EQ(group->ids[0].bytes[1], 'c');
    CHECK(group_get(group) == group);
    group_put(group);
    CHECK_EQ(group->ids[2].bytes[1], 'b');
    group_put(group);
    CHECK(group_get(NULL) == NULL);
    group_put(NULL);
}

static void test_hash(void) {
    check_case("lists are told apart by members and by order, not by the own rank");
    struct group *group = group_of("abc", 0), *same = group_of("abc", 2);
    CHECK_EQ(group->hash, same->hash);
    static const char *const lists[] = {"", "a", "ab", "acb", "abd", "abcd"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        struct group *other = group_of(lists[i], 0);
        CHECK(other->hash != group->hash && group_mark(other->hash) != group_mark(group->hash));
        group_put(other);
    }
    group_put(group);
    group_put(same);
    check_case("the mark 0 is of no list");
    uint32_t none = 0;
    for (uint32_t i = 0; i < MARKS; i++) {
        struct wire_id id = {.bytes = {(uint8_t)i, (uint8_t)(i >> 8), (uint8_t)(i >> 16)}};
        struct group *one = group_new(&id, 1, 0);
        REQUIRE(one != NULL);
        none += group_mark(one->hash) == 0;
        group_put(one);
    }
    CHECK_EQ(none, 0);
}

static void test_living(void) {
    check_case("a list may name members that are lost, and others that never were");
    struct op_member *members[MOST];
    struct group *group = group_of("dxab", 2);
    const struct epoch *all = epoch_of("abcd", 0, members), *some = epoch_of("cab", 1, members);
    struct wire_id x = id_of('x'), c = id_of('c');
    CHECK(group_names(group, &x) && !group_names(group, &c));
    CHECK(group_has(group, 0, all) && !group_has(group, 1, all));
    CHECK(!group_has(group, 0, some) && group_has(group, 2, some) && group_has(group, 3, some));
    CHECK_EQ(group_living(group, all), 3);
    CHECK_EQ(group_living(group, some), 2);
    group->team = team_new(group, some, members); // it is asked no more, but only of that epoch
    REQUIRE(group->team != NULL);
    CHECK_EQ(group_living(group, some), 2);
    CHECK_EQ(group_living(group, all), 3);
    epoch_put(all);
    epoch_put(some);
    group_put(group); // and with it the team, which holds the epoch
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
    struct group *group = group_of("daxb", 1);
    const struct epoch *epoch = epoch_of("badc", 1, members);
    struct team *team = team_new(group, epoch, members);
    REQUIRE(team != NULL);
    CHECK(team->epoch == epoch);
    check_team(team, 1, "bad", "310");
    CHECK_EQ(team_place(team, members[3]), (uint32_t)GROUP_NOBODY); // not named
    members[0]->rank = UINT32_MAX;
    CHECK_EQ(team_place(team, members[0]), (uint32_t)GROUP_NOBODY); // lost since
    team_free(team);
    epoch_put(epoch);
    check_case("without those of a list that are lost the places close up, and the ranks stay");
    epoch = epoch_of("cbda", 3, members);
    team = team_new(group, epoch, members);
    REQUIRE(team != NULL);
    check_team(team, 2, "bda", "301");
    team_free(team);
    epoch_put(epoch);
    epoch = epoch_of("ca", 1, members);
    team = team_new(group, epoch, members);
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
    group_put(group);
}

int main(void) {
    test_life();
    test_hash();
    test_living();
    test_team();
    return check_status();
}
