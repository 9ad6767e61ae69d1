// Matrices as members tell them, each with one fault: what is found, and where. And any numbers.
#include "topology/diagnosis.h"

#include <string.h>

#include "check.h"

enum { MOST = 8, SPAN_US = 3300000, OP_US = 150000, OPS = 18, MB = 1000000 };

static struct wire_matrix_member members[WIRE_MAX_MEMBERS];
static struct wire_matrix_edge edges[WIRE_MAX_EDGES];
static struct wire_matrix matrix = {.heartbeat_limit_ms = 5000, .members = members, .edges = edges};
static struct diagnosis_finding found[DIAGNOSIS_MOST];
static double begins[WIRE_MAX_MEMBERS];

static struct wire_seen *seen(int from, int to) {
    for (uint32_t i = 0; i < matrix.edge_count; i++)
        if (edges[i].from == from && edges[i].to == to) return &edges[i].seen;
    REQUIRE(matrix.edge_count < WIRE_MAX_EDGES);
    edges[matrix.edge_count] = (struct wire_matrix_edge){.from = (uint16_t)from, .to = (uint16_t)to};
    return &edges[matrix.edge_count++].seen;
}

// A ring of `count` members with large ops, in which all is well: 25 MB/s each, bytes wait in a third of the looks.
static void well(uint16_t count) {
    matrix.member_count = count;
    matrix.edge_count = 0;
    memset(members, 0, sizeof members);
    for (uint16_t i = 0; i < count; i++) {
        members[i].member.id.bytes[0] = (uint8_t)(i + 1);
        members[i].told_us = 400000;
        members[i].recent_us = SPAN_US;
        members[i].ops = (struct wire_ops_seen){.span_us = SPAN_US,
                                                .ops = OPS * WIRE_COUNT,
                                                .op_us = (uint64_t)OPS * OP_US,
                                                .live = 1,
                                                .oldest_us = 80000,
                                                .still_us = 1000};
        for (uint16_t k = 0; k < count; k++) {
            if (k == i) continue;
            *seen(i, k) = (struct wire_seen){.samples = 28 * WIRE_COUNT, .round_trip_us = 2000, .queue_us = 500};
            if (k != (i + 1) % count) continue;
            *seen(i, k) = (struct wire_seen){.acked = 50 * MB,
                                             .busy_us = 2000000,
                                             .segments = 35000,
                                             .samples = 28 * WIRE_COUNT,
                                             .backlogged = 9 * WIRE_COUNT,
                                             .entries = OPS * WIRE_COUNT,
                                             .late_us = OPS * 1000,
                                             .round_trip_us = 2000,
                                             .queue_us = 500};
        }
    }
}

static void slow(int from, int to) {
    seen(from, to)->acked = 15 * MB;
    seen(from, to)->busy_us = 2600000;
    seen(from, to)->backlogged = 24 * WIRE_COUNT;
    seen(to, from)->queue_us = 40000;
}

static void late(uint16_t member, uint16_t count, uint64_t us) {
    seen((uint16_t)(member + count - 1) % count, member)->late_us += OPS * us;
    seen(member, (uint16_t)(member + 1) % count)->early_us += OPS * us;
    for (uint16_t i = 0; i < count; i++) members[i].ops.op_us += i == member ? 0 : OPS * us;
}

static void nothing(void) {}
static void straggler(void) { late(2, 4, 60000); }
static void two_stragglers(void) {
    late(1, 6, 60000);
    late(4, 6, 60000);
}
static void straggler_of_two(void) { late(1, 2, 60000); }
static void jitter(void) {
    late(0, 4, 3000);
    late(2, 4, 9000);
    late(3, 4, 16000);
}
static void slow_edge(void) { slow(1, 2); }
static void slow_sender(void) {
    slow(1, 2);
    seen(3, 1)->queue_us = seen(0, 1)->queue_us = 30000;
}
static void slow_receiver(void) {
    slow(1, 2);
    seen(2, 3)->queue_us = seen(2, 0)->queue_us = 30000;
}
// What comes to a member that sends slowly waits for its acknowledgements.
static void slow_sender_and_answers(void) {
    slow_sender();
    seen(0, 1)->acked = 14 * MB;
    seen(0, 1)->busy_us = 2600000;
    seen(0, 1)->backlogged = 24 * WIRE_COUNT;
}
// The same, and the one who waits is late itself.
static void slow_sender_and_noise(void) {
    slow_sender_and_answers();
    seen(1, 0)->queue_us = seen(1, 2)->queue_us = 9000;
}
// It begins to send when the others have sent.
static void straggler_sends_last(void) {
    late(2, 4, 120000);
    seen(2, 3)->backlogged = 26 * WIRE_COUNT;
    seen(3, 2)->queue_us = seen(0, 2)->queue_us = seen(1, 2)->queue_us = 9000;
}
static void straggler_and_slow_sender(void) {
    straggler();
    slow(1, 2);
    seen(3, 1)->queue_us = seen(0, 1)->queue_us = 30000;
}
static void reads_slowly(void) {
    slow(1, 2);
    seen(1, 2)->window_us = 2400000;
}
static void every_way_slow(void) {
    for (uint16_t i = 0; i < 4; i++) slow(i, (i + 1) % 4);
}
// The members at 0, 1 and 2 have ops of their own beside those of all four: their ways are full all the time, and as
// fast as the others, which have little to do.
static void busy_sub_group(void) {
    for (uint16_t i = 0; i < 4; i++) {
        seen(i, (i + 1) % 4)->acked = 12 * MB;
        seen(i, (i + 1) % 4)->busy_us = 480000;
        seen(i, (i + 1) % 4)->backlogged = 2 * WIRE_COUNT;
    }
    for (uint16_t i = 0; i < 3; i++) {
        struct wire_seen *busy = seen(i, (i + 1) % 3);
        busy->acked = 75 * MB;
        busy->busy_us = 3000000;
        busy->segments = 50000;
        busy->backlogged = 25 * WIRE_COUNT;
        seen((i + 1) % 3, i)->queue_us = 40000;
    }
}
static void slow_in_busy_sub_group(void) {
    busy_sub_group();
    for (uint16_t i = 0; i < 3; i++) {
        seen(i, (i + 1) % 3)->acked = 20 * MB;
        seen(i, (i + 1) % 3)->backlogged = (i == 1 ? 25 : 5) * WIRE_COUNT;
        seen((i + 1) % 3, i)->queue_us = i == 1 ? 40000 : 500;
    }
}
// As on far links, where bytes are under way all the time: what comes late to the others is sent on at the same rate.
static void slow_edge_sets_the_rate(void) {
    slow(1, 2);
    for (uint16_t i = 0; i < 4; i++) {
        seen(i, (i + 1) % 4)->acked = 15 * MB;
        seen(i, (i + 1) % 4)->busy_us = 2600000;
    }
}
// In a ring that is full all round, bytes wait by chance at one sender, and its queue overflows.
static void overflows_by_chance(void) {
    for (uint16_t i = 0; i < 4; i++) {
        seen(i, (i + 1) % 4)->backlogged = (i == 1 ? 24 : 3) * WIRE_COUNT;
        seen((i + 1) % 4, i)->queue_us = 16000;
    }
    seen(1, 2)->retransmits = 280;
}
static void slow_without_pressure(void) {
    slow(1, 2);
    seen(1, 2)->backlogged = 0;
}
static void loses(void) { seen(1, 2)->retransmits = 350; }
static void loses_and_slow(void) {
    slow(1, 2);
    seen(2, 1)->queue_us = 500;
    seen(1, 2)->segments = 12000;
    seen(1, 2)->retransmits = 60;
}
static void overflows(void) {
    slow(1, 2);
    seen(1, 2)->segments = 12000;
    seen(1, 2)->retransmits = 600;
}
static void overflows_unseen(void) {
    overflows();
    seen(2, 1)->queue_us = 500;
    seen(1, 2)->delay_us = 24 * 40000;
}
static void all_lose(void) {
    for (uint16_t i = 0; i < 4; i++) seen(i, (i + 1) % 4)->retransmits = 350;
}

static void wait_in_op(uint16_t but, uint16_t count, uint64_t us) {
    for (uint16_t i = 0; i < count; i++) {
        if (i == but) continue;
        members[i].ops.oldest_us = us;
        members[i].ops.still_us = us;
    }
}
static void stopped(void) {
    wait_in_op(2, 4, 2500000);
    members[2].silent_us = members[2].told_us = 2500000;
}
static void stopped_just_now(void) {
    wait_in_op(2, 4, 900000);
    members[2].silent_us = members[2].told_us = 900000;
}
static void stopped_in_the_op_before(void) { // which the others have ended; when it told last, things moved there
    wait_in_op(2, 4, 2100000);
    members[2].silent_us = members[2].told_us = 2000000;
    seen(1, 2)->awaited = 1;
}
static void hangs_in_compute(void) {
    wait_in_op(2, 4, 6000000);
    members[2].ops.live = 0;
    members[2].told_us = 6000000;
    seen(1, 2)->awaited = 1;
}
static void computes_for_long(void) { // as it always does
    wait_in_op(2, 4, 2500000);
    members[2].ops.live = 0;
    seen(1, 2)->awaited = 1;
    for (uint16_t i = 0; i < 4; i++) members[i].ops.op_us = OPS * 2000000;
}
static void other_op(void) {
    wait_in_op(4, 4, 4000000);
    seen(1, 2)->awaited = 1;
}
static void idle_with_rare_heartbeats(void) { // of one who is in no op and awaited by nobody
    wait_in_op(2, 4, 2500000);
    members[2].ops.live = 0;
    members[2].silent_us = 2000000;
    members[2].told_us = 60000000;
}
static void waits_for_one_that_computes(void) {
    computes_for_long();
    members[1].ops.live = members[0].ops.live = 1;
    seen(0, 1)->awaited = 1;
}
static void first_op(void) {
    hangs_in_compute();
    for (uint16_t i = 0; i < 4; i++) members[i].ops.ops = members[i].ops.op_us = 0;
}
static void first_op_for_long(void) {
    first_op();
    wait_in_op(2, 4, 60000000);
}
static void wait_for_each_other(void) {
    wait_in_op(4, 4, 4000000);
    seen(1, 2)->awaited = seen(2, 1)->awaited = 1;
}
static void all_silent(void) {
    for (uint16_t i = 0; i < 4; i++) members[i].silent_us = members[i].told_us = 3000000;
}
static void never_told(void) {
    memset(&members[1].ops, 0, sizeof members[1].ops);
    members[1].told_us = WIRE_MOST_SEEN;
}
static void newcomer(void) { // who is waited for in its first op
    late(1, 4, 60000);
    never_told();
}
static void newcomer_that_seems_slow(void) {
    slow(0, 1);
    seen(0, 1)->window_us = 2400000;
    never_told();
}
static void newcomer_that_hangs(void) {
    never_told();
    wait_in_op(1, 4, 6000000);
    seen(0, 1)->awaited = 1;
}

static const struct {
    const char *what;
    uint16_t count;
    void (*make)(void);
    uint32_t kind; // of the gravest; 0: nothing is found
    uint16_t member, other;
    size_t findings;
} rows[] = {
    {"nothing", 4, nothing, 0, 0, 0, 0},
    {"nothing among two", 2, nothing, 0, 0, 0, 0},
    {"a straggler", 4, straggler, DIAGNOSIS_STRAGGLER, 2, 2, 1},
    {"two stragglers", 6, two_stragglers, DIAGNOSIS_STRAGGLER, 1, 1, 2},
    {"a straggler of two", 2, straggler_of_two, DIAGNOSIS_STRAGGLER, 1, 1, 1},
    {"members that begin one after another", 4, jitter, 0, 0, 0, 0},
    {"a slow edge", 4, slow_edge, DIAGNOSIS_SLOW_EDGE, 1, 2, 1},
    {"a slow sender", 4, slow_sender, DIAGNOSIS_SLOW_SENDER, 1, 1, 1},
    {"a slow receiver", 4, slow_receiver, DIAGNOSIS_SLOW_RECEIVER, 2, 2, 1},
    {"a slow sender, and those that wait for its acknowledgements", 4, slow_sender_and_answers, DIAGNOSIS_SLOW_SENDER,
     1, 1, 1},
    {"the same, and heartbeats to it are late as well", 4, slow_sender_and_noise, DIAGNOSIS_SLOW_SENDER, 1, 1, 1},
    {"a straggler that sends when the others have sent", 4, straggler_sends_last, DIAGNOSIS_STRAGGLER, 2, 2, 1},
    {"a straggler, and another one that sends slowly", 4, straggler_and_slow_sender, DIAGNOSIS_SLOW_SENDER, 1, 1, 2},
    {"a receiver that does not read", 4, reads_slowly, DIAGNOSIS_SLOW_RECEIVER, 2, 2, 1},
    {"every way as slow", 4, every_way_slow, 0, 0, 0, 0},
    {"ways that are busy with ops of a sub-group", 4, busy_sub_group, 0, 0, 0, 0},
    {"a slow one among these", 4, slow_in_busy_sub_group, DIAGNOSIS_SLOW_EDGE, 1, 2, 1},
    {"a slow edge that sets the rate of all", 4, slow_edge_sets_the_rate, DIAGNOSIS_SLOW_EDGE, 1, 2, 1},
    {"a queue that overflows in a ring that is full all round", 4, overflows_by_chance, 0, 0, 0, 0},
    {"a slow edge where nothing waits", 4, slow_without_pressure, 0, 0, 0, 0},
    {"loss", 4, loses, DIAGNOSIS_LOSS, 1, 2, 1},
    {"a little loss that makes it slow", 4, loses_and_slow, DIAGNOSIS_LOSS, 1, 2, 1},
    {"a slow edge whose queue overflows", 4, overflows, DIAGNOSIS_SLOW_EDGE, 1, 2, 1},
    {"loss everywhere", 4, all_lose, 0, 0, 0, 0},
    {"a slow edge whose queue is seen by its own round trips alone", 4, overflows_unseen, DIAGNOSIS_SLOW_EDGE, 1, 2, 1},
    {"a stopped process", 4, stopped, DIAGNOSIS_HUNG, 2, 2, 1},
    {"a process that was stopped just now", 4, stopped_just_now, 0, 0, 0, 0},
    {"a process that was stopped in an op that the others have ended", 4, stopped_in_the_op_before, 0, 0, 0, 0},
    {"a member that hangs in its own code", 4, hangs_in_compute, DIAGNOSIS_HUNG, 2, 2, 1},
    {"a member that computes for as long as ever", 4, computes_for_long, 0, 0, 0, 0},
    {"a member in another op", 4, other_op, DIAGNOSIS_HUNG, 2, 2, 1},
    {"one that is in no op and says little", 4, idle_with_rare_heartbeats, 0, 0, 0, 0},
    {"one that waits for one that computes", 4, waits_for_one_that_computes, 0, 0, 0, 0},
    {"the first op", 4, first_op, 0, 0, 0, 0},
    {"the first op, for long", 4, first_op_for_long, DIAGNOSIS_HUNG, 2, 2, 1},
    {"members that wait for each other", 4, wait_for_each_other, DIAGNOSIS_HUNG, 1, 1, 2},
    {"nobody is heard, as after the master stood still", 4, all_silent, 0, 0, 0, 0},
    {"a member that has told nothing yet", 4, never_told, 0, 0, 0, 0},
    {"the same, late in its first op", 4, newcomer, 0, 0, 0, 0},
    {"the same, and a way to it seems slow", 4, newcomer_that_seems_slow, 0, 0, 0, 0},
    {"a member that has never told anything, and does not begin", 4, newcomer_that_hangs, DIAGNOSIS_HUNG, 1, 1, 1},
};

static void test_table(void) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].what);
        well(rows[i].count);
        rows[i].make();
        CHECK_EQ(diagnosis_make(&matrix, found, begins), rows[i].findings);
        if (rows[i].kind == 0) continue;
        CHECK_EQ(found[0].kind, rows[i].kind);
        CHECK_EQ(found[0].member, rows[i].member);
        CHECK_EQ(found[0].other, rows[i].other);
        CHECK(found[0].cost > 0 || found[0].kind == DIAGNOSIS_LOSS);
        CHECK(found[0].cost <= 1 && found[0].confidence > 0.5 && found[0].confidence <= 1);
        CHECK(strlen(found[0].text) > 40 && strlen(found[0].text) < DIAGNOSIS_TEXT - 1);
    }
}

// `least` to `most`, of any seed.
static uint64_t between(uint64_t *seed, uint64_t least, uint64_t most) {
    return least + check_random(seed) % (most - least + 1);
}

// The line of a member is slow, to all others (`sends`) or from them: heartbeats wait there, and so do acknowledgements
// of what goes the other way, which then seems to be as slow.
static void slow_line(uint16_t member, uint16_t count, bool sends, uint64_t *seed) {
    uint16_t before = (uint16_t)(member + count - 1) % count, next = (uint16_t)(member + 1) % count;
    uint64_t busy_us = between(seed, 2000000, 2800000), fastest = between(seed, 2 * MB, 100 * MB);
    for (uint16_t i = 0; i < count; i++) {
        struct wire_seen *way = seen(i, (i + 1) % count);
        bool slow = i == (sends ? member : before), waits = i == (sends ? before : member);
        way->busy_us = busy_us;
        way->acked = fastest * between(seed, slow ? 40 : waits ? 50 : 85, slow ? 80 : 100) / 100 * busy_us / 1000000;
        way->backlogged = between(seed, slow ? 24 : waits ? 12 : 2, slow || waits ? 28 : 9) * WIRE_COUNT;
    }
    for (uint16_t i = 0; i < count; i++)
        for (uint16_t k = 0; k < count; k++)
            if (i != k) seen(i, k)->queue_us = between(seed, 100, 2500);
    uint64_t late_us = between(seed, 10000, 60000);
    for (uint16_t i = 0; i < count; i++) {
        if (i == member) continue;
        struct wire_seen *way = sends ? seen(i, member) : seen(member, i);
        way->queue_us = late_us * between(seed, 85, 115) / 100;
    }
    seen(sends ? member : before, sends ? next : member)->delay_us = 24 * late_us;
}

static void test_slow_lines(void) {
    uint64_t seed = 5;
    for (int round = 0; round < 2000; round++) {
        uint16_t count = (uint16_t)between(&seed, 3, 6), member = (uint16_t)(check_random(&seed) % count);
        bool sends = check_random(&seed) % 2;
        check_case("the line of %u of %u that %s is slow, round %d", member, count, sends ? "sends" : "receives",
                   round);
        well(count);
        slow_line(member, count, sends, &seed);
        CHECK_EQ(diagnosis_make(&matrix, found, begins), 1);
        CHECK_EQ(found[0].kind, sends ? DIAGNOSIS_SLOW_SENDER : DIAGNOSIS_SLOW_RECEIVER);
        CHECK_EQ(found[0].member, member);
    }
}

// A ring whose lines are all as fast and full: the same bytes in the same time, and where they wait is by chance.
static void test_full_all_round(void) {
    uint64_t seed = 7;
    for (int round = 0; round < 2000; round++) {
        check_case("a ring that is full all round, round %d", round);
        uint16_t count = (uint16_t)between(&seed, 3, 8);
        well(count);
        uint64_t full_us = between(&seed, 10000, 60000);
        for (uint16_t i = 0; i < count; i++) {
            uint16_t next = (uint16_t)((i + 1) % count);
            seen(i, next)->acked = 500000 * between(&seed, 96, 100);
            seen(i, next)->backlogged =
                (check_random(&seed) % 2 ? between(&seed, 20, 28) : between(&seed, 0, 6)) * WIRE_COUNT;
            seen(next, i)->queue_us = full_us * between(&seed, 75, 125) / 100;
        }
        CHECK_EQ(diagnosis_make(&matrix, found, begins), 0);
    }
}

static void test_beginnings(void) {
    check_case("when each begins, from what neighbours in a ring hear of each other");
    well(8);
    late(3, 8, 60000);
    late(6, 8, 20000);
    diagnosis_make(&matrix, found, begins);
    for (uint16_t i = 0; i < 8; i++) {
        double right = i == 3 ? 0.06 : i == 6 ? 0.02 : 0;
        CHECK(begins[i] > right - 1e-3 && begins[i] < right + 1e-3);
    }
}

static void test_groups(void) {
    check_case("two groups, of which one has a fault");
    well(8);
    slow(5, 6);
    for (uint16_t i = 4; i < 8; i++) members[i].member.group = 1;
    for (uint32_t i = 0; i < matrix.edge_count; i++)
        if ((edges[i].from < 4) != (edges[i].to < 4)) edges[i].seen = (struct wire_seen){0};
    CHECK_EQ(diagnosis_make(&matrix, found, NULL), 1);
    CHECK(found[0].kind == DIAGNOSIS_SLOW_EDGE && found[0].member == 5 && found[0].other == 6);
}

static void test_words(void) {
    check_case("an op takes the others no less than they wait for a straggler");
    well(4);
    late(2, 4, 90000);
    for (uint16_t i = 0; i < 4; i++) members[i].ops.op_us = OPS * 8000;
    CHECK_EQ(diagnosis_make(&matrix, found, begins), 1);
    CHECK(found[0].kind == DIAGNOSIS_STRAGGLER && found[0].cost == 1);
    CHECK(strstr(found[0].text, "begins ops 90.0 ms after") != NULL);
    CHECK(strstr(found[0].text, "100 % of the 90.0 ms that an op takes") != NULL);
}

static void idle_for(uint64_t us) {
    for (uint16_t i = 0; i < 4; i++) {
        members[i].told_us = us;
        members[i].ops.live = 0;
    }
}

static void test_ages(void) {
    static void (*const faults[])(void) = {straggler, slow_edge, slow_sender, loses};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        check_case("fault %zu of a run that calls no ops any more", i);
        well(4);
        faults[i]();
        CHECK_EQ(diagnosis_make(&matrix, found, begins), 1);
        struct diagnosis_finding fresh = found[0];
        CHECK(strstr(fresh.text, " s ago") == NULL);
        idle_for(9000000);
        CHECK_EQ(diagnosis_make(&matrix, found, begins), 1);
        CHECK(found[0].confidence == fresh.confidence && strcmp(found[0].text, fresh.text) == 0);
        idle_for(35000000);
        CHECK_EQ(diagnosis_make(&matrix, found, begins), 1);
        CHECK(found[0].kind == fresh.kind && found[0].member == fresh.member && found[0].other == fresh.other);
        CHECK(found[0].confidence > 0.4 * fresh.confidence && found[0].confidence < 0.6 * fresh.confidence);
        CHECK(strstr(found[0].text, ", as of 35 s ago") != NULL);
        idle_for(61000000);
        CHECK_EQ(diagnosis_make(&matrix, found, begins), 0);
    }
}

static void test_any_numbers(void) {
    uint64_t seed = 3;
    for (int round = 0; round < 3000; round++) {
        check_case("any numbers, round %d", round);
        well((uint16_t)(1 + check_random(&seed) % MOST));
        for (uint32_t i = 0; i < matrix.edge_count; i++) {
            uint64_t *numbers = (uint64_t *)&edges[i].seen;
            for (size_t k = 0; k < sizeof edges[i].seen / sizeof *numbers; k++)
                if (check_random(&seed) % 3 == 0) numbers[k] = check_random(&seed) >> (16 + check_random(&seed) % 48);
        }
        for (uint32_t i = 0; i < matrix.member_count; i++) {
            uint64_t *numbers = (uint64_t *)&members[i].ops;
            for (size_t k = 0; k < sizeof members[i].ops / sizeof *numbers; k++)
                if (check_random(&seed) % 3 == 0) numbers[k] = check_random(&seed) >> (16 + check_random(&seed) % 48);
            members[i].silent_us = check_random(&seed) % 4000000;
        }
        size_t count = diagnosis_make(&matrix, found, begins);
        CHECK(count <= DIAGNOSIS_MOST);
        for (size_t i = 0; i < count; i++) {
            CHECK(found[i].kind >= 1 && found[i].kind < DIAGNOSIS_KINDS);
            CHECK(found[i].member < matrix.member_count && found[i].other < matrix.member_count);
            CHECK(found[i].cost >= 0 && found[i].cost <= 1 && found[i].confidence >= 0 && found[i].confidence <= 1);
        }
    }
    check_case("nobody");
    matrix.member_count = matrix.edge_count = 0;
    CHECK_EQ(diagnosis_make(&matrix, found, begins), 0);
}

int main(void) {
    test_table();
    test_slow_lines();
    test_full_all_round();
    test_beginnings();
    test_groups();
    test_words();
    test_ages();
    test_any_numbers();
    return check_status();
}
