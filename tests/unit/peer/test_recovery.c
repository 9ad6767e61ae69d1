// What a peer keeps for the next master, the search for that, and which master is dialled when.
#include "peer/recovery.h"

#include <string.h>

#include "base/platform.h"
#include "check.h"
#include "pccl.h"

// ---- the recovery record ----

static struct recovery r;
static struct wire_past past[WIRE_MAX_PAST];
static struct wire_loss losses[WIRE_MAX_MEMBERS];

static struct wire_resume tell(void) {
    struct wire_resume resume = {.epoch = {.number = 77}};
    recovery_resume(&r, false, 0, 0, &resume, past, losses);
    CHECK_EQ(resume.epoch.number, 77); // not its part
    return resume;
}

static struct epoch *epoch_of(uint64_t number, const char *groups) {
    struct wire_member members[8] = {{.id = {{0}}}};
    struct wire_epoch told = {.number = number, .group_epoch = number, .count = 0, .members = members};
    for (; groups[told.count] != 0; told.count++)
        members[told.count] =
            (struct wire_member){.id = {{(uint8_t)(told.count + 1)}}, .group = (uint32_t)(groups[told.count] - '0')};
    struct epoch_ring ring;
    REQUIRE(epoch_find_ring(&told, &members[0].id, &ring));
    struct epoch *epoch = epoch_new(&told, &ring, &(struct wire_header){.run = 1}, false);
    REQUIRE(epoch != NULL);
    return epoch;
}

static void test_verdicts(void) {
    recovery_init(&r);
    CHECK_EQ(tell().past_count, 0);
    struct wire_verdict verdict = {.kind = WIRE_VERDICT_ABORT};
    recovery_note_verdict(&r, &verdict); // follows from what members report
    verdict.kind = WIRE_VERDICT_REDO;
    recovery_note_verdict(&r, &verdict);
    verdict = (struct wire_verdict){.kind = WIRE_VERDICT_COMMIT, .supplier = {{4}}}; // a supplier is found anew
    recovery_note_verdict(&r, &verdict);
    CHECK_EQ(tell().past_count, 0);
    for (uint32_t i = 0; i < WIRE_MAX_PAST + 5; i++) {
        verdict = (struct wire_verdict){.kind = i % 2 == 0 ? WIRE_VERDICT_COMMIT : WIRE_VERDICT_MISMATCH};
        verdict.name.tag = i;
        recovery_note_verdict(&r, &verdict);
    }
    REQUIRE(tell().past_count == WIRE_MAX_PAST); // the last ones, newest last
    CHECK_EQ(past[0].name.tag, 5);
    CHECK_EQ(past[0].kind, WIRE_VERDICT_MISMATCH);
    CHECK_EQ(past[WIRE_MAX_PAST - 1].name.tag, WIRE_MAX_PAST + 4);
}

static void test_cancellations(void) {
    recovery_init(&r);
    struct wire_verdict verdict = {.kind = WIRE_VERDICT_CANCEL, .name = {.epoch = 3, .tag = 7, .sequence = 1}};
    recovery_note_verdict(&r, &verdict);
    REQUIRE(tell().past_count == 1);
    CHECK_EQ(past[0].kind, WIRE_VERDICT_CANCEL);
    verdict.kind = WIRE_VERDICT_COMMIT; // a member had completed it
    recovery_note_verdict(&r, &verdict);
    for (uint32_t i = 0; i < tell().past_count; i++) CHECK_EQ(past[i].kind, WIRE_VERDICT_COMMIT);
}

static void test_barriers(void) {
    recovery_init(&r);
    struct wire_outcome outcome = {.kind = WIRE_VOTE_PENDING, .code = pcclSuccess, .value = 1};
    recovery_note_vote(&r, 1, &outcome, NULL); // of a newcomer
    CHECK_EQ(tell().last_vote.count, 0);
    struct epoch *epoch = epoch_of(9, "11222");
    recovery_note_vote(&r, 2, &outcome, epoch);
    struct wire_resume resume = tell();
    CHECK_EQ(resume.epoch.votes_ended, 2);
    CHECK_EQ(resume.last_vote.epoch, 9);
    CHECK_EQ(resume.last_vote.value, 1);
    REQUIRE(resume.last_vote.count == 2);
    CHECK_EQ(resume.last_vote.sizes[0].count, 2);
    CHECK_EQ(resume.last_vote.sizes[1].group, 2);
    CHECK_EQ(resume.last_vote.sizes[1].count, 3);

    // An epoch ends the vote that it came of, once.
    struct wire_epoch_commit commit = {.reason = WIRE_REASON_ORDER, .epoch = {.number = 9, .votes_ended = 2}};
    recovery_note_epoch(&r, &commit, epoch);
    CHECK_EQ(tell().last_vote.kind, WIRE_VOTE_PENDING);
    commit.epoch.votes_ended = 3;
    commit.reason = WIRE_REASON_LOSS; // ends none
    recovery_note_epoch(&r, &commit, epoch);
    CHECK_EQ(tell().epoch.votes_ended, 2);
    commit.reason = WIRE_REASON_ORDER;
    recovery_note_epoch(&r, &commit, epoch);
    CHECK_EQ(tell().epoch.votes_ended, 3);
    CHECK_EQ(tell().last_vote.kind, WIRE_VOTE_OPTIMIZE);

    struct wire_group_size sizes[1] = {{.group = 5, .count = 6}};
    struct wire_ended_vote told = {.number = 8, .kind = WIRE_VOTE_UPDATE, .count = 1, .sizes = sizes};
    recovery_take_vote(&r, &told);
    sizes[0].count = 0; // a copy
    CHECK_EQ(tell().last_vote.sizes[0].count, 6);
    recovery_fini(&r);
    epoch_put(epoch);
}

static void test_rounds(void) {
    recovery_init(&r);
    struct wire_sync_end end = {.round = 4, .code = pcclNoSharedStateAvailable, .revision = 7};
    recovery_note_sync(&r, &end);
    CHECK(!tell().sync_committed);
    CHECK_EQ(tell().sync_code, pcclNoSharedStateAvailable);
    CHECK_EQ(tell().sync_revision, 0); // of the last commit: none yet
    end = (struct wire_sync_end){.round = 5, .code = pcclSuccess, .revision = 7};
    recovery_note_sync(&r, &end);
    CHECK(tell().sync_committed);
    CHECK_EQ(tell().epoch.sync_expected, 8);
    // Rounds of the group that it heard of with an epoch alone.
    struct epoch *epoch = epoch_of(1, "1");
    struct wire_epoch_commit commit = {.epoch = {.sync_round = 5, .sync_expected = 70, .lost_epoch = 3}};
    recovery_note_epoch(&r, &commit, epoch);
    CHECK_EQ(tell().epoch.sync_expected, 8);
    commit.epoch.sync_round = 6;
    commit.epoch.lost_epoch = 2;
    recovery_note_epoch(&r, &commit, epoch);
    CHECK_EQ(tell().epoch.sync_round, 6);
    CHECK_EQ(tell().epoch.sync_expected, 70);
    CHECK_EQ(tell().sync_revision, 69);
    CHECK(tell().sync_committed);
    commit.epoch.sync_round = 7; // a master that believes in no commit
    commit.epoch.sync_expected = 0;
    recovery_note_epoch(&r, &commit, epoch);
    CHECK(!tell().sync_committed && tell().sync_revision == 0);
    CHECK_EQ(tell().epoch.lost_epoch, 3); // never goes back
    recovery_fini(&r);
    epoch_put(epoch);
}

// How many members the adopted epoch had; 0: they are not known.
static uint32_t members(void) { return recovery_members(&r) == NULL ? 0 : recovery_members(&r)->count; }

static void note(uint64_t number, const char *groups) {
    struct wire_epoch_commit commit = {.epoch = {.number = number}};
    struct epoch *epoch = epoch_of(number, groups);
    recovery_note_epoch(&r, &commit, epoch);
    epoch_put(epoch);
}

static struct member_view view_of(uint64_t group_epoch, uint32_t group_world) {
    return (struct member_view){.number = group_epoch, .group_epoch = group_epoch, .group_world = group_world};
}

static void test_members(void) {
    recovery_init(&r);
    CHECK_EQ(members(), 0);
    note(4, "11112");
    CHECK_EQ(members(), 0); // not adopted yet
    struct member_view view = view_of(4, 4);
    recovery_adopt(&r, &view);
    CHECK_EQ(members(), 4);
    note(6, "1112");
    note(7, "112");
    for (uint64_t number = 6; number < 8; number++) {
        view = view_of(number, number == 6 ? 3 : 2);
        recovery_note_loss(&r, &view);
    }
    CHECK_EQ(members(), 4); // losses show when they are adopted
    recovery_adopt_loss(&r, 6);
    CHECK_EQ(members(), 3);
    recovery_adopt_loss(&r, 7);
    CHECK_EQ(members(), 2);
    view = view_of(9, 1); // of an epoch that was missed
    recovery_note_loss(&r, &view);
    recovery_adopt_loss(&r, 9);
    CHECK_EQ(members(), 0);
    note(10, "111");
    view = view_of(10, 3);
    recovery_adopt(&r, &view);
    CHECK_EQ(members(), 3);
    for (uint64_t number = 11; number < 11 + 3 * RECOVERY_EPOCHS; number++) note(number, "111"); // mended links
    CHECK_EQ(members(), 3);
    recovery_fini(&r);
}

static void test_adoption(void) {
    recovery_init(&r);
    for (uint64_t epoch = 2; epoch <= 8; epoch += 2)
        recovery_note_loss(&r, &(struct member_view){.number = epoch, .group_epoch = epoch, .group_world = 9});
    recovery_adopt_loss(&r, 1); // none is known up to it
    CHECK_EQ(r.adopted.number, 0);
    recovery_adopt_loss(&r, 5); // the newest up to it
    CHECK_EQ(r.adopted.number, 4);
    recovery_adopt_loss(&r, 2); // never back
    CHECK_EQ(r.adopted.number, 4);
    CHECK_EQ(tell().loss_count, 4);
    recovery_adopt(&r, &(struct member_view){.number = 6, .group_epoch = 6});
    CHECK_EQ(tell().loss_count, 1);
    CHECK_EQ(losses[0].epoch, 8);
    CHECK_EQ(losses[0].group_members, 9);
    recovery_adopt(&r, &(struct member_view){.number = 5, .group_epoch = 5});
    CHECK_EQ(r.adopted.number, 6);
    for (uint64_t epoch = 10; epoch < 10 + WIRE_MAX_MEMBERS; epoch++)
        recovery_note_loss(&r, &(struct member_view){.number = epoch, .group_epoch = epoch});
    CHECK_EQ(tell().loss_count, WIRE_MAX_MEMBERS); // the oldest went
    CHECK_EQ(losses[0].epoch, 10);
}

// ---- the search for a master ----
enum { HEARTBEAT_MS = 5000, RECOVERY_MS = 60000 };

static void init(uint32_t masters) {
    recovery_init(&r);
    r.limit_ms = RECOVERY_MS;
    r.masters = masters;
}

static void resume(bool earlier, int64_t now) {
    struct wire_resume resume = {0};
    recovery_resume(&r, earlier, HEARTBEAT_MS * MS_NS, now, &resume, past, losses);
}

static void test_times(void) {
    init(1);
    CHECK(!recovery_is_unheard(&r));
    recovery_begin(&r, "it broke", 1000);
    CHECK(recovery_is_unheard(&r));
    CHECK_EQ(r.deadline, 1000 + RECOVERY_MS * MS_NS);
    resume(true, 2000);
    CHECK(recovery_is_unheard(&r));
    CHECK_EQ(r.answer_by, 2000 + HEARTBEAT_MS * MS_NS);
    recovery_begin(&r, "another one broke", 3000); // one search, one bound, one reason
    CHECK_EQ(r.deadline, 1000 + RECOVERY_MS * MS_NS);
    CHECK(strcmp(r.lost_why, "it broke") == 0);

    init(2); // the others are tried soon
    recovery_begin(&r, "it broke", 0);
    resume(true, 0);
    CHECK_EQ(r.answer_by, RECOVERY_ANSWER_MS * MS_NS);
    CHECK(!recovery_looks_again(&r, HEARTBEAT_MS * MS_NS - 1) && recovery_looks_again(&r, HEARTBEAT_MS * MS_NS));
    resume(false, 0);
    CHECK(!recovery_looks_again(&r, INT64_MAX - 1)); // there is no earlier one
    CHECK(!recovery_promise(&r, 0, HEARTBEAT_MS * MS_NS, 0) && recovery_promise(&r, 1, HEARTBEAT_MS * MS_NS, 0));
    CHECK(!recovery_looks_again(&r, INT64_MAX - 1));
    recovery_end(&r);
    CHECK_EQ(r.state, RECOVERY_NONE);
}

static void test_promises(void) {
    init(2);
    r.promised = 4;
    recovery_begin(&r, "it broke", 0);
    CHECK(!recovery_promise(&r, 4, HEARTBEAT_MS * MS_NS, 10));
    CHECK(!recovery_promise(&r, 3, HEARTBEAT_MS * MS_NS, 10));
    CHECK(recovery_promise(&r, 6, HEARTBEAT_MS * MS_NS, 10));
    CHECK_EQ(r.promised, 6);
    CHECK_EQ(r.waits_until, 10 + 2 * HEARTBEAT_MS * MS_NS); // longer, for it may still gather
    CHECK(!recovery_promise(&r, 5, HEARTBEAT_MS * MS_NS, 20));
}

static void test_resumed(void) {
    struct wire_group_size sizes[2] = {{.group = 1, .count = 2}, {.group = 4, .count = 3}};
    struct wire_loss one_loss[1] = {{.epoch = 8, .members = 5, .group_members = 2, .groups = 2, .largest_group = 3}};
    struct wire_resumed resumed = {
        .heartbeat_limit_ms = HEARTBEAT_MS,
        .vote_ended = 1,
        .last_vote = {.number = 3, .kind = WIRE_VOTE_UPDATE, .epoch = 7, .count = 2, .sizes = sizes},
        .loss_count = 1,
        .losses = one_loss,
    };
    struct wire_buffer frame = {0};
    wire_encode_resumed(&frame, (struct wire_header){.run = 1}, &resumed);
    const uint8_t *body = frame.bytes + WIRE_HEADER_BYTES;
    size_t length = frame.length - WIRE_HEADER_BYTES;
    init(1);
    recovery_begin(&r, "it broke", 0);
    resume(true, 0);
    CHECK(!recovery_take_resumed(&r, body, length - 1, 4));
    CHECK_EQ(r.state, RECOVERY_TOLD);
    REQUIRE(recovery_take_resumed(&r, body, length, 4));
    CHECK_EQ(r.late.view.group_epoch, 7); // of a newcomer, who came with the vote
    r.lost_epoch = 5;
    REQUIRE(recovery_take_resumed(&r, body, length, 4));
    CHECK_EQ(r.late.view.group_epoch, 5); // the loss in 8 is of after the vote
    CHECK_EQ(r.state, RECOVERY_RESUMED);
    CHECK(!recovery_is_unheard(&r) && r.late.vote && !r.late.sync);
    CHECK_EQ(r.late.view.number, 7);
    CHECK_EQ(r.late.view.global_world, 5);
    CHECK_EQ(r.late.view.group_world, 3);
    CHECK_EQ(r.late.view.largest_group, 3);
    CHECK_EQ(r.late.view.rank, MEMBER_NO_RANK);
    struct member_view now = {.number = 9, .group_world = 2, .rank = 1};
    struct member_output out = {0};
    recovery_hear_losses(&r, 8, &now, &out); // in force already
    CHECK_EQ(r.loss_count, 0);
    recovery_hear_losses(&r, 7, &now, &out);
    REQUIRE(r.loss_count == 1 && out.count == 1);
    CHECK(out.actions[0].kind == MEMBER_MISSED_LOSS && out.actions[0].group_epoch == 8);
    CHECK_EQ(r.losses[0].rank, 1); // of the same size: the same members
    CHECK_EQ(r.losses[0].group_epoch, 8);
    recovery_hear_losses(&r, 7, &now, &out); // once
    CHECK_EQ(out.count, 1);
    r.lost_epoch = 5;
    now.group_world = 1;
    recovery_hear_losses(&r, 7, &now, &out);
    CHECK_EQ(r.losses[1].rank, MEMBER_NO_RANK);
    member_output_fini(&out);
    recovery_end(&r);
    CHECK(!r.late.vote);
    CHECK(recovery_has_lost(&r, &(struct wire_epoch){.lost_epoch = 9}, false));
    CHECK(!recovery_has_lost(&r, &(struct wire_epoch){.lost_epoch = 8}, false)); // it is known
    CHECK(!recovery_has_lost(&r, &(struct wire_epoch){.lost_epoch = 9}, true));  // it came after that
    wire_buffer_fini(&frame);
}

// ---- dialling ----
static const struct wire_address masters[] = {
    {.family = 4, .port = 1}, {.family = 4, .port = 2}, {.family = 4, .port = 3}};

static struct recovery_seek of(uint32_t count) { return (struct recovery_seek){.masters = masters, .count = count}; }

static int port(const struct recovery_seek *seek) { return recovery_seek_master(seek)->port; }

static void test_once(void) {
    check_case("a new peer goes through the list once, at once");
    struct recovery_seek seek = of(3);
    recovery_seek_begin(&seek, false, SECOND_NS);
    for (int i = 1; i <= 3; i++) {
        CHECK_EQ(port(&seek), i);
        CHECK_EQ(seek.next, SECOND_NS);
        CHECK_EQ(recovery_seek_failed(&seek, SECOND_NS), i < 3);
    }
    CHECK_EQ(port(&seek), 1); // for the next attempt
}

static void test_again(void) {
    for (uint32_t count = 1; count <= 3; count++) {
        check_case("a peer without its master goes through the list of %u again and again", count);
        struct recovery_seek seek = of(count);
        int64_t now = SECOND_NS, lost = now;
        uint32_t rounds = 0;
        recovery_seek_begin(&seek, true, now);
        while (now < lost + 5 * SECOND_NS) {
            for (uint32_t i = 1; i <= count; i++) {
                CHECK_EQ(port(&seek), i);
                CHECK(seek.next <= now);
                CHECK(recovery_seek_failed(&seek, now));
            }
            CHECK_EQ(seek.next - now, (now - lost < SEEK_FAST_FOR_MS * MS_NS ? SEEK_FAST_MS : SEEK_SLOW_MS) * MS_NS);
            now = seek.next;
            rounds++;
        }
        CHECK_EQ(rounds,
                 (SEEK_FAST_FOR_MS + SEEK_FAST_MS - 1) / SEEK_FAST_MS + (5000 - SEEK_FAST_FOR_MS) / SEEK_SLOW_MS);
    }
}

static void test_anew(void) {
    check_case("from the first one on");
    struct recovery_seek seek = of(3);
    recovery_seek_begin(&seek, true, SECOND_NS);
    recovery_seek_failed(&seek, SECOND_NS);
    recovery_seek_failed(&seek, SECOND_NS);
    CHECK_EQ(port(&seek), 3);
    recovery_seek_anew(&seek, 9 * SECOND_NS);
    CHECK_EQ(port(&seek), 1);
    CHECK_EQ(seek.next, 9 * SECOND_NS);
    CHECK(recovery_seek_failed(&seek, 9 * SECOND_NS));
    CHECK_EQ(port(&seek), 2);
}

static void test_tells(void) {
    check_case("a line each ten seconds, the first after ten");
    struct recovery_seek seek = of(1);
    recovery_seek_begin(&seek, true, SECOND_NS);
    int told = 0;
    for (int64_t ms = 0; ms <= 35000; ms += 100) told += recovery_seek_tells(&seek, SECOND_NS + ms * MS_NS);
    CHECK_EQ(told, 3);
}

int main(void) {
    test_verdicts();
    test_cancellations();
    test_barriers();
    test_rounds();
    test_members();
    test_adoption();
    test_times();
    test_promises();
    test_resumed();
    test_once();
    test_again();
    test_anew();
    test_tells();
    return check_status();
}
