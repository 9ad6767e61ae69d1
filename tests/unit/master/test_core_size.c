// The master's state machine with as many members as there may be: what each event costs, counted in comparisons of
// ids. The linker puts the functions below in the place of the library's (tests/CMakeLists.txt).
#include <time.h>

#include "base/platform.h"
#include "check.h"
#include "master/core.h"

enum {
    MEMBERS = WIRE_MAX_MEMBERS,
    LOG2 = 10, // of them
    LIMIT_MS = 5000,
    LONG_US = 2000000,
    RUN = 7
};

static uint64_t comparisons;

bool __real_wire_id_equal(const struct wire_id *a, const struct wire_id *b);
bool __wrap_wire_id_equal(const struct wire_id *a, const struct wire_id *b);
int __real_wire_id_compare(const struct wire_id *a, const struct wire_id *b);
int __wrap_wire_id_compare(const struct wire_id *a, const struct wire_id *b);

bool __wrap_wire_id_equal(const struct wire_id *a, const struct wire_id *b) {
    comparisons++;
    return __real_wire_id_equal(a, b);
}

int __wrap_wire_id_compare(const struct wire_id *a, const struct wire_id *b) {
    comparisons++;
    return __real_wire_id_compare(a, b);
}

static struct master_core *m;
static int64_t now;
static struct wire_member members[MEMBERS + 1];
static uint32_t sent[WIRE_SYNC_DIFFERS + 1], closed; // by type

static void act(const struct actions *actions) {
    for (size_t i = 0; i < actions->send_count; i++) {
        struct wire_header header;
        CHECK(wire_header_decode(actions->bytes.bytes + actions->sends[i].offset, &header));
        sent[header.type]++;
    }
    closed += (uint32_t)actions->close_count;
}

static uint32_t take(enum wire_type type) {
    uint32_t count = sent[type];
    sent[type] = 0;
    return count;
}

// The most that one event may compare, given what all since the last call did.
static void at_most(const char *what, uint64_t events, uint64_t each) {
    check_report(comparisons <= events * each, __FILE__, __LINE__, "%s: %llu comparisons in %llu events, of %llu", what,
                 (unsigned long long)comparisons, (unsigned long long)events, (unsigned long long)(events * each));
    comparisons = 0;
}

static void begin(const char *name) {
    uint8_t random[CORE_RANDOM_BYTES] = {1, 2, 3};
    uint64_t seed = 5;
    check_case("%s", name);
    now = 1000 * SECOND_NS;
    m = core_new(LIMIT_MS, random, now);
    REQUIRE(m != NULL);
    memset(sent, 0, sizeof sent);
    closed = 0;
    for (uint32_t i = 0; i <= MEMBERS; i++) {
        members[i] = (struct wire_member){
            .join_number = i + 1,
            .lanes = 1,
            .address = {.family = 4, .bytes = {10, 0, (uint8_t)(i >> 8), (uint8_t)i}, .port = 999}};
        for (size_t k = 0; k < WIRE_ID_BYTES; k++) members[i].id.bytes[k] = (uint8_t)check_random(&seed);
    }
    comparisons = 0;
}

static void resume(uint32_t conn, uint32_t member, uint64_t run, uint64_t number, uint32_t count) {
    struct wire_group_size size = {0, count};
    struct wire_resume message = {
        .hello = {.version = WIRE_VERSION, .id = members[member].id, .lanes = 1, .port = 999, .masters = 1},
        .generation = 1,
        .join_number = member + 1,
        .accepted = 1,
        .last_vote = {.number = 1, .kind = WIRE_VOTE_UPDATE, .epoch = 1, .count = 1, .sizes = &size},
        .epoch = {.number = number,
                  .group_epoch = number,
                  .votes_ended = 1,
                  .latency_us = 1,
                  .megabytes_per_s = 1,
                  .count = count,
                  .members = members},
    };
    struct wire_buffer out = {0};
    struct wire_header header = {.run = run, .generation = 1};
    wire_encode_resume(&out, header, &message);
    CHECK(wire_header_decode(out.bytes, &header));
    act(core_peer_resumed(m, now, conn, &members[member].address, &header, out.bytes + WIRE_HEADER_BYTES));
    wire_buffer_fini(&out);
}

static void hello(uint32_t conn) {
    struct wire_hello message = {
        .version = WIRE_VERSION, .id = members[conn].id, .lanes = 1, .port = 999, .masters = 1};
    act(core_peer_connected(m, now, conn, &members[conn].address, &message));
}

static void say(uint32_t conn, struct wire_header header, enum wire_type type) {
    struct wire_buffer out = {0};
    wire_encode_empty(&out, header, type);
    CHECK(wire_header_decode(out.bytes, &header));
    act(core_message(m, now, conn, &header, out.bytes + WIRE_HEADER_BYTES));
    wire_buffer_fini(&out);
}

static void vote(uint32_t conn, struct wire_header header, uint8_t kind) {
    struct wire_buffer out = {0};
    struct wire_vote message = {kind};
    wire_encode_vote(&out, header, &message);
    CHECK(wire_header_decode(out.bytes, &header));
    act(core_message(m, now, conn, &header, out.bytes + WIRE_HEADER_BYTES));
    wire_buffer_fini(&out);
}

// Tells that the only thread of a program waits for a receive from another member.
static void waits_for(uint32_t conn, struct wire_header header, uint64_t epoch, uint32_t other) {
    struct wire_buffer out = {0};
    struct wire_waits message = {.all_us = LONG_US, .count = 1};
    message.list[0] = (struct wire_wait){.name = {.epoch = epoch, .tag = conn + 1},
                                         .span_us = LONG_US,
                                         .missing_count = 1,
                                         .missing = {members[other].id}};
    wire_encode_waits(&out, header, &message);
    CHECK(wire_header_decode(out.bytes, &header));
    act(core_message(m, now, conn, &header, out.bytes + WIRE_HEADER_BYTES));
    wire_buffer_fini(&out);
}

static void linked(uint32_t conn, struct wire_header header, uint32_t attempt) {
    struct wire_buffer out = {0};
    static struct wire_linked message;
    message = (struct wire_linked){.attempt = attempt, .latency_us = 1};
    wire_encode_linked(&out, header, &message);
    CHECK(wire_header_decode(out.bytes, &header));
    act(core_message(m, now, conn, &header, out.bytes + WIRE_HEADER_BYTES));
    wire_buffer_fini(&out);
}

static void test_takeover(void) {
    clock_t began = clock();
    begin("all members of a run take it up");
    for (uint32_t i = 0; i < MEMBERS; i++) resume(i, i, RUN, 5, MEMBERS);
    at_most("RESUME", MEMBERS, MEMBERS * (LOG2 + 3)); // in order, as others claim it, and in an own search
    struct wire_header header = {.run = RUN, .generation = 1};
    for (uint32_t i = 0; i < MEMBERS; i++) say(i, header, WIRE_HEARTBEAT);
    at_most("a heartbeat", MEMBERS, 0);
    CHECK_EQ(take(WIRE_GENERATION), MEMBERS);
    header.generation = 2;
    for (uint32_t i = 0; i + 1 < MEMBERS; i++) say(i, header, WIRE_PROMISE);
    at_most("a promise", MEMBERS, 0);
    say(MEMBERS - 1, header, WIRE_PROMISE);
    at_most("taking the run up", 1, 20 * MEMBERS);
    CHECK_EQ(take(WIRE_RESUMED), MEMBERS);
    CHECK_EQ(take(WIRE_EPOCH), MEMBERS);
    CHECK_EQ(core_peer_count(m), MEMBERS);
    CHECK(clock() - began < 20 * CLOCKS_PER_SEC); // a hundred times of what it takes; sanitizers are slow

    check_case("they are lost");
    header.epoch = 14;
    for (uint32_t i = 0; i < 8; i++) act(core_peer_lost(m, now, i, "test"));
    CHECK_EQ(core_peer_count(m), MEMBERS - 8);
    at_most("a loss", 8, 3);
    CHECK_EQ(take(WIRE_EPOCH), 8 * MEMBERS - 36);

    check_case("many at once are lost in one epoch");
    struct core_loss losses[100];
    for (uint32_t i = 0; i < 100; i++) losses[i] = (struct core_loss){8 + i, "test"};
    act(core_peers_lost(m, now, losses, 100));
    CHECK_EQ(take(WIRE_EPOCH), MEMBERS - 108);
    header.epoch++;
    for (uint32_t i = 108; i < MEMBERS; i++) linked(i, header, 0);
    for (uint32_t i = 108; i < MEMBERS; i++) vote(i, header, WIRE_VOTE_PENDING);
    at_most("a vote", MEMBERS, 0);
    CHECK_EQ(take(WIRE_OUTCOME), MEMBERS - 108);
    core_free(m);
}

// Each speaks for a run of its own, in a small frame or a large one.
static void test_strangers(void) {
    begin("as many runs as there are places");
    for (uint32_t i = 0; i < MEMBERS; i++) resume(i, i, 100 + i, 5, MEMBERS);
    at_most("RESUME", MEMBERS, MEMBERS * (2 * LOG2 + 6));
    CHECK_EQ(closed, 0);
    for (uint32_t i = 0; i < MEMBERS; i++)
        say(i, (struct wire_header){.run = 100 + i, .generation = 1}, WIRE_HEARTBEAT);
    at_most("a heartbeat", MEMBERS, 0);

    check_case("another run finds places none the less");
    for (uint32_t i = 0; i < 3; i++) resume(MEMBERS + i, i, RUN, 5, 3);
    CHECK_EQ(closed, 3);
    CHECK_EQ(take(WIRE_GENERATION), 2 + 1);
    core_free(m);

    begin("as many epochs of one run");
    for (uint32_t i = 0; i < MEMBERS; i++) resume(i, i, RUN, 5 + i, MEMBERS);
    at_most("RESUME", MEMBERS, MEMBERS * (4 * LOG2 + 6));
    core_free(m);

    begin("newcomers take all places");
    core_configure(m, &(struct core_settings){.survivors_until_ns = now + SECOND_NS});
    for (uint32_t i = 1; i < MEMBERS; i++) hello(i);
    resume(0, 0, RUN, 5, 2);
    hello(MEMBERS);
    CHECK_EQ(take(WIRE_REFUSED), 1);
    resume(MEMBERS + 1, 1, RUN, 5, 2);
    CHECK_EQ(take(WIRE_REFUSED), 1);
    CHECK_EQ(take(WIRE_GENERATION), 2);
    core_free(m);
}

// All join, and the first one admits them. Returns how they speak.
static struct wire_header form(void) {
    for (uint32_t i = 0; i < MEMBERS; i++) hello(i);
    at_most("a join", MEMBERS, 3);
    CHECK_EQ(take(WIRE_WELCOME), MEMBERS);
    CHECK_EQ(take(WIRE_EPOCH), 1);
    struct wire_header header = {.generation = 1, .epoch = 1};
    memcpy(&header.run, (uint8_t[]){1, 2, 3, 0, 0, 0, 0, 0}, sizeof header.run);
    CHECK_EQ(take(WIRE_CANDIDATE), 0);
    vote(0, header, WIRE_VOTE_UPDATE);
    CHECK_EQ(take(WIRE_CANDIDATE), MEMBERS);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        header.epoch = i == 0;
        linked(i, header, 2);
    }
    at_most("a candidate", MEMBERS, 0);
    CHECK_EQ(take(WIRE_EPOCH), MEMBERS);
    header.epoch = 2;
    for (uint32_t i = 0; i < MEMBERS; i++) linked(i, header, 0);
    return header;
}

static void test_joins(void) {
    begin("as many as may be join at once");
    form();
    core_free(m);
}

// Each waits for the one that joined after it, as a pipeline does in its backward pass.
static void test_waits(void) {
    begin("a chain of members of which the last one is slow");
    core_configure(m, &(struct core_settings){.deadlock_ns = SECOND_NS});
    struct wire_header header = form();
    comparisons = 0;
    for (uint32_t i = 0; i + 1 < MEMBERS; i++) waits_for(i, header, header.epoch, i + 1);
    at_most("WAITS", MEMBERS, 0);
    now += SECOND_NS;
    act(core_tick(m, now));
    at_most("a look", 1, 3 * MEMBERS);
    CHECK_EQ(take(WIRE_VERDICT), 0);

    check_case("a ring of members");
    waits_for(MEMBERS - 1, header, header.epoch, 0);
    now += SECOND_NS;
    act(core_tick(m, now));
    at_most("a look", 1, 3 * MEMBERS);
    uint32_t verdicts = take(WIRE_VERDICT);
    CHECK(verdicts >= MEMBERS && verdicts <= 10 * MEMBERS);
    core_free(m);
}

int main(void) {
    test_takeover();
    test_waits();
    test_strangers();
    test_joins();
    return check_status();
}
