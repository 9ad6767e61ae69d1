// The desk: who is found, who is told what, and places that are used again.
#include "seats.h"

static void test_lookup(void) {
    open_desk("found by id and by connection", "abc");
    struct wire_id id = peer('b')->member.id, nobody = {{99}};
    CHECK(desk_of_id(&desk, &id) == peer('b') && desk_of_conn(&desk, 1) == peer('b'));
    CHECK(desk_of_id(&desk, &nobody) == NULL && desk_of_conn(&desk, 7) == NULL);
    CHECK(desk_of_conn(&desk, ACTIONS_MAX_CONNS) == NULL);
    come('d', 0);
    CHECK(desk_member(&desk, peer('a')->group, &id) == peer('b'));
    CHECK(desk_member(&desk, peer('a')->group, &peer('d')->member.id) == NULL);
    desk_drop(&desk, peer('b'), LOG_INFO, "test");
    CHECK(desk_of_id(&desk, &id) == NULL && desk_of_conn(&desk, 1) == NULL);
    CHECK_EQ(desk.gone_count, 1);
    CHECK_EQ(desk.actions.closes[0], 1);
    close_desk();
}

static void test_places(void) {
    open_desk("a place is used again, and its chain of ids stays whole", "");
    for (char letter = 'a'; letter <= 'z'; letter++) come(letter, 0);
    for (const char *out = "maz"; *out; out++) desk_forget(&desk, peer(*out));
    CHECK_EQ(desk.peer_count, 23);
    for (const char *in = "zam"; *in; in++) come(*in, 0);
    CHECK_EQ(desk.slots, 26);
    for (char letter = 'a'; letter <= 'z'; letter++) {
        struct wire_id id = {{(uint8_t)letter, 1, 2, 3}};
        CHECK(desk_of_id(&desk, &id) == peer(letter));
    }
    CHECK(desk.turnover);
    close_desk();
}

static void test_groups(void) {
    open_desk("groups in ring order", "ba");
    seat("dc", 3);
    seat("e", 9);
    uint32_t sizes[] = {2, 2, 1}, count = 0;
    for (struct desk_group *group = desk_first(&desk); group != NULL; group = desk_after(&desk, group), count++) {
        CHECK_EQ(group->count, sizes[count]);
        CHECK_EQ(group->members - desk.order, 2 * count);
    }
    CHECK_EQ(count, 3);
    CHECK_EQ(peer('c')->rank, 1);
    wire_encode_empty(desk_frame(&desk), desk_header(&desk), WIRE_HEARTBEAT);
    desk_send_group(&desk, peer('c')->group);
    CHECK_STR(told(WIRE_HEARTBEAT), "dc");
    close_desk();
}

static void test_votes(void) {
    open_desk("votes are counted by kind, and each is a wait", "abc");
    desk_set_vote(&desk, peer('a'), WIRE_VOTE_UPDATE);
    CHECK_EQ(desk.warn_at, desk.now_ns + DESK_WARN_MS * MS_NS);
    desk.now_ns++;
    desk_set_vote(&desk, peer('b'), WIRE_VOTE_UPDATE);
    desk_set_vote(&desk, peer('c'), WIRE_VOTE_SYNC);
    CHECK(desk.open[WIRE_VOTE_UPDATE] == 2 && desk.open[WIRE_VOTE_SYNC] == 1);
    CHECK_EQ(desk.warn_at, desk.now_ns - 1 + DESK_WARN_MS * MS_NS);
    CHECK_EQ(peer('b')->waits_since, desk.now_ns);
    desk_set_vote(&desk, peer('a'), 0);
    desk_set_vote(&desk, peer('a'), 0); // it had none
    CHECK(desk.open[WIRE_VOTE_UPDATE] == 1 && peer('a')->vote == 0);
    close_desk();
}

static void test_out(void) {
    open_desk("who is out hears nothing more, and goes once", "ab");
    come('n', 0);
    desk_expel(&desk, peer('a'), "because of %d", 7);
    desk_expel(&desk, peer('a'), "again");
    desk_expel(&desk, peer('n'), "full");
    CHECK_STR(told(WIRE_EXPELLED), "a");
    CHECK_STR(told(WIRE_REFUSED), "n");
    CHECK_EQ(desk.gone_count, 2);
    CHECK_EQ(desk.actions.close_count, 2);
    desk_send_text(&desk, peer('a'), WIRE_WAITING, "late");
    CHECK_STR(told(WIRE_WAITING), "");
    desk.out_of_memory = true;
    desk_send_text(&desk, peer('b'), WIRE_WAITING, "late");
    CHECK_STR(told(WIRE_WAITING), "");
    close_desk();
}

int main(void) {
    test_lookup();
    test_places();
    test_groups();
    test_votes();
    test_out();
    return check_status();
}
