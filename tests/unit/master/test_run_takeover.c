// Taking a run up by itself: from what its members know to its members, their losses and their votes.
#include "master/run.h"
#include "master/gather.h"

#include "check.h"

static struct run run;
static struct survivors survivors;
static const struct run_identity RUN = {7, {1}};
static const char *everybody; // in the epoch that is taken up; capital letters are in group 1

static uint32_t group_of(char who) { return who < 'a'; }
static struct wire_id id_of(char who) { return (struct wire_id){{(uint8_t)(who | 32)}}; }

static void begin(const char *name, const char *members) {
    uint8_t random[RUN_RANDOM_BYTES] = {3};
    check_case("%s", name);
    everybody = members;
    run_init(&run, SECOND_NS, random, 11, 1000 * SECOND_NS);
    survivors_init(&survivors, 11);
}

static void end(void) {
    survivors_fini(&survivors);
    run_fini(&run);
}

// What a member says that has missed nothing: epoch 5, whose 3rd vote of all has ended.
static struct wire_resume says(char who) {
    static struct wire_member members[26];
    static struct wire_group_size sizes[2];
    struct wire_resume resume = {.hello = {.id = id_of(who), .masters = 1}, .generation = 1, .accepted = 1};
    uint32_t count = 0;
    sizes[0] = sizes[1] = (struct wire_group_size){0};
    for (const char *member = everybody; *member; member++) {
        members[count] = (struct wire_member){
            .id = id_of(*member), .join_number = count + 1, .group = group_of(*member), .lanes = 1};
        sizes[group_of(*member)].group = group_of(*member);
        sizes[group_of(*member)].count++;
        count++;
    }
    resume.last_vote = (struct wire_ended_vote){
        .number = 3, .kind = WIRE_VOTE_UPDATE, .epoch = 5, .count = sizes[1].count > 0 ? 2 : 1, .sizes = sizes};
    resume.epoch = (struct wire_epoch){.number = 5, .group_epoch = 5, .count = count, .members = members};
    return resume;
}

static void come(char who, const struct wire_resume *resume) {
    struct survivor *survivor = survivors_add(&survivors, &run.table, (uint32_t)(who | 32), &(struct wire_address){0});
    REQUIRE(survivor != NULL && survivors_resume(&survivors, survivor, &RUN, resume));
}

static void come_all(const char *letters) {
    for (; *letters; letters++) {
        struct wire_resume resume = says(*letters);
        come(*letters, &resume);
    }
}

static void take_up(void) { run_take_over(&run, &survivors, survivors_best_configuration(&survivors), 2); }

static struct peer_record *peer(char who) {
    struct wire_id id = id_of(who);
    struct peer_record *found = membership_by_id(&run.table, &id);
    REQUIRE(found != NULL);
    return found;
}

// Those to whom a frame of that type was sent, by letter.
static const char *told(enum wire_type type) {
    static char letters[64];
    size_t count = 0;
    const struct actions *actions = &run.table.actions;
    for (size_t i = 0; i < actions->send_count; i++) {
        struct wire_header header;
        REQUIRE(wire_header_decode(actions->bytes.bytes + actions->sends[i].offset, &header));
        if (header.type == type) letters[count++] = (char)actions->sends[i].conn;
    }
    letters[count] = 0;
    return letters;
}

static void test_members(void) {
    static const struct {
        const char *name, *members, *here;
        bool first_lost, second_lost; // the groups
    } rows[] = {
        {"all are here", "abc", "abc", false, false},
        {"one is not", "abc", "cb", true, false},
        {"each group by itself", "abcDEF", "abcDE", false, true},
        {"of a group nobody is here", "abcD", "acb", false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(rows[i].name, rows[i].members);
        come_all(rows[i].here);
        take_up();
        uint32_t here = (uint32_t)strlen(rows[i].here);
        CHECK_EQ(run.table.count, here);
        CHECK_EQ(survivors.count, 0);
        CHECK(membership_same_run(&run.table.run, &RUN) && run.table.generation == 2 && run.table.number == 6);
        CHECK_EQ(run.next_join, strlen(rows[i].members) + 1);
        CHECK_EQ(strlen(told(WIRE_RESUMED)), here);
        CHECK_EQ(strlen(told(WIRE_EPOCH)), here);
        CHECK_EQ(peer('c')->group->group_epoch, 6);
        CHECK_EQ(peer('c')->group->lost_epoch, rows[i].first_lost ? 6 : 0);
        if (run.table.count > 3) CHECK_EQ(peer('d')->group->lost_epoch, rows[i].second_lost ? 6 : 0);
        end();
    }
}

static void test_votes(void) {
    begin("open votes count as cast, and end for those that missed it", "abc");
    struct wire_resume behind = says('a'), voted = says('b');
    behind.vote = WIRE_VOTE_UPDATE;
    behind.last_vote.number = 2;
    voted.vote = WIRE_VOTE_PENDING;
    come('a', &behind);
    come('b', &voted);
    come_all("c");
    take_up();
    CHECK_EQ(run.votes_ended, 3);
    CHECK(peer('a')->vote == 0 && peer('b')->vote == WIRE_VOTE_PENDING && peer('c')->vote == 0);
    CHECK_EQ(run.table.open[WIRE_VOTE_PENDING], 1);
    end();

    begin("who missed more than that does not fit", "abc");
    behind = says('a');
    behind.last_vote.number = 1;
    come('a', &behind);
    come_all("bc");
    take_up();
    CHECK_STR(told(WIRE_EXPELLED), "a");
    CHECK_STR(told(WIRE_RESUMED), "bc");
    end();

    begin("a round of shared state goes on with those that are left", "ab");
    voted = says('a');
    voted.vote = WIRE_VOTE_SYNC;
    voted.sync_vote.revision = 4;
    come('a', &voted);
    come_all("b");
    take_up();
    CHECK(peer('a')->vote == WIRE_VOTE_SYNC && run.rounds.due && run.rounds.number == UINT64_C(2) << 32);
    end();
}

static void test_losses(void) {
    begin("a loss of which one member alone has heard is the group's", "abc");
    struct wire_resume heard = says('b');
    heard.epoch.lost_epoch = 4;
    come('b', &heard);
    come_all("ac");
    take_up();
    CHECK_EQ(peer('a')->group->lost_epoch, 4);
    end();

    begin("numbers go on from the highest that anybody knows", "abc");
    struct wire_resume newcomer = {.hello.id = id_of('z'), .generation = 1, .join_number = 90};
    come_all("abc");
    come('z', &newcomer);
    take_up();
    CHECK_EQ(run.next_join, 91);
    CHECK_EQ(survivors.count, 1); // it is for others to let it in
    end();
}

int main(void) {
    test_members();
    test_votes();
    test_losses();
    return check_status();
}
