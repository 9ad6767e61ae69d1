// How ops end: the verdict by what the members report.
#include "master/verdicts.h"

#include <pccl.h>

#include "compute/codec.h"
#include "ops/plan.h"

#include "seats.h"

enum { EPOCH = 5 };
static struct verdicts verdicts;
static struct wire_header header;

static struct wire_op_name op(uint64_t epoch, uint32_t tag) { return (struct wire_op_name){epoch, tag, 1, 0, 0}; }

static void begin(const char *name, const char *members, uint64_t lost_epoch) {
    memset(peers, 0, sizeof peers);
    open_membership(name, members);
    table.number = EPOCH;
    peer('a')->group->group_epoch = EPOCH;
    peer('a')->group->lost_epoch = lost_epoch;
    header = (struct wire_header){.type = WIRE_REPORT, .epoch = EPOCH};
    verdicts_begin(&verdicts, table.count);
}

static void end(void) {
    verdicts_fini(&verdicts);
    close_membership();
}

static void done(char letter, uint32_t tag) {
    struct wire_op_done message = {op(EPOCH, tag), 0};
    verdicts_done(&verdicts, &table, peer(letter), &header, &message);
}

// What one member says of the op: o open, d done, k kept, - nothing.
static void report(char letter, char state, uint32_t tag) {
    struct wire_op_report line = {.name = op(EPOCH - 1, tag),
                                  .state = state == 'o'   ? WIRE_OP_OPEN
                                           : state == 'd' ? WIRE_OP_DONE
                                                          : WIRE_OP_RETAINED};
    struct wire_report message = {.count = state != '-', .ops = &line};
    verdicts_report(&verdicts, &table, peer(letter), &header, &message);
}

static struct wire_verdict verdict_sent(void) {
    struct wire_verdict verdict;
    size_t length;
    const uint8_t *body = last_body(WIRE_VERDICT, &length);
    REQUIRE(wire_decode_verdict(body, length, &verdict));
    return verdict;
}

struct row {
    const char *name, *said; // by a, b, c
    uint64_t lost_epoch;
    enum wire_verdict_kind kind;
    const char *to;
    char supplier; // 0: nobody
    const char *needy;
};

static void test_reports(void) {
    static const struct row rows[] = {
        {"all are done", "ddd", EPOCH, WIRE_VERDICT_COMMIT, "abc", 0, ""},
        {"not all, after a loss", "ddo", EPOCH, WIRE_VERDICT_ABORT, "abc", 0, ""},
        {"not all, the loss was before it", "ddo", EPOCH - 1, WIRE_VERDICT_REDO, "abc", 0, ""},
        {"not all have begun it", "o-o", 0, WIRE_VERDICT_REDO, "ac", 0, ""},
        {"one has kept a small result", "oko", EPOCH, WIRE_VERDICT_COMMIT, "abc", 'b', "ac"},
        {"several have", "okk", EPOCH, WIRE_VERDICT_COMMIT, "abc", 'b', "a"},
        {"all have", "kkk", EPOCH, WIRE_VERDICT_COMMIT, "abc", 'a', ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        begin(row->name, "abc", row->lost_epoch);
        for (char letter = 'a'; letter <= 'c'; letter++) {
            CHECK_STR(told(WIRE_VERDICT), "");
            report(letter, row->said[letter - 'a'], 3);
        }
        struct wire_verdict verdict = verdict_sent();
        CHECK_STR(told(WIRE_VERDICT), row->to);
        CHECK_EQ(verdict.kind, row->kind);
        CHECK_EQ(verdict.supplier.bytes[0], row->supplier);
        CHECK_EQ(verdict.count, strlen(row->needy));
        for (uint32_t k = 0; k < verdict.count; k++) CHECK_EQ(verdict.needy[k].bytes[0], row->needy[k]);
        end();
    }
}

static void test_done(void) {
    begin("an op is committed when the last one is done", "abc", 0);
    done('a', 1);
    done('c', 1);
    CHECK_STR(told(WIRE_VERDICT), "");
    done('b', 1);
    CHECK_STR(told(WIRE_VERDICT), "abc");
    CHECK_EQ(verdict_sent().kind, WIRE_VERDICT_COMMIT);
    CHECK_EQ(verdicts.done.count, 0);
    end();
    begin("who says it twice is expelled", "abc", 0);
    done('a', 1);
    done('a', 1);
    CHECK_STR(gone(), "a");
    end();
    begin("and who reports twice, or on an epoch to come", "abc", 0);
    report('a', '-', 1);
    report('a', '-', 1);
    header.epoch = EPOCH + 1;
    report('b', '-', 1);
    header.epoch = EPOCH - 1;
    report('c', 'd', 1); // void
    CHECK_STR(gone(), "ab");
    CHECK_EQ(verdicts.missing, 2);
    end();
}

static void test_mismatch(void) {
    begin("all hear of a mismatch at once, and the links are made again", "abc", 0);
    struct wire_mismatch message = {.name = op(EPOCH, 1), .mine.count = 3, .theirs.count = 4};
    message.other = peer('b')->member.id;
    verdicts_mismatch(&table, peer('c'), &header, &message);
    CHECK_STR(told(WIRE_VERDICT), "abc");
    CHECK_EQ(verdict_sent().kind, WIRE_VERDICT_MISMATCH);
    CHECK(verdict_sent().text.length > 0 && table.changed);
    message.other = peer('c')->member.id; // with itself
    verdicts_mismatch(&table, peer('c'), &header, &message);
    CHECK_STR(gone(), "c");
    end();
}

static void test_cancel(void) {
    begin("all hear of a cancellation at once, and an epoch follows", "abc", 0);
    struct wire_cancel message = {op(EPOCH, 1)};
    verdicts_cancel(&table, peer('c'), &header, &message);
    CHECK_STR(told(WIRE_VERDICT), "abc");
    CHECK_EQ(verdict_sent().kind, WIRE_VERDICT_CANCEL);
    CHECK(verdict_sent().text.length > 0 && table.changed);
    message.name = op(EPOCH - 1, 1);
    verdicts_cancel(&table, peer('b'), &header, &message);
    CHECK_STR(gone(), "b");
    end();
    begin("one that comes after its epoch is void", "abc", 0);
    header.epoch = EPOCH - 1;
    verdicts_cancel(&table, peer('c'), &header, &message);
    CHECK_STR(told(WIRE_VERDICT), "");
    CHECK_STR(gone(), "");
    end();
}

static void test_mismatch_texts(void) {
    static const struct {
        struct wire_fingerprint what;
        const char *text;
    } rows[] = {
        {{.count = 3, .dtype = pcclFloat, .op = pcclSum}, " passed count 3 float32 sum, "},
        {{.count = 3, .dtype = pcclDouble, .op = pcclMax, .codec = CODEC_ZERO_INT8},
         " passed count 3 float64 max quantised to int8 by zero-point-scale, "},
        {{.count = 3, .dtype = pcclFloat, .op = pcclAvg, .codec = 99},
         " passed count 3 float32 avg quantised to unknown, "},
        {{.count = 3, .dtype = pcclFloat, .kind = PLAN_BROADCAST}, " passed count 3 float32 broadcast, "},
        {{.count = 3, .dtype = pcclFloat, .op = pcclSum, .kind = PLAN_REDUCE}, " passed count 3 float32 reduce sum, "},
        {{.count = 3, .dtype = pcclFloat, .kind = 77}, " passed count 3 float32 unknown, "},
        {{.kind = PLAN_BARRIER}, " called barrier, "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin("what both sides gave", "abc", 0);
        struct wire_mismatch message = {.name = op(EPOCH, 1), .mine = rows[i].what, .theirs.count = 4};
        message.other = peer('b')->member.id;
        verdicts_mismatch(&table, peer('c'), &header, &message);
        struct wire_verdict verdict = verdict_sent();
        char text[WIRE_MAX_TEXT + 1] = "";
        memcpy(text, verdict.text.chars, verdict.text.length);
        CHECK(strstr(text, rows[i].text) != NULL);
        end();
    }
}

static void test_recall(void) {
    struct wire_past past[] = {{.name = op(EPOCH - 1, 1), .kind = WIRE_VERDICT_COMMIT},
                               {.name = op(EPOCH - 1, 2), .kind = WIRE_VERDICT_MISMATCH}};
    struct wire_resume knows = {.accepted = 1, .past_count = 2, .past = past}, lacks = {.accepted = 1};
    knows.epoch.group_epoch = lacks.epoch.group_epoch = EPOCH - 1;
    struct wire_ended_vote last = {0};
    begin("what one member has heard from the master before holds for all", "ab", EPOCH);
    verdicts_recall(&verdicts, &table, peer('a'), &knows);
    verdicts_recall(&verdicts, &table, peer('b'), &lacks);
    verdicts_tell_mismatches(&verdicts, &table, peer('a'), &knows, &last);
    verdicts_tell_mismatches(&verdicts, &table, peer('b'), &lacks, &last);
    CHECK_STR(told(WIRE_VERDICT), "b");
    hush();
    report('a', '-', 1);
    report('b', 'o', 1);
    CHECK_EQ(verdict_sent().kind, WIRE_VERDICT_COMMIT);
    CHECK_STR(told(WIRE_VERDICT), "b");
    end();
}

static void done_of(char letter, uint32_t list, uint16_t members) {
    struct wire_op_done message = {op(EPOCH, 1), members};
    message.name.subgroup = list;
    verdicts_done(&verdicts, &table, peer(letter), &header, &message);
}

static void test_lists(void) {
    begin("only the members of a list have to be done", "abcd", 0);
    done_of('a', 7, 2);
    done_of('c', 8, 2); // another list, with the same tag
    CHECK_STR(told(WIRE_VERDICT), "");
    done_of('b', 7, 2);
    CHECK_STR(told(WIRE_VERDICT), "ab");
    end();
    begin("of different numbers the largest counts", "abcd", 0);
    done_of('a', 7, 2);
    done_of('b', 7, 3);
    CHECK_STR(told(WIRE_VERDICT), "");
    done_of('c', 7, 2);
    CHECK_STR(told(WIRE_VERDICT), "abc");
    end();
}

// ---- ops by name ----

static void test_limit(void) {
    begin("the limit of ops in flight is one per member, and ends with the op", "ab", 0);
    for (uint32_t tag = 1; tag <= WIRE_MAX_LIVE_OPS; tag++) done('a', tag);
    CHECK_STR(gone(), "");
    done('b', 1);
    CHECK_STR(told(WIRE_VERDICT), "ab");
    done('a', WIRE_MAX_LIVE_OPS + 1);
    done('b', WIRE_MAX_LIVE_OPS + 2);
    CHECK_STR(gone(), "");
    done('a', WIRE_MAX_LIVE_OPS + 2);
    CHECK_STR(gone(), "a");
    end();
}

// Against a list, while the table grows and places are used again.
static void test_many_ops(void) {
    enum { OPS = 500 };
    bool live[OPS] = {false};
    uint32_t count = 0;
    uint64_t seed = 3;
    begin("many ops begin and end", "ab", 0);
    for (int step = 0; step < 20000; step++) {
        uint32_t tag = (uint32_t)(check_random(&seed) % OPS);
        hush();
        done(live[tag] ? 'b' : 'a', tag);
        CHECK_STR(told(WIRE_VERDICT), live[tag] ? "ab" : "");
        if (live[tag]) CHECK_EQ(verdict_sent().name.tag, tag);
        live[tag] = !live[tag];
        count += live[tag] ? 1 : UINT32_MAX;
        CHECK_EQ(verdicts.done.count, count);
    }
    CHECK_STR(gone(), "");
    end();
}

static void test_many_members(void) {
    enum { MEMBERS = 70 };
    begin("the ranks of members take more than one word", "a", 0);
    while (table.count < MEMBERS) {
        struct wire_member member = {.id = {{(uint8_t)table.count, 9}}, .join_number = table.count + 1};
        struct peer_record *peer = membership_add(&table, table.count, &member);
        peer->accepted = true;
        peer->group = table.order[0]->group;
        table.order[table.count++] = peer;
    }
    membership_rank(&table);
    verdicts_begin(&verdicts, MEMBERS);
    for (uint32_t rank = MEMBERS; rank-- > 0;) {
        struct wire_op_report line = {.name = op(EPOCH - 1, 3), .state = rank == 3 ? WIRE_OP_RETAINED : WIRE_OP_OPEN};
        struct wire_report message = {.count = 1, .ops = &line};
        CHECK_EQ(table.actions.send_count, 0);
        verdicts_report(&verdicts, &table, table.order[rank], &header, &message);
    }
    struct wire_verdict verdict = verdict_sent();
    CHECK_EQ(table.actions.send_count, MEMBERS);
    CHECK_EQ(verdict.supplier.bytes[0], 3);
    CHECK_EQ(verdict.count, MEMBERS - 1);
    CHECK_EQ(verdict.needy[MEMBERS - 2].bytes[0], MEMBERS - 1);
    end();
}

int main(void) {
    test_lists();
    test_limit();
    test_many_ops();
    test_many_members();
    test_reports();
    test_done();
    test_mismatch();
    test_cancel();
    test_mismatch_texts();
    test_recall();
    return check_status();
}
