// Lists of ops, and the counters that give the ops of a tag their numbers.
#define _GNU_SOURCE
#include "engine_world.h"

#include "data/engine.h"
#include "data/core.h"

static void test_list(void) {
    check_case("a list keeps its order, whatever is taken out of it");
    struct op *ops = calloc(5, sizeof *ops);
    struct op_queue list = {0};
    CHECK(op_queue_pop(&list) == NULL);
    for (int i = 0; i < 5; i++) op_queue_append(&list, &ops[i]);
    op_queue_remove(&list, &ops[2]);
    op_queue_remove(&list, &ops[2]); // not there: nothing
    op_queue_remove(&list, &ops[4]);
    op_queue_append(&list, &ops[2]);
    op_queue_remove(&list, &ops[0]);
    static const int order[] = {1, 3, 2};
    for (int i = 0; i < 3; i++) CHECK(op_queue_pop(&list) == &ops[order[i]]);
    CHECK(op_queue_pop(&list) == NULL);
    op_queue_append(&list, &ops[0]);
    CHECK(op_queue_pop(&list) == &ops[0]);
    free(ops);
}

static void test_insert(void) {
    check_case("ops in the background stay behind all others, each kind in its order");
    struct op *ops = calloc(5, sizeof *ops);
    ops[1].args.background = ops[3].args.background = true;
    struct op_queue list = {0};
    for (int i = 0; i < 5; i++) op_queue_insert(&list, &ops[i]);
    static const int order[] = {0, 2, 4, 1, 3};
    for (int i = 0; i < 5; i++) CHECK(op_queue_pop(&list) == &ops[order[i]]);
    CHECK(op_queue_pop(&list) == NULL);
    free(ops);
}

static void test_append_does_not_walk(void) {
    check_case("appending does not walk the list");
    struct op *ops = calloc(3, sizeof *ops);
    struct op_queue list = {0};
    op_queue_append(&list, &ops[0]);
    op_queue_append(&list, &ops[1]);
    ops[0].next = NULL; // who walks takes this for the end
    op_queue_append(&list, &ops[2]);
    CHECK(ops[0].next == NULL && ops[1].next == &ops[2]);
    free(ops);
}

// ---- counters ----
static void set_counter(struct engine *engine, uint64_t tag, uint32_t next) {
    struct op_counters *counters = &engine->call_table.counters;
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < counters->slots; i++)
        if (counters->list[i].tag == tag && counters->list[i].next != 0) counters->list[i].next = next;
    pthread_mutex_unlock(&engine->lock);
}

// Slots are 64 as long as there are few tags.
static uint32_t slot_of(uint64_t tag) { return (uint32_t)((tag * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & 63; }

static enum call_result reduce_one(struct world *world, uint32_t side, uint64_t tag, float *value) {
    struct call_args reduce = reduce_of(value, value, tag, 1, pcclSum, CODEC_RAW);
    CHECK(engine_post(world->sides[side].engine, &reduce, world->epoch) == CALL_OK);
    struct call_outcome outcome;
    engine_wait(world->sides[side].engine, tag, 0, &outcome);
    return outcome.result;
}

static enum call_result wait_for(struct world *world, uint32_t side, uint64_t tag, int64_t patience_ns) {
    struct call_outcome outcome;
    engine_wait(world->sides[side].engine, tag, platform_now_ns() + patience_ns, &outcome);
    return outcome.result;
}

static void reduce_both(struct world *world, uint64_t tag) {
    float a = 1, b = 2;
    CHECK(reduce_one(world, 0, tag, &a) == CALL_IN_PROGRESS);
    if (reduce_one(world, 1, tag, &b) == CALL_IN_PROGRESS) CHECK(wait_for(world, 1, tag, 20 * SECOND_NS) == CALL_OK);
    CHECK(wait_for(world, 0, tag, 20 * SECOND_NS) == CALL_OK);
    CHECK(a == 3 && b == 3);
}

// The two tags share a slot, and each member has begun with the other one: a number that became 0 would free the slot,
// and only one of the two members would find the second tag again.
static void test_counter_near_its_end(void) {
    check_case("the counter of a tag near its end");
    uint64_t first = 1, second = 2;
    while (slot_of(second) != slot_of(first)) second++;
    struct world *world = world_new(2, 1);
    float a = 1, b = 2, c = 1, d = 2;
    CHECK(reduce_one(world, 0, first, &a) == CALL_IN_PROGRESS);
    CHECK(reduce_one(world, 0, second, &b) == CALL_IN_PROGRESS);
    reduce_one(world, 1, second, &d);
    reduce_one(world, 1, first, &c);
    for (uint32_t i = 0; i < 2; i++)
        wait_for(world, i, first, 20 * SECOND_NS), wait_for(world, i, second, 20 * SECOND_NS);
    CHECK(a == 2 && c == 2 && b == 4 && d == 4);
    CHECK(world->sides[0].rolls == 0);

    for (uint32_t i = 0; i < 2; i++) set_counter(world->sides[i].engine, first, UINT32_MAX - 2);
    reduce_both(world, first);
    reduce_both(world, first);
    a = 1, b = 2;
    CHECK(reduce_one(world, 0, first, &a) == CALL_IN_PROGRESS); // no number is left: it waits for another epoch
    CHECK(reduce_one(world, 1, first, &b) == CALL_IN_PROGRESS);
    reduce_both(world, second);
    for (uint32_t i = 0; i < 2; i++) CHECK(wait_for(world, i, first, 0) == CALL_IN_PROGRESS);
    for (uint32_t i = 0; i < 2; i++) {
        bool asked = false;
        for (int64_t deadline = platform_now_ns() + 20 * SECOND_NS; !asked && platform_now_ns() < deadline;
             usleep(1000)) {
            pthread_mutex_lock(&world->lock);
            asked = world->sides[i].rolls > 0;
            pthread_mutex_unlock(&world->lock);
        }
        CHECK(asked);
    }
    new_epoch(world, false);
    for (uint32_t i = 0; i < 2; i++) CHECK(wait_for(world, i, first, 20 * SECOND_NS) == CALL_OK);
    CHECK(a == 3 && b == 3);
    reduce_both(world, first);
    reduce_both(world, second);
    for (uint32_t i = 0; i < 2; i++) CHECK(world->sides[i].rolls == 1);
    world_free(world);
}

int main(void) {
    test_list();
    test_insert();
    test_append_does_not_walk();
    test_counter_near_its_end();
    return check_status();
}
