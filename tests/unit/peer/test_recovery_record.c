// What a peer must know after a loss of the master.
#include "peer/recovery_record.h"

#include <string.h>

#include "check.h"
#include "pccl.h"

static struct recovery_record t;
static struct wire_past past[WIRE_MAX_PAST];
static struct wire_loss losses[WIRE_MAX_MEMBERS];

static struct wire_resume tell(void) {
    struct wire_resume resume = {.epoch = {.number = 77}};
    recovery_record_tell(&t, &resume, past, losses);
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
    recovery_record_init(&t);
    CHECK_EQ(tell().past_count, 0);
    struct wire_verdict verdict = {.kind = WIRE_VERDICT_ABORT};
    recovery_record_note_verdict(&t, &verdict); // follows from what members report
    verdict.kind = WIRE_VERDICT_REDO;
    recovery_record_note_verdict(&t, &verdict);
    verdict = (struct wire_verdict){.kind = WIRE_VERDICT_COMMIT, .supplier = {{4}}}; // a supplier is found anew
    recovery_record_note_verdict(&t, &verdict);
    CHECK_EQ(tell().past_count, 0);
    for (uint32_t i = 0; i < WIRE_MAX_PAST + 5; i++) {
        verdict = (struct wire_verdict){.kind = i % 2 == 0 ? WIRE_VERDICT_COMMIT : WIRE_VERDICT_MISMATCH};
        verdict.name.tag = i;
        recovery_record_note_verdict(&t, &verdict);
    }
    REQUIRE(tell().past_count == WIRE_MAX_PAST); // the last ones, newest last
    CHECK_EQ(past[0].name.tag, 5);
    CHECK_EQ(past[0].kind, WIRE_VERDICT_MISMATCH);
    CHECK_EQ(past[WIRE_MAX_PAST - 1].name.tag, WIRE_MAX_PAST + 4);
}

static void test_cancellations(void) {
    recovery_record_init(&t);
    struct wire_verdict verdict = {.kind = WIRE_VERDICT_CANCEL, .name = {.epoch = 3, .tag = 7, .sequence = 1}};
    recovery_record_note_verdict(&t, &verdict);
    REQUIRE(tell().past_count == 1);
    CHECK_EQ(past[0].kind, WIRE_VERDICT_CANCEL);
    verdict.kind = WIRE_VERDICT_COMMIT; // a member had completed it
    recovery_record_note_verdict(&t, &verdict);
    for (uint32_t i = 0; i < tell().past_count; i++) CHECK_EQ(past[i].kind, WIRE_VERDICT_COMMIT);
}

static void test_barriers(void) {
    recovery_record_init(&t);
    struct wire_outcome outcome = {.kind = WIRE_VOTE_PENDING, .code = pcclSuccess, .value = 1};
    recovery_record_note_vote(&t, 1, &outcome, NULL); // of a newcomer
    CHECK_EQ(tell().last_vote.count, 0);
    struct epoch *epoch = epoch_of(9, "11222");
    recovery_record_note_vote(&t, 2, &outcome, epoch);
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
    recovery_record_note_epoch(&t, &commit, epoch);
    CHECK_EQ(tell().last_vote.kind, WIRE_VOTE_PENDING);
    commit.epoch.votes_ended = 3;
    commit.reason = WIRE_REASON_LOSS; // ends none
    recovery_record_note_epoch(&t, &commit, epoch);
    CHECK_EQ(tell().epoch.votes_ended, 2);
    commit.reason = WIRE_REASON_ORDER;
    recovery_record_note_epoch(&t, &commit, epoch);
    CHECK_EQ(tell().epoch.votes_ended, 3);
    CHECK_EQ(tell().last_vote.kind, WIRE_VOTE_OPTIMIZE);

    struct wire_group_size sizes[1] = {{.group = 5, .count = 6}};
    struct wire_ended_vote told = {.number = 8, .kind = WIRE_VOTE_UPDATE, .count = 1, .sizes = sizes};
    recovery_record_take_vote(&t, &told);
    sizes[0].count = 0; // a copy
    CHECK_EQ(tell().last_vote.sizes[0].count, 6);
    recovery_record_fini(&t);
    epoch_put(epoch);
}

static void test_rounds(void) {
    recovery_record_init(&t);
    struct wire_sync_end end = {.round = 4, .code = pcclNoSharedStateAvailable, .revision = 7};
    recovery_record_note_sync(&t, &end);
    CHECK(!tell().sync_committed);
    CHECK_EQ(tell().sync_code, pcclNoSharedStateAvailable);
    end = (struct wire_sync_end){.round = 5, .code = pcclSuccess, .revision = 7};
    recovery_record_note_sync(&t, &end);
    CHECK(tell().sync_committed);
    CHECK_EQ(tell().epoch.sync_expected, 8);
    // Rounds of the group that it heard of with an epoch alone.
    struct epoch *epoch = epoch_of(1, "1");
    struct wire_epoch_commit commit = {.epoch = {.sync_round = 5, .sync_expected = 70, .lost_epoch = 3}};
    recovery_record_note_epoch(&t, &commit, epoch);
    CHECK_EQ(tell().epoch.sync_expected, 8);
    commit.epoch.sync_round = 6;
    commit.epoch.lost_epoch = 2;
    recovery_record_note_epoch(&t, &commit, epoch);
    CHECK_EQ(tell().epoch.sync_round, 6);
    CHECK_EQ(tell().epoch.sync_expected, 70);
    CHECK_EQ(tell().epoch.lost_epoch, 3); // never goes back
    recovery_record_fini(&t);
    epoch_put(epoch);
}

// How many members the adopted epoch had; 0: they are not known.
static uint32_t members(void) { return recovery_record_members(&t) == NULL ? 0 : recovery_record_members(&t)->count; }

static void note(uint64_t number, const char *groups) {
    struct wire_epoch_commit commit = {.epoch = {.number = number}};
    struct epoch *epoch = epoch_of(number, groups);
    recovery_record_note_epoch(&t, &commit, epoch);
    epoch_put(epoch);
}

static struct member_view view_of(uint64_t group_epoch, uint32_t group_world) {
    return (struct member_view){.number = group_epoch, .group_epoch = group_epoch, .group_world = group_world};
}

static void test_members(void) {
    recovery_record_init(&t);
    CHECK_EQ(members(), 0);
    note(4, "11112");
    CHECK_EQ(members(), 0); // not adopted yet
    struct member_view view = view_of(4, 4);
    recovery_record_adopt(&t, &view);
    CHECK_EQ(members(), 4);
    note(6, "1112");
    note(7, "112");
    for (uint64_t number = 6; number < 8; number++) {
        view = view_of(number, number == 6 ? 3 : 2);
        recovery_record_note_loss(&t, &view);
    }
    CHECK_EQ(members(), 4); // losses show when they are adopted
    recovery_record_adopt_loss(&t, 6);
    CHECK_EQ(members(), 3);
    recovery_record_adopt_loss(&t, 7);
    CHECK_EQ(members(), 2);
    view = view_of(9, 1); // of an epoch that was missed
    recovery_record_note_loss(&t, &view);
    recovery_record_adopt_loss(&t, 9);
    CHECK_EQ(members(), 0);
    note(10, "111");
    view = view_of(10, 3);
    recovery_record_adopt(&t, &view);
    CHECK_EQ(members(), 3);
    for (uint64_t number = 11; number < 11 + 3 * RECOVERY_RECORD_EPOCHS; number++) note(number, "111"); // mended links
    CHECK_EQ(members(), 3);
    recovery_record_fini(&t);
}

static void test_adoption(void) {
    recovery_record_init(&t);
    for (uint64_t epoch = 2; epoch <= 8; epoch += 2)
        recovery_record_note_loss(&t, &(struct member_view){.number = epoch, .group_epoch = epoch, .group_world = 9});
    recovery_record_adopt_loss(&t, 1); // none is known up to it
    CHECK_EQ(t.adopted.number, 0);
    recovery_record_adopt_loss(&t, 5); // the newest up to it
    CHECK_EQ(t.adopted.number, 4);
    recovery_record_adopt_loss(&t, 2); // never back
    CHECK_EQ(t.adopted.number, 4);
    CHECK_EQ(tell().loss_count, 4);
    recovery_record_adopt(&t, &(struct member_view){.number = 6, .group_epoch = 6});
    CHECK_EQ(tell().loss_count, 1);
    CHECK_EQ(losses[0].epoch, 8);
    CHECK_EQ(losses[0].group_members, 9);
    recovery_record_adopt(&t, &(struct member_view){.number = 5, .group_epoch = 5});
    CHECK_EQ(t.adopted.number, 6);
    for (uint64_t epoch = 10; epoch < 10 + WIRE_MAX_MEMBERS; epoch++)
        recovery_record_note_loss(&t, &(struct member_view){.number = epoch, .group_epoch = epoch});
    CHECK_EQ(tell().loss_count, WIRE_MAX_MEMBERS); // the oldest went
    CHECK_EQ(losses[0].epoch, 10);
}

int main(void) {
    test_verdicts();
    test_cancellations();
    test_barriers();
    test_rounds();
    test_members();
    test_adoption();
    return check_status();
}
