// The search for a master.
#include "peer/recovery.h"

#include <string.h>

#include "base/platform.h"
#include "check.h"

enum { HEARTBEAT_MS = 5000, RECOVERY_MS = 60000 };

static struct recovery r;

static void test_times(void) {
    recovery_init(&r, RECOVERY_MS, 1);
    CHECK(!recovery_is_unheard(&r));
    recovery_begin(&r, "it broke", 1000);
    CHECK(recovery_is_unheard(&r));
    CHECK_EQ(r.deadline, 1000 + RECOVERY_MS * MS_NS);
    recovery_tell(&r, true, HEARTBEAT_MS * MS_NS, 2000);
    CHECK(recovery_is_unheard(&r));
    CHECK_EQ(r.answer_by, 2000 + HEARTBEAT_MS * MS_NS);
    recovery_begin(&r, "another one broke", 3000); // one search, one bound, one reason
    CHECK_EQ(r.deadline, 1000 + RECOVERY_MS * MS_NS);
    CHECK(strcmp(r.lost_why, "it broke") == 0);

    recovery_init(&r, RECOVERY_MS, 2); // the others are tried soon
    recovery_begin(&r, "it broke", 0);
    recovery_tell(&r, true, HEARTBEAT_MS * MS_NS, 0);
    CHECK_EQ(r.answer_by, RECOVERY_ANSWER_MS * MS_NS);
    CHECK(!recovery_looks_again(&r, HEARTBEAT_MS * MS_NS - 1) && recovery_looks_again(&r, HEARTBEAT_MS * MS_NS));
    recovery_tell(&r, false, HEARTBEAT_MS * MS_NS, 0);
    CHECK(!recovery_looks_again(&r, INT64_MAX - 1)); // there is no earlier one
    CHECK(!recovery_promise(&r, 0, HEARTBEAT_MS * MS_NS, 0) && recovery_promise(&r, 1, HEARTBEAT_MS * MS_NS, 0));
    CHECK(!recovery_looks_again(&r, INT64_MAX - 1));
    recovery_end(&r);
    CHECK_EQ(r.state, RECOVERY_NONE);
}

static void test_promises(void) {
    recovery_init(&r, RECOVERY_MS, 2);
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
    struct wire_loss losses[1] = {{.epoch = 8, .members = 5, .group_members = 2, .groups = 2, .largest_group = 3}};
    struct wire_resumed resumed = {
        .heartbeat_limit_ms = HEARTBEAT_MS,
        .vote_ended = 1,
        .last_vote = {.number = 3, .kind = WIRE_VOTE_UPDATE, .epoch = 7, .count = 2, .sizes = sizes},
        .loss_count = 1,
        .losses = losses,
    };
    struct wire_buffer frame = {0};
    wire_encode_resumed(&frame, (struct wire_header){.run = 1}, &resumed);
    const uint8_t *body = frame.bytes + WIRE_HEADER_BYTES;
    size_t length = frame.length - WIRE_HEADER_BYTES;
    recovery_init(&r, RECOVERY_MS, 1);
    recovery_begin(&r, "it broke", 0);
    recovery_tell(&r, true, HEARTBEAT_MS * MS_NS, 0);
    CHECK(!recovery_take_resumed(&r, body, length - 1, 4, 5));
    CHECK_EQ(r.state, RECOVERY_TOLD);
    REQUIRE(recovery_take_resumed(&r, body, length, 4, 0));
    CHECK_EQ(r.late.view.group_epoch, 7); // of a newcomer, who came with the vote
    REQUIRE(recovery_take_resumed(&r, body, length, 4, 5));
    CHECK_EQ(r.late.view.group_epoch, 5); // the loss in 8 is of after the vote
    CHECK_EQ(r.state, RECOVERY_RESUMED);
    CHECK(!recovery_is_unheard(&r) && r.late.vote && !r.late.sync);
    CHECK_EQ(r.late.view.number, 7);
    CHECK_EQ(r.late.view.global_world, 5);
    CHECK_EQ(r.late.view.group_world, 3);
    CHECK_EQ(r.late.view.largest_group, 3);
    CHECK_EQ(r.late.view.rank, MEMBER_NO_RANK);
    struct member_view now = {.number = 9, .group_world = 2, .rank = 1};
    CHECK_EQ(recovery_loss(&r, 0, &now).rank, 1); // of the same size: the same members
    now.group_world = 1;
    CHECK_EQ(recovery_loss(&r, 0, &now).rank, MEMBER_NO_RANK);
    CHECK_EQ(recovery_loss(&r, 0, &now).group_epoch, 8);
    recovery_end(&r);
    CHECK(!r.late.vote);
    wire_buffer_fini(&frame);
}

int main(void) {
    test_times();
    test_promises();
    test_resumed();
    return check_status();
}
