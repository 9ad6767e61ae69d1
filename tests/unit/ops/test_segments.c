// Ops made of ops, driven by hand.
#include "ops/call_table_world.h"

#include "ops/call_table_private.h"

static struct op *begin_divided(uint32_t members) {
    begin();
    enter(1, members);
    call_table_links_ready(&table);
    struct op *call = post(1, DIVIDED, true);
    check_said("start 1.0 start 1.1 start 1.2 start 1.3 start 1.4 start 1.5 ");
    CHECK_EQ(call->segments->count, 8);
    CHECK_EQ(table.extra, PLAN_SEGMENTS_AHEAD - 1);
    return call;
}

static void commit(struct op *op) {
    CHECK(call_table_complete(&table, op));
    verdict(WIRE_VERDICT_COMMIT, op);
}

static void test_in_order(void) {
    check_case("a segment that is committed is followed by the next, and the call ends with the last");
    struct op *call = begin_divided(3);
    for (int i = 0; i < 8; i++) {
        CHECK_EQ(started[i]->name.sequence, 1);
        commit(started[i]);
    }
    check_said("start 1.6 start 1.7 end 1: 0 ");
    CHECK(table.extra == 0 && table.live == 1);
    struct call_outcome outcome = take(call);
    CHECK_EQ(outcome.contributors->count, 1);
    CHECK_EQ(outcome.contributors->ranges[0].end, DIVIDED);
    CHECK_EQ(outcome.epoch, 1);
    free(outcome.contributors);
    end();
}

static void test_loss(void) {
    check_case("a loss costs the segments under way, and the outcome tells who is in which range");
    struct op *call = begin_divided(3);
    commit(started[0]);
    commit(started[1]);
    said[0] = '\0';
    call_table_note_loss(&table, 2);
    enter(2, 2);
    said[0] = '\0';
    struct op *open[PLAN_SEGMENTS_AHEAD];
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++) open[i] = started[2 + i];
    verdict(WIRE_VERDICT_COMMIT, open[0]); // not complete here: it never was
    call_table_links_ready(&table);
    check_said("");
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++) verdict(WIRE_VERDICT_ABORT, open[i]);
    check_said("start 1.2 again start 1.3 again start 1.4 again start 1.5 again start 1.6 again start 1.7 again ");
    for (int i = 0; i < PLAN_SEGMENTS_AHEAD; i++) {
        CHECK(open[i]->name.epoch == 2 && open[i]->name.sequence == 1);
        commit(open[i]);
    }
    check_said("end 1: 0 ");
    struct call_outcome outcome = take(call);
    REQUIRE(outcome.contributors != NULL && outcome.contributors->count == 2);
    CHECK_EQ(outcome.epoch, 2);
    CHECK_EQ(outcome.contributors->ranges[0].end, DIVIDED / 4);
    CHECK_EQ(outcome.contributors->ranges[0].count, 3);
    CHECK_EQ(outcome.contributors->ranges[1].count, 2);
    free(outcome.contributors);
    end();
}

static void test_alone(void) {
    check_case("who is left alone loses the call, and is told which ranges are reduced");
    struct op *call = begin_divided(2);
    commit(started[0]);
    call_table_note_loss(&table, 2);
    enter(2, 1);
    said[0] = '\0';
    call_table_links_ready(&table);
    for (int i = 1; i <= PLAN_SEGMENTS_AHEAD; i++) verdict(WIRE_VERDICT_ABORT, started[i]);
    check_said("end 1: 2 ");
    CHECK(table.extra == 0);
    int parts = 0;
    for (struct op *part = segments_part(call, NULL); part != NULL; part = segments_part(call, part)) parts++;
    CHECK_EQ(parts, 1 + PLAN_SEGMENTS_AHEAD); // their inputs are to be put back
    struct call_outcome outcome = take(call);
    REQUIRE(outcome.contributors != NULL && outcome.contributors->count == 2);
    CHECK_EQ(outcome.contributors->ranges[1].count, 0);
    free(outcome.contributors);
    CHECK(table.live == 0);
    end();
}

static void test_whole(void) {
    check_case("where others run the op in one piece it begins anew with the next epoch, from its input");
    begin_divided(3);
    verdict(WIRE_VERDICT_WHOLE, started[0]);
    check_said("");
    enter(2, 3);
    check_said("restore 1.0 restore 1.1 restore 1.2 restore 1.3 restore 1.4 restore 1.5 ");
    CHECK(table.extra == 0);
    call_table_links_ready(&table);
    check_said("start 1.0 ");
    struct op *op = started[started_count - 1];
    CHECK(op->bytes == DIVIDED && op->args.fingerprint.mode == WIRE_MODE_WHOLE);
    commit(op);
    check_said("end 1: 0 ");
    end();
    check_case("also where segments were committed, of whose members nothing is told then");
    struct op *call = begin_divided(3);
    commit(started[0]);
    verdict(WIRE_VERDICT_WHOLE, started[1]);
    enter(2, 3);
    call_table_links_ready(&table);
    commit(started[started_count - 1]);
    struct call_outcome outcome = take(call);
    CHECK_EQ(outcome.contributors->count, 1);
    CHECK_EQ(outcome.contributors->ranges[0].end, DIVIDED);
    free(outcome.contributors);
    end();
}

static void test_mismatch(void) {
    check_case("a mismatch of one segment ends the call, and no other one is begun");
    struct op *call = begin_divided(3);
    verdict(WIRE_VERDICT_MISMATCH, started[0]);
    enter(2, 3);
    CHECK(call->phase == OP_ENDED && call->outcome.result == CALL_MISMATCH);
    check_said("end 1: 3 ");
    end();
}

static void test_room(void) {
    check_case("many calls have at least one segment under way each");
    begin();
    enter(1, 2);
    call_table_links_ready(&table);
    for (uint64_t tag = 0; tag < 1024; tag++) post(tag, DIVIDED, true);
    CHECK_EQ(table.live, 1024);
    const struct epoch *now = table.now;
    CHECK_EQ(table.extra, plan_extra_segments(now->ring.count, now->latency_us, now->megabytes_per_s));
    for (size_t i = 0; i < TAG_SLOTS; i++)
        for (struct op *op = table.table[i]; op != NULL; op = op->chain)
            if (op->segments != NULL) CHECK(op->segments->live > 0);
    end();
}

// READY of a segment of the call in the epoch in force. What is kept of it: how much more there is than before.
static uint32_t kept_of_ready(uint32_t segment, uint32_t sequence) {
    struct wire_head head = {.op = {.tag = 1,
                                    .sequence = sequence,
                                    .segment = (uint16_t)segment,
                                    .fingerprint = {.count = DIVIDED, .mode = WIRE_MODE_SEGMENTS}}};
    uint32_t before = others[1].unexpected_count;
    CHECK(call_table_signal(&table, &others[1], WIRE_READY, &head, NULL, 0));
    said[0] = '\0';
    return others[1].unexpected_count - before;
}

static void test_late_signals(void) {
    check_case("what comes for a segment after its COMMIT is dropped");
    struct op *call = begin_divided(3);
    CHECK_EQ(kept_of_ready(0, 1), 0); // under way
    commit(started[0]);
    commit(started[1]);
    for (int i = 0; i < 100; i++) CHECK_EQ(kept_of_ready((uint32_t)i % 2, 1), 0);
    check_case("also where one before it is not committed, and what is for the next call is kept");
    commit(started[3]);
    CHECK_EQ(kept_of_ready(3, 1), 0);
    CHECK_EQ(kept_of_ready(2, 1), 0); // under way
    CHECK_EQ(kept_of_ready(0, 2), 1);
    check_case("a segment that is to be redone waits for its signals, whichever verdict comes first");
    call_table_note_loss(&table, 2);
    enter(2, 2);
    CHECK_EQ(others[1].unexpected_count, 0);
    call_table_links_ready(&table);
    struct op *second = started[2], *fourth = started[4];
    CHECK_EQ(kept_of_ready(2, 1), 1); // nothing is named yet
    verdict(WIRE_VERDICT_ABORT, fourth);
    CHECK(fourth->name.epoch == 2 && fourth->name.sequence == 1);
    CHECK_EQ(kept_of_ready(2, 1), 1);
    CHECK_EQ(kept_of_ready(4, 1), 0); // under way
    CHECK_EQ(kept_of_ready(0, 1), 0); // committed before the loss
    CHECK_EQ(kept_of_ready(8, 1), 0); // there is none
    verdict(WIRE_VERDICT_ABORT, second);
    for (int i = 0; i < 2; i++) {
        struct unexpected *early = call_table_unexpected(&table, second, &others[1], WIRE_READY);
        CHECK(early != NULL);
        free(early);
    }
    commit(second);
    CHECK_EQ(kept_of_ready(2, 1), 0);
    check_case("when the call has ended nothing of it is kept");
    verdict(WIRE_VERDICT_ABORT, started[5]);
    verdict(WIRE_VERDICT_ABORT, started[6]);
    verdict(WIRE_VERDICT_ABORT, started[7]);
    for (int i = 4; i < 8; i++) commit(started[i]);
    CHECK_EQ(call->phase, OP_ENDED);
    for (uint32_t i = 0; i < 8; i++) CHECK_EQ(kept_of_ready(i, 1), 0);
    free(take(call).contributors);
    for (uint32_t i = 0; i < 8; i++) CHECK_EQ(kept_of_ready(i, 1), 0);
    CHECK_EQ(others[1].unexpected_count, 0);
    end();
}

int main(void) {
    plan_segmented_min = 4 * PLAN_SEGMENT_MIN;
    test_in_order();
    test_late_signals();
    test_loss();
    test_alone();
    test_whole();
    test_mismatch();
    test_room();
    return check_status();
}
