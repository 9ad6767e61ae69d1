// The reader of a lane: an engine whose only neighbour is the test, which writes the bytes of each frame itself.
#define _GNU_SOURCE
#include <pccl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "data/engine.h"
#include "enter_epoch.h"
#include "data/frame.h"
#include "deaf_owner.h"
#include "net/gauge.h"
#include "net/transport.h"

enum { RUN = 7, COUNT = 300, PATIENCE_MS = 20000, SHORT_MS = 50 };

static const struct wire_id mine = {{1}}, theirs = {{2}};
static const struct wire_fingerprint what = {.count = COUNT, .dtype = pcclFloat, .op = pcclSum};

struct world {
    struct engine *engine;
    int fd; // the other end of the link
    float send[COUNT], recv[COUNT];
};

static void enter(struct world *world, uint64_t group_epoch) {
    struct wire_member members[2] = {{.id = mine}, {.id = theirs}};
    enter_epoch(world->engine, group_epoch, members, 2, 0);
    engine_links_ready(world->engine, group_epoch);
}

static void begin(struct world *world) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    *world = (struct world){.engine = engine_new(&mine, &deaf_owner), .fd = pair[1]};
    REQUIRE(world->engine != NULL);
    engine_add_link(world->engine, &theirs, 0, transport_new(pair[0]));
    enter(world, 1);
}

static void end(struct world *world) {
    engine_free(world->engine);
    close(world->fd);
}

static bool breaks(struct world *world, int within_ms) {
    int64_t until_ns = platform_now_ns() + within_ms * MS_NS;
    while (engine_has_link(world->engine, &theirs, 0) && platform_now_ns() < until_ns) usleep(200);
    return !engine_has_link(world->engine, &theirs, 0);
}

// ---- frames ----
static uint8_t bytes[FRAME_HEAD_BYTES + COUNT * sizeof(float) + WIRE_ALIGN];

static size_t build(uint16_t type, uint64_t epoch, uint64_t tag, size_t payload) {
    struct wire_op head = {.tag = tag, .fingerprint = what, .sequence = 1, .padding = wire_padding(payload)};
    struct wire_header header = {.run = RUN, .generation = 1, .epoch = epoch, .type = type};
    header.length = (uint32_t)(WIRE_OP_BYTES + payload + head.padding);
    wire_header_encode(bytes, &header);
    wire_op_encode(bytes + WIRE_HEADER_BYTES, &head);
    for (size_t i = 0; i < payload / sizeof(float); i++)
        memcpy(bytes + FRAME_HEAD_BYTES + i * sizeof(float), &(float){(float)i}, sizeof(float));
    return WIRE_HEADER_BYTES + header.length;
}

static void tell(struct world *world, size_t length) {
    REQUIRE(send(world->fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length);
}

// Piece by piece: each is taken before the next one is sent.
static void tell_in_pieces(struct world *world, size_t length, size_t piece) {
    for (size_t at = 0; at < length; at += piece) {
        size_t part = length - at < piece ? length - at : piece;
        REQUIRE(send(world->fd, bytes + at, part, MSG_NOSIGNAL) == (ssize_t)part);
        while (gauge_read(world->fd).queued > 0) usleep(10);
    }
}

static void post(struct world *world, uint64_t tag) {
    struct call_args args = {.send = world->send, .recv = world->recv, .tag = tag, .fingerprint = what};
    for (int i = 0; i < COUNT; i++) world->send[i] = 1000;
    CHECK_EQ(engine_post(world->engine, &args, 1), CALL_OK);
}

static void expect_sum(struct world *world, uint64_t tag) {
    struct call_outcome outcome;
    engine_wait(world->engine, tag, platform_now_ns() + PATIENCE_MS * MS_NS, &outcome);
    CHECK_EQ(outcome.result, CALL_OK);
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) wrong += world->recv[i] != 1000 + (float)i;
    CHECK_EQ(wrong, 0);
}

// ---- tests ----
static void test_pieces(void) {
    static const size_t pieces[] = {1, 7, WIRE_HEADER_BYTES, FRAME_HEAD_BYTES, FRAME_HEAD_BYTES + 1, sizeof bytes};
    struct world world;
    begin(&world);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        check_case("a frame in pieces of %zu bytes", pieces[i]);
        post(&world, i);
        tell_in_pieces(&world, build(WIRE_SMALL, 1, i, sizeof world.send), pieces[i]);
        expect_sum(&world, i);
        // padding behind a payload, and a frame behind padding
        tell_in_pieces(&world, build(WIRE_LINK_HEARTBEAT, 1, 0, 0), pieces[i]);
    }
    CHECK(!breaks(&world, SHORT_MS));
    end(&world);
}

static void test_epochs(void) {
    struct world world;
    begin(&world);
    check_case("a frame of a later epoch waits for it");
    tell(&world, build(WIRE_SMALL, 2, 5, sizeof world.send));
    tell(&world, build(WIRE_SMALL, 2, 6, sizeof world.send));
    CHECK(!breaks(&world, SHORT_MS));
    enter(&world, 2);
    post(&world, 6);
    expect_sum(&world, 6);
    post(&world, 5);
    expect_sum(&world, 5);
    check_case("one of an earlier epoch is discarded unseen");
    tell(&world, build(WIRE_READY, 1, 7, 64)); // no READY has a payload
    post(&world, 7);
    tell(&world, build(WIRE_SMALL, 2, 7, sizeof world.send));
    expect_sum(&world, 7);
    check_case("one that waits is looked at when its epoch is entered");
    tell(&world, build(WIRE_READY, 3, 8, 64));
    CHECK(!breaks(&world, SHORT_MS));
    enter(&world, 3);
    CHECK(breaks(&world, PATIENCE_MS));
    end(&world);
}

static void test_malformed(void) {
    static const struct {
        const char *name;
        uint64_t run;
        uint16_t type;
        uint32_t length;
        uint8_t padding;
    } rows[] = {
        {"a body without a head", RUN, WIRE_READY, WIRE_OP_BYTES - 1, 0},
        {"more than a frame holds", RUN, WIRE_SMALL, WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES + 1, 0},
        {"more padding than body", RUN, WIRE_READY, WIRE_OP_BYTES, 1},
        {"a type that nobody owns", RUN, UINT16_MAX, WIRE_OP_BYTES, 0},
        {"a payload where there is none", RUN, WIRE_READY, WIRE_OP_BYTES + 64, 0},
        {"another run", RUN + 1, WIRE_READY, WIRE_OP_BYTES, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        struct world world;
        begin(&world);
        // once it is heard, the epoch is in force
        post(&world, 1);
        tell(&world, build(WIRE_SMALL, 1, 1, sizeof world.send));
        expect_sum(&world, 1);
        struct wire_op head = {.padding = rows[i].padding};
        struct wire_header header = {
            .run = rows[i].run, .generation = 1, .epoch = 1, .type = rows[i].type, .length = rows[i].length};
        wire_header_encode(bytes, &header);
        wire_op_encode(bytes + WIRE_HEADER_BYTES, &head);
        tell(&world, FRAME_HEAD_BYTES);
        CHECK(breaks(&world, PATIENCE_MS));
        end(&world);
    }
}

int main(void) {
    test_pieces();
    test_epochs();
    test_malformed();
    return check_status();
}
