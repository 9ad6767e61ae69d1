// Operations whose lanes are moved by workers (link/workers): results, losses, new epochs and ends in the midst.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/core.h"
#include "engine_world.h"

enum { LANES = 5, COUNT = 3 << 20, TAG = 5 };

static void use_workers(int count) {
    char text[8];
    snprintf(text, sizeof text, "%d", count);
    setenv("PCCL_DATA_THREADS", text, 1);
}

static bool is_sum(const float *data, uint32_t members) { return wrong_sums(data, COUNT, 0, members, 1) == 0; }

static bool is_input(const float *data, uint32_t peer) { return wrong_sums(data, COUNT, peer, 1, 1) == 0; }

static void post(struct world *world, uint32_t side, float *data, uint64_t tag) {
    struct call_args reduce = reduce_of(data, data, tag, COUNT, pcclSum, CODEC_RAW);
    CHECK(engine_post(world->sides[side].engine, &reduce, world->epoch) == CALL_OK);
}

static enum call_result ending(struct world *world, uint32_t side, uint64_t tag) {
    struct call_outcome outcome;
    engine_wait(world->sides[side].engine, tag, platform_now_ns() + 60 * SECOND_NS, &outcome);
    return outcome.result;
}

// Several operations at once, each result exact.
static void test_sums(uint32_t peers, int workers) {
    enum { OPS = 3 };
    check_case("%u members and %d workers reduce several operations at once", peers, workers);
    use_workers(workers);
    struct world *world = world_new(peers, LANES);
    float *data[PEERS_MAX][OPS];
    for (uint32_t i = 0; i < peers; i++)
        for (uint64_t t = 0; t < OPS; t++) post(world, i, data[i][t] = filled(i, COUNT), t);
    for (uint32_t i = 0; i < peers; i++)
        for (uint64_t t = 0; t < OPS; t++) {
            CHECK(ending(world, i, t) == CALL_OK);
            CHECK(is_sum(data[i][t], peers));
            free(data[i][t]);
        }
    world_free(world);
}

// A member is lost after `wait_us`; whoever gets an error has its input back, and the next operation succeeds.
static void test_loss(int workers, unsigned wait_us) {
    enum { PEERS = 3, LOST = 2 };
    check_case("a member is lost %u us after the start, with %d workers", wait_us, workers);
    use_workers(workers);
    struct world *world = world_new(PEERS, LANES);
    float *data[PEERS];
    for (uint32_t i = 0; i < PEERS; i++) post(world, i, data[i] = filled(i, COUNT), TAG);
    usleep(wait_us); // any moment will do
    kill_side(world, LOST);
    new_epoch(world, true);
    for (uint32_t i = 0; i < LOST; i++) {
        enum call_result result = ending(world, i, TAG);
        CHECK(result == CALL_OK || result == CALL_LOST);
        CHECK(result == CALL_OK ? is_sum(data[i], PEERS) : is_input(data[i], i));
        fill_input(data[i], i, COUNT);
    }
    for (uint32_t i = 0; i < LOST; i++) post(world, i, data[i], TAG);
    for (uint32_t i = 0; i < LOST; i++) {
        CHECK(ending(world, i, TAG) == CALL_OK);
        CHECK(is_sum(data[i], LOST));
    }
    world_free(world);
    for (uint32_t i = 0; i < PEERS; i++) free(data[i]);
}

// Nobody is lost: the operation is redone in each of several epochs, and its result is exact.
static void test_epochs(int workers) {
    enum { PEERS = 3, EPOCHS = 6 };
    check_case("epochs follow each other in the midst of an operation, with %d workers", workers);
    use_workers(workers);
    struct world *world = world_new(PEERS, LANES);
    float *data[PEERS];
    for (uint32_t i = 0; i < PEERS; i++) post(world, i, data[i] = filled(i, COUNT), TAG);
    for (unsigned i = 0; i < EPOCHS; i++) {
        usleep(i * 700); // any moment will do
        new_epoch(world, false);
    }
    for (uint32_t i = 0; i < PEERS; i++) {
        CHECK(ending(world, i, TAG) == CALL_OK);
        CHECK(is_sum(data[i], PEERS));
    }
    world_free(world);
    for (uint32_t i = 0; i < PEERS; i++) free(data[i]);
}

// The end of an engine, or of its communicator, in the midst: the input is put back.
static void test_end(int workers, bool kill) {
    check_case("%s in the midst, with %d workers", kill ? "a communicator dies" : "an engine stops", workers);
    use_workers(workers);
    struct world *world = world_new(2, LANES);
    float *data[2];
    for (uint32_t i = 0; i < 2; i++) post(world, i, data[i] = filled(i, COUNT), TAG);
    usleep(1000); // any moment will do
    for (uint32_t i = 0; i < 2; i++)
        if (kill)
            engine_kill(world->sides[i].engine);
        else
            engine_stop(world->sides[i].engine);
    for (uint32_t i = 0; i < 2; i++) {
        enum call_result result = ending(world, i, TAG);
        CHECK(result == CALL_OK || result == CALL_DEAD);
        CHECK(result == CALL_OK ? is_sum(data[i], 2) : is_input(data[i], i));
    }
    world_free(world);
    for (uint32_t i = 0; i < 2; i++) free(data[i]);
}

#ifdef PCCL_CHECKS
static void step(struct engine *engine) { lanes_free_broken(engine->lanes); }
static void pause_all(struct engine *engine) { workers_pause(engine->lanes); }
static void change_epoch(struct engine *engine) { lanes_enter_epoch(engine->lanes, &engine->lanes->frames.now); }
static void note(struct engine *engine) { engine_note_running(engine); }

// Functions of the thread, called by another one, end the process before they change anything.
static void test_checks(int workers) {
    void (*const calls[])(struct engine *) = {step, pause_all, change_epoch, note};
    use_workers(workers);
    struct world *world = world_new(2, LANES);
    AWAIT(world->sides[0].engine->lanes->thread != 0, usleep(1000));
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        check_case("call %zu of a stranger, with %d workers", i, workers);
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            signal(SIGABRT, SIG_DFL);
            calls[i](world->sides[0].engine);
            _exit(0);
        }
        REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
    world_free(world);
}
#endif

int main(void) {
    static const int counts[] = {1, 2, 4};
#ifdef PCCL_CHECKS
    test_checks(0);
    test_checks(2);
#endif
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        test_sums(2, counts[i]);
        test_sums(3, counts[i]);
        for (unsigned wait_us = 0; wait_us <= 6000; wait_us += 2000) test_loss(counts[i], wait_us);
        test_epochs(counts[i]);
        test_end(counts[i], false);
        test_end(counts[i], true);
    }
    return check_status();
}
