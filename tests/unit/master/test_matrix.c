// What members tell is kept for those who ask: who is in the answer, how sums fade, and how much is kept.
#include "master/matrix.h"

#include "seats.h"

static struct matrix matrix;
static struct wire_matrix_member members[WIRE_MAX_MEMBERS];
static struct wire_matrix_edge edges[WIRE_MAX_EDGES];

static void tell(char who, const char *others, uint64_t ops) {
    static struct wire_telemetry told;
    told = (struct wire_telemetry){.ops = {.span_us = 1000000, .ops = ops, .op_us = 10 * ops, .live = 3}};
    for (; *others; others++) {
        told.others[told.count].id = (struct wire_id){{(uint8_t)*others, 1, 2, 3}};
        told.others[told.count++].seen = (struct wire_seen){.acked = 1 << 20, .entries = ops, .queue_us = 7};
    }
    matrix_note(&matrix, &desk, peer(who), &told);
}

static struct wire_matrix ask(void) {
    struct wire_matrix answer = {.members = members, .edges = edges};
    struct wire_buffer out = {0};
    struct wire_header header;
    matrix_describe(&matrix, &desk, desk.now_ns, &out);
    REQUIRE(wire_header_decode(out.bytes, &header));
    CHECK_EQ(header.type, WIRE_MATRIX);
    CHECK(wire_decode_matrix(out.bytes + WIRE_HEADER_BYTES, header.length, &answer));
    wire_buffer_fini(&out);
    return answer;
}

static void test_who(void) {
    open_desk("members, in the order of the ring, and edges between those alone", "bac");
    seat("x", 1);
    come('n', 0); // no member
    tell('a', "bcxnz", 4);
    tell('c', "ca", 4);
    struct wire_matrix answer = ask();
    CHECK_EQ(answer.member_count, 4);
    CHECK_EQ(members[0].member.id.bytes[0], 'b');
    CHECK_EQ(members[1].ops.ops, 4 * WIRE_COUNT);
    CHECK_EQ(members[0].told_us, WIRE_MOST_SEEN);
    CHECK_EQ(answer.edge_count, 3);
    CHECK(edges[0].from == 1 && edges[0].to == 0 && edges[1].to == 2);
    CHECK(edges[2].from == 2 && edges[2].to == 1);
    matrix_fini(&matrix);
    close_desk();
}

static void test_fading(void) {
    open_desk("sums fade, what is told of now does not", "ab");
    for (int i = 0; i < 100; i++) tell('a', "b", 3);
    ask();
    CHECK(members[0].ops.ops >= 9900 && members[0].ops.ops <= 10000);
    CHECK_EQ(members[0].ops.live, 3);
    CHECK_EQ(edges[0].seen.queue_us, 7);
    tell('a', "", 0); // in the midst of a long op
    ask();
    CHECK(members[0].ops.ops >= 9900);
    for (int i = 0; i < 100; i++) tell('a', "", 0);
    CHECK_EQ(ask().edge_count, 0);
    matrix_fini(&matrix);
    close_desk();
}

static void test_places(void) {
    open_desk("the place of one that is gone begins anew, and a doubled member counts once", "ab");
    tell('a', "bb", 5);
    CHECK_EQ(ask().edge_count, 1);
    struct wire_id other = {{'q'}};
    matrix.rows[desk_slot(&desk, peer('a'))]->id = other;
    CHECK_EQ(ask().edge_count, 0);
    tell('a', "b", 1);
    ask();
    CHECK_EQ(members[0].ops.ops, WIRE_COUNT);
    matrix_fini(&matrix);
    close_desk();
}

int main(void) {
    test_who();
    test_fading();
    test_places();
    return check_status();
}
