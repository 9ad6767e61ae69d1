// Every algorithm reads each element of an input once: whatever a program writes to its input while an operation is in
// flight, all members end with the same result. The thread sanitizer would report the program's writes.
#define _GNU_SOURCE
#include <stdatomic.h>

#include "engine_world.h"

enum { TAG = 7, LARGE = PLAN_SMALL_MAX / sizeof(float) + 4099 };

struct trial {
    const char *name;
    uint64_t count;
    uint8_t kind, codec;
    bool retry, by_memory;
    uint16_t weights[PEERS_MAX], sites[PEERS_MAX];
};

static const struct trial trials[] = {
    {.name = "direct", .count = 5001},
    {.name = "direct by memory", .count = 100003, .by_memory = true},
    {.name = "ring", .count = LARGE},
    {.name = "ring by memory", .count = LARGE, .by_memory = true},
    {.name = "ring in segments", .count = SEGMENTED_MIN / sizeof(float) + 77, .retry = true},
    {.name = "weighted", .count = LARGE, .weights = {3, 1, 2, 1}},
    {.name = "weighted, with a member that owns nothing", .count = LARGE, .weights = {1, 0, 1, 1}},
    {.name = "weighted, two sites", .count = LARGE, .weights = {1, 1, 1, 1}, .sites = {1, 2, 1, 2}},
    {.name = "sharded MinMax", .count = LARGE, .codec = CODEC_MINMAX_UINT8},
    {.name = "sharded int4", .count = LARGE, .codec = CODEC_BLOCK_INT4},
    {.name = "small broadcast", .count = 5001, .kind = PLAN_BROADCAST},
    {.name = "chain", .count = LARGE, .kind = PLAN_BROADCAST},
    {.name = "small all-gather", .count = 5001, .kind = PLAN_ALL_GATHER},
    {.name = "pieces", .count = LARGE, .kind = PLAN_ALL_GATHER},
    {.name = "pieces by memory", .count = LARGE, .kind = PLAN_ALL_GATHER, .by_memory = true},
};

struct writer {
    float *inputs[PEERS_MAX];
    uint32_t peers;
    uint64_t count;
    atomic_bool over;
};

// A program that writes to its inputs all the time.
static void *write_all_the_time(void *arg) {
    struct writer *writer = arg;
    for (uint32_t round = 1; !atomic_load(&writer->over); round++)
        for (uint32_t i = 0; i < writer->peers; i++)
            for (uint64_t at = round % 7; at < writer->count; at += 7)
                ((volatile float *)writer->inputs[i])[at] = (float)(round % 50 + i);
    return NULL;
}

static struct call_parts *parts_of(uint32_t size, uint32_t own, uint64_t count) {
    struct call_parts *parts = calloc(1, sizeof *parts + 2 * size * sizeof(struct call_part) + size * sizeof(uint64_t));
    uint64_t *sizes = (uint64_t *)(void *)(parts->parts + 2 * size);
    for (uint32_t rank = 0; rank < size; rank++) {
        parts->parts[rank] = (struct call_part){0, count};
        parts->parts[size + rank] = (struct call_part){rank * count, count};
        sizes[rank] = count;
    }
    parts->to = parts->parts;
    parts->from = parts->parts + size;
    parts->sizes = sizes;
    parts->in = count;
    parts->out = size * count;
    parts->own_at = own * count;
    return parts;
}

static void post(const struct trial *t, struct world *world, uint32_t side, const float *send, float *recv) {
    struct call_args args = reduce_of(send, recv, TAG, t->count, pcclSum, t->codec);
    if (t->kind == PLAN_BROADCAST)
        args = broadcast_of(world, side, 0, side == 0 ? send : NULL, side == 0 ? NULL : recv, TAG, t->count);
    if (t->kind == PLAN_ALL_GATHER) {
        args.subgroup = group_of(world, side);
        args.parts = parts_of(world->count, side, t->count);
        args.fingerprint.kind = t->kind;
        args.fingerprint.count = world->count * t->count;
        args.fingerprint.layout = 1;
        args.fingerprint.op = 0;
    }
    args.retry = args.tell = t->retry;
    CHECK(engine_post(world->sides[side].engine, &args, world->epoch) == CALL_OK);
}

static void run(const struct trial *t, uint32_t peers) {
    check_case("%s among %u", t->name, peers);
    memcpy(member_weights, t->weights, sizeof t->weights);
    memcpy(member_sites, t->sites, sizeof t->sites);
    same_host = t->by_memory;
    struct world *world = world_new(peers, 2);
    uint64_t results = t->kind == PLAN_ALL_GATHER ? peers * t->count : t->count;
    struct writer writer = {.peers = peers, .count = t->count};
    float *recv[PEERS_MAX];
    for (uint32_t i = 0; i < peers; i++) {
        writer.inputs[i] = filled(i, t->count);
        recv[i] = calloc(results, sizeof(float));
    }
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, write_all_the_time, &writer) == 0);
    for (uint32_t i = 0; i < peers; i++) post(t, world, i, writer.inputs[i], recv[i]);
    for (uint32_t i = 0; i < peers; i++) {
        struct call_outcome outcome;
        engine_wait(world->sides[i].engine, TAG, platform_now_ns() + 60 * SECOND_NS, &outcome);
        CHECK_EQ(outcome.result, CALL_OK);
        if (t->retry) free(outcome.contributors);
    }
    atomic_store(&writer.over, true);
    pthread_join(thread, NULL);
    uint32_t first = t->kind == PLAN_BROADCAST; // the root of a broadcast has no result
    for (uint32_t i = first + 1; i < peers; i++) CHECK(memcmp(recv[i], recv[first], results * sizeof(float)) == 0);
    for (uint32_t i = 0; i < peers; i++) {
        free(writer.inputs[i]);
        free(recv[i]);
    }
    world_free(world);
}

int main(void) {
    for (int round = 0; round < 5; round++)
        for (uint32_t peers = 3; peers <= 4; peers++)
            for (size_t i = 0; i < sizeof trials / sizeof trials[0]; i++) run(&trials[i], peers);
    return check_status();
}
