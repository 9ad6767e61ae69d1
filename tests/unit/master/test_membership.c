// The membership table: who is found, who is told what, places that are used again, and who waits for whom.
#include "seats.h"

static void test_lookup(void) {
    open_membership("found by id and by connection", "abc");
    struct wire_id id = peer('b')->member.id, nobody = {{99}};
    CHECK(membership_by_id(&table, &id) == peer('b') && membership_by_conn(&table, 1) == peer('b'));
    CHECK(membership_by_id(&table, &nobody) == NULL && membership_by_conn(&table, 7) == NULL);
    CHECK(membership_by_conn(&table, ACTIONS_MAX_CONNS) == NULL);
    come('d', 0);
    CHECK(membership_in_group(&table, peer('a')->group, &id) == peer('b'));
    CHECK(membership_in_group(&table, peer('a')->group, &peer('d')->member.id) == NULL);
    membership_drop(&table, peer('b'), WIRE_LOSS_DIED, LOG_INFO, "test");
    CHECK(membership_by_id(&table, &id) == NULL && membership_by_conn(&table, 1) == NULL);
    CHECK_EQ(table.gone_count, 1);
    CHECK_EQ(table.actions.closes[0], 1);
    close_membership();
}

static void test_places(void) {
    open_membership("a place is used again, and its chain of ids stays whole", "");
    for (char letter = 'a'; letter <= 'z'; letter++) come(letter, 0);
    for (const char *out = "maz"; *out; out++) membership_remove(&table, peer(*out));
    CHECK_EQ(table.peer_count, 23);
    for (const char *in = "zam"; *in; in++) come(*in, 0);
    CHECK_EQ(table.slots, 26);
    for (char letter = 'a'; letter <= 'z'; letter++) {
        struct wire_id id = {{(uint8_t)letter, 1, 2, 3}};
        CHECK(membership_by_id(&table, &id) == peer(letter));
    }
    CHECK(table.turnover);
    close_membership();
}

static void test_groups(void) {
    open_membership("groups in ring order", "ba");
    seat("dc", 3);
    seat("e", 9);
    uint32_t sizes[] = {2, 2, 1}, count = 0;
    for (struct peer_group *group = membership_groups(&table); group != NULL;
         group = membership_next(&table, group), count++) {
        CHECK_EQ(group->count, sizes[count]);
        CHECK_EQ(group->members - table.order, 2 * count);
    }
    CHECK_EQ(count, 3);
    CHECK_EQ(peer('c')->rank, 1);
    wire_encode_empty(membership_frame(&table), membership_header(&table), WIRE_HEARTBEAT);
    membership_send_group(&table, peer('c')->group);
    CHECK_STR(told(WIRE_HEARTBEAT), "dc");
    close_membership();
}

static void test_votes(void) {
    open_membership("votes are counted by kind, and each is a wait", "abc");
    membership_set_vote(&table, peer('a'), WIRE_VOTE_UPDATE);
    CHECK_EQ(table.warn_at, table.now_ns + MEMBERSHIP_WARN_MS * MS_NS);
    table.now_ns++;
    membership_set_vote(&table, peer('b'), WIRE_VOTE_UPDATE);
    membership_set_vote(&table, peer('c'), WIRE_VOTE_SYNC);
    CHECK(table.open[WIRE_VOTE_UPDATE] == 2 && table.open[WIRE_VOTE_SYNC] == 1);
    CHECK_EQ(table.warn_at, table.now_ns - 1 + MEMBERSHIP_WARN_MS * MS_NS);
    CHECK_EQ(peer('b')->waits_since, table.now_ns);
    membership_set_vote(&table, peer('a'), 0);
    membership_set_vote(&table, peer('a'), 0); // it had none
    CHECK(table.open[WIRE_VOTE_UPDATE] == 1 && peer('a')->vote == 0);
    close_membership();
}

static void test_out(void) {
    open_membership("who is out hears nothing more, and goes once", "ab");
    come('n', 0);
    membership_expel(&table, peer('a'), "because of %d", 7);
    membership_expel(&table, peer('a'), "again");
    membership_expel(&table, peer('n'), "full");
    CHECK_STR(told(WIRE_EXPELLED), "a");
    CHECK_STR(told(WIRE_REFUSED), "n");
    CHECK_EQ(table.gone_count, 2);
    CHECK_EQ(table.actions.close_count, 2);
    membership_send_text(&table, peer('a'), WIRE_WAITING, "late");
    CHECK_STR(told(WIRE_WAITING), "");
    table.out_of_memory = true;
    membership_send_text(&table, peer('b'), WIRE_WAITING, "late");
    CHECK_STR(told(WIRE_WAITING), "");
    close_membership();
}

// ---- hosts whose newcomers fail ----

static struct wire_address host(uint8_t family, uint8_t last) {
    struct wire_address address = {.family = family, .port = last};
    address.bytes[family == 4 ? 3 : 15] = last;
    return address;
}

static void fail(const struct wire_address *address, uint32_t times, int64_t at_ns) {
    table.now_ns = at_ns;
    for (uint32_t i = 0; i < times; i++) membership_host_failed(&table, address);
}

static int64_t waits_until(const struct wire_address *address, int64_t now_ns) {
    table.now_ns = now_ns;
    return membership_host_waits_until(&table, address);
}

// In heartbeat limits, from the last failure.
static void test_host_waits(void) {
    static const int64_t waits[] = {0, 0, 2, 4, 8, 16, 32, 64, 64, 64};
    struct wire_address address = host(4, 1);
    for (uint32_t failures = 0; failures < sizeof waits / sizeof waits[0]; failures++) {
        open_membership("newcomers wait longer with each failure of their host", "");
        for (uint32_t i = 0; i < failures; i++) fail(&address, 1, 100 * SECOND_NS + i);
        int64_t last = failures > 0 ? 100 * SECOND_NS + failures - 1 : 0;
        CHECK_EQ(waits_until(&address, 101 * SECOND_NS), waits[failures] ? last + waits[failures] * SECOND_NS : 0);
        close_membership();
    }
}

static void test_host_waits_end(void) {
    struct wire_address address = host(4, 1), other = host(4, 2);
    open_membership("an admission ends the wait of newcomers of that host", "");
    fail(&address, 3, SECOND_NS);
    CHECK_EQ(waits_until(&other, SECOND_NS), 0);
    membership_host_admitted(&table, &address);
    CHECK_EQ(waits_until(&address, SECOND_NS), 0);
    check_case("failures are forgotten after three times the wait");
    fail(&address, 3, SECOND_NS);
    CHECK_EQ(waits_until(&address, 13 * SECOND_NS - 1), 5 * SECOND_NS);
    CHECK_EQ(waits_until(&address, 13 * SECOND_NS), 0);
    close_membership();
}

static void test_hosts(void) {
    struct wire_address one = host(6, 1), two = host(6, 2);
    open_membership("the hosts of an IPv6 network are one", "");
    fail(&one, 1, SECOND_NS);
    fail(&two, 1, SECOND_NS);
    CHECK(waits_until(&one, SECOND_NS) > 0);
    close_membership();
    open_membership("of too many hosts the oldest is forgotten", "");
    table.limit_ns = 1000 * SECOND_NS;
    for (uint8_t i = 0; i <= MEMBERSHIP_FAILED_HOSTS; i++) {
        struct wire_address address = host(4, i);
        fail(&address, 2, (i + 1) * SECOND_NS);
    }
    for (uint8_t i = 0; i <= MEMBERSHIP_FAILED_HOSTS; i++) {
        struct wire_address address = host(4, i);
        CHECK_EQ(waits_until(&address, 100 * SECOND_NS) > 0, i > 0);
    }
    close_membership();
}

// ---- who waits for whom ----

static void vote(const char *letters, uint8_t kind) {
    for (; *letters; letters++) membership_set_vote(&table, peer(*letters), kind);
}

// Those that are told something within so long, in the order in which it is said.
static const char *tell_waits(int64_t ms, bool idle) {
    hush();
    int64_t until = table.now_ns + ms * MS_NS;
    while (table.warn_at <= until) {
        table.now_ns = table.warn_at;
        membership_tell_waits(&table, idle);
    }
    table.now_ns = until;
    return told(WIRE_WAITING);
}

static void text_is(const char *want) {
    struct wire_text text;
    size_t length;
    const uint8_t *body = last_body(WIRE_WAITING, &length);
    REQUIRE(wire_decode_text(body, length, &text));
    text.chars[text.length < WIRE_MAX_TEXT ? text.length : WIRE_MAX_TEXT - 1] = 0;
    CHECK_STR((char *)text.chars, want);
}

static void test_waiting_members(void) {
    open_membership("those that have voted are told for whom they wait, ever more rarely", "abc");
    CHECK_EQ(table.warn_at, INT64_MAX);
    vote("ac", WIRE_VOTE_UPDATE);
    CHECK_STR(tell_waits(MEMBERSHIP_WARN_MS - 1, true), "");
    CHECK_STR(tell_waits(1 + MEMBERSHIP_WARN_MS / 2, true), "ac");
    text_is("update_topology has waited for 1 of 3 members for 10 s: peer 62010203 (rank 1, join 2) at 10.0.0.98:999, "
            "in no call "
            "that waits for all members");
    CHECK_STR(tell_waits(MEMBERSHIP_WARN_MS, true), "ac"); // 20 s
    CHECK_STR(tell_waits(MEMBERSHIP_WARN_MS, true), "");
    CHECK_STR(tell_waits(MEMBERSHIP_WARN_MS, true), "ac"); // 40 s
    close_membership();

    open_membership("nobody is told while links are made for all, nor when nobody waits", "ab");
    vote("ab", WIRE_VOTE_OPTIMIZE);
    CHECK_STR(tell_waits(3 * MEMBERSHIP_WARN_MS, false), "");
    vote("ab", 0);
    CHECK_STR(tell_waits(3 * MEMBERSHIP_WARN_MS, true), "");
    CHECK_EQ(table.warn_at, INT64_MAX);
    close_membership();
}

static void test_waiting_group(void) {
    open_membership("shared state concerns the own group alone", "ab");
    seat("cd", 1);
    vote("acd", WIRE_VOTE_SYNC);
    CHECK_STR(tell_waits(MEMBERSHIP_WARN_MS, true), "a");
    text_is("sync_shared_state has waited for 1 of 2 members for 10 s: peer 62010203 (rank 1, join 2) at "
            "10.0.0.98:999, in no call "
            "that waits for all members");
    close_membership();
}

static void test_waiting_newcomers(void) {
    open_membership("newcomers hear who has not called, or that they stand behind", "ab");
    membership_begin_wait(&table, come('n', 0));
    vote("a", WIRE_VOTE_UPDATE);
    CHECK_STR(tell_waits(MEMBERSHIP_WARN_MS, true), "an");
    text_is("waiting to be admitted: 1 of 2 members has not called update_topology for 10 s: peer 62010203 (rank 1, "
            "join 2) at "
            "10.0.0.98:999, in no call that waits for all members");
    for (int i = 0; i < 6; i++) membership_host_failed(&table, &peer('n')->member.address);
    CHECK_STR(tell_waits(MEMBERSHIP_WARN_MS, true), "an");
    text_is("waiting to be admitted: newcomers from this address failed to connect to members before, so others "
            "come first for 23 s more");
    close_membership();
}

int main(void) {
    test_lookup();
    test_places();
    test_groups();
    test_votes();
    test_out();
    test_host_waits();
    test_host_waits_end();
    test_hosts();
    test_waiting_members();
    test_waiting_group();
    test_waiting_newcomers();
    return check_status();
}
