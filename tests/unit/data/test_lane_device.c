// Lanes whose next frame waits for a device: an engine whose only neighbour is the test, and a device that is held
// (tests/fakes/device.c). The lanes say heartbeats meanwhile, and the frames come in their order afterwards.
#define _GNU_SOURCE
#include <pccl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../fakes/device.h"
#include "base/platform.h"
#include "check.h"
#include "data/engine.h"
#include "data/frame.h"
#include "deaf_owner.h"
#include "enter_epoch.h"
#include "net/transport.h"

enum { COUNT = 400001, TAG = 5, BEATS = 3, CHUNKS = 2, POLL_MS = 50, PATIENCE_MS = 60000, LINKS = 2 };

#define SILENCE_NS (2 * SECOND_NS)

static const struct wire_id mine = {{1}}, theirs = {{2}};
static const struct wire_fingerprint what = {.count = COUNT, .dtype = pcclFloat, .op = pcclSum};

struct world {
    struct engine *engine;
    int fds[LINKS], links; // the other ends
    float *send, *recv;
};

static struct world begin(int links) {
    struct world world = {.engine = engine_new(&mine, &deaf_owner),
                          .links = links,
                          .send = fake_device_new(COUNT * sizeof(float)),
                          .recv = fake_device_new(COUNT * sizeof(float))};
    REQUIRE(world.engine != NULL && world.send != NULL && world.recv != NULL);
    float *input = fake_device_bytes(world.send);
    for (int i = 0; i < COUNT; i++) input[i] = (float)i;
    for (int i = 0; i < links; i++) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        engine_add_link(world.engine, &theirs, (uint32_t)i, transport_new(pair[0]));
        world.fds[i] = pair[1];
    }
    struct wire_member members[2] = {{.id = mine}, {.id = theirs}};
    enter_epoch(world.engine, 1, members, 2, 0);
    engine_links_ready(world.engine, 1);
    return world;
}

static void end(struct world *world) {
    engine_free(world->engine);
    for (int i = 0; i < world->links; i++) close(world->fds[i]);
    fake_device_free(world->send);
    fake_device_free(world->recv);
}

// A frame without a payload.
static void say(const struct world *world, int link, uint16_t type) {
    uint8_t bytes[FRAME_HEAD_BYTES];
    struct wire_op head = {.tag = TAG, .fingerprint = what, .sequence = 1};
    struct wire_header header = {
        .run = EPOCH_RUN, .generation = EPOCH_GENERATION, .epoch = 1, .type = type, .length = WIRE_OP_BYTES};
    wire_header_encode(bytes, &header);
    wire_op_encode(bytes + WIRE_HEADER_BYTES, &head);
    REQUIRE(send(world->fds[link], bytes, sizeof bytes, MSG_NOSIGNAL) == (ssize_t)sizeof bytes);
}

struct heard {
    struct wire_header header;
    struct wire_op head;
    uint8_t payload[WIRE_MAX_DATA_BYTES];
    size_t length;
};

// The test must not fall silent itself, nor leave the other links unread.
static void await_bytes(const struct world *world, int link) {
    uint8_t unread[FRAME_HEAD_BYTES];
    int64_t until_ns = platform_now_ns() + PATIENCE_MS * MS_NS;
    while (poll(&(struct pollfd){.fd = world->fds[link], .events = POLLIN}, 1, POLL_MS) != 1) {
        REQUIRE(platform_now_ns() < until_ns);
        for (int i = 0; i < world->links; i++) say(world, i, WIRE_LINK_HEARTBEAT);
        for (int i = 0; i < world->links; i++)
            while (i != link && recv(world->fds[i], unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
    }
}

static void read_bytes(const struct world *world, int link, void *out, size_t length) {
    for (size_t at = 0; at < length;) {
        await_bytes(world, link);
        ssize_t got = recv(world->fds[link], (uint8_t *)out + at, length - at, 0);
        REQUIRE(got > 0);
        at += (size_t)got;
    }
}

static const struct heard *hear(const struct world *world, int link) {
    static struct heard heard;
    static uint8_t padding[WIRE_ALIGN], bytes[FRAME_HEAD_BYTES];
    read_bytes(world, link, bytes, sizeof bytes);
    REQUIRE(wire_header_decode(bytes, &heard.header) && wire_op_decode(bytes + WIRE_HEADER_BYTES, &heard.head));
    heard.length = heard.header.length - WIRE_OP_BYTES - heard.head.padding;
    read_bytes(world, link, heard.payload, heard.length);
    read_bytes(world, link, padding, heard.head.padding);
    return &heard;
}

static void expect_chunk(const struct heard *heard, uint64_t offset) {
    const float *elements = (const float *)(const void *)heard->payload;
    int wrong = 0;
    for (size_t i = 0; i < heard->length / sizeof(float); i++) wrong += elements[i] != (float)(offset + i);
    CHECK_EQ(wrong, 0);
}

static void test_held(int links) {
    check_case("%d links", links);
    struct world world = begin(links);
    int bulk = links - 1;
    struct call_args args = {.send = world.send, .recv = world.recv, .tag = TAG, .fingerprint = what};
    fake_device_hold(true);
    CHECK_EQ(engine_post(world.engine, &args, 1), CALL_OK);
    say(&world, 0, WIRE_READY);
    // once it has begun, a chunk waits for the device
    while (hear(&world, 0)->header.type != WIRE_READY) continue;
    engine_set_silence(world.engine, SILENCE_NS);
    for (int beats = 0; beats < BEATS; beats++) CHECK_EQ(hear(&world, bulk)->header.type, WIRE_LINK_HEARTBEAT);
    for (int i = 0; i < links; i++) CHECK(engine_has_link(world.engine, &theirs, (uint32_t)i));
    fake_device_hold(false);
    uint64_t offset = 0;
    for (int chunks = 0; chunks < CHUNKS;) {
        const struct heard *heard = hear(&world, bulk);
        if (heard->header.type == WIRE_LINK_HEARTBEAT) continue;
        CHECK_EQ(heard->header.type, WIRE_CHUNK);
        CHECK_EQ(heard->head.offset, offset); // the first element of the tensor is in the own part
        expect_chunk(heard, heard->head.offset);
        offset = heard->head.offset + heard->length / sizeof(float);
        chunks++;
    }
    end(&world);
}

int main(void) {
    for (int links = 1; links <= LINKS; links++) test_held(links);
    return check_status();
}
