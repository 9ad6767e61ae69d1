// Replays orders of events on the peer's control state machine: no socket, no clock.
#include "base/platform.h"
#include "check.h"
#include "peer/member.h"
#include "peer/mesh.h"
#include "pccl.h"

enum { LIMIT_MS = 1000, LANES = 2 };

struct bed {
    struct member *member;
    struct member_output out;
    size_t frames_read; // bytes of out.frames
    uint64_t run, generation;
    int64_t now;
};

static struct wire_id id_of(uint8_t n) { return (struct wire_id){.bytes = {n, 0xaa}}; }

static void begin(struct bed *bed) {
    memset(bed, 0, sizeof *bed);
    struct wire_id self = id_of(1);
    bed->member = member_new(&self, 0, LANES);
    bed->run = 77;
    bed->generation = 1;
    bed->now = SECOND_NS;
    REQUIRE(bed->member != NULL);
}

static void end(struct bed *bed) {
    member_free(bed->member);
    member_output_fini(&bed->out);
}

static struct member_output *fresh(struct bed *bed) {
    member_output_clear(&bed->out);
    bed->frames_read = 0;
    return &bed->out;
}

static void feed(struct bed *bed, struct wire_buffer *frame) {
    struct wire_header header;
    REQUIRE(!frame->failed && wire_header_decode(frame->bytes, &header));
    member_frame(bed->member, &header, frame->bytes + WIRE_HEADER_BYTES, bed->now, fresh(bed));
    wire_buffer_fini(frame);
}

static struct wire_header from_master(const struct bed *bed) {
    return (struct wire_header){.run = bed->run, .generation = bed->generation};
}

static size_t count_actions(const struct bed *bed, enum member_action_kind kind) {
    size_t count = 0;
    for (size_t i = 0; i < bed->out.count; i++) count += bed->out.actions[i].kind == kind;
    return count;
}

static const struct member_action *first_action(const struct bed *bed, enum member_action_kind kind) {
    static const struct member_action none = {.code = pcclInternalError};
    for (size_t i = 0; i < bed->out.count; i++)
        if (bed->out.actions[i].kind == kind) return &bed->out.actions[i];
    CHECK(!(bool)"action expected");
    return &none;
}

// The next frame that the state machine sends; type 0 when there is none.
static uint16_t next_frame(struct bed *bed, const uint8_t **body, size_t *length) {
    if (bed->frames_read + WIRE_HEADER_BYTES > bed->out.frames.length) return 0;
    struct wire_header header;
    REQUIRE(wire_header_decode(bed->out.frames.bytes + bed->frames_read, &header));
    *body = bed->out.frames.bytes + bed->frames_read + WIRE_HEADER_BYTES;
    *length = header.length;
    bed->frames_read += WIRE_HEADER_BYTES + header.length;
    return header.type;
}

static uint16_t next_type(struct bed *bed) {
    const uint8_t *body;
    size_t length;
    return next_frame(bed, &body, &length);
}

static void expect_linked(struct bed *bed, uint32_t attempt, uint32_t unreachable) {
    static struct wire_linked linked;
    const uint8_t *body;
    size_t length;
    REQUIRE(next_frame(bed, &body, &length) == WIRE_LINKED && wire_decode_linked(body, length, &linked));
    CHECK_EQ(linked.attempt, attempt);
    CHECK_EQ(linked.count, unreachable);
    CHECK(linked.latency_us > 0);
}

static void expect_link_down(struct bed *bed, uint8_t who) {
    struct wire_link_down down;
    const uint8_t *body;
    size_t length;
    REQUIRE(next_frame(bed, &body, &length) == WIRE_LINK_DOWN && wire_decode_link_down(body, length, &down));
    CHECK_EQ(down.id.bytes[0], who);
}

static void join(struct bed *bed, uint64_t join_number) {
    member_join(bed->member, 5000, bed->now, fresh(bed));
    CHECK_EQ(next_type(bed), WIRE_HELLO);
    struct wire_buffer frame = {0};
    struct wire_welcome welcome = {
        .join_number = join_number, .secret = {9}, .heartbeat_limit_ms = LIMIT_MS, .seen = {.family = 4}};
    wire_encode_welcome(&frame, from_master(bed), &welcome);
    feed(bed, &frame);
    CHECK_EQ(member_phase(bed->member), MEMBER_REGISTERED);
}

// Members "1 2 3" of group 0 in ring order, then those after '|' of group 1; join number = 10 x name.
static struct wire_epoch epoch_of(uint64_t number, uint64_t group_epoch, const char *names) {
    static struct wire_member members[32];
    struct wire_epoch epoch = {
        .number = number, .group_epoch = group_epoch, .latency_us = 50, .megabytes_per_s = 100, .members = members};
    uint32_t group = 0;
    for (const char *at = names; *at; at++) {
        if (*at == '|') group++;
        if (*at < '0' || *at > '9') continue;
        uint8_t n = (uint8_t)(*at - '0');
        members[epoch.count++] =
            (struct wire_member){.id = id_of(n),
                                 .join_number = 10u * n,
                                 .group = group,
                                 .lanes = 4,
                                 .address = {.family = 4, .bytes = {127, 0, 0, 1}, .port = (uint16_t)(6000 + n)}};
    }
    return epoch;
}

static void candidate(struct bed *bed, uint32_t attempt, const char *names) {
    struct wire_buffer frame = {0};
    struct wire_candidate message = {.attempt = attempt, .epoch = epoch_of(0, 0, names)};
    wire_encode_candidate(&frame, from_master(bed), &message);
    feed(bed, &frame);
}

static void enter(struct bed *bed, uint8_t reason, uint64_t number, uint64_t group_epoch, const char *names) {
    struct wire_buffer frame = {0};
    struct wire_epoch_commit message = {.reason = reason, .epoch = epoch_of(number, group_epoch, names)};
    if (reason == WIRE_REASON_LOSS) message.epoch.lost_epoch = group_epoch;
    wire_encode_epoch_commit(&frame, from_master(bed), &message);
    feed(bed, &frame);
}

static void outcome(struct bed *bed, uint8_t kind, uint8_t code, uint64_t value) {
    struct wire_buffer frame = {0};
    struct wire_outcome message = {.kind = kind, .code = code, .value = value};
    wire_encode_outcome(&frame, from_master(bed), &message);
    feed(bed, &frame);
}

static void text_frame(struct bed *bed, enum wire_type type, const char *text) {
    struct wire_buffer frame = {0};
    wire_encode_text(&frame, from_master(bed), type, text);
    feed(bed, &frame);
}

static void up(struct bed *bed, uint8_t who, uint32_t index) {
    struct wire_id id = id_of(who);
    member_link_up(bed->member, &id, index, 1, 40, bed->now, fresh(bed));
}

static void failed(struct bed *bed, uint8_t who, uint32_t index) {
    struct wire_id id = id_of(who);
    member_link_failed(bed->member, &id, index, fresh(bed));
}

static void lost(struct bed *bed, uint8_t who, uint32_t index) {
    struct wire_id id = id_of(who);
    member_link_lost(bed->member, &id, index, 1, WIRE_LINK_BROKEN, bed->now, fresh(bed));
}

// After the grace a fresh group epoch is asked for.
static void expect_fresh_wanted(struct bed *bed) {
    CHECK_EQ(bed->out.frames.length, 0);
    bed->now += MESH_GRACE_MS * MS_NS;
    CHECK_EQ(member_deadline(bed->member), bed->now);
    member_tick(bed->member, bed->now, fresh(bed));
    expect_link_down(bed, 1);
}

static void vote(struct bed *bed, enum wire_vote_kind kind) {
    member_vote(bed->member, kind, NULL, fresh(bed));
    CHECK_EQ(next_type(bed), WIRE_VOTE);
}

// Peer 1 accepted in epoch 5 with the given others: all links up with a digit, the direct one with a letter (c = 3).
static void accepted(struct bed *bed, uint64_t join_number, const char *names, const char *others) {
    begin(bed);
    join(bed, join_number);
    candidate(bed, 1, names);
    for (const char *at = others; *at; at++)
        for (uint32_t index = 0; index <= (*at < 'a' ? LANES : 0); index++) up(bed, (uint8_t)(*at & 0xf), index);
    enter(bed, WIRE_REASON_UPDATE, 5, 5, names);
    CHECK_EQ(count_actions(bed, MEMBER_LINKS_READY), 1);
    member_adopt(bed->member, &first_action(bed, MEMBER_CONNECT_END)->view);
}

static void test_first_peer(void) {
    struct bed bed;
    check_case("first peer");
    begin(&bed);
    CHECK_EQ(member_deadline(bed.member), INT64_MAX);
    join(&bed, 10);
    enter(&bed, WIRE_REASON_UPDATE, 1, 1, "1");
    CHECK_EQ(bed.out.actions[0].kind, MEMBER_ENTER_EPOCH);
    const struct member_action *ended = first_action(&bed, MEMBER_CONNECT_END);
    CHECK_EQ(ended->code, pcclSuccess);
    CHECK_EQ(ended->view.global_world, 1);
    CHECK_EQ(ended->view.group_world, 1);
    CHECK_EQ(ended->view.groups, 1);
    CHECK_EQ(ended->view.largest_group, 1);
    CHECK_EQ(count_actions(&bed, MEMBER_LINKS_READY), 1);
    expect_linked(&bed, 0, 0);
    end(&bed);
}

static void test_join_failures(void) {
    struct bed bed;
    static const struct {
        const char *name;
        bool registered;
        enum wire_type type;
        pcclResult_t code;
        const char *text;
    } rows[] = {
        {"refused at the rendezvous", false, WIRE_REFUSED, pcclMasterConnectionFailed, "because"},
        {"of another version", false, WIRE_REFUSED, pcclInvalidUsage, WIRE_FOREIGN "15"},
        {"left out of a candidate", true, WIRE_REFUSED, pcclRankConnectionFailed, "because"},
        {"expelled while waiting", true, WIRE_EXPELLED, pcclMasterConnectionFailed, "because"},
        {"garbage", true, WIRE_OUTCOME, pcclMasterConnectionFailed, NULL},
        {"connection broke", true, 0, pcclMasterConnectionFailed, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("join: %s", rows[i].name);
        begin(&bed);
        if (rows[i].registered)
            join(&bed, 10);
        else
            member_join(bed.member, 5000, bed.now, fresh(&bed));
        if (rows[i].type == WIRE_OUTCOME) {
            struct wire_buffer frame = {0};
            wire_encode_outcome(&frame, from_master(&bed), &(struct wire_outcome){.kind = WIRE_VOTE_UPDATE});
            feed(&bed, &frame);
        } else if (rows[i].type == 0) {
            member_disconnected(bed.member, "closed", bed.now, fresh(&bed));
        } else {
            text_frame(&bed, rows[i].type, rows[i].text);
        }
        CHECK_EQ(first_action(&bed, MEMBER_CONNECT_END)->code, rows[i].code);
        CHECK_EQ(count_actions(&bed, MEMBER_DIE), 0);
        CHECK(member_text(bed.member)[0] != 0);
        CHECK_EQ(member_phase(bed.member), MEMBER_DEAD);
        CHECK_EQ(member_deadline(bed.member), INT64_MAX);
        end(&bed);
    }
    check_case("join: silent master");
    begin(&bed);
    member_join(bed.member, 5000, bed.now, fresh(&bed));
    bed.now = member_deadline(bed.member);
    CHECK_EQ(bed.now, SECOND_NS + MEMBER_JOIN_LIMIT_MS * MS_NS);
    member_tick(bed.member, bed.now, fresh(&bed));
    CHECK_EQ(first_action(&bed, MEMBER_CONNECT_END)->code, pcclMasterConnectionFailed);
    end(&bed);
}

static void test_candidate_dialer(void) {
    struct bed bed;
    check_case("newcomer dials");
    begin(&bed);
    join(&bed, 90); // later than all others
    candidate(&bed, 1, "2 3 4 1 | 5");
    // ring neighbours 4 and 2 with lanes, 3 with the direct link only, 5 is of another group
    CHECK_EQ(count_actions(&bed, MEMBER_DIAL), 2 * (1 + LANES) + 1);
    CHECK_EQ(first_action(&bed, MEMBER_DIAL)->reach.addresses[0].port, 6002);
    CHECK_EQ(next_type(&bed), 0);
    up(&bed, 3, 0);
    for (uint32_t index = 0; index <= LANES; index++) up(&bed, 2, index);
    up(&bed, 4, 0);
    up(&bed, 4, 1);
    CHECK_EQ(next_type(&bed), 0);
    up(&bed, 4, 2);
    expect_linked(&bed, 1, 0);

    check_case("loss while joining: new attempt keeps the links");
    candidate(&bed, 2, "2 4 1 | 5");
    CHECK_EQ(count_actions(&bed, MEMBER_DIAL), 0);
    CHECK_EQ(first_action(&bed, MEMBER_DROP_PEER)->id.bytes[0], 3);
    expect_linked(&bed, 2, 0);
    enter(&bed, WIRE_REASON_UPDATE, 7, 7, "2 4 1 | 5");
    const struct member_view view = first_action(&bed, MEMBER_CONNECT_END)->view;
    CHECK_EQ(view.global_world, 4);
    CHECK_EQ(view.group_world, 3);
    CHECK_EQ(view.groups, 2);
    CHECK_EQ(view.largest_group, 3);
    CHECK_EQ(view.rank, 0); // by join numbers: in the ring it stands last
    const struct epoch_ring *ring = &member_epoch(bed.member)->ring;
    CHECK_EQ(ring->count, 3);
    CHECK_EQ(ring->rank, 2);
    CHECK_EQ(ring->members[1].id.bytes[0], 4);
    end(&bed);

    check_case("newcomer cannot reach one");
    begin(&bed);
    join(&bed, 90);
    candidate(&bed, 1, "2 3 1");
    up(&bed, 2, 0);
    failed(&bed, 3, 1);
    CHECK_EQ(first_action(&bed, MEMBER_DIAL)->index, 1); // once more
    CHECK_EQ(next_type(&bed), 0);
    failed(&bed, 3, 1);
    expect_linked(&bed, 1, 1);
    failed(&bed, 3, 2);
    failed(&bed, 3, 2); // said once
    CHECK_EQ(next_type(&bed), 0);
    candidate(&bed, 2, "2 1");
    for (uint32_t index = 1; index <= LANES; index++) up(&bed, 2, index);
    expect_linked(&bed, 2, 0);
    up(&bed, 3, 0); // a late dial to somebody who is out
    CHECK_EQ(first_action(&bed, MEMBER_DROP_PEER)->id.bytes[0], 3);
    end(&bed);
}

static void test_candidate_acceptor(void) {
    struct bed bed;
    check_case("accepted peer waits for the newcomer's links");
    accepted(&bed, 10, "1 2", "2");
    vote(&bed, WIRE_VOTE_UPDATE);
    candidate(&bed, 1, "1 2 3");
    CHECK_EQ(count_actions(&bed, MEMBER_DIAL), 0);
    CHECK_EQ(count_actions(&bed, MEMBER_RECHECK), 1);
    up(&bed, 3, 0);
    int64_t at = bed.now + member_link_limit_ns(bed.member);
    while (bed.now < at) {
        bed.now = member_deadline(bed.member);
        CHECK(bed.now <= at);
        member_tick(bed.member, bed.now, fresh(&bed));
        struct wire_buffer frame = {0};
        if (bed.now < at) wire_encode_empty(&frame, from_master(&bed), WIRE_HEARTBEAT), feed(&bed, &frame);
    }
    uint16_t type = next_type(&bed);
    if (type == WIRE_HEARTBEAT) type = next_type(&bed);
    CHECK_EQ(type, WIRE_LINKED);
    outcome(&bed, WIRE_VOTE_UPDATE, 0, 0);
    CHECK_EQ(first_action(&bed, MEMBER_DROP_PEER)->id.bytes[0], 3);
    CHECK_EQ(first_action(&bed, MEMBER_VOTE_END)->code, pcclSuccess);
    CHECK_EQ(first_action(&bed, MEMBER_VOTE_END)->view.group_world, 2);
    end(&bed);

    check_case("a newcomer of another group changes nothing for this one");
    accepted(&bed, 10, "1 2", "2");
    vote(&bed, WIRE_VOTE_UPDATE);
    candidate(&bed, 1, "1 2 | 3");
    expect_linked(&bed, 1, 0);
    enter(&bed, WIRE_REASON_UPDATE, 6, 5, "1 2 | 3");
    CHECK_EQ(count_actions(&bed, MEMBER_ENTER_EPOCH), 0);
    CHECK_EQ(first_action(&bed, MEMBER_VOTE_END)->view.global_world, 3);
    end(&bed);
}

static void test_loss_and_adoption(void) {
    struct bed bed;
    check_case("losses are adopted one by one");
    accepted(&bed, 10, "1 2 3 4 | 5", "2c4");
    CHECK_EQ(member_adopted(bed.member)->group_world, 4);
    enter(&bed, WIRE_REASON_LOSS, 6, 6, "1 2 3 | 5");
    CHECK_EQ(first_action(&bed, MEMBER_ENTER_EPOCH)->epoch->lost, true);
    CHECK_EQ(first_action(&bed, MEMBER_DROP_PEER)->id.bytes[0], 4);
    CHECK_EQ(count_actions(&bed, MEMBER_LINKS_READY), 0); // 3 is a ring neighbour now and dials the lanes
    CHECK_EQ(next_type(&bed), 0);
    up(&bed, 3, 1);
    up(&bed, 3, 2);
    CHECK_EQ(first_action(&bed, MEMBER_LINKS_READY)->group_epoch, 6);
    expect_linked(&bed, 0, 0);
    enter(&bed, WIRE_REASON_LOSS, 7, 6, "1 2 3"); // another group's
    CHECK_EQ(count_actions(&bed, MEMBER_ENTER_EPOCH), 0);
    enter(&bed, WIRE_REASON_LOSS, 8, 8, "1 3");
    CHECK_EQ(count_actions(&bed, MEMBER_LINKS_READY), 1);
    enter(&bed, WIRE_REASON_RELINK, 9, 9, "1 3");
    CHECK_EQ(first_action(&bed, MEMBER_ENTER_EPOCH)->epoch->lost, false);
    CHECK_EQ(member_adopted(bed.member)->group_world, 4);
    member_adopt_loss(bed.member, 6);
    CHECK_EQ(member_adopted(bed.member)->group_world, 3);
    CHECK_EQ(member_adopted(bed.member)->global_world, 4);
    member_adopt_loss(bed.member, 6);
    CHECK_EQ(member_adopted(bed.member)->group_epoch, 6);
    member_adopt_loss(bed.member, 9); // no loss of that number: the newest before it
    CHECK_EQ(member_adopted(bed.member)->group_epoch, 8);
    CHECK_EQ(member_adopted(bed.member)->group_world, 2);
    member_adopt_loss(bed.member, 6);
    CHECK_EQ(member_adopted(bed.member)->group_epoch, 8);
    enter(&bed, WIRE_REASON_LOSS, 8, 8, "1"); // stale
    CHECK_EQ(bed.out.count, 0);
    end(&bed);
}

static void test_link_down(void) {
    struct bed bed;
    check_case("one report per epoch, then relink");
    accepted(&bed, 30, "2 1", "2");
    lost(&bed, 2, 1);
    expect_link_down(&bed, 2);
    lost(&bed, 2, 2);
    CHECK_EQ(bed.out.frames.length, 0);
    enter(&bed, WIRE_REASON_RELINK, 6, 6, "2 1");
    CHECK_EQ(count_actions(&bed, MEMBER_DIAL), 2);
    CHECK_EQ(count_actions(&bed, MEMBER_LINKS_READY), 0);
    lost(&bed, 2, 0); // of before, seen late: nobody is reported twice for one break
    expect_fresh_wanted(&bed);
    enter(&bed, WIRE_REASON_RELINK, 7, 7, "2 1");
    CHECK_EQ(count_actions(&bed, MEMBER_DIAL), 1);
    up(&bed, 2, 0);
    up(&bed, 2, 1);
    up(&bed, 2, 2);
    CHECK_EQ(first_action(&bed, MEMBER_LINKS_READY)->group_epoch, 7);
    lost(&bed, 2, 0); // made in this very epoch
    expect_link_down(&bed, 2);
    end(&bed);

    check_case("replaced link");
    accepted(&bed, 10, "1 2", "2");
    up(&bed, 2, 1);
    expect_fresh_wanted(&bed);
    up(&bed, 2, 1);
    enter(&bed, WIRE_REASON_LOSS, 6, 6, "1"); // is one
    CHECK(member_deadline(bed.member) > bed.now + MESH_GRACE_MS * MS_NS);
    end(&bed);

    check_case("what broke before a loss is no second failure in its epoch");
    accepted(&bed, 10, "1 2 3", "2 3");
    lost(&bed, 2, 0);
    expect_link_down(&bed, 2);
    enter(&bed, WIRE_REASON_LOSS, 6, 6, "1 2");
    lost(&bed, 2, 1);
    expect_fresh_wanted(&bed);
    end(&bed);

    check_case("links that do not come are reported until the master acts");
    accepted(&bed, 10, "1 2", "2");
    enter(&bed, WIRE_REASON_ORDER, 6, 6, "1 2");
    lost(&bed, 2, 0);
    expect_link_down(&bed, 2);
    for (int round = 0; round < 2; round++) {
        bed.now += member_link_limit_ns(bed.member);
        struct wire_buffer frame = {0};
        wire_encode_empty(&frame, from_master(&bed), WIRE_HEARTBEAT);
        feed(&bed, &frame);
        member_tick(bed.member, bed.now, fresh(&bed));
        CHECK_EQ(next_type(&bed), WIRE_HEARTBEAT);
        expect_link_down(&bed, 2);
    }
    end(&bed);
}

static void test_votes_and_death(void) {
    struct bed bed;
    check_case("pending");
    accepted(&bed, 10, "1 2", "2");
    vote(&bed, WIRE_VOTE_PENDING);
    member_vote(bed.member, WIRE_VOTE_UPDATE, NULL, fresh(&bed)); // one at a time
    CHECK_EQ(next_type(&bed), 0);
    enter(&bed, WIRE_REASON_LOSS, 6, 6, "1");
    CHECK_EQ(count_actions(&bed, MEMBER_VOTE_END), 0);
    outcome(&bed, WIRE_VOTE_PENDING, 0, 1);
    CHECK_EQ(first_action(&bed, MEMBER_VOTE_END)->value, 1);

    check_case("optimise");
    vote(&bed, WIRE_VOTE_OPTIMIZE);
    outcome(&bed, WIRE_VOTE_OPTIMIZE, pcclTopologyOptimizationFailed, 0);
    CHECK_EQ(first_action(&bed, MEMBER_VOTE_END)->code, pcclTopologyOptimizationFailed);

    check_case("other runs are not heard");
    bed.run++;
    text_frame(&bed, WIRE_EXPELLED, "not for you");
    CHECK_EQ(bed.out.count, 0);
    bed.run--;

    check_case("expelled in a vote");
    vote(&bed, WIRE_VOTE_UPDATE);
    text_frame(&bed, WIRE_EXPELLED, "links");
    CHECK_EQ(bed.out.actions[0].kind, MEMBER_DIE);
    CHECK_EQ(first_action(&bed, MEMBER_VOTE_END)->code, pcclRankConnectionFailed);
    CHECK_STR(member_text(bed.member), "the master expelled this peer: links");
    end(&bed);

    // The sync that expels returns 4; an expulsion for anything else in the middle of a sync is not its doing.
    static const struct {
        const char *why;
        pcclResult_t code;
    } rows[] = {
        {WIRE_SYNC_RULE "it passed revision 9, but its group expects 3", pcclInvalidUsage},
        {"silent beyond the heartbeat limit", pcclMasterConnectionFailed},
        {"its links failed twice: to 2 of the 2 other members, reported by 2 members", pcclMasterConnectionFailed},
        {"shared", pcclMasterConnectionFailed},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("expelled in a sync: %s", rows[i].why);
        accepted(&bed, 10, "1 2", "2");
        member_vote(bed.member, WIRE_VOTE_SYNC, &(struct wire_sync_vote){.revision = 9}, fresh(&bed));
        text_frame(&bed, WIRE_EXPELLED, rows[i].why);
        CHECK_EQ(first_action(&bed, MEMBER_VOTE_END)->code, rows[i].code);
        end(&bed);
    }

    static const struct {
        const char *name;
        bool syncs;
        uint64_t first, last;
        bool told;
    } differences[] = {{"in no sync", false, 3, 4, false},
                       {"in a sync", true, 3, 4, true},
                       {"at the end of numbers", true, 0, UINT64_MAX, true}};
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        check_case("entries that differ: %s", differences[i].name);
        accepted(&bed, 10, "1 2", "2");
        struct wire_sync_vote state = {.revision = 9};
        if (differences[i].syncs) member_vote(bed.member, WIRE_VOTE_SYNC, &state, fresh(&bed));
        struct wire_sync_differs message = {differences[i].first, differences[i].last};
        struct wire_buffer frame = {0};
        wire_encode_sync_differs(&frame, from_master(&bed), &message);
        feed(&bed, &frame);
        text_frame(&bed, WIRE_EXPELLED, WIRE_SYNC_RULE "its entries");
        const struct wire_sync_differs *told = member_sync_differs(bed.member);
        CHECK_EQ(told != NULL, differences[i].told);
        if (told != NULL) CHECK(told->first == message.first && told->last == message.last);
        end(&bed);
    }

    check_case("silent master");
    accepted(&bed, 10, "1 2", "2");
    vote(&bed, WIRE_VOTE_UPDATE);
    int64_t start = bed.now;
    size_t beats = 0;
    while (member_phase(bed.member) == MEMBER_ACCEPTED && bed.now < start + 10 * SECOND_NS) {
        bed.now = member_deadline(bed.member);
        member_tick(bed.member, bed.now, fresh(&bed));
        beats += next_type(&bed) == WIRE_HEARTBEAT;
    }
    CHECK_EQ(bed.now, start + LIMIT_MS * MS_NS);
    CHECK_EQ(beats, 4);
    CHECK_EQ(first_action(&bed, MEMBER_VOTE_END)->code, pcclMasterConnectionFailed);
    end(&bed);
}

static void test_hellos(void) {
    struct bed bed;
    static const struct {
        const char *name;
        uint8_t kind, secret, from, to;
        uint32_t index;
        enum member_judgement want;
    } rows[] = {
        {"direct link", WIRE_LINK_DATA, 9, 2, 1, 0, MEMBER_ACCEPT},
        {"last lane", WIRE_LINK_DATA, 9, 2, 1, LANES, MEMBER_ACCEPT},
        {"lane beyond the pair's", WIRE_LINK_DATA, 9, 2, 1, LANES + 1, MEMBER_REJECT},
        {"lane of no ring neighbour", WIRE_LINK_DATA, 9, 3, 1, 1, MEMBER_PARK},
        {"wrong secret", WIRE_LINK_DATA, 8, 2, 1, 0, MEMBER_REJECT},
        {"for somebody else", WIRE_LINK_DATA, 9, 2, 4, 0, MEMBER_REJECT},
        {"unknown peer", WIRE_LINK_DATA, 9, 8, 1, 0, MEMBER_PARK},
        {"measurement", WIRE_LINK_PROBE, 9, 3, 1, 0, MEMBER_ACCEPT},
        {"newcomer that copies the state", WIRE_LINK_PRECOPY, 9, 8, 1, 0, MEMBER_ACCEPT},
        {"the same with a wrong secret", WIRE_LINK_PRECOPY, 8, 8, 1, 0, MEMBER_REJECT},
        {"the same for somebody else", WIRE_LINK_PRECOPY, 9, 8, 4, 0, MEMBER_REJECT},
        {"other group", WIRE_LINK_DATA, 9, 6, 1, 0, MEMBER_PARK},
    };
    accepted(&bed, 10, "1 2 3 4 | 6", "2c4");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("hello: %s", rows[i].name);
        struct wire_link_hello hello = {.version = WIRE_VERSION,
                                        .kind = rows[i].kind,
                                        .secret = {rows[i].secret},
                                        .from = id_of(rows[i].from),
                                        .to = id_of(rows[i].to),
                                        .index = rows[i].index};
        CHECK_EQ(member_judge_hello(bed.member, &hello), rows[i].want);
    }
    end(&bed);
    check_case("hello from a peer that must be dialled");
    accepted(&bed, 90, "2 1", "2");
    struct wire_link_hello hello = {
        .version = WIRE_VERSION, .kind = WIRE_LINK_DATA, .secret = {9}, .from = id_of(2), .to = id_of(1)};
    CHECK_EQ(member_judge_hello(bed.member, &hello), MEMBER_REJECT);
    end(&bed);
}

// Random frames and link events in random order: nothing crashes, a dead state machine stays silent.
static void test_random(void) {
    static const char *const names[] = {"1", "1 2", "2 1 3", "3 2 1 4 | 5", "1 3 | 5 6", "2 3"};
    for (unsigned seed = 1; seed <= 2000; seed++) {
        struct bed bed;
        check_case("seed %u", seed);
        unsigned state = seed * 2654435761u;
        begin(&bed);
        join(&bed, 25);
        uint64_t number = 0;
        for (int step = 0; step < 40; step++) {
            state = state * 1664525u + 1013904223u;
            unsigned pick = state >> 16, who = 2 + (pick >> 4) % 5, index = (pick >> 7) % (LANES + 1);
            const char *which = names[(pick >> 9) % (sizeof names / sizeof names[0])];
            bool dead = member_phase(bed.member) == MEMBER_DEAD;
            switch (pick % 8) {
            case 0: candidate(&bed, (uint32_t)step, which); break;
            case 1:
                number++;
                enter(&bed, (uint8_t)(1 + step % 4), number, number, which);
                break;
            case 2: up(&bed, (uint8_t)who, index); break;
            case 3: failed(&bed, (uint8_t)who, index); break;
            case 4: lost(&bed, (uint8_t)who, index); break;
            case 5: member_vote(bed.member, WIRE_VOTE_UPDATE, NULL, fresh(&bed)); break;
            case 6: outcome(&bed, WIRE_VOTE_UPDATE, 0, 0); break;
            default:
                bed.now += (int64_t)(pick % 300) * MS_NS;
                member_tick(bed.member, bed.now, fresh(&bed));
                break;
            }
            CHECK(!bed.out.failed);
            if (dead) CHECK(bed.out.frames.length == 0);
            while (next_type(&bed) != 0) continue;
        }
        end(&bed);
    }
}

int main(void) {
    test_first_peer();
    test_join_failures();
    test_candidate_dialer();
    test_candidate_acceptor();
    test_loss_and_adoption();
    test_link_down();
    test_votes_and_death();
    test_hellos();
    test_random();
    return check_status();
}
