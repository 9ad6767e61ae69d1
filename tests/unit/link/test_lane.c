// The reader of a lane: an engine whose only neighbour is the test, which writes the bytes of each frame itself.
#define _GNU_SOURCE
#include <pccl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "far_end.h"
#include "data/core.h"
#include "data/engine.h"
#include "enter_epoch.h"
#include "link/connection.h"
#include "link/frame.h"
#include "deaf_owner.h"
#include "net/socket.h"
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
    engine_add_link(world->engine, &theirs, 0, far_end_new(pair[0]));
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
static uint8_t bytes[FRAME_HEAD_BYTES + COUNT * sizeof(float) + 2 * WIRE_ALIGN];

static size_t build_behind(uint16_t type, uint64_t epoch, uint64_t tag, size_t payload, uint8_t lead) {
    struct wire_head head = {.op = {.tag = tag, .fingerprint = what, .sequence = 1}, .lead = lead};
    head.padding = wire_padding(lead + payload);
    struct wire_header header = {.run = RUN, .generation = 1, .epoch = epoch, .type = type};
    header.length = (uint32_t)(WIRE_HEAD_BYTES + lead + payload + head.padding);
    wire_header_encode(bytes, &header);
    wire_head_encode(bytes + WIRE_HEADER_BYTES, type, &head);
    for (size_t i = 0; i < payload / sizeof(float); i++)
        memcpy(bytes + FRAME_HEAD_BYTES + lead + i * sizeof(float), &(float){(float)i}, sizeof(float));
    return WIRE_HEADER_BYTES + header.length;
}

static size_t build(uint16_t type, uint64_t epoch, uint64_t tag, size_t payload) {
    return build_behind(type, epoch, tag, payload, 0);
}

static void tell(struct world *world, size_t length) {
    REQUIRE(send(world->fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length);
}

// Piece by piece: each is taken before the next one is sent.
static void tell_in_pieces(struct world *world, size_t length, size_t piece) {
    for (size_t at = 0; at < length; at += piece) {
        size_t part = length - at < piece ? length - at : piece;
        REQUIRE(send(world->fd, bytes + at, part, MSG_NOSIGNAL) == (ssize_t)part);
        AWAIT(socket_gauge(world->fd).queued == 0, usleep(10));
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
        tell_in_pieces(&world, build_behind(WIRE_SMALL, 1, i, sizeof world.send, i % 2 == 0 ? 0 : WIRE_ALIGN - 1),
                       pieces[i]);
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
        uint8_t padding, lead;
    } rows[] = {
        {"a body without a head", RUN, WIRE_READY, WIRE_HEAD_BYTES - 1, 0, 0},
        {"more than a frame holds", RUN, WIRE_SMALL, WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES + 1, 0, 0},
        {"more padding than body", RUN, WIRE_READY, WIRE_HEAD_BYTES, 1, 0},
        {"more zeros before the payload than body", RUN, WIRE_READY, WIRE_HEAD_BYTES + 1, 1, 1},
        {"more zeros before the payload than there may be", RUN, WIRE_READY, WIRE_HEAD_BYTES + 64, 0, WIRE_ALIGN},
        {"a type that nobody owns", RUN, UINT16_MAX, WIRE_HEAD_BYTES, 0, 0},
        {"a payload where there is none", RUN, WIRE_READY, WIRE_HEAD_BYTES + 64, 0, 0},
        {"another run", RUN + 1, WIRE_READY, WIRE_HEAD_BYTES, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        struct world world;
        begin(&world);
        // once it is heard, the epoch is in force
        post(&world, 1);
        tell(&world, build(WIRE_SMALL, 1, 1, sizeof world.send));
        expect_sum(&world, 1);
        struct wire_head head = {.padding = rows[i].padding, .lead = rows[i].lead};
        struct wire_header header = {
            .run = rows[i].run, .generation = 1, .epoch = 1, .type = rows[i].type, .length = rows[i].length};
        wire_header_encode(bytes, &header);
        wire_head_encode(bytes + WIRE_HEADER_BYTES, rows[i].type, &head);
        tell(&world, FRAME_HEAD_BYTES);
        CHECK(breaks(&world, PATIENCE_MS));
        end(&world);
    }
}

static void test_after_a_cancellation(void) {
    check_case("nothing begins in an epoch in which a cancellation was told, though its links come after that");
    struct world world;
    begin(&world);
    post(&world, 1);
    tell(&world, build(WIRE_SMALL, 1, 1, sizeof world.send));
    expect_sum(&world, 1); // the epoch is in force
    struct wire_verdict cancelled = {.kind = WIRE_VERDICT_CANCEL, .name = {.epoch = 1, .tag = 3, .sequence = 1}};
    engine_verdict(world.engine, &cancelled);
    engine_links_ready(world.engine, 1);
    post(&world, 2);
    engine_lock(world.engine);
    CHECK_EQ(call_table_find(&world.engine->call_table, 2)->phase, OP_WAITING);
    engine_unlock(world.engine);
    end(&world);
}

static void test_alignment(void) {
    enum { LENGTH = 65536 + 12 };
    static _Alignas(WIRE_ALIGN) uint8_t payload[LENGTH + 2 * WIRE_ALIGN];
    struct world world;
    begin(&world);
    for (size_t at = 0; at < 2 * WIRE_ALIGN; at++) {
        check_case("a payload at %zu", at);
        engine_lock(world.engine);
        struct frame *frame =
            frame_new(&world.engine->lanes->frames, WIRE_CHUNK, &(struct wire_head){.op = {.tag = 1}}, LENGTH);
        REQUIRE(frame != NULL);
        frame->payload = payload + at;
        for (int again = 0; again < 2; again++) {
            uint8_t before[FRAME_BEFORE_BYTES] = {0};
            struct wire_header header;
            struct wire_head head;
            frame_encode(frame, before);
            REQUIRE(wire_header_decode(before, &header));
            REQUIRE(wire_head_decode(before + WIRE_HEADER_BYTES, WIRE_CHUNK, &head));
            CHECK_EQ((FRAME_HEAD_BYTES + head.lead) % WIRE_ALIGN, at % WIRE_ALIGN);
            CHECK_EQ((WIRE_HEADER_BYTES + header.length) % WIRE_ALIGN, 0);
            CHECK_EQ(header.length, WIRE_HEAD_BYTES + head.lead + LENGTH + head.padding);
            CHECK_EQ(frame_head_bytes(frame), FRAME_HEAD_BYTES + head.lead);
        }
        frame_free(&world.engine->lanes->frames, frame);
        engine_unlock(world.engine);
    }
    end(&world);
}

int main(void) {
    test_pieces();
    test_alignment();
    test_after_a_cancellation();
    test_epochs();
    test_malformed();
    return check_status();
}
