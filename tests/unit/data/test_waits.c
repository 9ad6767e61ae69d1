// What a peer tells of the operations that its program waits for.
#include "engine_world.h"

#include "data/core.h"

enum { LATER_S = 10 };

struct caller {
    struct world *world;
    float value;
};

// The only thread of the program, which waits without a limit.
static void *call(void *context) {
    struct caller *caller = context;
    struct engine *engine = caller->world->sides[0].engine;
    struct call_args reduce = reduce_of(&caller->value, &caller->value, 1, 1, pcclSum, CODEC_RAW);
    struct call_outcome outcome;
    CHECK(engine_post(engine, &reduce, caller->world->epoch) == CALL_OK);
    engine_wait(engine, 1, INT64_MAX, &outcome);
    CHECK(outcome.result == CALL_OK);
    return NULL;
}

static uint32_t waiters(struct engine *engine) {
    engine_lock(engine);
    uint32_t count = engine->waiters;
    engine_unlock(engine);
    return count;
}

static struct wire_waits told_at(struct engine *engine, int64_t now_ns) {
    struct wire_waits waits = {0};
    CHECK(engine_waits(engine, now_ns, &waits));
    return waits;
}

static void post(struct world *world, uint32_t side, uint64_t tag, float *value) {
    struct call_args reduce = reduce_of(value, value, tag, 1, pcclSum, CODEC_RAW);
    CHECK(engine_post(world->sides[side].engine, &reduce, world->epoch) == CALL_OK);
}

static void finish(struct world *world, uint32_t side, uint64_t tag) {
    struct call_outcome outcome;
    engine_wait(world->sides[side].engine, tag, platform_now_ns() + 20 * SECOND_NS, &outcome);
    CHECK(outcome.result == CALL_OK);
}

int main(void) {
    struct world *world = world_new(2, 1);
    struct engine *engine = world->sides[0].engine;
    struct caller caller = {world, 1};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, call, &caller) == 0);
    AWAIT(waiters(engine) == 1, usleep(1000));

    check_case("the only thread of a program waits");
    int64_t now_ns = platform_now_ns() + LATER_S * SECOND_NS;
    struct wire_waits waits = told_at(engine, now_ns);
    CHECK(waits.count == 1 && waits.list[0].missing_count == 1);
    CHECK(waits.list[0].span_us >= LATER_S * 1000000 && waits.all_us == waits.list[0].span_us);

    check_case("a wait that has begun after the moment of the report is none");
    waits = told_at(engine, platform_now_ns() - LATER_S * SECOND_NS);
    CHECK(waits.count == 0 && waits.all_us == 0);

    check_case("an operation that began again has not been waited for before");
    engine_lock(engine);
    call_table_find(&engine->call_table, 1)->wait.since_ns -= 100 * SECOND_NS;
    engine_unlock(engine);
    waits = told_at(engine, now_ns);
    CHECK(waits.count == 1 && waits.list[0].span_us < 100 * 1000000);

    check_case("another thread makes its first call meanwhile");
    float value = 1, others[2] = {2, 2};
    post(world, 0, 2, &value);
    waits = told_at(engine, now_ns);
    CHECK(waits.count == 1 && waits.all_us == 0);

    for (uint32_t i = 0; i < 2; i++) post(world, 1, i + 1, &others[i]);
    for (uint32_t i = 0; i < 2; i++) finish(world, 1, i + 1);
    finish(world, 0, 2);
    pthread_join(thread, NULL);
    CHECK(caller.value == 3 && value == 3);
    world_free(world);
    return check_status();
}
