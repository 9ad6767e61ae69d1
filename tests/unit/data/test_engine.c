// The data plane against a stand-in for the control side.
#define _GNU_SOURCE
#include <stdio.h>

#include "compute/kernels.h"
#include "ops/plan.h"
#include "engine_world.h"
#include "net/transport.h"

static void test_sum(uint32_t peers, uint32_t lanes, uint64_t count, bool in_place, int op) {
    struct world *world = world_new(peers, lanes);
    float *send[PEERS_MAX], *recv[PEERS_MAX];
    for (uint32_t i = 0; i < peers; i++) {
        send[i] = filled(i, count);
        recv[i] = in_place ? send[i] : calloc(count + 1, sizeof(float));
    }
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < peers; i++) {
            if (in_place) fill_input(send[i], i, count);
            struct call_args reduce = reduce_of(send[i], recv[i], 5, count, op, CODEC_RAW);
            CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
            CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_TAG_LIVE);
        }
        for (uint32_t i = 0; i < peers; i++) {
            struct call_outcome outcome;
            engine_wait(world->sides[i].engine, 5, platform_now_ns() + 20 * SECOND_NS, &outcome);
            CHECK(outcome.result == CALL_OK);
            CHECK(outcome.info.contributors == peers);
            if (peers == 2) CHECK(outcome.info.tx_bytes == count * 4 && outcome.info.rx_bytes == count * 4);
        }
        for (uint32_t i = 0; i < peers; i++)
            CHECK_EQ(wrong_sums(recv[i], count, 0, peers, op == pcclAvg ? peers : 1), 0);
    }
    world_free(world);
    for (uint32_t i = 0; i < peers; i++) {
        if (!in_place) free(recv[i]);
        free(send[i]);
    }
}

static void test_quantised(uint32_t peers, uint64_t count, enum codec_id codec, bool in_place) {
    struct world *world = world_new(peers, 3);
    float *send[PEERS_MAX], *recv[PEERS_MAX];
    for (uint32_t i = 0; i < peers; i++) {
        send[i] = filled(i, count);
        recv[i] = in_place ? send[i] : calloc(count + 1, sizeof(float));
        struct call_args reduce = reduce_of(send[i], recv[i], 9, count, pcclSum, (uint8_t)codec);
        CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
    }
    for (uint32_t i = 0; i < peers; i++) {
        struct call_outcome outcome;
        engine_wait(world->sides[i].engine, 9, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == CALL_OK);
        CHECK(memcmp(recv[0], recv[i], count * sizeof(float)) == 0);
    }
    double step = 997.0 / 255 / 2 * (peers + peers) + 1, worst = 0;
    for (uint64_t k = 0; k < count; k++) {
        double expected = 0;
        for (uint32_t j = 0; j < peers; j++) expected += (double)input(j, k);
        double error = expected - (double)recv[0][k];
        if (error < 0) error = -error;
        if (error > worst) worst = error;
    }
    CHECK(worst <= step);
    world_free(world);
    for (uint32_t i = 0; i < peers; i++) {
        if (!in_place) free(recv[i]);
        free(send[i]);
    }
}

// Posts tags in another order on every side, small and large mixed, and reuses each tag at once.
static void test_many(void) {
    enum { PEERS = 3, TAGS = 40, ROUNDS = 3 };
    struct world *world = world_new(PEERS, 2);
    static const uint64_t sizes[] = {0, 1, 100, 30000, 200000};
    float *send[PEERS][TAGS], *recv[PEERS][TAGS];
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t t = 0; t < TAGS; t++) {
            send[i][t] = filled(i + t, sizes[t % 5]);
            recv[i][t] = calloc(sizes[t % 5] + 1, sizeof(float));
        }
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < PEERS; i++)
            for (uint32_t k = 0; k < TAGS; k++) {
                uint32_t t = i == 0 ? k : i == 1 ? TAGS - 1 - k : (k * 7 + 3) % TAGS;
                struct call_args reduce = reduce_of(send[i][t], recv[i][t], t, sizes[t % 5], pcclSum, CODEC_RAW);
                CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
            }
        for (uint32_t i = 0; i < PEERS; i++)
            for (uint32_t t = 0; t < TAGS; t++) {
                struct call_outcome outcome;
                engine_wait(world->sides[i].engine, t, platform_now_ns() + 20 * SECOND_NS, &outcome);
                CHECK(outcome.result == CALL_OK);
                if (sizes[t % 5] > 0) CHECK(recv[i][t][0] == input(t, 0) + input(1 + t, 0) + input(2 + t, 0));
            }
    }
    world_free(world);
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t t = 0; t < TAGS; t++) {
            free(send[i][t]);
            free(recv[i][t]);
        }
}

// Two sides post one op before another, the third side waits for the other one first: what the first op has under way
// waits for the third side, and must not keep the second op from its end.
static void test_crossed(void) {
    enum { PEERS = 3, COUNT = 4 << 20, FIRST = 1, SECOND = 2 };
    struct world *world = world_new(PEERS, 16);
    float *data[PEERS][2];
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t k = 0; k < 2; k++) data[i][k] = malloc(COUNT * sizeof(float));
    for (int round = 0; round < 4; round++) {
        struct call_outcome outcome;
        for (uint32_t i = 0; i < PEERS; i++)
            for (uint32_t k = 0; k < 2; k++) fill_input(data[i][k], i + k, COUNT);
        for (uint32_t i = 0; i < PEERS; i++) {
            struct call_args first = reduce_of(data[i][0], data[i][0], FIRST, COUNT, pcclSum, CODEC_RAW),
                             second = reduce_of(data[i][1], data[i][1], SECOND, COUNT, pcclSum, CODEC_RAW);
            if (i < PEERS - 1) CHECK(engine_post(world->sides[i].engine, &first, world->epoch) == CALL_OK);
            CHECK(engine_post(world->sides[i].engine, &second, world->epoch) == CALL_OK);
        }
        struct engine *last = world->sides[PEERS - 1].engine;
        engine_wait(last, SECOND, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == CALL_OK);
        struct call_args first = reduce_of(data[PEERS - 1][0], data[PEERS - 1][0], FIRST, COUNT, pcclSum, CODEC_RAW);
        CHECK(engine_post(last, &first, world->epoch) == CALL_OK);
        for (uint32_t i = 0; i < PEERS; i++) {
            engine_wait(world->sides[i].engine, FIRST, platform_now_ns() + 20 * SECOND_NS, &outcome);
            CHECK(outcome.result == CALL_OK);
            if (i < PEERS - 1)
                engine_wait(world->sides[i].engine, SECOND, platform_now_ns() + 20 * SECOND_NS, &outcome);
            CHECK(outcome.result == CALL_OK);
            CHECK(data[i][1][COUNT - 1] == input(1, COUNT - 1) + input(2, COUNT - 1) + input(3, COUNT - 1));
        }
    }
    world_free(world);
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t k = 0; k < 2; k++) free(data[i][k]);
}

// One side is gone before it posted: the others' input is intact, the repeat works.
static void test_loss(uint64_t count, bool in_place) {
    struct world *world = world_new(3, 2);
    float *send[3], *recv[3];
    for (uint32_t i = 0; i < 3; i++) {
        send[i] = filled(i, count);
        recv[i] = in_place ? send[i] : calloc(count, sizeof(float));
    }
    uint64_t adopted = world->epoch;
    for (uint32_t i = 0; i < 2; i++) {
        struct call_args reduce = reduce_of(send[i], recv[i], 1, count, pcclSum, CODEC_RAW);
        CHECK(engine_post(world->sides[i].engine, &reduce, adopted) == CALL_OK);
    }
    usleep(20000);
    world->sides[2].alive = false;
    engine_stop(world->sides[2].engine);
    for (uint32_t i = 0; i < 2; i++) engine_drop_peer(world->sides[i].engine, &world->sides[2].id);
    enter(world, true);
    links_ready(world);
    wait_reports(world);
    judge(world, true);
    for (uint32_t i = 0; i < 2; i++) {
        struct call_outcome outcome;
        engine_wait(world->sides[i].engine, 1, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == CALL_LOST && outcome.epoch == world->epoch);
        CHECK_EQ(wrong_sums(send[i], count, i, 1, 1), 0);
        struct call_args reduce = reduce_of(send[i], recv[i], 2, count, pcclSum, CODEC_RAW);
        CHECK(engine_post(world->sides[i].engine, &reduce, adopted) == CALL_OK); // still counts on three
        engine_wait(world->sides[i].engine, 2, INT64_MAX, &outcome);
        CHECK(outcome.result == CALL_LOST && outcome.epoch == world->epoch);
        reduce.tag = 1;
        CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct call_outcome outcome;
        engine_wait(world->sides[i].engine, 1, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == CALL_OK && outcome.info.contributors == 2);
        CHECK(recv[i][count - 1] == input(0, count - 1) + input(1, count - 1));
    }
    world_free(world);
    for (uint32_t i = 0; i < 3; i++) {
        if (!in_place) free(recv[i]);
        free(send[i]);
    }
}

// Same members, a new epoch in the middle of many ops, again and again: nobody notices.
static void test_relink(void) {
    enum { PEERS = 3, TAGS = 12 };
    struct world *world = world_new(PEERS, 2);
    static const uint64_t sizes[] = {1, 1000, 50000, 300000};
    float *data[PEERS][TAGS];
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t t = 0; t < TAGS; t++) data[i][t] = malloc(sizes[t % 4] * sizeof(float));
    uint64_t adopted = world->epoch;
    for (int round = 0; round < 30; round++) {
        for (uint32_t i = 0; i < PEERS; i++)
            for (uint32_t t = 0; t < TAGS; t++) {
                fill_input(data[i][t], i + t, sizes[t % 4]);
                struct call_args reduce = reduce_of(data[i][t], data[i][t], t, sizes[t % 4], pcclSum, CODEC_RAW);
                CHECK(engine_post(world->sides[i].engine, &reduce, adopted) == CALL_OK);
                if (i == (uint32_t)round % PEERS && t == (uint32_t)round % TAGS) {
                    enter(world, false);
                    links_ready(world);
                    wait_reports(world);
                    judge(world, false);
                }
            }
        usleep((unsigned)(round * 137 % 1500));
        enter(world, false);
        links_ready(world);
        wait_reports(world);
        judge(world, false);
        for (uint32_t i = 0; i < PEERS; i++)
            for (uint32_t t = 0; t < TAGS; t++) {
                struct call_outcome outcome;
                engine_wait(world->sides[i].engine, t, platform_now_ns() + 20 * SECOND_NS, &outcome);
                CHECK(outcome.result == CALL_OK);
                CHECK_EQ(wrong_sums(data[i][t], sizes[t % 4], t, PEERS, 1), 0);
            }
    }
    world_free(world);
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t t = 0; t < TAGS; t++) free(data[i][t]);
}

static bool next_mismatch(struct world *world, struct wire_mismatch *seen) {
    pthread_mutex_lock(&world->lock);
    bool any = world->mismatches > 0;
    if (any) *seen = world->mismatch;
    world->mismatches = 0;
    pthread_mutex_unlock(&world->lock);
    return any;
}

// The first one that is told, or the next one since: the other side may report too.
static struct wire_mismatch wait_mismatch(struct world *world) {
    struct wire_mismatch seen = {0};
    bool any = false;
    for (int i = 0; i < 200000 && !any; i++) {
        any = next_mismatch(world, &seen);
        if (!any) usleep(100);
    }
    CHECK(any);
    return seen;
}

static void test_mismatch(uint64_t count_a, uint64_t count_b) {
    struct world *world = world_new(2, 1);
    float *a = filled(0, count_a), *b = filled(1, count_b);
    struct call_args ra = reduce_of(a, a, 3, count_a, pcclSum, CODEC_RAW),
                     rb = reduce_of(b, b, 3, count_b, pcclSum, CODEC_RAW);
    CHECK(engine_post(world->sides[0].engine, &ra, world->epoch) == CALL_OK);
    CHECK(engine_post(world->sides[1].engine, &rb, world->epoch) == CALL_OK);
    struct wire_mismatch seen = wait_mismatch(world);
    CHECK(seen.name.tag == 3);
    CHECK(seen.mine.count != seen.theirs.count);
    enter(world, false);
    links_ready(world);
    wait_reports(world);
    struct wire_verdict *verdict = calloc(1, sizeof *verdict);
    verdict->name = seen.name;
    verdict->kind = WIRE_VERDICT_MISMATCH;
    verdict->text.length = 5;
    memcpy(verdict->text.chars, "count", 5);
    verdict_to_all(world, verdict);
    free(verdict);
    for (uint32_t i = 0; i < 2; i++) {
        struct call_outcome outcome;
        engine_wait(world->sides[i].engine, 3, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == CALL_MISMATCH);
        CHECK(strcmp(outcome.text, "count") == 0);
    }
    CHECK(a[0] == input(0, 0) && b[0] == input(1, 0));
    world_free(world);
    free(a);
    free(b);
}

// ---- retry mode ----
enum { SEGMENT = PLAN_SEGMENT_MIN / sizeof(float) };

static void wait_commits(struct world *world) {
    for (int i = 0; i < 200000; i++) {
        pthread_mutex_lock(&world->lock);
        bool over = world->commits == 0;
        pthread_mutex_unlock(&world->lock);
        if (over) {
            pthread_mutex_lock(&world->order); // the last one has reached all
            pthread_mutex_unlock(&world->order);
            return;
        }
        usleep(100);
    }
    CHECK(false);
}

struct reduced {
    uint32_t peers;
    uint64_t count;
    int op;
    bool in_place, quantised;
    float *send[PEERS_MAX], *recv[PEERS_MAX];
};

CHECK_UNWATCHED static float value_of(const struct reduced *r, uint32_t peer, uint64_t i) {
    return r->quantised ? (float)(1 << peer) : input(peer, i);
}

CHECK_UNWATCHED static struct reduced reduced_new(uint32_t peers, uint64_t count, int op, bool in_place,
                                                  bool quantised) {
    struct reduced r = {.peers = peers, .count = count, .op = op, .in_place = in_place, .quantised = quantised};
    for (uint32_t i = 0; i < peers; i++) {
        r.send[i] = malloc(count * sizeof(float));
        for (uint64_t k = 0; k < count; k++) r.send[i][k] = value_of(&r, i, k);
        r.recv[i] = in_place ? r.send[i] : malloc(count * sizeof(float));
        for (uint64_t k = 0; k < count && !in_place; k++) r.recv[i][k] = -1;
    }
    return r;
}

static void reduced_free(struct reduced *r) {
    for (uint32_t i = 0; i < r->peers; i++) {
        if (!r->in_place) free(r->recv[i]);
        free(r->send[i]);
    }
}

static void post(struct world *world, const struct reduced *r, uint32_t side, bool retry, uint64_t tag,
                 uint64_t adopted) {
    struct call_args reduce =
        reduce_of(r->send[side], r->recv[side], tag, r->count, r->op, r->quantised ? CODEC_MINMAX_UINT8 : CODEC_RAW);
    reduce.retry = reduce.tell = retry;
    CHECK(engine_post(world->sides[side].engine, &reduce, adopted) == CALL_OK);
}

// Each range is exactly the reduction of its contributors' inputs, or the input. How many elements have `full`
// contributors.
CHECK_UNWATCHED static uint64_t check_ranges(const struct reduced *r, uint32_t side,
                                             const struct call_contributors *told, uint32_t full) {
    uint64_t at = 0, all = 0, wrong = 0;
    check_reads(r->recv[side], r->count * sizeof(float));
    check_reads(r->send[side], r->count * sizeof(float));
    CHECK(told != NULL);
    for (uint32_t i = 0; told != NULL && i < told->count; i++) {
        const struct call_range *range = &told->ranges[i];
        CHECK(range->begin == at && (range->end > at || r->count == 0));
        at = range->end;
        if (range->count == full) all += range->end - range->begin;
        for (uint64_t k = range->begin; k < range->end; k++) {
            float expected = 0;
            for (uint32_t c = 0; c < range->count; c++) expected += value_of(r, range->ids[c].bytes[0] - 1u, k);
            if (r->op == pcclAvg && range->count > 0) expected /= (float)range->count;
            if (range->count == 0) expected = r->in_place ? value_of(r, side, k) : r->recv[side][k];
            wrong += r->recv[side][k] != expected;
            if (!r->in_place) wrong += r->send[side][k] != value_of(r, side, k);
        }
    }
    CHECK(at == r->count);
    CHECK(wrong == 0);
    return all;
}

static void take(struct world *world, uint32_t side, uint64_t tag, struct call_outcome *outcome) {
    engine_wait(world->sides[side].engine, tag, platform_now_ns() + 20 * SECOND_NS, outcome);
    CHECK(engine_live_ops(world->sides[side].engine) == 0);
}

// All survivors: success, the same ranges, the same bytes. How many elements have `full` contributors.
static uint64_t take_all(struct world *world, const struct reduced *r, uint64_t tag, uint32_t full) {
    uint64_t all = 0;
    struct call_outcome first = {.contributors = NULL};
    uint32_t first_side = 0;
    for (uint32_t i = 0; i < world->count; i++) {
        if (!world->sides[i].alive) continue;
        struct call_outcome outcome;
        take(world, i, tag, &outcome);
        CHECK(outcome.result == CALL_OK && outcome.retry);
        // the latter: nothing had to be redone
        CHECK(outcome.info.contributors == living(world) || outcome.info.contributors == full);
        CHECK(outcome.epoch > 0 && outcome.epoch <= world->epoch);
        all = check_ranges(r, i, outcome.contributors, full);
        if (first.contributors == NULL) {
            first = outcome;
            first_side = i;
            continue;
        }
        CHECK(outcome.epoch == first.epoch && outcome.contributors->count == first.contributors->count);
        CHECK(memcmp(r->recv[i], r->recv[first_side], r->count * sizeof(float)) == 0);
        free(outcome.contributors);
    }
    free(first.contributors);
    return all;
}

static void test_retry_undisturbed(uint32_t peers, uint64_t count, int op, bool in_place, bool quantised) {
    struct world *world = world_new(peers, 2);
    struct reduced r = reduced_new(peers, count, op, in_place, quantised);
    for (uint32_t i = 0; i < peers; i++) post(world, &r, i, true, 5, world->epoch);
    CHECK(take_all(world, &r, 5, peers) == count);
    world_free(world);
    reduced_free(&r);
}

// A member dies after `commits` segments were committed, and `wait_us` after that a fresh epoch tells.
static void test_retry_loss(uint64_t count, int64_t commits, int op, bool in_place, bool quantised, unsigned wait_us) {
    struct world *world = world_new(3, 2);
    struct reduced r = reduced_new(3, count, op, in_place, quantised);
    uint64_t adopted = world->epoch;
    world->commits = commits;
    for (uint32_t i = 0; i < 3; i++) post(world, &r, i, true, 5, adopted);
    wait_commits(world);
    usleep(wait_us);
    kill_side(world, (uint32_t)commits % 3);
    new_epoch(world, true);
    uint64_t full = take_all(world, &r, 5, 3);
    CHECK(full >= (uint64_t)commits * SEGMENT);
    // The tag is free again, and an op that counts on three is still told of the loss.
    uint32_t left = commits % 3 == 0 ? 1 : 0;
    struct call_args plain = reduce_of(r.send[left], r.recv[left], 5, count, op, CODEC_RAW);
    struct call_outcome outcome;
    CHECK(engine_post(world->sides[left].engine, &plain, adopted) == CALL_OK);
    take(world, left, 5, &outcome);
    CHECK(outcome.result == CALL_LOST && outcome.contributors == NULL);
    world_free(world);
    reduced_free(&r);
}

// Deaths at any moment, the second one in the midst of what the first one made to be redone.
static void test_retry_deaths(unsigned seed, uint64_t count) {
    struct world *world = world_new(4, 1);
    struct reduced r[2] = {reduced_new(4, count, pcclSum, seed % 2, false),
                           reduced_new(4, count - SEGMENT, pcclAvg, seed / 2 % 2, false)};
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t t = 0; t < 2; t++)
            post(world, &r[i % 2 == 0 ? t : 1 - t], i, true, i % 2 == 0 ? t : 1 - t, world->epoch);
    for (uint32_t death = 0; death < 2; death++) {
        usleep(seed * 7919 % 6000);
        if (seed % 3 == 0) new_epoch(world, false);
        kill_side(world, (seed + death) % 4);
        if (seed % 5 == 0) enter(world, true); // superseded before all have reported
        new_epoch(world, true);
        seed = seed * 31 + 7 + death;
        seed += (seed + 1) % 4 == 0 || !world->sides[(seed + 1) % 4].alive; // the next victim lives
    }
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t t = 0; t < 2 && world->sides[i].alive; t++) {
            struct call_outcome outcome;
            engine_wait(world->sides[i].engine, t, platform_now_ns() + 20 * SECOND_NS, &outcome);
            CHECK(outcome.result == CALL_OK);
            check_ranges(&r[t], i, outcome.contributors, 4);
            free(outcome.contributors);
        }
    world_free(world);
    reduced_free(&r[0]);
    reduced_free(&r[1]);
}

// Nobody is left: what was committed is told, all else is the input.
static void test_retry_alone(bool in_place) {
    struct world *world = world_new(2, 2);
    struct reduced r = reduced_new(2, 10 * SEGMENT, pcclSum, in_place, false);
    world->commits = 3;
    for (uint32_t i = 0; i < 2; i++) post(world, &r, i, true, 5, world->epoch);
    wait_commits(world);
    kill_side(world, 0);
    new_epoch(world, true);
    struct call_outcome outcome;
    take(world, 1, 5, &outcome);
    CHECK(outcome.result == CALL_LOST && outcome.retry && outcome.epoch == world->epoch);
    uint64_t both = check_ranges(&r, 1, outcome.contributors, 2);
    CHECK(both >= 3 * SEGMENT && both < 10 * SEGMENT);
    free(outcome.contributors);
    world_free(world);
    reduced_free(&r);
}

static void test_retry_killed(bool in_place) {
    struct world *world = world_new(2, 2);
    struct reduced r = reduced_new(2, 10 * SEGMENT, pcclSum, in_place, false);
    world->commits = 3;
    for (uint32_t i = 0; i < 2; i++) post(world, &r, i, true, 5, world->epoch);
    wait_commits(world);
    engine_kill(world->sides[1].engine);
    struct call_outcome outcome;
    take(world, 1, 5, &outcome);
    CHECK(outcome.result == CALL_DEAD);
    uint64_t both = check_ranges(&r, 1, outcome.contributors, 2);
    CHECK(both == 3 * SEGMENT);
    free(outcome.contributors);
    world_free(world); // the other one was not awaited
    CHECK(!in_place || r.send[0][10 * SEGMENT - 1] == input(0, 10 * SEGMENT - 1));
    reduced_free(&r);
}

// Members with connections broken between them: the op goes on, and no segment that was complete is done again.
static void test_retry_relink(bool in_place) {
    struct world *world = world_new(3, 2);
    struct reduced r = reduced_new(3, 10 * SEGMENT, pcclAvg, in_place, false);
    for (uint32_t i = 0; i < 3; i++) post(world, &r, i, true, 5, world->epoch);
    for (int round = 0; round < 8; round++) {
        usleep((unsigned)(round * 977 % 3000));
        new_epoch(world, false);
    }
    CHECK(take_all(world, &r, 5, 3) == 10 * SEGMENT);
    world_free(world);
    reduced_free(&r);
}

// All are told the verdict, which ends here, and in the epoch after it what is left goes on.
static void mend_with(struct world *world, struct wire_verdict *verdict) {
    verdict_to_all(world, verdict);
    free(verdict);
    enter(world, false);
    links_ready(world);
    wait_reports(world);
    judge(world, false);
}

// A member has met the op in one piece while it ran it in segments, or the other way round.
static void make_whole(struct world *world, const struct wire_mismatch *seen) {
    CHECK(wire_fingerprint_same_op(&seen->mine, &seen->theirs));
    struct wire_verdict *verdict = calloc(1, sizeof *verdict);
    verdict->name = seen->name;
    verdict->kind = WIRE_VERDICT_WHOLE;
    mend_with(world, verdict);
}

// The same may be told again, by the other side.
static void take_whole(struct world *world, uint32_t side, uint64_t tag, struct call_outcome *outcome) {
    int64_t deadline = platform_now_ns() + 20 * SECOND_NS;
    do {
        struct wire_mismatch seen;
        if (next_mismatch(world, &seen)) make_whole(world, &seen);
        engine_wait(world->sides[side].engine, tag, platform_now_ns() + 20 * MS_NS, outcome);
    } while (outcome->result == CALL_IN_PROGRESS && platform_now_ns() < deadline);
    CHECK(engine_live_ops(world->sides[side].engine) == 0);
}

// One member runs the op in one piece: the others come to do so too, and it sees nothing of it. Then it dies or not.
static void test_retry_meets_plain(uint32_t plain, uint32_t late, bool in_place, bool dies) {
    struct world *world = world_new(3, 2);
    struct reduced r = reduced_new(3, 4 * SEGMENT, pcclSum, in_place, false);
    for (uint32_t i = 0; i < 3; i++)
        if (i != late) post(world, &r, i, i != plain, 5, world->epoch);
    if (late == plain) usleep(20000); // the others are at it
    if (late < 3) post(world, &r, late, late != plain, 5, world->epoch);
    struct wire_mismatch seen = wait_mismatch(world);
    pthread_mutex_lock(&world->lock);
    if (dies) world->commits = 0;
    pthread_mutex_unlock(&world->lock);
    make_whole(world, &seen);
    if (dies) {
        kill_side(world, plain);
        new_epoch(world, true);
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (!world->sides[i].alive) continue;
        struct call_outcome outcome;
        take_whole(world, i, 5, &outcome);
        CHECK(outcome.result == CALL_OK);
        if (i == plain)
            CHECK(r.recv[i][7] == input(0, 7) + input(1, 7) + input(2, 7) && outcome.contributors == NULL);
        else
            CHECK(check_ranges(&r, i, outcome.contributors, 3) % (4 * SEGMENT) == 0); // in one piece
        free(outcome.contributors);
    }
    world_free(world);
    reduced_free(&r);
}

static void test_retry_mismatch(uint64_t count_a, uint64_t count_b) {
    struct world *world = world_new(2, 1);
    struct reduced a = reduced_new(2, count_a, pcclSum, true, false), b = reduced_new(2, count_b, pcclSum, true, false);
    post(world, &a, 0, true, 3, world->epoch);
    post(world, &b, 1, true, 3, world->epoch);
    struct wire_verdict *verdict = calloc(1, sizeof *verdict);
    verdict->name = wait_mismatch(world).name;
    verdict->kind = WIRE_VERDICT_MISMATCH;
    verdict->text.length = 5;
    memcpy(verdict->text.chars, "count", 5);
    mend_with(world, verdict);
    for (uint32_t i = 0; i < 2; i++) {
        struct call_outcome outcome;
        take(world, i, 3, &outcome);
        CHECK(outcome.result == CALL_MISMATCH && strcmp(outcome.text, "count") == 0);
        CHECK(check_ranges(i == 0 ? &a : &b, i, outcome.contributors, 2) == 0);
        free(outcome.contributors);
    }
    world_free(world);
    reduced_free(&a);
    reduced_free(&b);
}

// Whatever a verdict says: what is not complete here does not end as if it were.
static void test_retry_open_is_not_committed(bool in_place) {
    struct world *world = world_new(2, 1);
    struct reduced r = reduced_new(2, 4 * SEGMENT, pcclSum, in_place, false);
    post(world, &r, 0, true, 5, world->epoch);
    struct wire_verdict *verdict = calloc(1, sizeof *verdict);
    verdict->kind = WIRE_VERDICT_COMMIT;
    for (uint32_t segment = 0; segment < 4; segment++) {
        verdict->name =
            (struct wire_op_name){.epoch = world->epoch, .tag = 5, .sequence = 1, .segment = (uint16_t)segment};
        engine_verdict(world->sides[0].engine, verdict);
    }
    free(verdict);
    struct call_outcome outcome;
    engine_wait(world->sides[0].engine, 5, platform_now_ns() + 20 * MS_NS, &outcome);
    CHECK(outcome.result == CALL_IN_PROGRESS);
    post(world, &r, 1, true, 5, world->epoch);
    CHECK(take_all(world, &r, 5, 2) == r.count);
    world_free(world);
    reduced_free(&r);
}

// 1,024 ops in retry mode can be live, and what they are divided into counts.
static void test_retry_limit(void) {
    struct world *world = world_new(2, 1);
    struct reduced r = reduced_new(2, 4 * SEGMENT, pcclSum, false, false);
    struct call_args reduce = reduce_of(r.send[0], r.recv[0], 0, r.count, pcclSum, CODEC_RAW);
    reduce.retry = true;
    uint64_t posted = 0;
    while (engine_post(world->sides[0].engine, &reduce, world->epoch) == CALL_OK) reduce.tag = ++posted;
    CHECK(posted >= 1024 && posted < WIRE_MAX_LIVE_OPS);
    CHECK(engine_live_ops(world->sides[0].engine) == posted);
    world_free(world);
    reduced_free(&r);
}

static void test_retry(void) {
    for (int in_place = 0; in_place < 2; in_place++) {
        test_retry_undisturbed(2, 10, pcclSum, in_place, false);
        test_retry_undisturbed(3, 4 * SEGMENT + 17, pcclAvg, in_place, false);
        test_retry_undisturbed(2, 4 * SEGMENT + 1, pcclSum, in_place, true);
        test_retry_loss(63750, 0, pcclSum, in_place, false, 0);
        test_retry_alone(in_place);
        test_retry_killed(in_place);
        test_retry_open_is_not_committed(in_place);
        for (uint32_t plain = 0; plain < 3; plain++)
            test_retry_meets_plain(plain, in_place ? 3 : plain, in_place, plain == 1);
    }
    bool first = same_host;
    test_retry_undisturbed(3, 9 * SEGMENT + 3, pcclSum, first, false);
    for (int64_t commits = first; commits < 8; commits += 2) // each boundary between segments
        test_retry_loss(8 * SEGMENT + 5, commits, pcclSum, commits / 2 % 2 != 0, false, commits % 3 ? 0 : 3000);
    test_retry_loss(4 * SEGMENT + 5, 1, pcclAvg, first, true, 0);
    test_retry_relink(first);
    test_retry_meets_plain(1, 0, first, false);
    for (unsigned seed = first; seed < 12; seed += 2) test_retry_deaths(seed, 6 * SEGMENT + 11 * seed);
    test_retry_mismatch(4 * SEGMENT, 5 * SEGMENT);
    test_retry_mismatch(4 * SEGMENT, 10);
    test_retry_limit();
}

static void test_stop_with_live_ops(void) {
    struct world *world = world_new(2, 1);
    float *a = filled(0, 500000);
    struct call_args reduce = reduce_of(a, a, 3, 500000, pcclSum, CODEC_RAW);
    CHECK(engine_post(world->sides[0].engine, &reduce, world->epoch) == CALL_OK);
    struct call_outcome outcome;
    engine_wait(world->sides[0].engine, 3, platform_now_ns() + 20 * MS_NS, &outcome);
    CHECK(outcome.result == CALL_IN_PROGRESS);
    engine_kill(world->sides[0].engine);
    engine_wait(world->sides[0].engine, 3, platform_now_ns() + 5 * SECOND_NS, &outcome);
    CHECK(outcome.result == CALL_DEAD);
    engine_wait(world->sides[0].engine, 3, INT64_MAX, &outcome);
    CHECK(outcome.result == CALL_UNKNOWN);
    CHECK(engine_post(world->sides[0].engine, &reduce, world->epoch) == CALL_DEAD);
    world_free(world);
    free(a);
}

// A link that epoll does not take, as when descriptors to watch run out: the engine dies, says so, and its other links
// end.
static void test_failed(void) {
    struct world *world = world_new(2, 1);
    struct side *side = &world->sides[0];
    float *a = filled(0, 500000);
    struct call_args reduce = reduce_of(a, a, 3, 500000, pcclSum, CODEC_RAW);
    CHECK(engine_post(side->engine, &reduce, world->epoch) == CALL_OK);
    FILE *unwatchable = tmpfile();
    REQUIRE(unwatchable != NULL);
    engine_add_link(side->engine, &(struct wire_id){.bytes = "stranger"}, 0, far_end_new(dup(fileno(unwatchable))));
    fclose(unwatchable);
    struct call_outcome outcome;
    engine_wait(side->engine, 3, platform_now_ns() + 5 * SECOND_NS, &outcome);
    CHECK(outcome.result == CALL_DEAD);
    CHECK(engine_post(side->engine, &reduce, world->epoch) == CALL_DEAD);
    int64_t deadline = platform_now_ns() + 5 * SECOND_NS;
    while (engine_has_link(world->sides[1].engine, &side->id, 0) && platform_now_ns() < deadline) usleep(1000);
    CHECK(!engine_has_link(world->sides[1].engine, &side->id, 0));
    engine_stop(side->engine);
    CHECK(side->failed == 1);
    world_free(world);
    free(a);
}

#ifdef __SANITIZE_THREAD__ // larger counts run the same code, for minutes
enum { DIVISOR = 4 };
#else
enum { DIVISOR = 1 };
#endif

static void test_all(void) {
    for (int in_place = 0; in_place < 2; in_place++) {
        test_sum(2, 1, 10, in_place, pcclSum);
        test_sum(2, 2, 700001 / DIVISOR, in_place, pcclSum);
        test_sum(3, 2, 5000, in_place, pcclAvg);
        test_sum(3, 3, 333333 / DIVISOR, in_place, pcclSum);
        test_sum(4, 1, 100003 / DIVISOR, in_place, pcclAvg);
        test_sum(5, 2, 300007 / DIVISOR, in_place, pcclSum);
        test_quantised(2, 300000 / DIVISOR, CODEC_MINMAX_UINT8, in_place);
        test_quantised(4, 1000001 / DIVISOR, CODEC_MINMAX_UINT8, in_place);
        test_quantised(3, 5, CODEC_ZERO_INT8, in_place);
        test_loss(100, in_place);
        test_loss(400000, in_place);
    }
    test_many();
    test_crossed();
    test_relink();
    test_mismatch(10, 11);
    test_mismatch(10, 500000);
    test_mismatch(500000, 500001);
    test_stop_with_live_ops();
    test_failed();
    test_retry();
}

int main(void) {
    test_all();
#ifndef __SANITIZE_THREAD__ // the other way of the bytes takes the same locks, and the same minutes again
    same_host = true;
    test_all();
#endif
    return check_status();
}
