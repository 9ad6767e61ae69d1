// What members tell the master of their ops and of each other.
#include "data/telemetry.h"

#include "engine_world.h"

enum { PEERS = 4, ROUNDS = 3, SMALL = 10, LARGE = 100000 };

static void reduce_all(struct world *world, uint64_t count) {
    float *data[PEERS];
    for (uint32_t i = 0; i < PEERS; i++) {
        data[i] = filled(i, count);
        struct call_args reduce = reduce_of(data[i], data[i], 5, count, pcclSum, CODEC_RAW);
        REQUIRE(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
    }
    for (uint32_t i = 0; i < PEERS; i++) {
        struct call_outcome outcome;
        engine_wait(world->sides[i].engine, 5, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == CALL_OK);
    }
    for (uint32_t i = 0; i < PEERS; i++) free(data[i]);
}

static bool is_told(struct world *world, uint64_t ops) {
    bool told = true;
    pthread_mutex_lock(&world->lock);
    for (uint32_t i = 0; i < PEERS; i++) told &= world->sides[i].ops == ops;
    pthread_mutex_unlock(&world->lock);
    return told;
}

static void test_entries(void) {
    check_case("when the successor begins each op, be it small or large");
    struct world *world = world_new(PEERS, 1);
    for (int round = 0; round < ROUNDS; round++) {
        reduce_all(world, LARGE);
        reduce_all(world, SMALL);
    }
    int64_t deadline_ns = platform_now_ns() + 20 * SECOND_NS;
    while (!is_told(world, 2 * ROUNDS)) {
        REQUIRE(platform_now_ns() < deadline_ns);
        usleep(10000);
    }
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t k = 0; k < PEERS; k++)
            CHECK_EQ(world->sides[i].entries[k], k == (i + 1) % PEERS ? 2 * ROUNDS : 0);
    world_free(world);
}

int main(void) {
    test_entries();
    return check_status();
}
