// What a member holds of inputs and verdicts that come before their ops: bounded against a member that sends too many, and in
// nobody's way otherwise.
#define _GNU_SOURCE
#include "engine_world.h"
#include "far_end.h"

#include "data/engine.h"
#include "data/core.h"
#include "link/frame.h"
#include "ops/call_table_private.h"

static uint64_t held_bytes(struct engine *engine) {
    uint64_t held = 0;
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < TAG_SLOTS; i++)
        for (const struct unexpected *early = engine->call_table.unexpected.slots[i]; early != NULL;
             early = early->next)
            held += early->bytes;
    pthread_mutex_unlock(&engine->lock);
    return held;
}

static bool has_link(struct world *world, uint32_t side, uint32_t other) {
    return engine_has_link(world->sides[side].engine, &world->sides[other].id, 0);
}

// Frames as one member sends them to side 0 of this world, which has posted none of their ops. How many the link took.
static uint32_t flood(struct world *world, struct transport *stream, uint32_t frames, uint32_t payload) {
    uint8_t *frame = calloc(1, FRAME_HEAD_BYTES + payload);
    uint32_t sent = 0;
    for (bool goes = true; goes && sent < frames; sent += goes) {
        struct wire_header header = {
            .length = WIRE_HEAD_BYTES + payload, .type = WIRE_SMALL, .run = 7, .generation = 1, .epoch = world->epoch};
        struct wire_head head = {
            .op = {.tag = sent,
                   .sequence = 1,
                   .fingerprint = {.count = payload / sizeof(float), .dtype = pcclFloat, .op = pcclSum}}};
        wire_header_encode(frame, &header);
        wire_head_encode(frame + WIRE_HEADER_BYTES, WIRE_SMALL, &head);
        goes = far_end_write(stream, frame, FRAME_HEAD_BYTES + payload);
    }
    free(frame);
    return sent;
}

static void test_flood(uint32_t payload, uint32_t fitting) {
    check_case("a flood of inputs of %u bytes", payload);
    struct world *world = world_new(2, 1);
    struct engine *victim = world->sides[0].engine;
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    struct transport *stream = far_end_new(pair[1]);
    engine_add_link(victim, &world->sides[1].id, 0, far_end_new(pair[0]));
    CHECK_EQ(flood(world, stream, fitting, payload), fitting);
    for (int64_t deadline = platform_now_ns() + 20 * SECOND_NS;
         held_bytes(victim) < (uint64_t)fitting * payload && platform_now_ns() < deadline;)
        usleep(1000);
    CHECK_EQ(held_bytes(victim), (uint64_t)fitting * payload); // what is allowed is taken
    CHECK(has_link(world, 0, 1));
    flood(world, stream, 1000, payload);
    for (int64_t deadline = platform_now_ns() + 20 * SECOND_NS; has_link(world, 0, 1) && platform_now_ns() < deadline;)
        usleep(1000);
    CHECK(!has_link(world, 0, 1));
    CHECK(held_bytes(victim) <= UNEXPECTED_BYTES);
    transport_free(stream);
    world_free(world);
}

// The bytes of all ops are many times the bound. Each member posts them in an order of its own, and the last one only
// when nothing moves any more.
static void test_any_order(uint32_t peers, uint32_t ops, uint64_t count) {
    check_case("%u members, each with an order of its own for %u ops of %u elements", peers, ops, (unsigned)count);
    struct world *world = world_new(peers, 1);
    float *values = malloc(peers * ops * count * sizeof *values);
    REQUIRE(values != NULL);
    for (uint32_t i = 0; i < peers; i++)
        for (uint32_t n = 0; n < ops; n++) {
            uint32_t tag = i == 0 ? n : i == 1 ? ops - 1 - n : (n * 7 + i) % ops;
            float *data = values + ((uint64_t)i * ops + tag) * count;
            for (uint64_t k = 0; k < count; k++) data[k] = input(i, k) + (float)tag;
            struct call_args reduce = reduce_of(data, data, tag, count, pcclSum, CODEC_RAW);
            CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
            for (uint32_t j = 0; j < peers; j++)
                CHECK(held_bytes(world->sides[j].engine) <= (uint64_t)(peers - 1) * UNEXPECTED_BYTES);
        }
    for (uint32_t i = 0; i < peers; i++)
        for (uint32_t tag = 0; tag < ops; tag++) {
            struct call_outcome outcome;
            engine_wait(world->sides[i].engine, tag, platform_now_ns() + 60 * SECOND_NS, &outcome);
            CHECK(outcome.result == CALL_OK);
            uint64_t wrong = 0;
            for (uint64_t k = 0; k < count; k++) {
                float sum = 0;
                for (uint32_t j = 0; j < peers; j++) sum += input(j, k) + (float)tag;
                wrong += values[((uint64_t)i * ops + tag) * count + k] != sum;
            }
            CHECK_EQ(wrong, 0);
        }
    for (uint32_t i = 0; i < peers; i++) {
        CHECK_EQ(held_bytes(world->sides[i].engine), 0);
        for (uint32_t j = 0; j < peers; j++) CHECK(i == j || has_link(world, i, j));
    }
    world_free(world);
    free(values);
}

// All but the last member have posted ops that fill the window of what may be under way, and the last one waits for
// another op before it posts them.
static void test_full_window(uint32_t peers) {
    enum { FULL = 8, COUNT = 768 * 1024 };
    check_case("%u members, the last of which waits for the last op before it posts the large ones that the others "
               "have under way",
               peers);
    struct world *world = world_new(peers, 1);
    float *values = malloc((size_t)peers * (FULL + 1) * COUNT * sizeof *values);
    REQUIRE(values != NULL);
    for (uint32_t turn = 0; turn < 2 * peers; turn++) {
        uint32_t i = turn % peers;
        bool last = i + 1 == peers;
        uint32_t begin = (turn < peers) != last ? 0 : FULL, end = begin == 0 ? FULL : FULL + 1;
        for (uint32_t tag = begin; tag < end; tag++) {
            float *data = values + ((uint64_t)i * (FULL + 1) + tag) * COUNT;
            for (uint64_t k = 0; k < COUNT; k++) data[k] = input(i, k) + (float)tag;
            struct call_args reduce = reduce_of(data, data, tag, COUNT, pcclSum, CODEC_RAW);
            CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
        }
        if (turn + 2 != 2 * peers) continue; // else all have posted the op that the last one waits for
        struct call_outcome outcome;
        engine_wait(world->sides[peers - 1].engine, FULL, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == CALL_OK);
    }
    for (uint32_t i = 0; i < peers; i++)
        for (uint32_t tag = 0; tag <= FULL; tag++) {
            struct call_outcome outcome;
            if (i + 1 == peers && tag == FULL) continue;
            engine_wait(world->sides[i].engine, tag, platform_now_ns() + 60 * SECOND_NS, &outcome);
            CHECK(outcome.result == CALL_OK);
        }
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < peers; i++)
        for (uint32_t tag = 0; tag <= FULL; tag++)
            for (uint64_t k = 0; k < COUNT; k++) {
                float sum = 0;
                for (uint32_t j = 0; j < peers; j++) sum += input(j, k) + (float)tag;
                wrong += values[((uint64_t)i * (FULL + 1) + tag) * COUNT + k] != sum;
            }
    CHECK_EQ(wrong, 0);
    world_free(world);
    free(values);
}

// ---- verdicts of a mismatch that wait for the calls that they end: by tag, subgroup and order ----
static struct call_table_verdicts verdicts;

static void add_verdict(uint64_t epoch, uint32_t subgroup, uint16_t other) {
    struct wire_verdict verdict = {.name = {.epoch = epoch, .tag = 7, .subgroup = subgroup}, .other = other};
    static const char text[WIRE_MAX_TEXT + 1] = "text";
    CHECK(call_table_verdicts_add(&verdicts, &verdict, text));
}

static bool take_verdict(uint64_t tag, uint32_t subgroup, uint64_t loss) {
    char text[WIRE_MAX_TEXT + 1];
    enum call_result result;
    bool taken = call_table_verdicts_take(&verdicts, tag, subgroup, loss, text, &result);
    CHECK(!taken || result == CALL_MISMATCH);
    return taken;
}

static void test_verdicts(void) {
    check_case("only calls over the lists of both sides end with it");
    add_verdict(3, 0x10005, 9);
    CHECK(!take_verdict(8, 0x10005, 0) && !take_verdict(7, 0, 0) && !take_verdict(7, 0x10006, 0));
    CHECK(take_verdict(7, 0x20009, 0) && !take_verdict(7, 0x20009, 0)); // the other side's, told by its lower half
    add_verdict(3, 0x10005, 9);
    CHECK(take_verdict(7, 0x10005, 0));
    check_case("a call of all");
    add_verdict(3, 0, 0);
    CHECK(!take_verdict(7, 5, 0) && !take_verdict(7, 0, 3) && take_verdict(7, 0, 4)); // a loss in that epoch came first
    check_case("the oldest of too many is dropped");
    for (uint64_t i = 0; i <= WIRE_MAX_LIVE_OPS; i++) add_verdict(1 + i, 1, 0);
    CHECK_EQ(verdicts.count, WIRE_MAX_LIVE_OPS);
    CHECK(take_verdict(7, 1, 2 + WIRE_MAX_LIVE_OPS));
    call_table_verdicts_voted(&verdicts, UINT64_MAX);
    CHECK_EQ(verdicts.count, 0);
}

int main(void) {
    test_verdicts();
    test_flood(256 * 1024, UNEXPECTED_BYTES / (256 * 1024));
    test_flood(2000, UNEXPECTED_BYTES / 2000);
    test_any_order(2, 120, 64 * 1024);
    test_any_order(3, 106, 64 * 1024);
    test_any_order(4, 900, 3);
    for (uint32_t peers = 2; peers <= 4; peers++) test_full_window(peers);
    return check_status();
}
