// Lanes whose next frame waits for a device: an engine whose only neighbour is the test, and a device that is held
// (tests/fakes/device.c, or a GPU of tests/fakes/cuda). The lanes say heartbeats meanwhile, and the frames come in
// their order afterwards, with codes too, which the device writes or the host.
#define _GNU_SOURCE
#include <pccl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../fakes/device.h"
#include "base/platform.h"
#include "check.h"
#include "far_end.h"
#include "compute/codec.h"
#include "compute/kernels.h"
#include "data/engine.h"
#include "link/frame.h"
#include "deaf_owner.h"
#include "enter_epoch.h"
#include "net/transport.h"
#include "ops/plan.h"

enum { COUNT = 400001, TAG = 5, BEATS = 3, CHUNKS = 2, WINDOW = 64, POLL_MS = 50, PATIENCE_MS = 60000, LINKS = 2 };

#define SILENCE_NS (2 * SECOND_NS)

static const struct wire_id mine = {{1}}, theirs = {{2}};
static struct wire_fingerprint what = {.count = COUNT, .dtype = pcclFloat, .op = pcclSum};

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
        engine_add_link(world.engine, &theirs, (uint32_t)i, far_end_new(pair[0]));
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

static void say_bytes(const struct world *world, int link, uint16_t type, struct wire_head head, const void *payload,
                      size_t length) {
    static uint8_t bytes[FRAME_HEAD_BYTES + WIRE_MAX_DATA_BYTES + WIRE_ALIGN];
    head.op = (struct wire_op){.tag = TAG, .fingerprint = what, .sequence = 1};
    head.padding = wire_padding(length);
    struct wire_header header = {.run = EPOCH_RUN,
                                 .generation = EPOCH_GENERATION,
                                 .epoch = 1,
                                 .type = type,
                                 .length = (uint32_t)(WIRE_HEAD_BYTES + length + head.padding)};
    wire_header_encode(bytes, &header);
    wire_head_encode(bytes + WIRE_HEADER_BYTES, type, &head);
    if (length > 0) memcpy(bytes + FRAME_HEAD_BYTES, payload, length);
    size_t all = WIRE_HEADER_BYTES + header.length;
    REQUIRE(send(world->fds[link], bytes, all, MSG_NOSIGNAL) == (ssize_t)all);
}

// A frame without a payload.
static void say(const struct world *world, int link, uint16_t type) {
    struct wire_head head = {0};
    if (type == WIRE_READY) head.ready.granted = WINDOW;
    say_bytes(world, link, type, head, NULL, 0);
}

struct heard {
    struct wire_header header;
    struct wire_head head;
    uint8_t payload[WIRE_MAX_DATA_BYTES];
    size_t length;
};

// The test must not fall silent itself, nor leave unread what comes on the links before this one.
static void await_bytes(const struct world *world, int link) {
    static uint8_t unheard[FRAME_HEAD_BYTES];
    int64_t until_ns = platform_now_ns() + PATIENCE_MS * MS_NS;
    do {
        REQUIRE(platform_now_ns() < until_ns);
        for (int i = 0; i < world->links; i++) say(world, i, WIRE_LINK_HEARTBEAT);
        for (int i = 0; i < link; i++)
            while (recv(world->fds[i], unheard, sizeof unheard, 0) > 0) continue;
    } while (poll(&(struct pollfd){.fd = world->fds[link], .events = POLLIN}, 1, POLL_MS) != 1);
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
    REQUIRE(wire_header_decode(bytes, &heard.header));
    REQUIRE(wire_head_decode(bytes + WIRE_HEADER_BYTES, heard.header.type, &heard.head));
    heard.length = heard.header.length - WIRE_HEAD_BYTES - heard.head.lead - heard.head.padding;
    read_bytes(world, link, padding, heard.head.lead);
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

// An op that has begun, while the device is held: all that comes on the bulk lane is heartbeats.
static void begin_held(const struct world *world) {
    struct call_args args = {.send = world->send, .recv = world->recv, .tag = TAG, .fingerprint = what};
    fake_device_hold(true);
    CHECK_EQ(engine_post(world->engine, &args, 1), CALL_OK);
    say(world, 0, WIRE_READY);
    AWAIT(hear(world, 0)->header.type == WIRE_READY, continue);
    engine_set_silence(world->engine, SILENCE_NS);
}

static void expect_beats(const struct world *world) {
    for (int beats = 0; beats < BEATS; beats++)
        CHECK_EQ(hear(world, world->links - 1)->header.type, WIRE_LINK_HEARTBEAT);
    for (int i = 0; i < world->links; i++) CHECK(engine_has_link(world->engine, &theirs, (uint32_t)i));
}

static void test_held(int links) {
    check_case("%d links", links);
    what.codec = CODEC_RAW;
    struct world world = begin(links);
    begin_held(&world);
    expect_beats(&world); // a chunk waits for the device
    fake_device_hold(false);
    uint64_t offset = 0;
    for (int chunks = 0; chunks < CHUNKS;) {
        const struct heard *heard = hear(&world, links - 1);
        if (heard->header.type == WIRE_LINK_HEARTBEAT) continue;
        CHECK_EQ(heard->header.type, WIRE_CHUNK);
        CHECK_EQ(heard->head.chunk.offset, offset); // the first element of the tensor is in the own part
        expect_chunk(heard, heard->head.chunk.offset);
        offset = heard->head.chunk.offset + heard->length / sizeof(float);
        chunks++;
    }
    end(&world);
}

// ---- codes ----
static struct plan_range shard_of(uint32_t rank) { return plan_weights_shard(NULL, COUNT, LINKS, rank); }

// The elements of a block of a shard, of which all members have the same, and their codes, as the CPU writes them.
static const uint8_t *codes_of(uint32_t rank, uint64_t block, float *elements) {
    static uint8_t codes[WIRE_MAX_DATA_BYTES];
    uint64_t first = shard_of(rank).begin + block * CODEC_PIECE;
    for (int i = 0; i < CODEC_PIECE; i++) elements[i] = (float)(first + (uint64_t)i);
    codec_encode(codec_find(what.codec), pcclFloat, codes, elements, CODEC_PIECE, NULL);
    return codes;
}

static void expect_input(const struct heard *heard, uint64_t block) {
    static float elements[CODEC_PIECE];
    CHECK_EQ(heard->head.block.shard, 1);
    CHECK_EQ(heard->head.block.index, block);
    CHECK_MEM(heard->payload, codes_of(1, block, elements), heard->length);
}

static void expect_sum(const struct heard *heard) {
    static float own[CODEC_PIECE], sum[CODEC_PIECE];
    static uint8_t codes[WIRE_MAX_DATA_BYTES];
    const struct codec *codec = codec_find(what.codec);
    REQUIRE(codec_decode(codec, pcclFloat, sum, codes_of(0, 0, own), CODEC_PIECE));
    kernels_get()->reduce[pcclSum][pcclFloat](sum, own, sum, CODEC_PIECE);
    codec_encode(codec, pcclFloat, codes, sum, CODEC_PIECE, NULL);
    CHECK_EQ(heard->head.block.index, 0);
    CHECK_MEM(heard->payload, codes, heard->length);
}

// Both the codes of inputs, which the device has yet to give, and a sum, which it has yet to give its input for.
static void test_codes_held(uint8_t codec, int links) {
    check_case("%s, %d links", codec_find(codec)->name, links);
    static float elements[CODEC_PIECE];
    what.codec = codec;
    struct world world = begin(links);
    size_t bytes = codec_bytes(codec_find(codec), pcclFloat, CODEC_PIECE);
    begin_held(&world);
    say_bytes(&world, links - 1, WIRE_CODES, (struct wire_head){0}, codes_of(0, 0, elements), bytes);
    expect_beats(&world);
    fake_device_hold(false);
    uint64_t inputs = 0;
    for (int sums = 0; sums < 1 || inputs < CHUNKS;) {
        const struct heard *heard = hear(&world, links - 1);
        if (heard->header.type == WIRE_LINK_HEARTBEAT || heard->header.type == WIRE_GRANT) continue;
        REQUIRE(heard->header.type == WIRE_CODES || heard->header.type == WIRE_RESULT);
        bool is_sum = heard->header.type == WIRE_RESULT;
        if (is_sum || inputs < CHUNKS) CHECK_EQ(heard->length, bytes);
        if (is_sum) expect_sum(heard);
        if (!is_sum && inputs < CHUNKS) expect_input(heard, inputs);
        sums += is_sum;
        inputs += !is_sum;
    }
    end(&world);
}

int main(void) {
    for (int links = 1; links <= LINKS; links++) {
        test_held(links);
        test_codes_held(CODEC_MINMAX_UINT8, links);
        test_codes_held(CODEC_BLOCK_INT8, links);
    }
    return check_status();
}
