// A peer's open vote.
#include "peer/decision.h"

#include <string.h>

#include "check.h"

static const struct wire_id self = {{9}};

static uint16_t cast(struct pending_vote *b) {
    struct wire_buffer out = {0};
    struct wire_header header;
    decision_vote_cast(b, (struct wire_header){.run = 1}, &out);
    REQUIRE(wire_header_decode(out.bytes, &header));
    wire_buffer_fini(&out);
    return header.type;
}

static void test_votes(void) {
    struct pending_vote b = {0};
    decision_vote_open(&b, WIRE_VOTE_UPDATE, NULL, true);
    CHECK(b.kind == WIRE_VOTE_UPDATE && !b.unsent);
    CHECK_EQ(cast(&b), WIRE_VOTE);
    decision_vote_renew(&b, MEMBER_TENSORS_TORN, NULL, &self); // no round is open
    CHECK(!b.sync.incomplete);
    decision_vote_close(&b);
    CHECK_EQ(b.kind, 0);
    decision_vote_open(&b, WIRE_VOTE_PENDING, NULL, false);
    CHECK(b.unsent);
    decision_vote_close(&b);
    CHECK(!b.unsent);
}

static void test_rounds(void) {
    struct pending_vote b = {0};
    struct wire_sync_vote vote = {.content = {.low = 1, .high = 2}};
    struct wire_hash received = {.low = 3, .high = 4};
    decision_vote_open(&b, WIRE_VOTE_SYNC, &vote, true);
    CHECK_EQ(cast(&b), WIRE_SYNC_VOTE);
    decision_vote_renew(&b, MEMBER_TENSORS_AS_VOTED, &received, &self);
    CHECK_EQ(b.sync.content.low, 1);
    decision_vote_renew(&b, MEMBER_TENSORS_RECEIVED, &received, &self);
    CHECK_EQ(b.sync.content.low, 3);
    CHECK(!b.sync.incomplete);
    b.differs_told = true;
    decision_vote_renew(&b, MEMBER_TENSORS_TORN, &received, &self);
    CHECK(b.sync.incomplete && memcmp(&b.sync.content, &self, sizeof b.sync.content) == 0);
    CHECK(!b.differs_told); // the election is held again
}

static void test_differs(void) {
    struct wire_buffer frame = {0};
    struct wire_sync_differs differs = {.first = 2, .last = 5};
    wire_encode_sync_differs(&frame, (struct wire_header){.run = 1}, &differs);
    const uint8_t *body = frame.bytes + WIRE_HEADER_BYTES;
    size_t length = frame.length - WIRE_HEADER_BYTES;
    struct pending_vote b = {0};
    CHECK(decision_vote_take_differs(&b, body, length) && !b.differs_told); // of no round
    decision_vote_open(&b, WIRE_VOTE_SYNC, &(struct wire_sync_vote){0}, true);
    CHECK(!decision_vote_take_differs(&b, body, length - 1) && !b.differs_told);
    CHECK(decision_vote_take_differs(&b, body, length) && b.differs_told);
    CHECK_EQ(b.differs.last, 5);
    wire_buffer_fini(&frame);
}

int main(void) {
    test_votes();
    test_rounds();
    test_differs();
    return check_status();
}
