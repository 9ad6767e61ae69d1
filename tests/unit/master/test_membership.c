// The membership table: who is found, who is told what, and places that are used again.
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
    membership_drop(&table, peer('b'), LOG_INFO, "test");
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

int main(void) {
    test_lookup();
    test_places();
    test_groups();
    test_votes();
    test_out();
    return check_status();
}
