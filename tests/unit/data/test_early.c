// Chunks that go before the READY of a far neighbour, and those that come before the op is posted here. All links seem
// to lead far away, and the neighbour is the test.
#include <pccl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "data/engine.h"
#include "link/frame.h"
#include "link/pace.h"
#include "deaf_owner.h"
#include "enter_epoch.h"
#include "far_end.h"
#include "net/socket.h"
#include "ops/call_table.h"

enum { LANES = 3, MEMBERS = 2, COUNT = 8 << 20, HALF = COUNT / 2, LATENCY_US = 50000, PART = 16 << 10 };

static const struct wire_id ids[MEMBERS] = {{{1}}, {{2}}};
static const struct wire_fingerprint what = {.count = COUNT, .dtype = pcclFloat, .op = pcclSum};

static _Atomic uint32_t queue_us; // on the way

// In the place of the kernel's.
struct gauge __wrap_socket_gauge(int fd);
struct gauge __wrap_socket_gauge(int fd) {
    (void)fd;
    enum { ROUND_TRIP_US = 2500 };
    uint64_t now_us = (uint64_t)platform_now_ns() / 1000;
    return (struct gauge){.busy_us = now_us,
                          .acked = 100 * now_us,
                          .segments = (uint32_t)now_us,
                          .round_trip_us = ROUND_TRIP_US,
                          .smoothed_us = ROUND_TRIP_US + queue_us,
                          .window = 1 << 20};
}

struct world {
    struct engine *engine;
    struct transport *ends[LANES]; // of the direct link and of two lanes, at the neighbour
    float *send, *recv;
};

static float input_of(size_t at) { return (float)(at % 1000); }

static struct world begin(void) {
    struct world world = {.engine = engine_new(&ids[0], &deaf_owner),
                          .send = calloc(COUNT, sizeof(float)),
                          .recv = calloc(COUNT, sizeof(float))};
    REQUIRE(world.engine != NULL && world.send != NULL && world.recv != NULL);
    for (size_t i = 0; i < COUNT; i++) world.send[i] = input_of(i);
    for (uint32_t i = 0; i < LANES; i++) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        engine_add_link(world.engine, &ids[1], i, far_end_new(pair[0]));
        world.ends[i] = far_end_new(pair[1]);
    }
    struct wire_member members[MEMBERS] = {{.id = ids[0]}, {.id = ids[1]}};
    epoch_latency_us = LATENCY_US; // what may be under way in a ring is no limit then
    enter_epoch(world.engine, 1, members, MEMBERS, 0);
    engine_links_ready(world.engine, 1);
    return world;
}

static void end(struct world *world) {
    engine_stop(world->engine);
    engine_free(world->engine);
    for (int i = 0; i < LANES; i++) transport_free(world->ends[i]);
    free(world->send);
    free(world->recv);
}

static void post(const struct world *world, uint64_t tag) {
    struct call_args args = {.send = world->send, .recv = world->recv, .tag = tag, .fingerprint = what};
    REQUIRE(engine_post(world->engine, &args, 1) == CALL_OK);
}

// ---- frames ----
struct heard {
    int lane;
    struct wire_header header;
    struct wire_head head;
    const float *payload;
    size_t count; // elements
};

static const struct heard *hear(const struct world *world) {
    static _Alignas(WIRE_ALIGN) uint8_t bytes[WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES];
    static struct heard heard;
    struct pollfd polled[LANES];
    for (int i = 0; i < LANES; i++) polled[i] = (struct pollfd){.fd = world->ends[i]->fd, .events = POLLIN};
    REQUIRE(poll(polled, LANES, FAR_END_PATIENCE_MS) > 0);
    for (heard.lane = 0; polled[heard.lane].revents == 0;) heard.lane++;
    struct transport *end = world->ends[heard.lane];
    REQUIRE(far_end_read(end, bytes, WIRE_HEADER_BYTES) && wire_header_decode(bytes, &heard.header));
    REQUIRE(far_end_read(end, bytes, heard.header.length));
    REQUIRE(wire_head_decode(bytes, heard.header.type, &heard.head));
    heard.payload = (const float *)(const void *)(bytes + WIRE_HEAD_BYTES + heard.head.lead);
    heard.count = (heard.header.length - WIRE_HEAD_BYTES - heard.head.lead - heard.head.padding) / sizeof(float);
    return &heard;
}

// The next frame of this op that is a chunk, sent early or not.
static const struct heard *hear_chunk(const struct world *world, uint64_t tag) {
    for (;;) {
        const struct heard *heard = hear(world);
        bool chunk = heard->header.type == WIRE_CHUNK || heard->header.type == WIRE_EARLY;
        if (chunk && heard->head.op.tag == tag) return heard;
    }
}

static struct wire_head head_of(uint64_t tag) {
    return (struct wire_head){.op = {.tag = tag, .fingerprint = what, .sequence = 1}};
}

// `payload` may end before the frame does: `length` says what the head tells of it.
static bool say(const struct world *world, int lane, uint16_t type, struct wire_head head, const void *payload,
                size_t bytes, size_t length) {
    uint8_t said[FRAME_HEAD_BYTES];
    struct wire_header header = {.run = EPOCH_RUN,
                                 .generation = EPOCH_GENERATION,
                                 .epoch = 1,
                                 .type = type,
                                 .length = WIRE_HEAD_BYTES + (uint32_t)length};
    wire_header_encode(said, &header);
    wire_head_encode(said + WIRE_HEADER_BYTES, type, &head);
    return far_end_write(world->ends[lane], said, sizeof said) && far_end_write(world->ends[lane], payload, bytes);
}

static void say_ready(const struct world *world, uint64_t tag) {
    REQUIRE(say(world, 0, WIRE_READY, head_of(tag), NULL, 0, 0));
}

// A part of the neighbour's own shard, which is the second half.
static struct wire_head early_head(uint64_t tag, uint64_t offset) {
    struct wire_head head = head_of(tag);
    head.chunk = (struct wire_chunk){.shard = 1, .offset = offset};
    return head;
}

// Once, so that the lanes are known to lead far away.
static void measure(const struct world *world) {
    post(world, 1);
    usleep(2 * PACE_TICK_MS * 1000);
    say_ready(world, 1);
    for (size_t came = 0; came < HALF;) came += hear_chunk(world, 1)->count;
}

// An op whose chunks are taken so slowly that the lanes are measured while it runs. How its first chunk came.
static uint16_t run_slowly(const struct world *world, uint64_t tag) {
    enum { PAUSE_US = 5000 };
    post(world, tag);
    usleep(2 * PACE_TICK_MS * 1000);
    say_ready(world, tag);
    uint16_t first = 0;
    for (size_t came = 0; came < HALF;) {
        const struct heard *heard = hear_chunk(world, tag);
        if (came == 0) first = heard->header.type;
        came += heard->count;
        usleep(PAUSE_US);
    }
    return first;
}

// ---- what goes ----
static void test_goes(void) {
    check_case("so much goes early as the neighbour keeps, and the rest after its READY");
    struct world world = begin();
    measure(&world);
    post(&world, 2);
    size_t limit = call_table_unexpected_chunk_limit(MEMBERS) / sizeof(float), early = 0, came = 0;
    int wrong = 0;
    for (bool asked = false; came < HALF;) {
        const struct heard *heard = hear_chunk(&world, 2);
        for (size_t i = 0; i < heard->count; i++) wrong += heard->payload[i] != input_of(heard->head.chunk.offset + i);
        CHECK_EQ(heard->head.chunk.hop, 0);
        came += heard->count;
        if (heard->header.type == WIRE_EARLY) early += heard->count;
        CHECK(heard->header.type == WIRE_EARLY || asked);
        if (!asked && early > limit - PACE_CHUNK_MAX / sizeof(float)) {
            usleep(2 * PACE_TICK_MS * 1000);
            say_ready(&world, 2);
            asked = true;
        }
    }
    CHECK_EQ(wrong, 0);
    CHECK(early <= limit && early > limit - PACE_CHUNK_MAX / sizeof(float));
    CHECK_EQ(came, HALF);

    check_case("what the READY has shown to be posted counts no more");
    post(&world, 3);
    CHECK_EQ(hear_chunk(&world, 3)->header.type, WIRE_EARLY);
    end(&world);
}

static void test_queue(void) {
    check_case("where a queue was seen, the READY is waited for, until there is none");
    struct world world = begin();
    measure(&world);
    queue_us = 10000;
    run_slowly(&world, 2);
    queue_us = 0;
    CHECK_EQ(run_slowly(&world, 3), WIRE_CHUNK);
    CHECK_EQ(run_slowly(&world, 4), WIRE_EARLY);
    end(&world);
}

// ---- what comes ----
static void expect_sums(const struct world *world, uint64_t tag, size_t count) {
    int wrong = 0;
    for (size_t came = 0; came < count;) {
        const struct heard *heard = hear_chunk(world, tag);
        if (heard->head.chunk.hop != 1) continue; // the engine's own shard
        for (size_t i = 0; i < heard->count; i++)
            wrong += heard->payload[i] != 1.0f + input_of(heard->head.chunk.offset + i);
        came += heard->count;
    }
    CHECK_EQ(wrong, 0);
}

static void test_comes(void) {
    check_case("what came before the op was posted is summed up then");
    struct world world = begin();
    static float ones[3 * PART];
    for (size_t i = 0; i < 3 * PART; i++) ones[i] = 1;
    for (unsigned part = 0; part < 3; part++)
        REQUIRE(say(&world, 1 + part % 2, WIRE_EARLY, early_head(2, HALF + part * PART), ones, PART * sizeof(float),
                    PART * sizeof(float)));
    post(&world, 2);
    say_ready(&world, 2);
    expect_sums(&world, 2, 3 * PART);

    check_case("a chunk on its way while the op begins is taken, too");
    size_t bytes = PART * sizeof(float);
    REQUIRE(say(&world, 1, WIRE_EARLY, early_head(3, HALF), ones, bytes / 2, bytes));
    usleep(2 * PACE_TICK_MS * 1000); // its head has been read
    post(&world, 3);
    AWAIT(hear(&world)->header.type == WIRE_READY, continue);
    REQUIRE(far_end_write(world.ends[1], ones, bytes - bytes / 2));
    say_ready(&world, 3);
    expect_sums(&world, 3, PART);

    check_case("once the op runs, it is a chunk as any other");
    REQUIRE(say(&world, 2, WIRE_EARLY, early_head(3, HALF + PART), ones, bytes, bytes));
    expect_sums(&world, 3, PART);
    for (uint32_t i = 0; i < LANES; i++) CHECK(engine_has_link(world.engine, &ids[1], i));
    end(&world);
}

// ---- who lies ----
// That on which it came, or the direct one, where it had been kept.
static void expect_closed(const struct world *world) {
    int64_t until = platform_now_ns() + FAR_END_PATIENCE_MS * MS_NS;
    bool closed = false;
    while (!closed && platform_now_ns() < until)
        for (uint32_t i = 0; i < 2; i++) closed |= !engine_has_link(world->engine, &ids[1], i);
    CHECK(closed);
}

static void test_malformed(void) {
    check_case("a chunk outside of its shard is found when the op is posted");
    static const float zeros[PART];
    struct world world = begin();
    REQUIRE(say(&world, 1, WIRE_EARLY, early_head(2, COUNT - 1), zeros, sizeof zeros, sizeof zeros));
    post(&world, 2);
    expect_closed(&world);
    end(&world);

    check_case("the same part twice");
    world = begin();
    for (int i = 0; i < 2; i++)
        REQUIRE(say(&world, 1, WIRE_EARLY, early_head(2, HALF), zeros, sizeof zeros, sizeof zeros));
    post(&world, 2);
    expect_closed(&world);
    end(&world);

    check_case("more than a member keeps");
    world = begin();
    uint64_t frames = UNEXPECTED_BYTES / sizeof zeros;
    for (uint64_t i = 0; i <= frames; i++)
        if (!say(&world, 1, WIRE_EARLY, early_head(2, HALF + i * PART), zeros, sizeof zeros, sizeof zeros)) break;
    expect_closed(&world);
    end(&world);

    check_case("a larger one than any chunk");
    world = begin();
    say(&world, 1, WIRE_EARLY, early_head(2, HALF), NULL, 0, PACE_CHUNK_MAX + 16);
    expect_closed(&world);
    end(&world);
}

int main(void) {
    test_goes();
    test_queue();
    test_comes();
    test_malformed();
    return check_status();
}
