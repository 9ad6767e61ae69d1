// Those that wait for a run to be taken up: how they are found, who reports the same epoch, which one is the newest,
// which has a majority here.
#include "master/gather.h"

#include "check.h"

enum { MEMBERS = 5 };
static struct survivors survivors;
static struct membership table;
static uint32_t conns;
static struct wire_member members[MEMBERS];
static const struct run_identity RUN = {7, {1}}, OTHER = {7, {2}}; // told apart by the secret alone

static void begin(const char *name) {
    check_case("%s", name);
    survivors_init(&survivors, 11);
    membership_init(&table, SECOND_NS, 11, 1000 * SECOND_NS);
    conns = 0;
    for (uint32_t i = 0; i < MEMBERS; i++)
        members[i] = (struct wire_member){.id = {{(uint8_t)(i * 37 + 1)}}, .join_number = i + 1, .lanes = 1};
}

static void end(void) {
    survivors_fini(&survivors);
    membership_fini(&table);
}

static struct wire_resume says(uint32_t who, uint64_t generation, uint64_t number, uint32_t count) {
    return (struct wire_resume){.hello.id = members[who].id,
                                .generation = generation,
                                .accepted = count > 0,
                                .epoch = {.number = number, .count = count, .members = members}};
}

static struct survivor *come(const struct run_identity *run, const struct wire_resume *resume) {
    struct survivor *survivor = survivors_add(&survivors, &table, conns++, &(struct wire_address){.family = 4});
    REQUIRE(survivor != NULL && survivors_resume(&survivors, survivor, run, resume));
    return survivor;
}

// A member of the first `count`, in epoch `number` of `generation`.
static struct survivor *member(const struct run_identity *run, uint32_t who, uint64_t generation, uint64_t number,
                               uint32_t count) {
    struct wire_resume resume = says(who, generation, number, count);
    return come(run, &resume);
}

static void test_found(void) {
    begin("by connection, and by run and id");
    struct survivor *a = member(&RUN, 0, 1, 4, 3), *same = member(&OTHER, 0, 1, 4, 3), *new = member(&RUN, 1, 1, 0, 0);
    CHECK(survivors_of_conn(&survivors, 0) == a && survivors_of_conn(&survivors, 2) == new);
    CHECK(survivors_of_conn(&survivors, 3) == NULL && survivors_of_conn(&survivors, UINT32_MAX) == NULL);
    CHECK(survivors_of_id(&survivors, &RUN, &members[0].id) == a);
    CHECK(survivors_of_id(&survivors, &OTHER, &members[0].id) == same);
    CHECK(survivor_is_of(a, &RUN) && !survivor_is_of(same, &RUN) && new->config == NULL);
    CHECK(survivors_member(&survivors, a->config, 1) == new); // a member that has not heard of it
    CHECK(survivors_member(&survivors, a->config, 2) == NULL);
    survivors_forget(&survivors, a);
    CHECK(survivors_of_conn(&survivors, 0) == NULL && survivors_of_id(&survivors, &RUN, &members[0].id) == NULL);
    CHECK(survivors.list[0] == same && survivors.list[1] == new && survivors.count == 2);
    end();

    begin("what it says is kept");
    struct wire_past past = {.name.tag = 5};
    struct wire_resume resume = says(0, 1, 4, 3);
    resume.past = &past;
    resume.past_count = 1;
    a = come(&RUN, &resume);
    past.name.tag = 6;
    members[2].group = 9;
    CHECK_EQ(a->resume.past[0].name.tag, 5);
    CHECK_EQ(a->resume.epoch.members[2].group, 0);
    end();
}

static void test_same(void) {
    begin("one configuration for all that report the same");
    struct survivor *a = member(&RUN, 0, 1, 4, 3), *b = member(&RUN, 1, 1, 4, 3);
    const struct configuration *config = a->config;
    CHECK(config == b->config && config->holders == 2 && config->present == 2);
    struct wire_resume resume = says(2, 1, 4, 3);
    CHECK(survivors_find_configuration(&survivors, &RUN, &resume) == config);
    CHECK(survivors_find_configuration(&survivors, &OTHER, &resume) == NULL);
    resume.quorum.old_members = 1;
    CHECK(survivors_find_configuration(&survivors, &RUN, &resume) == NULL);
    resume = says(2, 1, 4, 3);
    members[1].address.port = 5;
    CHECK(survivors_find_configuration(&survivors, &RUN, &resume) == NULL);
    survivors_forget(&survivors, a);
    CHECK_EQ(survivors.configuration_count, 1);
    survivors_forget(&survivors, b);
    CHECK_EQ(survivors.configuration_count, 0);
    end();
}

static void test_newest(void) {
    begin("the newest of a run counts, by generation, then by number");
    struct survivor *old = member(&RUN, 0, 1, 9, 3), *new = member(&RUN, 1, 2, 3, 3);
    const struct survivor *apart = member(&OTHER, 2, 1, 1, 1);
    CHECK(!old->config->newest && new->config->newest && apart->config->newest);
    survivors_forget(&survivors, new);
    CHECK(old->config->newest);
    end();
}

static void test_majority(void) {
    begin("a majority, as the epoch asks for it");
    struct configuration *config = member(&RUN, 0, 1, 1, MEMBERS)->config, *other = member(&OTHER, 0, 1, 1, 2)->config;
    CHECK(!configuration_has_majority(config) && !configuration_has_majority(NULL));
    struct survivor *second = member(&RUN, 1, 1, 1, MEMBERS);
    CHECK(!configuration_has_majority(config) && survivors_best_configuration(&survivors) == config);
    member(&OTHER, 1, 1, 1, 2);
    CHECK(configuration_has_majority(other) && survivors_best_configuration(&survivors) == other);
    member(&RUN, 2, 1, 0, 0); // a member of that epoch that has not heard of it counts
    CHECK(configuration_has_majority(config) && survivors_best_configuration(&survivors) == config);
    config->quorum.members = 4;
    CHECK(!configuration_has_majority(config));
    member(&RUN, 4, 1, 1, MEMBERS);
    CHECK_EQ(config->present, 4);
    CHECK(configuration_has_majority(config));
    survivors_forget(&survivors, second);
    CHECK_EQ(config->present, 3);
    end();

    begin("those that were members before newcomers came count by themselves");
    struct wire_resume resume = says(2, 1, 1, MEMBERS);
    resume.quorum = (struct wire_quorum){.old_members = 2, .newer = 3};
    config = come(&RUN, &resume)->config;
    for (uint32_t who = 3; who < MEMBERS; who++) member(&RUN, who, 1, 0, 0);
    CHECK(config->present == 3 && config->old_members == 0 && !configuration_has_majority(config));
    for (uint32_t who = 0; who < 2; who++) member(&RUN, who, 1, 0, 0);
    CHECK(config->old_members == 2 && configuration_has_majority(config));
    CHECK_EQ(configuration_quorum(config), 3);
    end();
}

static void test_groups(void) {
    begin("where the members of a group end");
    members[3].group = members[4].group = 6;
    const struct configuration *config = member(&RUN, 0, 1, 1, MEMBERS)->config;
    CHECK_EQ(configuration_group_end(config, 0), 3);
    CHECK_EQ(configuration_group_end(config, 3), 5);
    end();
}

int main(void) {
    test_found();
    test_same();
    test_newest();
    test_majority();
    test_groups();
    return check_status();
}
