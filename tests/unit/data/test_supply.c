// A member that has the result of a small operation supplies it to one that lacks an input: the same bits, whatever
// the members' places, and the result does not change when the program writes to its tensors meanwhile.
#define _GNU_SOURCE
#include <sys/socket.h>

#include "data/core.h"
#include "link/connection.h"
#include "engine_world.h"

enum { TAG = 7 };

static float value(uint32_t peer, uint64_t i) { return input(peer, i) / 3; }

// In ring order, as every member reduces.
static float expected(uint32_t peers, uint64_t i, int op) {
    float sum = value(0, i);
    for (uint32_t peer = 1; peer < peers; peer++) {
        float other = value(peer, i);
        sum = op == pcclMax ? (sum > other ? sum : other) : sum + other;
    }
    return op == pcclAvg ? sum / (float)peers : sum;
}

// Ends the link between the two; both know of it.
static void cut(struct world *world, uint32_t from, uint32_t to) {
    struct engine *engine = world->sides[from].engine, *other = world->sides[to].engine;
    engine_lock(engine);
    CHECK(shutdown(neighbour_find(engine->lanes, &world->sides[to].id)->lanes[0]->stream->fd, SHUT_RDWR) == 0);
    engine_unlock(engine);
    while (engine_has_link(engine, &world->sides[to].id, 0) || engine_has_link(other, &world->sides[from].id, 0))
        usleep(100);
}

// Blocks until the engines of two peers send each other inputs through shared memory.
static void await_slots(struct world *world) {
    for (uint32_t i = 0; i < 2; i++)
        for (bool has = false; !has; usleep(100)) {
            struct engine *engine = world->sides[i].engine;
            engine_lock(engine);
            has = op_peer_of(neighbour_find(engine->lanes, &world->sides[1 - i].id))->slots.mapped;
            engine_unlock(engine);
        }
}

static void post(struct world *world, uint32_t side, float *data, uint64_t count, int op) {
    struct call_args args = reduce_of(data, data, TAG, count, op, CODEC_RAW);
    CHECK(engine_post(world->sides[side].engine, &args, world->epoch) == CALL_OK);
}

static void take(struct world *world, uint32_t side) {
    struct call_outcome outcome;
    engine_wait(world->sides[side].engine, TAG, platform_now_ns() + 30 * SECOND_NS, &outcome);
    CHECK_EQ(outcome.result, CALL_OK);
}

// The input of `late` reaches all but `needy`.
static void run(uint32_t peers, uint32_t late, uint32_t needy, uint64_t count, int op) {
    check_case("among %u, %u lacks the input of %u, %llu elements, %s", peers, needy, late, (unsigned long long)count,
               op == pcclAvg ? "average" : "another operation");
    struct world *world = world_new(peers, 1);
    if (same_host) await_slots(world);
    float *data[PEERS_MAX];
    for (uint32_t i = 0; i < peers; i++) {
        data[i] = malloc(count * sizeof(float));
        for (uint64_t k = 0; k < count; k++) data[i][k] = value(i, k);
    }
    for (uint32_t i = 0; i < peers; i++)
        if (i != late) post(world, i, data[i], count, op);
    for (uint32_t i = 0; i < peers; i++)
        AWAIT(i == late || engine_has_posted(world->sides[late].engine, TAG, &world->sides[i].id), usleep(100));
    cut(world, late, needy);
    post(world, late, data[late], count, op);
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < peers; i++) {
        if (i == needy) continue;
        take(world, i);
        for (uint64_t k = 0; k < count; k++) wrong += data[i][k] != expected(peers, k, op);
        memset(data[i], 0xee, count * sizeof(float)); // the tensor is the program's again
    }
    CHECK_EQ(wrong, 0);
    for (uint64_t k = 0; k < count; k++) wrong += data[needy][k] != value(needy, k);
    CHECK_EQ(wrong, 0);
    enter(world, false);
    links_ready(world);
    wait_reports(world);
    judge(world, false);
    take(world, needy);
    for (uint64_t k = 0; k < count; k++) wrong += data[needy][k] != expected(peers, k, op);
    CHECK_EQ(wrong, 0);
    world_free(world);
    for (uint32_t i = 0; i < peers; i++) free(data[i]);
}

int main(void) {
    static const int ops[] = {pcclSum, pcclAvg, pcclMax};
    same_host = true;
    for (uint32_t late = 0; late < 2; late++)
        for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) run(2, late, 1 - late, 50000, ops[i]);
    same_host = false;
    for (uint32_t peers = 2; peers <= 4; peers++)
        for (uint32_t late = 0; late < peers; late++)
            for (uint32_t needy = 0; needy < peers; needy++)
                for (size_t i = 0; needy != late && i < sizeof ops / sizeof ops[0]; i++)
                    run(peers, late, needy, i == 0 ? 50000 : 5001, ops[i]);
    return check_status();
}
