// What members tell is kept for those who ask: who is in the answer, how sums fade, and how much is kept.
#include "master/matrix.h"

#include <math.h>

#include "seats.h"

static struct matrix matrix;
static struct wire_matrix answer;

static void tell(char who, const char *others, uint64_t ops) {
    static struct wire_telemetry told;
    told = (struct wire_telemetry){.ops = {.span_us = 1000000, .ops = ops, .op_us = 10 * ops, .live = 3}};
    for (; *others; others++) {
        told.others[told.count].id = (struct wire_id){{(uint8_t)*others, 1, 2, 3}};
        told.others[told.count++].seen = (struct wire_seen){.acked = 1 << 20, .entries = ops, .queue_us = 7};
    }
    matrix_note(&matrix, &table, peer(who), &told);
}

static const pcclDiagnosis_t *ask(void) {
    struct wire_buffer out = {0};
    struct wire_header header;
    table.now_ns += MATRIX_ANSWER_MS * MS_NS;
    matrix_describe(&matrix, &table, 3, table.now_ns, &out);
    REQUIRE(wire_header_decode(out.bytes, &header));
    CHECK_EQ(header.type, WIRE_MATRIX);
    CHECK(wire_decode_matrix(out.bytes + WIRE_HEADER_BYTES, header.length, &answer));
    wire_buffer_fini(&out);
    return &answer.told;
}

static unsigned refuse_at; // 0: no request for memory is refused

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    return refuse_at > 0 && --refuse_at == 0 ? NULL : __real_calloc(count, bytes);
}

static void test_refused(void) {
    open_membership("without memory there is no answer, and none without members is kept", "ab");
    struct wire_buffer out = {0};
    refuse_at = 1;
    matrix_describe(&matrix, &table, 3, table.now_ns, &out);
    CHECK_EQ(out.length, 0);
    matrix_describe(&matrix, &table, 3, table.now_ns, &out);
    CHECK(out.length > 0);
    wire_buffer_fini(&out);
    CHECK_EQ(ask()->member_count, 2);
    matrix_fini(&matrix);
    close_membership();
}

static void test_who(void) {
    open_membership("members, in the order of the ring, and edges between those alone", "bac");
    seat("x", 1);
    come('n', 0); // no member
    tell('a', "bcxnz", 4);
    tell('c', "ca", 4);
    const pcclDiagnosis_t *told = ask();
    CHECK_EQ(told->member_count, 4);
    CHECK_EQ(told->members[0].uuid.data[0], 'b');
    CHECK_EQ(answer.members[1].ops, 4);
    CHECK_EQ(answer.members[0].told_s, -1);
    CHECK_EQ(told->edge_count, 3);
    CHECK(answer.edges[0].member == 1 && answer.edges[0].other == 0 && answer.edges[1].other == 2);
    CHECK(answer.edges[2].member == 2 && answer.edges[2].other == 1);
    matrix_fini(&matrix);
    close_membership();
}

static void test_fading(void) {
    open_membership("sums fade, what is told of now does not", "ab");
    for (int i = 0; i < 100; i++) tell('a', "b", 3);
    ask();
    CHECK_EQ(answer.members[0].ops, 3 * MATRIX_BEGUN);
    CHECK_EQ(answer.members[0].live, 3);
    CHECK_EQ(answer.edges[0].queue_s, 7e-6);
    tell('a', "", 0); // in the midst of a long op
    ask();
    CHECK_EQ(answer.members[0].ops, 3 * MATRIX_BEGUN);
    for (int i = 0; i < 100; i++) tell('a', "", 0);
    CHECK_EQ(ask()->edge_count, 0);
    matrix_fini(&matrix);
    close_membership();
}

static double mean_late_us(uint64_t late_us) {
    static struct wire_telemetry told;
    told = (struct wire_telemetry){.ops = {.span_us = 1000000, .ops = 10, .op_us = 1000000}, .count = 1};
    told.others[0].id = (struct wire_id){{'b', 1, 2, 3}};
    told.others[0].seen = (struct wire_seen){.acked = 1 << 20, .entries = 10, .late_us = late_us, .early_us = 300};
    matrix_note(&matrix, &table, peer('a'), &told);
    ask();
    return answer.edges[0].late_s * 1e6 / answer.edges[0].entries;
}

static void test_pauses(void) {
    open_membership("one pause is forgotten after as many reports, however long it was", "ab");
    for (uint64_t pause_us = 100000; pause_us <= 100000000; pause_us *= 10) {
        for (int i = 0; i < 5; i++) mean_late_us(500);
        CHECK(mean_late_us(pause_us) > (double)pause_us / 50);
        for (int i = 1; i < MATRIX_BEGUN; i++) CHECK(mean_late_us(500) > (double)pause_us / 50);
        CHECK(fabs(mean_late_us(500) - 50) < 1e-6);
        CHECK_EQ(answer.edges[0].early_s, 300e-6 * MATRIX_BEGUN);
    }
    check_case("pauses in each third report are seen all the time");
    for (int i = 0; i < 30; i++) CHECK(mean_late_us(i % 3 == 0 ? 600000 : 0) >= 14000);
    check_case("a report without ops, or of others alone, forgets nothing");
    mean_late_us(1000000);
    double before_s = answer.edges[0].late_s;
    tell('a', "", 0);
    tell('a', "b", 0);
    ask();
    CHECK_EQ(answer.edges[0].late_s, before_s);
    tell('a', "cb", 0); // at another place than before
    mean_late_us(0);
    CHECK(answer.edges[0].late_s >= 1);
    matrix_fini(&matrix);
    close_membership();
}

// Many fast ops, and then slow ones, in which one member is late.
static void test_spans(void) {
    static struct wire_telemetry told;
    open_membership("how late a member begins, and how long ops take, is of the same ops", "ab");
    for (int i = 0; i < 20; i++) {
        uint64_t ops = i < 5 ? 1000 : 10, late_us = i < 5 ? 0 : 90000, op_us = i < 5 ? 500 : 95000;
        told = (struct wire_telemetry){.ops = {.span_us = 1000000, .ops = ops, .op_us = ops * op_us}, .count = 1};
        told.others[0].id = (struct wire_id){{'b', 1, 2, 3}};
        told.others[0].seen = (struct wire_seen){.entries = ops, .late_us = ops * late_us};
        matrix_note(&matrix, &table, peer('a'), &told);
        ask();
        CHECK_EQ(answer.members[0].ops, answer.edges[0].entries);
        CHECK(answer.edges[0].late_s < answer.members[0].op_s);
    }
    matrix_fini(&matrix);
    close_membership();
}

static double part_again(uint64_t segments, uint64_t retransmits) {
    static struct wire_telemetry told;
    told = (struct wire_telemetry){.ops = {.span_us = 1000000, .ops = 1, .op_us = 1000000}, .count = 1};
    told.others[0].id = (struct wire_id){{'b', 1, 2, 3}};
    told.others[0].seen = (struct wire_seen){.acked = 1 << 20, .segments = segments, .retransmits = retransmits};
    matrix_note(&matrix, &table, peer('a'), &told);
    ask();
    return answer.edges[0].segments == 0 ? 0 : answer.edges[0].retransmits / answer.edges[0].segments;
}

static void test_losses(void) {
    open_membership("what was sent again in one report alone, as where a queue overflows once, is none of the way",
                    "ab");
    CHECK_EQ(part_again(5000, 400), 0);
    for (int i = 0; i < 10; i++) CHECK_EQ(part_again(5000, i % MATRIX_SENT == 0 ? 400 : 0), 0);
    check_case("what is lost all the time is told, within two reports");
    for (int i = 0; i < MATRIX_SENT; i++) part_again(5000, 0);
    part_again(5000, 100);
    CHECK(part_again(5000, 100) >= 0.005);
    for (int i = 0; i < MATRIX_SENT; i++) part_again(5000, 100);
    CHECK(fabs(part_again(5000, 100) - 0.02) < 1e-9);
    CHECK_EQ(answer.edges[0].segments, 5000 * MATRIX_SENT);
    check_case("and one report with much more tells no more than the next");
    CHECK(fabs(part_again(5000, 2500) - 0.02) < 1e-9);
    check_case("reports of little are taken together");
    for (int i = 0; i < 1000; i++) part_again(10, i % 10 == 0);
    CHECK(fabs(part_again(10, 0) - 0.01) < 2e-3);
    check_case("a report without any forgets nothing");
    double before = part_again(5000, 100);
    CHECK_EQ(part_again(0, 0), before);
    check_case("nobody tells of more than all");
    for (int i = 0; i < 2 * MATRIX_SENT; i++) part_again(1 + (uint64_t)i % 2, WIRE_MOST_SEEN);
    CHECK(part_again(WIRE_MOST_SEEN, WIRE_MOST_SEEN) > 0);
    matrix_fini(&matrix);
    close_membership();
}

// Reports of a second each; an op ends in every `of`th of them, and takes that long.
static void long_ops(uint32_t of, uint32_t reports) {
    static struct wire_telemetry told;
    for (uint32_t i = 1; i <= reports; i++) {
        bool ends = i % of == 0;
        told = (struct wire_telemetry){.ops = {.span_us = 1000000,
                                               .ops = ends,
                                               .op_us = ends ? of * UINT64_C(1000000) : 0,
                                               .processor_us = 250000,
                                               .live = 1}};
        told.count = 1;
        told.others[0].id = (struct wire_id){{'b', 1, 2, 3}};
        told.others[0].seen = (struct wire_seen){.acked = 5 << 20, .busy_us = 500000, .lanes = 7, .reason = 3};
        matrix_note(&matrix, &table, peer('a'), &told);
    }
    ask();
}

static bool is_near(double number, double right) { return number > right * 0.99 && number < right * 1.01; }

static void test_long_ops(void) {
    for (uint32_t of = 1; of <= 100; of = of * 3 + 1) {
        open_membership("ops longer than the time between two reports", "ab");
        check_case("an op in %u reports", of);
        long_ops(of, of * 20);
        const pcclDiagnosisMember_t *member = &answer.members[0];
        CHECK(is_near(member->op_s / member->ops, of));
        CHECK(is_near(member->span_s / member->ops, of));
        CHECK(is_near(member->processor_s * 4, member->span_s));
        // What is seen of others fades by itself.
        CHECK(is_near(answer.members[0].recent_s, 10. / 3));
        CHECK(is_near(answer.edges[0].busy_s * 2, 10. / 3));
        CHECK_EQ(answer.edges[0].lanes, 7);
        CHECK_EQ(answer.reasons[0], 3);
        check_case("in the midst of one");
        double before_s = member->span_s;
        long_ops(1000, of);
        CHECK(is_near(member->span_s, before_s));
        check_case("of one that takes longer than usual");
        long_ops(1000, 2 * of);
        CHECK(is_near(member->span_s, before_s * 3 / 2));
        matrix_fini(&matrix);
        close_membership();
    }
}

static void test_rate(void) {
    open_membership("an answer serves all who ask at about the same time", "ab");
    tell('a', "b", 5);
    struct wire_buffer first = {0}, second = {0}, later = {0};
    matrix_describe(&matrix, &table, 3, table.now_ns, &first);
    tell('b', "a", 5);
    matrix_describe(&matrix, &table, 3, table.now_ns + (MATRIX_ANSWER_MS - 1) * MS_NS, &second);
    CHECK(first.length == second.length && memcmp(first.bytes, second.bytes, first.length) == 0);
    matrix_describe(&matrix, &table, 3, table.now_ns + MATRIX_ANSWER_MS * MS_NS, &later);
    CHECK(later.length > first.length);
    wire_buffer_fini(&first);
    wire_buffer_fini(&second);
    wire_buffer_fini(&later);
    matrix_fini(&matrix);
    close_membership();
}

static void test_joiners(void) {
    open_membership("peers on their way into the run, and what they do", "ab");
    for (char who = 'c'; who <= 'f'; who++) come(who, 0);
    peer('c')->copies = true;
    peer('c')->progress = peer('d')->progress = (struct wire_progress){.done = 3, .total = 9, .span_us = 5};
    peer('e')->listed = true;
    peer('f')->gone = true;
    peer('a')->vote = peer('b')->vote = WIRE_VOTE_SYNC;
    peer('a')->part = peer('b')->part = ROLE_RECEIVER;
    peer('b')->state.kind = WIRE_STATE_SYNCED; // not its first sync
    const pcclDiagnosis_t *told = ask();
    static const char who[] = "acde";
    static const int want[] = {WIRE_JOINING_RECEIVES, WIRE_JOINING_COPIES, WIRE_JOINING_WAITS, WIRE_JOINING_LINKS};
    CHECK_EQ(told->joiner_count, sizeof want / sizeof want[0]);
    for (uint32_t i = 0; i < told->joiner_count; i++) {
        CHECK_EQ(answer.joiners[i].uuid.data[0], who[i]);
        CHECK_EQ(answer.joiners[i].joining, want[i]);
        CHECK_EQ(answer.joiners[i].done, who[i] == 'c' || who[i] == 'd' ? 3 : 0);
    }
    check_case("a spare waits for a member to go");
    table.limits.most = 3;
    ask();
    CHECK_EQ(answer.joiners[2].joining, WIRE_JOINING_WAITS);
    table.limits.most = 2;
    ask();
    CHECK_EQ(answer.joiners[2].joining, WIRE_JOINING_SPARE);
    CHECK_EQ(answer.joiners[3].joining, WIRE_JOINING_LINKS);
    table.limits.most = 0;
    check_case("where no member has a state, nobody lacks it");
    peer('b')->state.kind = WIRE_STATE_NONE;
    ask();
    for (uint32_t i = 0; i < 5; i++) CHECK_EQ(answer.joiners[i].done, answer.joiners[i].uuid.data[0] == 'c' ? 3 : 0);
    peer('f')->gone = false;
    peer('a')->vote = peer('b')->vote = 0;
    matrix_fini(&matrix);
    close_membership();
}

static void test_departures(void) {
    open_membership("the members that went last, with reason and rank, and as many as there is room for", "abc");
    struct wire_member member = {.group = 7, .name = {"host-a"}};
    table.now_ns += SECOND_NS;
    membership_expel(&table, peer('b'), "it sent %s", "nonsense");
    const pcclDiagnosis_t *told = ask();
    CHECK_EQ(told->departure_count, 1);
    CHECK_EQ(answer.departures[0].reason, WIRE_LOSS_EXPELLED);
    CHECK_STR(answer.departures[0].why, "it sent nonsense");
    CHECK_EQ(answer.departures[0].rank, 1);
    CHECK_EQ(answer.departures[0].ago_s, MATRIX_ANSWER_MS / 1e3);
    for (uint32_t i = 0; i < WIRE_MAX_DEPARTURES; i++)
        membership_note_lost(&table, &member, i, i == 0 ? WIRE_LOSS_DIED : WIRE_LOSS_ENDED, "it went");
    told = ask();
    CHECK_EQ(told->departure_count, WIRE_MAX_DEPARTURES);
    CHECK_EQ(answer.departures[0].reason, WIRE_LOSS_DIED);
    CHECK_EQ(answer.departures[WIRE_MAX_DEPARTURES - 1].rank, WIRE_MAX_DEPARTURES - 1);
    CHECK_STR(answer.departures[1].name, "host-a");
    CHECK_EQ(answer.departures[1].group, 7);
    matrix_fini(&matrix);
    close_membership();
}

static void test_numbers(void) {
    open_membership("numbers of a program stay until others take their place, or the member is gone", "ab");
    struct wire_numbers told = {.count = 2, .list = {{"loss", 0.5}, {"tokens", 7}}};
    matrix_note_numbers(&matrix, &table, peer('b'), &told);
    CHECK_EQ(ask()->number_count, 2);
    CHECK_EQ(answer.told.votes, 3);
    CHECK_EQ(answer.numbers[1].member, 1);
    CHECK_STR(answer.numbers[1].name, "tokens");
    CHECK(answer.numbers[0].value == 0.5);
    CHECK_EQ(answer.members[1].told_s, -1); // it has told nothing of operations
    told.count = 1;
    matrix_note_numbers(&matrix, &table, peer('b'), &told);
    CHECK_EQ(ask()->number_count, 1);
    struct wire_id other = {{'q'}};
    matrix.rows[membership_slot(&table, peer('b'))]->id = other;
    CHECK_EQ(ask()->number_count, 0);
    matrix_fini(&matrix);
    close_membership();
}

static void test_places(void) {
    open_membership("the place of one that is gone begins anew, and a doubled member counts once", "ab");
    tell('a', "bb", 5);
    CHECK_EQ(ask()->edge_count, 1);
    struct wire_id other = {{'q'}};
    matrix.rows[membership_slot(&table, peer('a'))]->id = other;
    CHECK_EQ(ask()->edge_count, 0);
    tell('a', "b", 1);
    ask();
    CHECK_EQ(answer.members[0].ops, 1);
    matrix_fini(&matrix);
    close_membership();
}

static void tell_sent(char who, char to, uint64_t acked, uint64_t busy_us, uint64_t span_us) {
    static struct wire_telemetry told;
    told =
        (struct wire_telemetry){.ops = {.span_us = span_us, .epoch = table.order[0]->group->group_epoch}, .count = 1};
    told.others[0].id = (struct wire_id){{(uint8_t)to, 1, 2, 3}};
    told.others[0].seen = (struct wire_seen){.acked = acked, .busy_us = busy_us};
    matrix_note(&matrix, &table, peer(who), &told);
}

// In a second `a` sends 8 MB, but nothing at the end of the op; `b` sends as much all the time, and tells less often.
static void test_look(void) {
    static struct weights_edge seen[4];
    open_membership("a look is at all since the one before, and at as much of each member", "ab");
    struct peer_group *group = table.order[0]->group;
    group->group_epoch = 5;
    for (int look = 0; look < 2; look++) {
        for (int i = 0; i < 6; i++) {
            tell_sent('a', 'b', i < 3 ? 8000000 : 0, i < 3 ? 1000000 : 0, 1000000);
            CHECK(!matrix_look(&matrix, &table, group, seen));
        }
        for (int i = 0; i < (look == 0 ? 4 : 3); i++) tell_sent('b', 'a', 12000000, 1500000, 1500000);
        CHECK(matrix_look(&matrix, &table, group, seen));
        CHECK(fabs(seen[0 * 2 + 1].rate / 4e6 - 1) < 0.21 && fabs(seen[1 * 2 + 0].rate / 8e6 - 1) < 0.01);
    }
    matrix_fini(&matrix);
    close_membership();
}

int main(void) {
    test_refused();
    test_who();
    test_fading();
    test_pauses();
    test_spans();
    test_losses();
    test_long_ops();
    test_rate();
    test_joiners();
    test_departures();
    test_numbers();
    test_places();
    test_look();
    return check_status();
}
