// Votes that change the way of large all-reduces: how the epoch comes, and what becomes of weights afterwards.
#include "core_world.h"

// Of a ring in which `slow` holds the others up.
static void tell(const char *ring, char slow, uint64_t epoch) {
    static struct wire_telemetry told;
    size_t n = strlen(ring);
    for (size_t i = 0; i < 4 * n; i++) {
        char from = ring[i % n], to = ring[(i + 1) % n];
        told = (struct wire_telemetry){.ops = {.span_us = 1000000, .epoch = epoch}, .count = 1};
        told.others[0].id = id_of(to);
        told.others[0].seen = (struct wire_seen){.acked = 8 << 20,
                                                 .busy_us = 1000000,
                                                 .samples = 100,
                                                 .backlogged = from == slow || to == slow ? 90 : 1,
                                                 .round_trip_us = 200};
        struct wire_buffer out = {0};
        wire_encode_telemetry(&out, op_head(epoch), &told);
        say(from, &out);
    }
}

static bool shares_are(const char *ring, char slow) {
    bool right = true;
    for (size_t i = 0; ring[i]; i++) right &= (members[i].weight == 0) == (ring[i] == slow);
    return right;
}

static void test_update(void) {
    begin("an update vote without newcomers gives members other weights");
    form("abcd", 0);
    uint64_t before = core_epoch(m);
    tell("abcd", 'b', before);
    vote("abcd", WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE("abcd", "abcd");
    CHECK(shares_are("abcd", 'b'));
    linked("abcd", attempt, "");
    EPOCH("abcd", UPDATE, before + 1, before + 1, "abcd");
    CHECK(shares_are("abcd", 'b'));
    vote("abcd", WIRE_VOTE_UPDATE);
    OUTCOME("abcd", UPDATE, 0, 0);
    die('d');
    EPOCH("abc", LOSS, before + 2, before + 2, "abc");
    CHECK(shares_are("abc", 'b'));
    join('e', 0);
    vote("abc", WIRE_VOTE_UPDATE);
    linked("abce", CANDIDATE("abce", "abce"), "");
    EPOCH("abce", UPDATE, before + 3, before + 3, "abce");
    CHECK(shares_are("abce", 'b'));
    end();
}

static void skip(const char *peers, enum wire_type type) {
    for (; *peers; peers++) {
        struct box *box = &boxes[*peers - 'a'];
        while (box->head < box->tail && box->frames[box->head].header.type == type) box->head++;
    }
}

static void test_optimise(void) {
    begin("a vote to optimise as well, after measurements that fail");
    form("abcd", 0);
    uint64_t before = core_epoch(m);
    tell("abcd", 'a', before);
    vote("abcd", WIRE_VOTE_OPTIMIZE);
    do {
        skip("abcd", WIRE_MEASURE);
        pass(100, "abcd");
    } while (quiet("a") || boxes[0].frames[boxes[0].head].header.type == WIRE_MEASURE);
    linked("abcd", CANDIDATE("abcd", "abcd"), "");
    EPOCH("abcd", ORDER, before + 1, before + 1, "abcd");
    CHECK(shares_are("abcd", 'a'));
    end();
}

static void test_out_of_reach(void) {
    begin("members that cannot make their links stay, and so does what is in force");
    form("abcd", 0);
    uint64_t before = core_epoch(m);
    tell("abcd", 'b', before);
    vote("abcd", WIRE_VOTE_UPDATE);
    uint32_t attempt = CANDIDATE("abcd", "abcd");
    linked("abc", attempt, "");
    linked("d", attempt, "a");
    OUTCOME("abcd", UPDATE, 0, 0);
    CHECK_EQ(core_epoch(m), before);
    end();
}

static void test_loss_meanwhile(void) {
    begin("a member dies while the links are made: the vote passes without a plan");
    form("abcd", 0);
    uint64_t before = core_epoch(m);
    tell("abcd", 'b', before);
    vote("abcd", WIRE_VOTE_UPDATE);
    CANDIDATE("abcd", "abcd");
    die('a');
    EPOCH("bcd", LOSS, before + 1, before + 1, "bcd");
    OUTCOME("bcd", UPDATE, 0, 0);
    end();
}

int main(void) {
    test_update();
    test_optimise();
    test_out_of_reach();
    test_loss_meanwhile();
    return check_status();
}
