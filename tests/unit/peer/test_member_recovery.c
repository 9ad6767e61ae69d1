// A peer whose master is lost: what it tells the next one, whom it listens to, and when its calls end. Others are
// digits; the peer itself is 1.
#include "peer/member.h"
#include "peer/recovery.h"

#include "base/platform.h"
#include "check.h"
#include "pccl.h"

enum { RUN = 77, LIMIT_MS = 1000, RECOVERY_MS = 4000 };

static struct member *core;
static struct member_output out;
static int64_t now;

static struct wire_id id_of(uint8_t n) { return (struct wire_id){.bytes = {n, 0xaa}}; }

static struct member_output *fresh(void) {
    member_output_clear(&out);
    return &out;
}

static size_t count(enum member_action_kind kind) {
    size_t found = 0;
    for (size_t i = 0; i < out.count; i++) found += out.actions[i].kind == kind;
    return found;
}

static const struct member_action *action(enum member_action_kind kind) {
    static const struct member_action none = {.code = pcclInternalError};
    for (size_t i = 0; i < out.count; i++)
        if (out.actions[i].kind == kind) return &out.actions[i];
    return &none;
}

// The frame that the state machine sends first, or type 0.
static struct wire_header sent(const uint8_t **body) {
    struct wire_header header = {0};
    if (out.frames.length == 0) return header;
    REQUIRE(wire_header_decode(out.frames.bytes, &header));
    *body = out.frames.bytes + WIRE_HEADER_BYTES;
    return header;
}

static uint16_t sent_type(void) {
    const uint8_t *body;
    return sent(&body).type;
}

static void feed(struct wire_buffer *frame) {
    struct wire_header header;
    REQUIRE(!frame->failed && wire_header_decode(frame->bytes, &header));
    member_frame(core, &header, frame->bytes + WIRE_HEADER_BYTES, now, fresh());
    wire_buffer_fini(frame);
}

static struct wire_header of(uint64_t generation) { return (struct wire_header){.run = RUN, .generation = generation}; }

static void empty(struct wire_header header, enum wire_type type) {
    struct wire_buffer frame = {0};
    wire_encode_empty(&frame, header, type);
    feed(&frame);
}

static void text(enum wire_type type, const char *words) {
    struct wire_buffer frame = {0};
    wire_encode_text(&frame, of(0), type, words);
    feed(&frame);
}

static void epoch(uint64_t generation, uint8_t reason, uint64_t number, uint32_t world) {
    struct wire_member members[8] = {{.lanes = 0}};
    struct wire_epoch_commit commit = {.reason = reason,
                                       .epoch = {.number = number,
                                                 .group_epoch = number,
                                                 .votes_ended = 1,
                                                 .latency_us = 50,
                                                 .megabytes_per_s = 100,
                                                 .count = world,
                                                 .members = members}};
    if (reason == WIRE_REASON_LOSS) commit.epoch.lost_epoch = number;
    for (uint32_t i = 0; i < world; i++)
        members[i] = (struct wire_member){.id = id_of((uint8_t)(i + 1)),
                                          .join_number = i + 1,
                                          .lanes = 1,
                                          .address = {.family = 4, .port = (uint16_t)(6000 + i)}};
    struct wire_buffer frame = {0};
    wire_encode_epoch_commit(&frame, of(generation), &commit);
    feed(&frame);
}

static bool closed; // as the master says in WELCOME

static void welcome(uint64_t run, uint64_t join_number) {
    struct wire_buffer frame = {0};
    struct wire_welcome message = {.join_number = join_number,
                                   .secret = {9},
                                   .heartbeat_limit_ms = LIMIT_MS,
                                   .seen = {.family = 4},
                                   .closed = closed};
    wire_encode_welcome(&frame, (struct wire_header){.run = run, .generation = 1}, &message);
    feed(&frame);
}

static void resumed(uint64_t generation, uint8_t vote_kind, uint8_t code, bool sync_ended) {
    struct wire_buffer frame = {0};
    struct wire_group_size sizes[] = {{0, 3}};
    struct wire_resumed message = {
        .heartbeat_limit_ms = LIMIT_MS, .vote_ended = vote_kind != 0, .sync_ended = sync_ended};
    message.last_vote = (struct wire_ended_vote){.number = 2,
                                                 .kind = vote_kind != 0 ? vote_kind : WIRE_VOTE_UPDATE,
                                                 .code = code,
                                                 .epoch = 5,
                                                 .count = 1,
                                                 .sizes = sizes};
    message.sync = (struct wire_sync_end){.round = 3, .revision = 8};
    wire_encode_resumed(&frame, of(generation), &message);
    feed(&frame);
}

static void registered(const char *name, uint32_t recovery_ms, uint32_t masters) {
    struct wire_id self = id_of(1);
    check_case("%s", name);
    now = SECOND_NS;
    core = member_new(&self, 0, 1);
    REQUIRE(core != NULL);
    member_configure(core, &(struct member_settings){.recovery_limit_ms = recovery_ms, .masters = masters});
    member_join(core, 5000, now, fresh());
    welcome(RUN, 1);
}

static void accepted(const char *name, uint32_t recovery_ms, uint32_t masters) {
    registered(name, recovery_ms, masters);
    epoch(1, WIRE_REASON_UPDATE, 5, 3);
    CHECK_EQ(member_phase(core), MEMBER_ACCEPTED);
}

static void lose(void) { member_disconnected(core, "the connection broke", now, fresh()); }

static bool at_a_later_master; // of the list

static struct wire_resume resume(enum member_tensors tensors) {
    static struct wire_group_size sizes[WIRE_MAX_MEMBERS];
    static struct wire_member members[WIRE_MAX_MEMBERS];
    static struct wire_past past[WIRE_MAX_PAST];
    static struct wire_loss losses[WIRE_MAX_MEMBERS];
    struct wire_resume told = {.last_vote.sizes = sizes, .epoch.members = members, .past = past, .losses = losses};
    struct wire_hash content = {5, 6};
    const uint8_t *body;
    member_resume(core, 5000, at_a_later_master, tensors, &content, now, fresh());
    struct wire_header header = sent(&body);
    REQUIRE(header.type == WIRE_RESUME && header.run == RUN && wire_decode_resume(body, header.length, &told));
    return told;
}

static void end(void) {
    member_free(core);
    member_output_fini(&out);
}

// ---- the loss ----

static void test_loss(void) {
    accepted("without a recovery limit it is dead at once", 0, 1);
    lose();
    CHECK_EQ(count(MEMBER_DIE), 1);
    CHECK_EQ(member_phase(core), MEMBER_DEAD);
    end();

    accepted("it keeps its links and looks for another one", RECOVERY_MS, 1);
    lose();
    CHECK_EQ(count(MEMBER_SEEK), 1);
    CHECK_EQ(count(MEMBER_DROP_PEER) + count(MEMBER_DIE), 0);
    CHECK(member_is_seeking(core));
    CHECK_STR(member_lost_why(core), "the connection broke");
    CHECK_EQ(member_deadline(core) <= now + RECOVERY_MS * MS_NS, true);
    end();

    accepted("silence is a loss, too", RECOVERY_MS, 1);
    now += (LIMIT_MS + 1) * MS_NS;
    member_tick(core, now, fresh());
    CHECK_EQ(count(MEMBER_SEEK), 1);
    CHECK(strstr(member_lost_why(core), "silent") != NULL);
    end();

    accepted("a master that is stopped is the end where there is no other", RECOVERY_MS, 1);
    empty(of(1), WIRE_BYE);
    CHECK_EQ(count(MEMBER_DIE), 1);
    end();

    accepted("and a loss where there is", RECOVERY_MS, 2);
    empty(of(1), WIRE_BYE);
    CHECK_EQ(count(MEMBER_SEEK), 1);
    end();

    accepted("the limit ends it, and tells what was waited for", RECOVERY_MS, 1);
    member_vote(core, WIRE_VOTE_PENDING, NULL, fresh());
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    text(WIRE_WAITING, "waits for 2 of 3");
    CHECK_EQ(count(MEMBER_WAITING), 1);
    CHECK_STR(member_waits_why(core), "waits for 2 of 3");
    lose();
    now += RECOVERY_MS * MS_NS;
    member_tick(core, now, fresh());
    CHECK_EQ(count(MEMBER_DIE), 1);
    CHECK_EQ(action(MEMBER_VOTE_END)->code, pcclMasterConnectionFailed);
    CHECK(strstr(member_text(core), "the connection broke") != NULL &&
          strstr(member_text(core), "4000 ms; one said that it waits for 2 of 3") != NULL);
    end();

    accepted("further losses on the way do not lengthen it", RECOVERY_MS, 2);
    int64_t lost_at = now;
    for (lose(); !count(MEMBER_DIE) && now < lost_at + 2 * RECOVERY_MS * MS_NS;) {
        if (count(MEMBER_SEEK)) resume(MEMBER_TENSORS_AS_VOTED);
        now = member_deadline(core);
        member_tick(core, now, fresh());
    }
    CHECK_EQ(now, lost_at + RECOVERY_MS * MS_NS);
    end();

    for (int later = 0; later < 2; later++) {
        accepted("a later master that gathers nobody is left for the first of the list", RECOVERY_MS, 2);
        at_a_later_master = later;
        lose();
        CHECK(!action(MEMBER_SEEK)->anew);
        resume(MEMBER_TENSORS_AS_VOTED);
        for (int64_t told_at = now; now < told_at + LIMIT_MS * MS_NS; now += LIMIT_MS / 5 * MS_NS) {
            CHECK_EQ(count(MEMBER_SEEK), 0);
            text(WIRE_WAITING, "waits for 2 of 3");
        }
        CHECK(!later || member_deadline(core) <= now);
        member_tick(core, now, fresh());
        CHECK_EQ(count(MEMBER_SEEK), later);
        CHECK(!later || action(MEMBER_SEEK)->anew);
        end();
    }
    at_a_later_master = false;

    accepted("where there are others, one that does not answer is left sooner than one that is alone", RECOVERY_MS, 2);
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    now += RECOVERY_ANSWER_MS * MS_NS;
    member_tick(core, now, fresh());
    CHECK_EQ(count(MEMBER_SEEK), 1);
    end();
}

// ---- what it tells ----

static void test_tells(void) {
    accepted("what it knows", RECOVERY_MS, 3);
    lose();
    struct wire_resume told = resume(MEMBER_TENSORS_AS_VOTED);
    CHECK_EQ(told.hello.masters, 3);
    CHECK_EQ(told.generation, 1);
    CHECK_EQ(told.accepted, 1);
    CHECK_EQ(told.vote, 0);
    CHECK_EQ(told.epoch.number, 5);
    CHECK_EQ(told.epoch.count, 3);
    CHECK_EQ(told.last_vote.number, 1);
    CHECK_EQ(told.last_vote.kind, WIRE_VOTE_UPDATE);
    CHECK_EQ(told.secret[0], 9);
    CHECK_EQ(told.hello.reach.closed, 0);
    end();

    closed = true;
    registered("a newcomer that the master could not dial", RECOVERY_MS, 2);
    closed = false;
    lose();
    CHECK_EQ(resume(MEMBER_TENSORS_AS_VOTED).hello.reach.closed, 1);
    welcome(RUN + 1, 2); // it counts as open there
    lose();
    member_resume(core, 5000, false, MEMBER_TENSORS_AS_VOTED, &(struct wire_hash){5, 6}, now, fresh());
    end();

    accepted("a vote that is opened meanwhile", RECOVERY_MS, 1);
    lose();
    member_vote(core, WIRE_VOTE_PENDING, NULL, fresh());
    CHECK_EQ(resume(MEMBER_TENSORS_AS_VOTED).vote, WIRE_VOTE_PENDING);
    end();

    static const struct {
        const char *name;
        enum member_tensors tensors;
        uint8_t incomplete;
        uint64_t content;
    } states[] = {{"a state as it was voted with", MEMBER_TENSORS_AS_VOTED, 0, 3},
                  {"a state that has been received", MEMBER_TENSORS_RECEIVED, 0, 5},
                  {"a torn state is nobody's", MEMBER_TENSORS_TORN, 1, 0xaa01}};
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        accepted(states[i].name, RECOVERY_MS, 1);
        struct wire_sync_vote vote = {.content = {3, 4}};
        member_vote(core, WIRE_VOTE_SYNC, &vote, fresh());
        lose();
        told = resume(states[i].tensors);
        CHECK_EQ(told.vote, WIRE_VOTE_SYNC);
        CHECK_EQ(told.sync_vote.incomplete, states[i].incomplete);
        CHECK_EQ(told.sync_vote.content.low, states[i].content);
        end();
    }
}

static void test_differs(void) {
    accepted("what a lost master said of the entries is not held against them", RECOVERY_MS, 1);
    struct wire_sync_vote vote = {.content = {3, 4}, .outline = {2, {5, 6}}};
    member_vote(core, WIRE_VOTE_SYNC, &vote, fresh());
    struct wire_buffer frame = {0};
    wire_encode_sync_differs(&frame, of(1), &(struct wire_sync_differs){1, 1});
    feed(&frame);
    CHECK(member_sync_differs(core) != NULL);
    lose();
    struct wire_resume told = resume(MEMBER_TENSORS_AS_VOTED);
    CHECK(member_sync_differs(core) == NULL);
    CHECK_EQ(told.sync_vote.outline.entries, 2);
    CHECK_MEM(told.sync_vote.outline.hashes, vote.outline.hashes, 2 * sizeof vote.outline.hashes[0]);
    end();
}

// ---- whom it listens to ----

static void test_answers(void) {
    accepted("promises grow, within its run", RECOVERY_MS, 1);
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    static const struct {
        uint64_t run, generation;
        bool promises;
    } asked[] = {{RUN, 1, false}, {RUN, 0, false}, {RUN + 1, 9, false}, {RUN, 3, true},
                 {RUN, 2, false}, {RUN, 3, false}, {RUN, 7, true}};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        const uint8_t *body;
        empty((struct wire_header){.run = asked[i].run, .generation = asked[i].generation}, WIRE_GENERATION);
        CHECK_EQ(sent_type(), asked[i].promises ? WIRE_PROMISE : 0);
        if (asked[i].promises) CHECK_EQ(sent(&body).generation, asked[i].generation);
    }
    resumed(3, 0, 0, false); // a promise that a higher one has overtaken
    epoch(3, WIRE_REASON_RELINK, 6, 3);
    CHECK_EQ(out.count, 0);
    resumed(7, 0, 0, false);
    epoch(1, WIRE_REASON_RELINK, 6, 3); // a master before
    CHECK_EQ(out.count, 0);
    epoch(7, WIRE_REASON_RELINK, 6, 3);
    CHECK_EQ(count(MEMBER_FOUND), 1);
    CHECK_EQ(action(MEMBER_ENTER_EPOCH)->epoch->group_epoch, 6);
    CHECK(!action(MEMBER_ENTER_EPOCH)->epoch->lost && !member_is_seeking(core));
    CHECK_EQ(member_header(core).generation, 7);
    epoch(1, WIRE_REASON_RELINK, 7, 3);
    CHECK_EQ(out.count, 0);
    end();

    accepted("what it promised one master it tells the next", RECOVERY_MS, 2);
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    empty(of(4), WIRE_GENERATION);
    lose();
    const uint8_t *body;
    struct wire_resume told = resume(MEMBER_TENSORS_AS_VOTED);
    CHECK_EQ(told.generation, 1);
    CHECK_EQ(sent(&body).generation, 4);
    end();

    static const struct {
        const char *name;
        enum wire_type type;
        const char *words;
    } ends[] = {{"refused", WIRE_REFUSED, "the master refused this peer: no"},
                {"expelled", WIRE_EXPELLED, "the master expelled this peer: no"}};
    for (size_t i = 0; i < 2; i++) {
        accepted(ends[i].name, RECOVERY_MS, 1);
        lose();
        resume(MEMBER_TENSORS_AS_VOTED);
        text(ends[i].type, "no");
        CHECK_EQ(count(MEMBER_DIE), 1);
        CHECK_STR(member_text(core), ends[i].words);
        end();
    }
    for (uint32_t masters = 1; masters <= 2; masters++) {
        accepted("a master of another version: there may be one of its own", RECOVERY_MS, masters);
        lose();
        resume(MEMBER_TENSORS_AS_VOTED);
        text(WIRE_REFUSED, WIRE_FOREIGN "99");
        CHECK_EQ(count(MEMBER_DIE), masters == 1);
        CHECK_EQ(count(MEMBER_SEEK), masters - 1);
        end();
    }
}

// ---- when its calls end ----

static void taken_up(const char *name, uint8_t vote, uint8_t vote_kind, uint8_t code, bool sync_ended) {
    accepted(name, RECOVERY_MS, 1);
    struct wire_sync_vote state = {.content = {3, 4}};
    if (vote == WIRE_VOTE_SYNC)
        member_vote(core, WIRE_VOTE_SYNC, &state, fresh());
    else if (vote != 0)
        member_vote(core, vote, NULL, fresh());
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    empty(of(2), WIRE_GENERATION);
    resumed(2, vote_kind, code, sync_ended);
    CHECK_EQ(count(MEMBER_VOTE_END), 0); // a master lost now leaves all as it was
    epoch(2, WIRE_REASON_RELINK, 6, 3);
    CHECK_EQ(count(MEMBER_FOUND), 1);
}

static void test_ends(void) {
    taken_up("the vote had ended for others", WIRE_VOTE_PENDING, WIRE_VOTE_PENDING, 0, false);
    CHECK_EQ(count(MEMBER_VOTE_END), 1);
    CHECK_EQ(action(MEMBER_VOTE_END)->view.number, 5); // with the numbers of that moment
    CHECK_EQ(action(MEMBER_VOTE_END)->view.rank, 0);
    end();
    taken_up("and badly", WIRE_VOTE_OPTIMIZE, WIRE_VOTE_OPTIMIZE, pcclTopologyOptimizationFailed, false);
    CHECK_EQ(action(MEMBER_VOTE_END)->code, pcclTopologyOptimizationFailed);
    end();
    accepted("but nobody knows the ranks of that moment when somebody has died since", RECOVERY_MS, 1);
    member_vote(core, WIRE_VOTE_UPDATE, NULL, fresh());
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    empty(of(2), WIRE_GENERATION);
    resumed(2, WIRE_VOTE_UPDATE, 0, false);
    epoch(2, WIRE_REASON_LOSS, 6, 2);
    CHECK_EQ(action(MEMBER_VOTE_END)->view.group_world, 3);
    CHECK_EQ(action(MEMBER_VOTE_END)->view.rank, MEMBER_NO_RANK);
    member_adopt(core, &action(MEMBER_VOTE_END)->view);
    member_adopt_loss(core, 6); // which the next op tells of
    CHECK_EQ(member_adopted(core)->group_world, 2);
    CHECK_EQ(member_adopted(core)->rank, 0);
    end();
    taken_up("the round had ended for others", WIRE_VOTE_SYNC, 0, 0, true);
    CHECK_EQ(action(MEMBER_VOTE_END)->value, 8);
    end();
    taken_up("the vote is open still", WIRE_VOTE_PENDING, 0, 0, false);
    CHECK_EQ(count(MEMBER_VOTE_END), 0);
    CHECK_EQ(sent_type(), 0); // it was told with RESUME
    end();

    accepted("a vote that was opened after RESUME", RECOVERY_MS, 1);
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    member_vote(core, WIRE_VOTE_PENDING, NULL, fresh());
    empty(of(2), WIRE_GENERATION);
    resumed(2, 0, 0, false);
    epoch(2, WIRE_REASON_RELINK, 6, 3);
    CHECK_EQ(sent_type(), WIRE_VOTE);
    end();

    accepted("a loss of the time without a master is one", RECOVERY_MS, 1);
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    empty(of(2), WIRE_GENERATION);
    resumed(2, 0, 0, false);
    epoch(2, WIRE_REASON_LOSS, 6, 2);
    CHECK(action(MEMBER_ENTER_EPOCH)->epoch->lost);
    end();
}

// ---- newcomers ----

// Newcomer 2 says hello, with the secret of the run at hand or of another one.
static enum member_judgement hello(uint8_t secret) {
    struct wire_link_hello message = {
        .version = WIRE_VERSION, .kind = WIRE_LINK_DATA, .secret = {secret}, .from = id_of(2), .to = id_of(1)};
    return member_judge_hello(core, &message);
}

static void candidate(uint32_t attempt) {
    struct wire_address address = {.family = 4, .port = 6000};
    struct wire_member members[2] = {{.id = id_of(1), .join_number = 1, .lanes = 1, .address = address},
                                     {.id = id_of(2), .join_number = 2, .lanes = 1, .address = address}};
    struct wire_candidate message = {
        .attempt = attempt,
        .epoch = {
            .number = 7, .group_epoch = 7, .latency_us = 50, .megabytes_per_s = 100, .count = 2, .members = members}};
    struct wire_buffer frame = {0};
    wire_encode_candidate(&frame, of(1), &message);
    feed(&frame);
}

static void test_candidates(void) {
    accepted("a candidate ends with its master", RECOVERY_MS, 1);
    epoch(1, WIRE_REASON_LOSS, 6, 1);
    candidate(1);
    CHECK_EQ(hello(9), MEMBER_ACCEPT);
    CHECK_EQ(hello(7), MEMBER_REJECT);
    lose();
    CHECK_EQ(count(MEMBER_DROP_PEER), 1);
    CHECK_EQ(hello(9), MEMBER_PARK); // of the next one
    end();

    registered("newcomers may hear of the run that they are let in to one before the other", RECOVERY_MS, 1);
    CHECK_EQ(hello(7), MEMBER_PARK);
    lose();
    CHECK_EQ(hello(7), MEMBER_PARK);
    resume(MEMBER_TENSORS_AS_VOTED);
    CHECK_EQ(hello(7), MEMBER_PARK);
    welcome(RUN + 1, 4);
    CHECK_EQ(count(MEMBER_RECHECK), 1);
    CHECK_EQ(hello(7), MEMBER_PARK);
    end();
}

static void test_newcomers(void) {
    registered("a newcomer goes on waiting, in another run", RECOVERY_MS, 1);
    lose();
    CHECK_EQ(count(MEMBER_SEEK), 1);
    CHECK_EQ(resume(MEMBER_TENSORS_AS_VOTED).accepted, 0);
    welcome(RUN + 1, 4);
    CHECK_EQ(count(MEMBER_FOUND), 1);
    CHECK_EQ(count(MEMBER_CONNECT_END), 0);
    CHECK_EQ(member_phase(core), MEMBER_REGISTERED);
    CHECK_EQ(member_header(core).run, RUN + 1);
    end();

    registered("its master begins another run in place of the one that it waits in", RECOVERY_MS, 1);
    welcome(RUN + 1, 1);
    CHECK_EQ(member_phase(core), MEMBER_REGISTERED);
    CHECK_EQ(member_header(core).run, RUN + 1);
    CHECK_EQ(count(MEMBER_RECHECK), 1);
    end();

    accepted("an accepted peer hears of no other run", RECOVERY_MS, 1);
    welcome(RUN + 1, 1);
    CHECK_EQ(member_header(core).run, RUN);
    end();

    registered("its connect ends with the limit", RECOVERY_MS, 1);
    lose();
    now += RECOVERY_MS * MS_NS;
    member_tick(core, now, fresh());
    CHECK_EQ(action(MEMBER_CONNECT_END)->code, pcclMasterConnectionFailed);
    end();

    registered("it was in the epoch that it never heard of", RECOVERY_MS, 1);
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    empty(of(2), WIRE_GENERATION);
    resumed(2, WIRE_VOTE_UPDATE, 0, false);
    CHECK_EQ(count(MEMBER_CONNECT_END), 0);
    epoch(2, WIRE_REASON_RELINK, 6, 3);
    CHECK_EQ(count(MEMBER_CONNECT_END), 1);
    CHECK_EQ(action(MEMBER_CONNECT_END)->view.number, 5);
    end();

    registered("the master that told it so is lost before its epoch, and the next one lets it in anew", RECOVERY_MS, 1);
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    empty(of(2), WIRE_GENERATION);
    resumed(2, WIRE_VOTE_UPDATE, 0, false);
    lose();
    resume(MEMBER_TENSORS_AS_VOTED);
    welcome(RUN, 4);
    epoch(1, WIRE_REASON_UPDATE, 9, 3);
    CHECK_EQ(action(MEMBER_CONNECT_END)->view.number, 9);
    end();

    check_case("a newcomer without WELCOME hears why it waits");
    struct wire_id self = id_of(1);
    now = SECOND_NS;
    core = member_new(&self, 0, 1);
    member_join(core, 5000, now, fresh());
    now += (MEMBER_JOIN_LIMIT_MS - 1) * MS_NS;
    text(WIRE_WAITING, "waits for 2 of 3");
    CHECK_EQ(count(MEMBER_WAITING), 1);
    now += (MEMBER_JOIN_LIMIT_MS - 1) * MS_NS;
    member_tick(core, now, fresh());
    CHECK_EQ(member_phase(core), MEMBER_JOINING); // it speaks, so it is a master
    end();

    accepted("in a run it hears for whom it waits", RECOVERY_MS, 1);
    struct wire_buffer frame = {0};
    wire_encode_text(&frame, of(1), WIRE_WAITING, "update_topology waits");
    feed(&frame);
    CHECK_EQ(count(MEMBER_DIE), 0);
    CHECK_EQ(count(MEMBER_WAITING), 1);
    CHECK_STR(member_waits_why(core), "update_topology waits");
    end();
}

int main(void) {
    test_loss();
    test_tells();
    test_differs();
    test_answers();
    test_ends();
    test_candidates();
    test_newcomers();
    return check_status();
}
