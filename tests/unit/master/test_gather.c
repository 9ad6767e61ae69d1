// Gathering by itself: who is asked for which promise, when the run is taken up, who waits and who is sent away.
#include "master/gather.h"

#include "seats.h"

static struct gather gather;
static const struct run_identity RUN = {7, {1}};
static const struct wire_address AWAY = {.family = 4, .bytes = {10, 0, 0, 1}}, HERE = {.family = 4, .bytes = {127}};

static void begin(const char *name) {
    memset(peers, 0, sizeof peers);
    open_membership(name, "");
    gather_init(&gather, 7);
}

static void end(void) {
    gather_fini(&gather);
    close_membership();
}

static struct wire_id id_of(char who) { return (struct wire_id){{(uint8_t)who}}; }

// A member of `members`; "": it has been accepted nowhere.
static void resume_over(uint32_t conn, char who, const char *members, uint64_t promised) {
    static struct wire_member list[26];
    struct wire_resume message = {.hello.id = id_of(who), .generation = 1, .accepted = members[0] != 0};
    struct resumption from = {conn, &AWAY, RUN, promised, &message};
    message.epoch = (struct wire_epoch){.number = 5, .members = list};
    for (; *members; members++)
        list[message.epoch.count++] = (struct wire_member){.id = id_of(*members), .join_number = (uint64_t)*members};
    gather_resume(&gather, &table, &from);
}

static void resume(char who, const char *members, uint64_t promised) {
    resume_over((uint32_t)(who - 'a'), who, members, promised);
}

static bool hello(char who, const struct wire_address *source) {
    struct wire_hello message = {.id = id_of(who)};
    return gather_hold(&gather, &table, (uint32_t)(who - 'a'), source, &message);
}

static void promise(const char *who, uint64_t generation) {
    struct wire_header header = {.type = WIRE_PROMISE, .run = RUN.id, .generation = generation};
    for (; *who; who++)
        gather_message(&gather, &table, survivors_of_conn(&gather.survivors, (uint32_t)(*who - 'a')), &header);
}

static enum gather_verdict decide(void) { return gather_decide(&gather, &table); }

static void test_decisions(void) {
    static const struct {
        const char *name, *members, *here, *asked, *promised;
        bool late; // the heartbeat limit has passed since they were enough
        enum gather_verdict verdict;
    } rows[] = {
        {"all are here, and have promised", "abc", "abc", "abc", "abc", false, GATHER_TAKES_UP},
        {"one has not promised", "abc", "abc", "abc", "ac", true, GATHER_WAITS},
        {"two of three wait for the third", "abc", "ab", "ab", "ab", false, GATHER_WAITS},
        {"and go on without it", "abc", "ab", "ab", "ab", true, GATHER_TAKES_UP},
        {"one of three is not enough", "abc", "a", "", "", true, GATHER_WAITS},
        {"half is not enough", "abcd", "ab", "", "", true, GATHER_WAITS},
        {"nobody was ever accepted", "", "ab", "", "", false, GATHER_BEGINS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(rows[i].name);
        for (const char *who = rows[i].here; *who; who++) resume(*who, rows[i].members, 3);
        CHECK_STR(told(WIRE_HEARTBEAT), rows[i].here);
        decide();
        CHECK_STR(told(WIRE_GENERATION), rows[i].asked);
        CHECK_EQ(gather.generation, rows[i].asked[0] != 0 ? 4 : 0);
        promise(rows[i].promised, 4);
        if (rows[i].late) table.now_ns += table.limit_ns;
        CHECK_EQ(decide(), rows[i].verdict);
        CHECK_STR(told(WIRE_GENERATION), rows[i].asked); // once
        end();
    }
}

static void test_promises(void) {
    begin("a higher promise comes: all are asked anew");
    resume('a', "abc", 1);
    resume('b', "abc", 1);
    decide();
    promise("ab", 2);
    resume('c', "abc", 6);
    hush();
    CHECK_EQ(decide(), GATHER_WAITS);
    CHECK_STR(told(WIRE_GENERATION), "abc");
    promise("ab", 7);
    promise("c", 2); // of another master
    CHECK_EQ(decide(), GATHER_WAITS);
    promise("c", 7);
    CHECK_EQ(decide(), GATHER_TAKES_UP);
    end();
}

static void test_newcomers(void) {
    begin("newcomers wait for what may still come, and begin a run when nothing did");
    CHECK(!hello('x', &AWAY)); // nobody is expected
    table.survivors_until = table.now_ns + 1;
    CHECK(hello('x', &AWAY));
    CHECK_EQ(decide(), GATHER_WAITS);
    CHECK_EQ(gather_next_deadline(&gather, &table), table.survivors_until);
    table.now_ns++;
    CHECK(hello('y', &AWAY)); // behind the other one
    gather.others_awaited = true;
    CHECK_EQ(decide(), GATHER_WAITS);
    gather.others_awaited = false;
    CHECK_EQ(decide(), GATHER_BEGINS);
    end();

    begin("not at a standby");
    gather.standby = true;
    table.survivors_until = table.now_ns + 1;
    CHECK(hello('x', &AWAY));
    table.now_ns++;
    CHECK_EQ(decide(), GATHER_BEGINS);
    CHECK(hello('y', &AWAY));
    CHECK_STR(told(WIRE_REFUSED), "xy");
    CHECK_EQ(gather.survivors.count, 0);
    end();

    begin("of two kinds of addresses that of most newcomers counts");
    table.survivors_until = table.now_ns + 1;
    hello('x', &AWAY);
    hello('y', &HERE);
    CHECK(gather_suits(&gather, true) && gather_suits(&gather, false));
    hello('z', &HERE);
    CHECK(gather_suits(&gather, true) && gather_suits(&gather, false)); // it would be one more
    hello('w', &HERE);
    CHECK(gather_suits(&gather, true) && !gather_suits(&gather, false));
    end();
}

static void test_ends(void) {
    begin("members go when they are silent, newcomers when they have waited too long");
    resume('a', "abc", 1);
    resume('b', "abc", 1);
    hello('x', &AWAY);
    table.now_ns += table.limit_ns / 2;
    promise("a", 9); // whatever it says, it is heard
    table.now_ns += table.limit_ns / 2;
    hush();
    gather_tick(&gather, &table);
    CHECK_STR(told(WIRE_WAITING), "b");
    CHECK_EQ(table.actions.close_count, 1);
    table.now_ns += GATHER_HOLD_MS * MS_NS;
    promise("a", 9);
    gather_tick(&gather, &table);
    CHECK_STR(told(WIRE_REFUSED), "x");
    CHECK_EQ(gather.survivors.count, 1);
    end();

    begin("another master serves a run: members hear nothing, newcomers why");
    resume('a', "abc", 1);
    hello('x', &AWAY);
    hush();
    gather_hear_others(&gather, &table, WIRE_SERVES);
    CHECK_STR(told(WIRE_REFUSED), "x");
    CHECK_EQ(table.actions.close_count, 2);
    CHECK_EQ(gather.survivors.count, 0);
    end();

    begin("who comes again leaves its first connection");
    resume_over(25, 'a', "abc", 1);
    resume('a', "abc", 1);
    CHECK(table.actions.close_count == 1 && table.actions.closes[0] == 25 && gather.survivors.count == 1);
    end();
}

int main(void) {
    test_decisions();
    test_promises();
    test_newcomers();
    test_ends();
    return check_status();
}
