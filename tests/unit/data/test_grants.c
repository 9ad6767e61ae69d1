// What the owner of a shard may grant: an engine whose neighbours are the test, one of whom owns the whole tensor.
#include <pccl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "compute/codec.h"
#include "data/engine.h"
#include "link/frame.h"
#include "link/pace.h"
#include "deaf_owner.h"
#include "enter_epoch.h"
#include "far_end.h"

enum { MEMBERS = 3, OWNER = 1, BLOCKS = 96, COUNT = BLOCKS * CODEC_PIECE }; // a block is as long either way

static const struct wire_id ids[MEMBERS] = {{{1}}, {{2}}, {{3}}};

struct world {
    struct engine *engine;
    struct transport *ends[MEMBERS]; // of the direct links, at the others
    struct wire_fingerprint what;
    float *send, *recv;
    uint64_t window, came; // blocks; bytes of the input that have come to the owner
};

// Reads one frame that has come to the owner.
static struct wire_header hear(struct world *world, struct wire_head *head) {
    static uint8_t bytes[WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES];
    struct wire_header header;
    REQUIRE(far_end_read(world->ends[OWNER], bytes, WIRE_HEADER_BYTES) && wire_header_decode(bytes, &header));
    REQUIRE(far_end_read(world->ends[OWNER], bytes, header.length) && wire_head_decode(bytes, header.type, head));
    if (header.type == WIRE_CHUNK || header.type == WIRE_CODES)
        world->came += header.length - WIRE_HEAD_BYTES - head->lead - head->padding;
    return header;
}

static void tell(struct world *world, int from, uint16_t type, uint64_t blocks) {
    uint8_t bytes[WIRE_HEADER_BYTES + WIRE_HEAD_BYTES];
    struct wire_head head = {.op = {.tag = 1, .fingerprint = world->what, .sequence = 1}};
    if (type == WIRE_READY) head.ready.granted = (uint32_t)blocks;
    if (type == WIRE_GRANT) head.grant.blocks = blocks;
    struct wire_header header = {.run = EPOCH_RUN, .generation = EPOCH_GENERATION, .epoch = 1, .type = type};
    header.length = WIRE_HEAD_BYTES;
    wire_header_encode(bytes, &header);
    wire_head_encode(bytes + WIRE_HEADER_BYTES, type, &head);
    REQUIRE(far_end_write(world->ends[from], bytes, sizeof bytes));
}

static void begin(struct world *world, uint8_t codec) {
    struct wire_member members[MEMBERS];
    *world = (struct world){
        .engine = engine_new(&ids[0], &deaf_owner),
        .what = {.count = COUNT, .dtype = pcclFloat, .op = pcclSum, .codec = codec},
        .send = calloc(COUNT, sizeof(float)),
        .recv = calloc(COUNT, sizeof(float)),
    };
    REQUIRE(world->engine != NULL && world->send != NULL && world->recv != NULL);
    for (uint32_t i = 0; i < MEMBERS; i++) members[i] = (struct wire_member){.id = ids[i], .weight = i == OWNER};
    for (int i = 1; i < MEMBERS; i++) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        engine_add_link(world->engine, &ids[i], 0, far_end_new(pair[0]));
        world->ends[i] = far_end_new(pair[1]);
    }
    enter_epoch(world->engine, 1, members, MEMBERS, 0);
    engine_links_ready(world->engine, 1);
    struct call_args args = {.send = world->send, .recv = world->recv, .tag = 1, .fingerprint = world->what};
    REQUIRE(engine_post(world->engine, &args, 1) == CALL_OK);
    struct wire_head head = {0};
    AWAIT(hear(world, &head).type == WIRE_READY, continue);
    world->window = codec == CODEC_RAW ? pace_granted(MEMBERS, 30, 2000) / PACE_CHUNK_MAX : head.ready.granted;
    REQUIRE(2 * world->window < BLOCKS);
    tell(world, 2, WIRE_READY, 0);
}

static bool loses_owner(struct world *world) {
    int64_t until_ns = platform_now_ns() + FAR_END_PATIENCE_MS * MS_NS;
    while (engine_has_link(world->engine, &ids[OWNER], 0) && platform_now_ns() < until_ns) usleep(200);
    return !engine_has_link(world->engine, &ids[OWNER], 0);
}

static void end(struct world *world) {
    engine_stop(world->engine);
    engine_free(world->engine);
    for (int i = 1; i < MEMBERS; i++) transport_free(world->ends[i]);
    free(world->send);
    free(world->recv);
}

// The owner lets come as much as it can have added up, until all has come. Then any more is too much.
static void test_all(uint8_t codec) {
    struct world world;
    struct wire_head head;
    begin(&world, codec);
    check_case("%s: block by block", codec == CODEC_RAW ? "raw" : "quantised");
    uint64_t block = codec == CODEC_RAW ? PACE_CHUNK_MAX : codec_bytes(codec_find(codec), pcclFloat, CODEC_PIECE);
    tell(&world, OWNER, WIRE_READY, world.window);
    for (uint64_t granted = world.window; granted < BLOCKS; tell(&world, OWNER, WIRE_GRANT, ++granted))
        AWAIT(world.came >= (granted + 1 - world.window) * block, hear(&world, &head));
    AWAIT(world.came >= BLOCKS * block, hear(&world, &head));
    CHECK_EQ(world.came, BLOCKS * block);
    CHECK(engine_has_link(world.engine, &ids[OWNER], 0));
    tell(&world, OWNER, WIRE_GRANT, BLOCKS + world.window + 1);
    REQUIRE(loses_owner(&world));
    end(&world);
}

static void test_wrong(uint8_t codec) {
    static const struct {
        const char *name;
        bool ready;
        uint32_t windows; // that are granted
        uint64_t more;    // and so many blocks
    } rows[] = {
        {"before READY", false, 0, 1},
        {"nothing more", true, 1, 0},
        {"less", true, 0, 1},
        {"a window beyond what can have been added up", true, 2, 0},
        {"all of the shard", true, 0, BLOCKS},
        {"any number", true, 0, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct world world;
        begin(&world, codec);
        check_case("%s: %s", codec == CODEC_RAW ? "raw" : "quantised", rows[i].name);
        if (rows[i].ready) tell(&world, OWNER, WIRE_READY, world.window);
        tell(&world, OWNER, WIRE_GRANT, rows[i].windows * world.window + rows[i].more);
        REQUIRE(loses_owner(&world));
        CHECK(engine_has_link(world.engine, &ids[2], 0));
        end(&world);
    }
}

int main(void) {
    for (int quantised = 0; quantised < 2; quantised++) {
        uint8_t codec = quantised ? CODEC_BLOCK_INT8 : CODEC_RAW;
        test_all(codec);
        test_wrong(codec);
    }
    return check_status();
}
