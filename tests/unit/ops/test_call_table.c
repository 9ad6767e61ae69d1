// The ops' core, driven by hand: what it asks for when calls, signals, epochs and verdicts come.
#include "base/platform.h"
#include "ops/call_table_world.h"

static void test_large(void) {
    begin();
    check_case("a large op begins when the links are there, and ends when all have it");
    enter(1, 3);
    struct op *op = post(7, LARGE, false);
    check_said("");
    call_table_links_ready(&table);
    check_said("start 7.0 ");
    CHECK(call_table_complete(&table, op));
    verdict(WIRE_VERDICT_COMMIT, op);
    check_said("end 7: 0 ");
    struct call_outcome outcome = take(op);
    CHECK_EQ(outcome.info.contributors, 3);
    CHECK_EQ(outcome.contributors->count, 1);
    CHECK_EQ(outcome.contributors->ranges[0].count, 3);
    free(outcome.contributors);
    end();
}

static void test_freeze(void) {
    begin();
    check_case("after a loss an op ends, one in retry mode begins again from its input");
    enter(1, 3);
    call_table_links_ready(&table);
    struct op *first = post(1, LARGE, false), *second = post(2, LARGE, true), *third = post(3, LARGE, false);
    CHECK(call_table_complete(&table, third));
    check_said("start 1.0 start 2.0 start 3.0 ");
    call_table_note_loss(&table, 2);
    enter(2, 2);
    struct op *late = post(4, LARGE, false); // has adopted epoch 2
    call_table_links_ready(&table);
    CHECK(strstr(said, "open 1.0") != NULL && strstr(said, "open 2.0") != NULL && strstr(said, "done 3.0") != NULL &&
          strstr(said, "start 4.0") != NULL);
    said[0] = '\0';
    CHECK(!call_table_complete(&table, first) || first->frozen);
    verdict(WIRE_VERDICT_ABORT, first);
    verdict(WIRE_VERDICT_ABORT, second);
    verdict(WIRE_VERDICT_COMMIT, third);
    check_said("end 1: 2 start 2.0 again end 3: 0 ");
    CHECK_EQ(first->outcome.epoch, 2);
    CHECK_EQ(second->contributors, 2);
    CHECK_EQ(late->name.sequence, 1);
    end();
    begin();
    check_case("a call that counts on a lost member is lost before it begins");
    enter(1, 3);
    struct op *waits = post(1, LARGE, false), *counts_on_nobody = post(2, LARGE, true);
    call_table_note_loss(&table, 2);
    enter(2, 2);
    check_said("end 1: 2 ");
    CHECK(waits->phase == OP_ENDED && counts_on_nobody->phase == OP_WAITING);
    call_table_links_ready(&table);
    check_said("start 2.0 ");
    end();
}

static void test_relink(void) {
    begin();
    check_case("without a loss an op is redone unseen");
    enter(1, 2);
    call_table_links_ready(&table);
    struct op *op = post(1, LARGE, false);
    enter(2, 2);
    verdict(WIRE_VERDICT_REDO, op);
    check_said("start 1.0 open 1.0 ");
    call_table_links_ready(&table);
    check_said("start 1.0 again ");
    CHECK_EQ(op->name.epoch, 2);
    end();
}

static void test_retained(void) {
    begin();
    check_case("a small result is retained until all others have it");
    enter(1, 3);
    call_table_links_ready(&table);
    struct op *op = post(1, 100, false);
    complete_small(op);
    check_said("start 1.0 end 1: 0 ");
    struct wire_op_name name = op->name;
    CHECK_EQ(table.retained.count, 1);
    call_table_acked(&table, &others[1], &name, 1, false);
    call_table_acked(&table, &others[1], &name, 1, false); // repeated
    CHECK_EQ(table.retained.count, 1);
    struct wire_head next = {.op = {.tag = 1, .sequence = 2, .fingerprint = {.count = 100}}};
    CHECK(call_table_signal(&table, &others[2], WIRE_POSTED, &next, NULL, 0)); // implies it
    check_said("drained ");
    CHECK_EQ(table.retained.count, 0);
    check_case("what others ask for is acknowledged at once, also later");
    call_table_acked(&table, &others[1], NULL, 0, true);
    check_said("ack 1 to 1 ");
    free(take(op).contributors);
    op = post(1, 100, false);
    complete_small(op);
    check_said("start 1.0 ack 1 to 1 end 1: 0 ");
    call_table_drain(&table);
    check_said("ack 0 to 1 and ask ack 2 to 2 and ask ");
    check_case("nobody waits for a member that is forgotten");
    call_table_forget(&table, &others[1]);
    check_said("");
    call_table_forget(&table, &others[2]);
    check_said("drained ");
    end();
}

static void test_implied(void) {
    begin();
    check_case("results whose acknowledgement an op implied do not count for the next one");
    enter(1, 2);
    call_table_links_ready(&table);
    for (int i = 0; i < 3; i++) {
        struct op *op = post(1, PLAN_SMALL_ANY, false);
        call_table_drop_implied(&others[1], &op->name); // as an algorithm does before it sends
        complete_small(op);
        free(take(op).contributors);
        check_said("start 1.0 end 1: 0 ");
    }
    struct op *other = post(2, PLAN_SMALL_ANY, false);
    complete_small(other);
    free(take(other).contributors);
    check_said("start 2.0 ack 2 to 1 end 2: 0 ");

    check_case("nor while another tag has acknowledgements to send");
    struct op *small = post(3, 1, false);
    complete_small(small);
    free(take(small).contributors);
    check_said("start 3.0 end 3: 0 ");
    for (int i = 0; i < 3; i++) {
        struct op *op = post(1, PLAN_SMALL_ANY, false);
        call_table_drop_implied(&others[1], &op->name);
        complete_small(op);
        free(take(op).contributors);
        check_said("start 1.0 end 1: 0 ");
    }
    end();
}

static void test_supply(void) {
    begin();
    check_case("a retained result is supplied to those that lack it, once the links are there");
    enter(1, 3);
    call_table_links_ready(&table);
    struct op *op = post(1, 100, false);
    complete_small(op);
    enter(2, 3);
    check_said("start 1.0 end 1: 0 retained 1.0 ");
    static struct wire_verdict message;
    message = (struct wire_verdict){.name = op->name, .kind = WIRE_VERDICT_COMMIT, .count = 1, .needy = {{{2}}}};
    message.supplier.bytes[1] = 1; // another one
    call_table_verdict(&table, &message);
    check_said("");
    message.supplier = own;
    call_table_verdict(&table, &message);
    check_said("");
    call_table_links_ready(&table);
    check_said("supply 1 to 2 ");
    end();
    begin();
    check_case("who is supplied holds the result for the others, and tells them that it has it");
    enter(1, 3);
    call_table_links_ready(&table);
    op = post(1, 100, false);
    struct wire_op_name name = op->name;
    call_table_supplied(&table, &name, block_new()); // not frozen: from nobody who may
    check_said("start 1.0 ");
    enter(2, 3);
    name.sequence++;
    call_table_supplied(&table, &name, block_new()); // another op
    check_said("open 1.0 ");
    name.sequence--;
    call_table_supplied(&table, &name, block_new());
    check_said("fill 1 ack 1 to 1 ack 1 to 2 end 1: 0 ");
    CHECK_EQ(table.retained.count, 1);
    end();
}

static void test_unexpected(void) {
    begin();
    check_case("what comes before its op waits for it");
    enter(1, 3);
    call_table_links_ready(&table);
    struct wire_head head = {.op = {.tag = 1, .sequence = 1, .fingerprint = {.count = 100}}};
    CHECK(call_table_signal(&table, &others[1], WIRE_SMALL, &head, block_new(), 100));
    CHECK_EQ(others[1].unexpected_count, 1);
    struct op *op = post(1, 100, false);
    CHECK(call_table_unexpected(&table, op, &others[2], WIRE_SMALL) == NULL);
    struct unexpected *unexpected = call_table_unexpected(&table, op, &others[1], WIRE_SMALL);
    REQUIRE(unexpected != NULL);
    put(NULL, unexpected->block);
    free(unexpected);
    CHECK_EQ(others[1].unexpected_count, 0);
    check_said("start 1.0 ");
    CHECK(call_table_signal(&table, &others[2], WIRE_SMALL, &head, block_new(), 100));
    check_said("signal 1 from 2 ");
    check_case("a member that sends more than it may is told off, and the next epoch forgets all");
    head.op.tag = 2;
    CHECK(call_table_signal(&table, &others[1], WIRE_SMALL, &head, block_new(), UNEXPECTED_BYTES));
    CHECK(!call_table_signal(&table, &others[1], WIRE_SMALL, &head, block_new(), 1));
    CHECK(call_table_signal(&table, &others[2], WIRE_SMALL, &head, block_new(), 1));
    enter(2, 3);
    CHECK(others[1].unexpected_bytes == 0 && others[1].unexpected_count == 0 && others[2].unexpected_count == 0);
    end();
}

static void test_mismatch(void) {
    begin();
    check_case("other arguments report_mismatch once, and the op ends when the epoch after the verdict freezes it");
    enter(1, 3);
    call_table_links_ready(&table);
    struct wire_head head = {.op = {.tag = 1, .sequence = 1, .fingerprint = {.count = 99}}};
    CHECK(call_table_signal(&table, &others[1], WIRE_READY, &head, NULL, 0));
    struct op *op = post(1, LARGE, false);
    CHECK(call_table_signal(&table, &others[2], WIRE_READY, &head, NULL, 0));
    check_said("report_mismatch 1 start 1.0 ");
    CHECK(!call_table_complete(&table, op));
    verdict(WIRE_VERDICT_MISMATCH, op);
    check_said("");
    enter(2, 3);
    check_said("end 1: 3 ");
    struct call_outcome outcome = take(op);
    CHECK(strcmp(outcome.text, "why") == 0);
    free(outcome.contributors);
    check_case("a mismatch of a call that was not made yet ends that call");
    struct op unmade = {.name = {2, 5, 1, 0, 0}};
    verdict(WIRE_VERDICT_MISMATCH, &unmade);
    op = post(5, LARGE, false);
    check_said("end 5: 3 ");
    free(take(op).contributors);
    check_case("a loss before it comes first");
    call_table_note_loss(&table, 3);
    unmade.name.epoch = 3;
    verdict(WIRE_VERDICT_MISMATCH, &unmade);
    op = post(5, LARGE, false); // counts on the members of epoch 2
    check_said("end 5: 2 ");
    outcome = take(op);
    CHECK_EQ(outcome.epoch, 3);
    free(outcome.contributors);
    end();
}

static void test_cancel(void) {
    begin();
    check_case("the master is asked to cancel an op in each epoch in which it begins");
    enter(1, 2);
    call_table_links_ready(&table);
    struct op *op = post(1, LARGE, false);
    call_table_cancel(&table, op);
    call_table_cancel(&table, op);
    check_said("start 1.0 cancel 1 ");
    enter(2, 2);
    verdict(WIRE_VERDICT_REDO, op);
    said[0] = '\0';
    call_table_links_ready(&table);
    check_said("cancel 1 start 1.0 again ");
    check_case("it ends with the verdict after the cancellation, and nothing begins in between");
    verdict(WIRE_VERDICT_CANCEL, op);
    struct op *later = post(2, LARGE, false);
    call_table_links_ready(&table);
    check_said("");
    enter(3, 2);
    said[0] = '\0';
    verdict(WIRE_VERDICT_REDO, op);
    CHECK_EQ(op->outcome.result, CALL_CANCELLED);
    CHECK_EQ(later->phase, OP_WAITING);
    end();
    begin();
    check_case("a call that waits for its links ends at once; a second cancellation is for the next call of the tag");
    enter(1, 2);
    op = post(1, LARGE, false);
    struct wire_verdict cancelled = {.kind = WIRE_VERDICT_CANCEL, .name = {1, 1, 1, 0, 0}};
    call_table_verdict(&table, &cancelled);
    CHECK_EQ(op->outcome.result, CALL_CANCELLED);
    free(take(op).contributors);
    cancelled.name.epoch = 2;
    call_table_verdict(&table, &cancelled);
    op = post(1, LARGE, false);
    CHECK_EQ(op->outcome.result, CALL_CANCELLED);
    end();
    begin();
    check_case("a call in segments that was cancelled leaves a later cancellation to the next call");
    enter(1, 2);
    call_table_links_ready(&table);
    op = post(1, DIVIDED, true);
    cancelled.name = started[0]->name;
    call_table_verdict(&table, &cancelled);
    cancelled.name.epoch = 2; // of a member that has called again
    call_table_verdict(&table, &cancelled);
    CHECK_EQ(table.verdicts.count, 1);
    check_case("a vote ends what it may not concern any more");
    call_table_verdicts_voted(&table.verdicts, 2);
    CHECK_EQ(table.verdicts.count, 1);
    call_table_verdicts_voted(&table.verdicts, 3);
    CHECK_EQ(table.verdicts.count, 0);
    call_table_verdict(&table, &cancelled); // from a master that took over
    CHECK_EQ(table.verdicts.count, 0);
    end();
}

static void test_two_mismatches(void) {
    begin();
    check_case("the others' next call is mismatched too, before the epoch that ends the one under way is entered");
    enter(1, 3);
    call_table_links_ready(&table);
    struct op *op = post(1, DIVIDED, true);
    struct op next = {.name = {2, 1, 1, 0, 0}};
    said[0] = '\0';
    verdict(WIRE_VERDICT_MISMATCH, started[0]);
    verdict(WIRE_VERDICT_MISMATCH, started[0]);
    verdict(WIRE_VERDICT_MISMATCH, &next);
    check_said("");
    enter(3, 3);
    check_said("end 1: 3 ");
    free(take(op).contributors);
    call_table_links_ready(&table);
    op = post(1, DIVIDED, true);
    check_said("end 1: 3 ");
    free(take(op).contributors);
    op = post(1, LARGE, false);
    check_said("start 1.0 ");
    end();
}

static void test_queued(void) {
    begin();
    check_case("an op that was never moved ends with the mismatch of an epoch in between, as it has for the others");
    enter(1, 3);
    call_table_links_ready(&table);
    struct op *op = post(1, LARGE, false), other = {.name = {2, 1, 1, 0, 0}};
    op->phase = OP_QUEUED;
    said[0] = '\0';
    verdict(WIRE_VERDICT_MISMATCH, &other);
    check_said("");
    enter(3, 3);
    check_said("end 1: 3 ");
    free(take(op).contributors);
    check_case("without one it begins in the next epoch");
    call_table_links_ready(&table);
    op = post(1, LARGE, false);
    op->phase = OP_QUEUED;
    said[0] = '\0';
    enter(4, 3);
    call_table_links_ready(&table);
    check_said("start 1.0 ");
    end();
}

// ---- over lists ----

static void check_lost(struct op *op, uint64_t epoch, const char *who) {
    struct call_outcome outcome = take(op);
    CHECK_EQ(outcome.result, CALL_LOST);
    CHECK_EQ(outcome.epoch, epoch);
    if (!CHECK(strcmp(outcome.text, who) == 0)) fprintf(stderr, "it told: %s\n", outcome.text);
    free(outcome.contributors);
}

// All lose the last members of the epoch.
static void lose(uint64_t number, uint32_t left) {
    call_table_note_loss(&table, number);
    enter(number, left);
}

static void test_list_lost(void) {
    begin();
    check_case("a call over a list goes on after a loss of others, and ends with one of its own");
    enter(1, 4);
    call_table_links_ready(&table);
    struct op *op = post_list(7, PLAN_ALL_GATHER, LARGE, false, "201", 0);
    check_said("start 7.0 ");
    lose(2, 3);
    CHECK_EQ(members_told, 3);
    call_table_links_ready(&table);
    verdict(WIRE_VERDICT_ABORT, op);
    check_said("open 7.0 start 7.0 again ");
    CHECK(op->contributors == 3 && op->team->place == 0 && op->team->ranks[0] == 1);
    lose(3, 2);
    CHECK_EQ(members_told, 2);
    call_table_links_ready(&table);
    verdict(WIRE_VERDICT_ABORT, op);
    check_said("open 7.0 end 7: 2 ");
    check_lost(op, 3, "rank 0");
    check_case("over a list that lacks somebody from the beginning, and one that waits for links");
    op = post_list(7, PLAN_BARRIER, 0, false, "01233", 0); // 3 twice, as if two were lost
    check_said("end 7: 2 ");
    check_lost(op, 3, "rank 2, rank 3, rank 4");
    enter(4, 2);
    op = post_list(8, PLAN_ALL_REDUCE, 100, false, "10", 0);
    lose(5, 1);
    check_said("end 8: 2 ");
    check_lost(op, 5, "rank 0");
    check_case("of many only the first are told");
    call_table_links_ready(&table);
    op = post_list(9, PLAN_BARRIER, 0, false, "3033333333333", 0);
    check_said("end 9: 2 ");
    check_lost(op, 5, "rank 0, rank 2, rank 3, rank 4, rank 5, rank 6, rank 7, rank 8, ...");
    end();
}

static void test_list_goes_on(void) {
    begin();
    check_case("a call over a list whose meaning survives goes on without the lost, if it was asked to");
    enter(1, 4);
    call_table_links_ready(&table);
    struct op *asked = post_list(1, PLAN_ALL_REDUCE, LARGE, true, "302", 0);
    struct op *complete = post_list(2, PLAN_ALL_REDUCE, LARGE, false, "302", 0);
    struct op *without = post_list(3, PLAN_ALL_REDUCE, LARGE, false, "302", 0);
    CHECK(call_table_complete(&table, complete));
    said[0] = '\0';
    lose(2, 3);
    CHECK_EQ(members_told, 2);
    call_table_links_ready(&table);
    said[0] = '\0';
    verdict(WIRE_VERDICT_COMMIT, complete);
    verdict(WIRE_VERDICT_ABORT, without);
    verdict(WIRE_VERDICT_ABORT, asked);
    check_said("end 2: 0 end 3: 2 start 1.0 again ");
    CHECK_EQ(complete->outcome.info.contributors, 3);
    check_lost(without, 2, "rank 0");
    CHECK(call_table_complete(&table, asked));
    verdict(WIRE_VERDICT_COMMIT, asked);
    check_said("end 1: 0 ");
    struct call_outcome outcome = take(asked);
    CHECK_EQ(outcome.info.contributors, 2);
    CHECK(outcome.epoch == 2 && outcome.contributors->count == 1);
    CHECK_EQ(outcome.contributors->ranges[0].count, 2); // and not the member that the list does not name
    free(outcome.contributors);
    check_case("it goes on alone, too");
    asked = post_list(1, PLAN_REDUCE, 100, true, "30", 1);
    check_said("start 1.0 ");
    CHECK_EQ(asked->contributors, 1);
    complete_small(asked);
    check_said("end 1: 0 ");
    CHECK_EQ(table.retained.count, 0); // for nobody
    end();
}

static void test_list_root(void) {
    begin();
    check_case("without its root nothing goes on");
    enter(1, 4);
    call_table_links_ready(&table);
    struct op *from = post_list(1, PLAN_BROADCAST, LARGE, true, "032", 1);
    struct op *with = post_list(2, PLAN_BROADCAST, LARGE, true, "032", 2);
    struct op *of_all = post_list(3, PLAN_BROADCAST, LARGE, true, "1302", 1);
    CHECK(from->team->count == 3 && of_all->team->count == 4);
    lose(2, 3);
    call_table_links_ready(&table);
    said[0] = '\0';
    verdict(WIRE_VERDICT_REDO, from);
    verdict(WIRE_VERDICT_ABORT, with);
    verdict(WIRE_VERDICT_ABORT, of_all);
    check_said("end 1: 2 start 2.0 again end 3: 2 ");
    check_lost(from, 2, "rank 1");
    check_lost(of_all, 2, "rank 1");
    check_case("segments give the text of the call");
    struct op *call = post_list(4, PLAN_REDUCE, DIVIDED, true, "012", 2);
    size_t first = started_count - PLAN_SEGMENTS_AHEAD;
    CHECK(call_table_complete(&table, started[first]));
    verdict(WIRE_VERDICT_COMMIT, started[first]);
    lose(3, 2);
    call_table_links_ready(&table);
    said[0] = '\0';
    for (int i = 1; i <= PLAN_SEGMENTS_AHEAD; i++) verdict(WIRE_VERDICT_ABORT, started[first + (size_t)i]);
    check_said("end 4: 2 ");
    CHECK_EQ(table.extra, 0);
    check_lost(call, 3, "rank 2");
    end();
}

static void test_list_signals(void) {
    begin();
    check_case("who names the same members and is none of them is told off");
    enter(1, 4);
    call_table_links_ready(&table);
    struct op *op = post_list(1, PLAN_SEND, 100, false, "02", 1);
    struct wire_head head = {.op = op_on_wire(op)};
    CHECK(call_table_signal(&table, &others[2], WIRE_SMALL, &head, block_new(), 100));
    check_said("start 1.0 signal 1 from 2 ");
    CHECK(!call_table_signal(&table, &others[1], WIRE_SMALL, &head, block_new(), 100));
    CHECK_EQ(blocks, 0);
    check_case("what comes for an op that is over is dropped, and announces nothing");
    complete_small(op);
    free(take(op).contributors);
    CHECK(call_table_signal(&table, &others[2], WIRE_POSTED, &head, NULL, 0));
    CHECK(call_table_signal(&table, &others[2], WIRE_SMALL, &head, block_new(), 100));
    CHECK(!call_table_has_unexpected(&table, 1, &others[2].id));
    CHECK_EQ(others[2].unexpected_count, 0);
    head.op.sequence++;
    CHECK(call_table_signal(&table, &others[2], WIRE_POSTED, &head, NULL, 0));
    CHECK(call_table_has_unexpected(&table, 1, &others[2].id));
    CHECK(!call_table_has_unexpected(&table, 1, &others[1].id) && !call_table_has_unexpected(&table, 2, &others[2].id));
    check_case("nor does anything of the epoch before");
    enter(2, 4);
    CHECK(!call_table_has_unexpected(&table, 1, &others[2].id));
    end();
}

static void test_everyone(void) {
    begin();
    check_case("an op of everyone goes on without a lost member, alone too, and its root keeps its part");
    enter(1, 3);
    call_table_links_ready(&table);
    struct op *broadcast = post_everyone(1, PLAN_BROADCAST, LARGE, 1),
              *reduce = post_everyone(2, PLAN_REDUCE, LARGE, 0);
    struct op *from_lost = post_everyone(3, PLAN_BROADCAST, LARGE, 2), *barrier = post_everyone(4, PLAN_BARRIER, 0, 0);
    said[0] = '\0';
    CHECK(broadcast->root == 1 && reduce->root == 0 && from_lost->root == 2);
    CHECK(op_is_root(reduce) && !op_is_root(broadcast) && reduce->out_bytes == LARGE && broadcast->in_bytes == 0);
    call_table_note_loss(&table, 2);
    enter(2, 2); // without member 2
    said[0] = '\0';
    struct op *late = post_everyone(5, PLAN_BROADCAST, LARGE, 2), *next = post_everyone(6, PLAN_BROADCAST, LARGE, 1);
    verdict(WIRE_VERDICT_ABORT, broadcast);
    verdict(WIRE_VERDICT_ABORT, reduce);
    verdict(WIRE_VERDICT_ABORT, from_lost);
    verdict(WIRE_VERDICT_ABORT, barrier);
    check_said("end 3: 2 ");
    call_table_links_ready(&table);
    check_said("end 5: 2 start 6.0 start 1.0 again start 2.0 again start 4.0 again ");
    CHECK_EQ(broadcast->contributors, 2);
    CHECK_EQ(next->phase, OP_RUNNING);
    for (int i = 0; i < 2; i++) {
        struct op *lost = i == 0 ? from_lost : late;
        struct call_outcome outcome = take(lost);
        CHECK_EQ(outcome.epoch, 2);
        CHECK(strcmp(outcome.text, "rank 2") == 0);
        free(outcome.contributors);
    }
    call_table_note_loss(&table, 3);
    enter(3, 1);
    verdict(WIRE_VERDICT_ABORT, reduce);
    verdict(WIRE_VERDICT_ABORT, broadcast);
    said[0] = '\0';
    call_table_links_ready(&table);
    check_said("start 2.0 again ");
    CHECK_EQ(reduce->contributors, 1);
    CHECK(broadcast->phase == OP_ENDED && broadcast->outcome.result == CALL_LOST);
    end();
}

static void test_limits(void) {
    begin();
    check_case("one call for a tag, and no more than may be live");
    enter(1, 2);
    post(0, LARGE, false);
    struct call_args reduce = {.tag = 0, .fingerprint.count = 1};
    struct op *op;
    CHECK(call_table_post(&table, &reduce, 1, 1, &op) == CALL_TAG_LIVE);
    for (uint64_t tag = 1; tag < WIRE_MAX_LIVE_OPS; tag++) post(tag, LARGE, false);
    reduce.tag = WIRE_MAX_LIVE_OPS;
    CHECK(call_table_post(&table, &reduce, 1, 1, &op) == CALL_TOO_MANY);
    said[0] = '\0';
    end();
}

// The thread that tells waits has read the clock before it took the lock, and the caller after that.
static void test_wait_span(void) {
    check_case("a wait that began after the clock was read");
    struct wait_span wait = {0};
    CHECK_EQ(wait_span_us(&wait, 5 * MS_NS), 0);
    wait_span_enter(&wait, 7 * MS_NS);
    CHECK_EQ(wait_span_us(&wait, 5 * MS_NS), 0);
    CHECK_EQ(wait_span_us(&wait, 7 * MS_NS), 0);
    CHECK_EQ(wait_span_us(&wait, 9 * MS_NS), 2000);
    wait_span_leave(&wait, 9 * MS_NS);
    wait_span_enter(&wait, 20 * MS_NS); // another wait
    CHECK_EQ(wait_span_us(&wait, 19 * MS_NS), 0);
}

int main(void) {
    plan_segmented_min = 4 * PLAN_SEGMENT_MIN;
    test_large();
    test_freeze();
    test_relink();
    test_retained();
    test_implied();
    test_supply();
    test_unexpected();
    test_mismatch();
    test_cancel();
    test_two_mismatches();
    test_queued();
    test_list_lost();
    test_list_goes_on();
    test_list_root();
    test_list_signals();
    test_everyone();
    test_limits();
    test_wait_span();
    return check_status();
}
