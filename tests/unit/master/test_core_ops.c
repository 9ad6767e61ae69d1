// The master's state machine and ops: how they end, with losses, segments and mismatches.
#include "core_world.h"

static void test_done(void) {
    begin("a large op commits when all are done");
    form("abc", 0);
    done("ab", 2, 5);
    done("ba", 2, 6);
    CHECK(quiet("abc"));
    done("c", 2, 6);
    VERDICT("abc", 2, 2, 6, COMMIT, 0, "");
    done("c", 2, 5);
    VERDICT("abc", 2, 2, 5, COMMIT, 0, "");
    for (uint64_t tag = 100; tag < 3000; tag++) done("ab", 2, tag);
    for (uint64_t tag = 2999; tag >= 100; tag--) {
        done("c", 2, tag);
        VERDICT("abc", 2, 2, tag, COMMIT, 0, "");
        for (int c = 0; c < 3; c++) {
            clear(&boxes[c]);
        }
    }
    done("a", 2, 7);
    done("a", 2, 7);
    EXPELLED('a', "twice");
    drain("bc");
    end();

    begin("too many ops");
    form("ab", 0);
    for (uint64_t tag = 0; tag < WIRE_MAX_LIVE_OPS; tag++) done("a", 2, tag);
    CHECK(quiet("a"));
    done("a", 2, WIRE_MAX_LIVE_OPS);
    EXPELLED('a', "operations in flight");
    EPOCH("b", LOSS, 3, 3, "b");
    end();

    begin("one member's made-up ops are its own");
    form("abc", 0);
    enum { HONEST = WIRE_MAX_LIVE_OPS + 100 };
    for (uint64_t tag = 1; tag < WIRE_MAX_LIVE_OPS; tag++) done("a", 2, HONEST + tag);
    for (uint64_t tag = 0; tag < HONEST; tag++) {
        done("bca", 2, tag);
        VERDICT("abc", 2, 2, tag, COMMIT, 0, "");
        for (int c = 0; c < 3; c++) clear(&boxes[c]);
    }
    done("a", 2, HONEST); // the last one that a may have open
    done("bc", 2, 0);
    CHECK(quiet("abc"));
    done("a", 2, 0);
    EXPELLED('a', "operations in flight");
    EPOCH("bc", LOSS, 3, 3, "bc");
    end();
}

static void test_loss_with_ops(void) {
    begin("verdicts after a loss");
    form("abcd", 0);
    done("abc", 2, 1); // all but the one that dies
    done("ab", 2, 2);
    die('d');
    EPOCH("abc", LOSS, 3, 3, "abc");
    done("c", 2, 2); // crossed the epoch: void, its report says it again
    CHECK(quiet("abc"));
    REPORT('a', 3, {2, 1, 'D'}, {2, 2, 'D'}, {2, 3, 'D'}, {2, 4, 'o'}, {2, 5, 'o'}, {2, 6, 'k'}, {2, 7, 'O'});
    REPORT('b', 3, {2, 1, 'D'}, {2, 2, 'D'}, {2, 3, 'O'}, {2, 4, 'k'}, {2, 5, 'o'}, {2, 6, 'k'});
    CHECK(quiet("abc"));
    REPORT('c', 3, {2, 1, 'D'}, {2, 2, 'D'}, {2, 3, 'D'}, {2, 4, 'o'}, {2, 6, 'k'});
    VERDICT("abc", 3, 2, 1, COMMIT, 0, "");     // all done
    VERDICT("abc", 3, 2, 2, COMMIT, 0, "");     // all done, though not all DONE came
    VERDICT("abc", 3, 2, 3, ABORT, 0, "");      // one open
    VERDICT("abc", 3, 2, 4, COMMIT, 'b', "ac"); // one has the result
    VERDICT("ab", 3, 2, 5, ABORT, 0, "");       // nobody has it; c does not know it
    VERDICT("abc", 3, 2, 6, COMMIT, 'a', "");   // all have it
    VERDICT("a", 3, 2, 7, ABORT, 0, "");
    done("abc", 3, 1);
    VERDICT("abc", 3, 3, 1, COMMIT, 0, "");
    end();

    begin("a second loss while reports are collected");
    form("abcd", 0);
    die('d');
    EPOCH("abc", LOSS, 3, 3, "abc");
    REPORT('a', 3, {2, 1, 'k'});
    REPORT('b', 3, {2, 1, 'o'});
    die('a');
    EPOCH("bc", LOSS, 4, 4, "bc");
    REPORT('c', 3, {2, 1, 'k'}); // on the former epoch
    REPORT('b', 4, {2, 1, 'o'});
    CHECK(quiet("bc"));
    REPORT('c', 4, {2, 1, 'o'});
    VERDICT("bc", 4, 2, 1, ABORT, 0, ""); // the only one that had it is gone
    end();

    begin("a relink after a loss aborts what was begun before the loss only");
    form("abc", 0);
    die('c');
    EPOCH("ab", LOSS, 3, 3, "ab");
    link_down('a', 'b');
    pass(BREAKS_GRACE_MS + 10, "ab");
    EPOCH("ab", RELINK, 4, 4, "ab");
    REPORT('a', 4, {2, 1, 'O'}, {3, 2, 'O'});
    REPORT('b', 4, {2, 1, 'O'}, {3, 2, 'D'});
    VERDICT("ab", 4, 2, 1, ABORT, 0, "");
    VERDICT("ab", 4, 3, 2, REDO, 0, "");
    end();

    begin("the loss of a group does not touch the ops of another");
    form("abCD", 0);
    done("a", 2, 1);
    die('d');
    EPOCH("ab", LOSS, 3, 2, "abc");
    EPOCH("c", LOSS, 3, 3, "abc");
    done("b", 2, 1);
    VERDICT("ab", 2, 2, 1, COMMIT, 0, "");
    REPORT('c', 3, {2, 1, 'O'});
    VERDICT("c", 3, 2, 1, ABORT, 0, "");
    end();

    begin("reports are asked of newcomers too, and of all after an update");
    form("ab", 0);
    REPORT('a', 2, {2, 1, 'k'});
    REPORT('b', 2, {2, 1, 'k'});
    VERDICT("ab", 2, 2, 1, COMMIT, 'a', "");
    report('a', 2, 0, NULL);
    EXPELLED('a', "two reports");
    drain("b");
    end();
}

static void test_segments(void) {
    begin("segments end one by one");
    form("abc", 0);
    done("ab", 2, SEGMENT(7, 1));
    done("abc", 2, SEGMENT(7, 0));
    VERDICT("abc", 2, 2, SEGMENT(7, 0), COMMIT, 0, "");
    done("c", 2, SEGMENT(7, 1));
    VERDICT("abc", 2, 2, SEGMENT(7, 1), COMMIT, 0, "");
    done("ac", 2, SEGMENT(7, 2));
    die('c');
    EPOCH("ab", LOSS, 3, 3, "ab");
    REPORT('a', 3, {2, SEGMENT(7, 2), 'D'}, {2, SEGMENT(7, 3), 'D'}, {2, SEGMENT(7, 4), 'O'});
    REPORT('b', 3, {2, SEGMENT(7, 3), 'O'}, {2, SEGMENT(7, 2), 'D'});
    VERDICT("ab", 3, 2, SEGMENT(7, 2), COMMIT, 0, "");
    VERDICT("ab", 3, 2, SEGMENT(7, 3), ABORT, 0, ""); // one survivor lacks it
    VERDICT("a", 3, 2, SEGMENT(7, 4), ABORT, 0, "");
    end();
}

static void test_mismatch(void) {
    begin("arguments differ");
    form("abc", 0);
    mismatch('a', 2, 8, 'b');
    struct wire_verdict verdict = VERDICT("abc", 2, 2, 8, MISMATCH, 0, "");
    EPOCH("abc", RELINK, 3, 3, "abc");
    mismatch('b', 2, 8, 'a'); // crossed
    REPORT('a', 3, {2, 9, 'O'});
    REPORT('b', 3, {2, 9, 'D'});
    report('c', 3, 0, NULL);
    VERDICT("ab", 3, 2, 9, REDO, 0, "");
    char text[WIRE_MAX_TEXT + 1] = {0};
    memcpy(text, verdict.text.chars, verdict.text.length);
    CHECK_STR(text, "tag 8: peer 61010203 (rank 0, join 1) passed count 10 float32 sum, peer 62010203 (rank 1, join 2) "
                    "passed count 20 "
                    "float64 avg");
    CHECK_EQ(epochs[2], 3);
    end();

    begin("only the modes differ");
    form("abc", 0);
    struct wire_mismatch message = {.name = name_of(2, SEGMENT(8, 3)),
                                    .mine = {.count = 10, .dtype = 10, .mode = 1},
                                    .other = id_of('b'),
                                    .theirs = {.count = 10, .dtype = 10}};
    struct wire_buffer out = {0};
    wire_encode_mismatch(&out, op_head(2), &message);
    say('a', &out);
    verdict = VERDICT("abc", 2, 2, SEGMENT(8, 3), WHOLE, 0, "");
    CHECK_EQ(verdict.text.length, 0);
    EPOCH("abc", RELINK, 3, 3, "abc");
    report('a', 3, 0, NULL);
    report('c', 3, 0, NULL);
    REPORT('b', 3, {2, 8, 'O'}); // the one that runs it in one piece
    VERDICT("b", 3, 2, 8, REDO, 0, "");
    end();

    begin("a loss while the mismatch is dealt with");
    form("abc", 0);
    mismatch('a', 2, 8, 'b');
    VERDICT("abc", 2, 2, 8, MISMATCH, 0, "");
    EPOCH("abc", RELINK, 3, 3, "abc");
    die('c');
    EPOCH("ab", LOSS, 4, 4, "ab");
    report('a', 4, 0, NULL);
    report('b', 4, 0, NULL);
    drain("ab");
    end();
}

int main(void) {
    test_done();
    test_loss_with_ops();
    test_segments();
    test_mismatch();
    return check_status();
}
