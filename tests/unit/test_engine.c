// The data plane against a stand-in for the control side: engines in one process, joined by socket pairs, a "master" that counts.
#define _GNU_SOURCE
#include <errno.h>
#include <pccl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "compute/kernels.h"
#include "data/engine.h"
#include "check.h"
#include "net/socket.h"

enum { PEERS_MAX = 5,
       OPS_MAX = 8192 };

struct world;
struct side {
    struct world *world;
    struct engine *engine;
    struct wire_id id;
    uint32_t index;
    bool alive;
    uint64_t reported; // newest epoch that a report came for
};

struct world {
    pthread_mutex_t lock;
    uint32_t count, lanes;
    struct side sides[PEERS_MAX];
    uint64_t epoch;
    bool hold; // do not commit
    struct tally {
        struct wire_op_name name;
        uint32_t done;
    } tallies[OPS_MAX];
    size_t tally_count;
    struct wire_op_report reports[PEERS_MAX][OPS_MAX];
    uint32_t report_counts[PEERS_MAX];
    int mismatches;
    struct wire_mismatch mismatch;
};

static bool name_equal(const struct wire_op_name *a, const struct wire_op_name *b) {
    return a->epoch == b->epoch && a->tag == b->tag && a->sequence == b->sequence;
}

static uint32_t living(const struct world *world) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->count; i++) count += world->sides[i].alive;
    return count;
}

static void verdict_to_all(struct world *world, const struct wire_verdict *verdict) {
    for (uint32_t i = 0; i < world->count; i++)
        if (world->sides[i].alive) engine_verdict(world->sides[i].engine, verdict);
}

static void on_done(void *context, const struct wire_op_name *name) {
    struct side *side = context;
    struct world *world = side->world;
    pthread_mutex_lock(&world->lock);
    bool commit = false;
    if (name->epoch == world->epoch && !world->hold) {
        size_t i = 0;
        while (i < world->tally_count && !name_equal(&world->tallies[i].name, name)) i++;
        if (i == world->tally_count) world->tallies[world->tally_count++] = (struct tally){*name, 0};
        commit = ++world->tallies[i].done == living(world);
        if (commit) world->tallies[i] = world->tallies[--world->tally_count];
    }
    pthread_mutex_unlock(&world->lock);
    struct wire_verdict *copy = malloc(sizeof *copy);
    memset(copy, 0, sizeof *copy);
    copy->name = *name;
    copy->kind = WIRE_VERDICT_COMMIT;
    if (commit) verdict_to_all(world, copy);
    free(copy);
}

static void on_mismatch(void *context, const struct wire_mismatch *mismatch) {
    struct side *side = context;
    pthread_mutex_lock(&side->world->lock);
    side->world->mismatches++;
    side->world->mismatch = *mismatch;
    pthread_mutex_unlock(&side->world->lock);
}

static void on_frozen(void *context, uint64_t epoch, const struct wire_report *report) {
    struct side *side = context;
    pthread_mutex_lock(&side->world->lock);
    side->reported = epoch;
    side->world->report_counts[side->index] = report->count;
    memcpy(side->world->reports[side->index], report->ops, report->count * sizeof *report->ops);
    pthread_mutex_unlock(&side->world->lock);
}

static void on_link_down(void *context, const struct wire_id *id, uint32_t index, bool silent) {
    (void)context;
    (void)id;
    (void)index;
    (void)silent;
}

// Joined by TCP on loopback, the engines find that they can read each other's memory; joined by socket pairs they send everything.
static bool same_host;

static bool tcp_pair(int pair[2]) {
    struct wire_address address = {.family = 4, .bytes = {127, 0, 0, 1}}, from;
    int listener = socket_listen(&address);
    bool made = listener >= 0 && socket_local_address(listener, &address) && (pair[0] = socket_dial(&address)) >= 0;
    while (made && (pair[1] = socket_accept(listener, &from)) == -EAGAIN) usleep(100);
    close(listener);
    return made && pair[1] >= 0;
}

static void link_pair(struct world *world, uint32_t a, uint32_t b) {
    uint32_t n = living(world);
    bool neighbours = n <= 3;
    for (uint32_t i = 0; i < world->count && !neighbours; i++) neighbours = (a + 1) % world->count == b || (b + 1) % world->count == a;
    for (uint32_t index = 0; index <= (neighbours ? world->lanes : 0); index++) {
        if (engine_has_link(world->sides[a].engine, &world->sides[b].id, index)) continue;
        int pair[2];
        CHECK(same_host ? tcp_pair(pair) : socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        engine_add_link(world->sides[a].engine, &world->sides[b].id, index, pair[0]);
        engine_add_link(world->sides[b].engine, &world->sides[a].id, index, pair[1]);
    }
}

static void enter(struct world *world, bool lost) {
    pthread_mutex_lock(&world->lock);
    world->epoch++;
    world->tally_count = 0;
    pthread_mutex_unlock(&world->lock);
    struct engine_member members[PEERS_MAX];
    uint32_t n = 0, rank[PEERS_MAX] = {0};
    for (uint32_t i = 0; i < world->count; i++)
        if (world->sides[i].alive) {
            rank[i] = n;
            members[n++] = (struct engine_member){world->sides[i].id, world->lanes};
        }
    for (uint32_t i = 0; i < world->count; i++) {
        if (!world->sides[i].alive) continue;
        struct engine_epoch epoch = {.run = 7, .generation = 1, .group_epoch = world->epoch, .lost = lost, .latency_us = 30, .megabytes_per_s = 2000, .rank = rank[i], .count = n, .members = members};
        engine_enter_epoch(world->sides[i].engine, &epoch);
    }
}

static void links_ready(struct world *world) {
    for (uint32_t a = 0; a < world->count; a++)
        for (uint32_t b = a + 1; b < world->count; b++)
            if (world->sides[a].alive && world->sides[b].alive) link_pair(world, a, b);
    for (uint32_t i = 0; i < world->count; i++)
        if (world->sides[i].alive) engine_links_ready(world->sides[i].engine, world->epoch);
}

static struct world *world_new(uint32_t count, uint32_t lanes) {
    struct world *world = calloc(1, sizeof *world);
    pthread_mutex_init(&world->lock, NULL);
    world->count = count;
    world->lanes = lanes;
    for (uint32_t i = 0; i < count; i++) {
        struct side *side = &world->sides[i];
        *side = (struct side){.world = world, .index = i, .alive = true};
        side->id.bytes[0] = (uint8_t)(i + 1);
        struct engine_callbacks callbacks = {.context = side, .done = on_done, .mismatch = on_mismatch, .frozen = on_frozen, .link_down = on_link_down};
        side->engine = engine_new(&side->id, &callbacks);
        CHECK(side->engine != NULL);
    }
    enter(world, false);
    links_ready(world);
    return world;
}

static void world_free(struct world *world) {
    for (uint32_t i = 0; i < world->count; i++) engine_stop(world->sides[i].engine);
    for (uint32_t i = 0; i < world->count; i++) engine_free(world->sides[i].engine);
    pthread_mutex_destroy(&world->lock);
    free(world);
}

static void wait_reports(struct world *world) {
    for (;;) {
        bool all = true;
        pthread_mutex_lock(&world->lock);
        for (uint32_t i = 0; i < world->count; i++) all &= !world->sides[i].alive || world->sides[i].reported == world->epoch;
        pthread_mutex_unlock(&world->lock);
        if (all) return;
        usleep(1000);
    }
}

// The master's rules for what was reported.
static void judge(struct world *world, bool lost) {
    struct wire_verdict *verdict = calloc(1, sizeof *verdict);
    for (uint32_t i = 0; i < world->count; i++)
        for (uint32_t k = 0; world->sides[i].alive && k < world->report_counts[i]; k++) {
            const struct wire_op_report *op = &world->reports[i][k];
            uint32_t done = 0, kept = PEERS_MAX;
            memset(verdict, 0, sizeof *verdict);
            verdict->name = op->name;
            for (uint32_t j = 0; j < world->count; j++)
                for (uint32_t m = 0; world->sides[j].alive && m < world->report_counts[j]; m++) {
                    const struct wire_op_report *other = &world->reports[j][m];
                    if (!name_equal(&other->name, &op->name)) continue;
                    done += other->state == WIRE_OP_DONE;
                    if (other->state == WIRE_OP_KEPT) kept = j;
                    if (other->state == WIRE_OP_OPEN) verdict->needy[verdict->count++] = world->sides[j].id;
                }
            verdict->kind = lost ? WIRE_VERDICT_ABORT : WIRE_VERDICT_REDO;
            if (done == living(world)) verdict->kind = WIRE_VERDICT_COMMIT;
            if (kept < PEERS_MAX) {
                verdict->kind = WIRE_VERDICT_COMMIT;
                verdict->supplier = world->sides[kept].id;
            }
            verdict_to_all(world, verdict);
        }
    free(verdict);
}

static float input(uint32_t peer, uint64_t i) { return (float)((peer + 1) * 1000 + i % 997); }

static float *filled(uint32_t peer, uint64_t count) {
    float *data = malloc(count * sizeof *data + 1);
    for (uint64_t i = 0; i < count; i++) data[i] = input(peer, i);
    return data;
}

static struct engine_reduce reduce_of(const void *send, void *recv, uint64_t tag, uint64_t count, int op, int quantised, int algorithm) {
    return (struct engine_reduce){send, recv, tag, {count, pcclFloat, (uint8_t)op, (uint8_t)quantised, (uint8_t)algorithm}};
}

static void test_sum(uint32_t peers, uint32_t lanes, uint64_t count, bool in_place, int op) {
    struct world *world = world_new(peers, lanes);
    float *send[PEERS_MAX], *recv[PEERS_MAX];
    for (uint32_t i = 0; i < peers; i++) {
        send[i] = filled(i, count);
        recv[i] = in_place ? send[i] : calloc(count + 1, sizeof(float));
    }
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < peers; i++) {
            if (in_place)
                for (uint64_t k = 0; k < count; k++) send[i][k] = input(i, k);
            struct engine_reduce reduce = reduce_of(send[i], recv[i], 5, count, op, 0, 0);
            CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == ENGINE_OK);
            CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == ENGINE_TAG_LIVE);
        }
        for (uint32_t i = 0; i < peers; i++) {
            struct engine_outcome outcome;
            engine_wait(world->sides[i].engine, 5, platform_now_ns() + 20 * SECOND_NS, &outcome);
            CHECK(outcome.result == ENGINE_OK);
            CHECK(outcome.info.contributors == peers);
            if (peers == 2) CHECK(outcome.info.tx_bytes == count * 4 && outcome.info.rx_bytes == count * 4);
        }
        for (uint32_t i = 0; i < peers; i++) {
            uint64_t wrong = 0;
            for (uint64_t k = 0; k < count; k++) {
                float expected = 0;
                for (uint32_t j = 0; j < peers; j++) expected += input(j, k);
                if (op == pcclAvg) expected /= (float)peers;
                wrong += recv[i][k] != expected;
            }
            CHECK(wrong == 0);
        }
    }
    world_free(world);
    for (uint32_t i = 0; i < peers; i++) {
        if (!in_place) free(recv[i]);
        free(send[i]);
    }
}

static void test_quantised(uint32_t peers, uint64_t count, int quantised, int algorithm, bool in_place) {
    struct world *world = world_new(peers, 3);
    float *send[PEERS_MAX], *recv[PEERS_MAX];
    for (uint32_t i = 0; i < peers; i++) {
        send[i] = filled(i, count);
        recv[i] = in_place ? send[i] : calloc(count + 1, sizeof(float));
        struct engine_reduce reduce = reduce_of(send[i], recv[i], 9, count, pcclSum, quantised, algorithm);
        CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == ENGINE_OK);
    }
    for (uint32_t i = 0; i < peers; i++) {
        struct engine_outcome outcome;
        engine_wait(world->sides[i].engine, 9, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == ENGINE_OK);
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
    enum { PEERS = 3,
           TAGS = 40,
           ROUNDS = 3 };
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
                uint32_t t = i == 0 ? k : i == 1 ? TAGS - 1 - k
                                                 : (k * 7 + 3) % TAGS;
                struct engine_reduce reduce = reduce_of(send[i][t], recv[i][t], t, sizes[t % 5], pcclSum, 0, 0);
                CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == ENGINE_OK);
            }
        for (uint32_t i = 0; i < PEERS; i++)
            for (uint32_t t = 0; t < TAGS; t++) {
                struct engine_outcome outcome;
                engine_wait(world->sides[i].engine, t, platform_now_ns() + 20 * SECOND_NS, &outcome);
                CHECK(outcome.result == ENGINE_OK);
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
        struct engine_reduce reduce = reduce_of(send[i], recv[i], 1, count, pcclSum, 0, 0);
        CHECK(engine_post(world->sides[i].engine, &reduce, adopted) == ENGINE_OK);
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
        struct engine_outcome outcome;
        engine_wait(world->sides[i].engine, 1, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == ENGINE_LOST && outcome.epoch == world->epoch);
        uint64_t wrong = 0;
        for (uint64_t k = 0; k < count; k++) wrong += send[i][k] != input(i, k);
        CHECK(wrong == 0);
        struct engine_reduce reduce = reduce_of(send[i], recv[i], 2, count, pcclSum, 0, 0);
        CHECK(engine_post(world->sides[i].engine, &reduce, adopted) == ENGINE_OK); // still counts on three
        engine_wait(world->sides[i].engine, 2, INT64_MAX, &outcome);
        CHECK(outcome.result == ENGINE_LOST && outcome.epoch == world->epoch);
        reduce.tag = 1;
        CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == ENGINE_OK);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_outcome outcome;
        engine_wait(world->sides[i].engine, 1, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == ENGINE_OK && outcome.info.contributors == 2);
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
    enum { PEERS = 3,
           TAGS = 12 };
    struct world *world = world_new(PEERS, 2);
    static const uint64_t sizes[] = {1, 1000, 50000, 300000};
    float *data[PEERS][TAGS];
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t t = 0; t < TAGS; t++) data[i][t] = malloc(sizes[t % 4] * sizeof(float));
    uint64_t adopted = world->epoch;
    for (int round = 0; round < 30; round++) {
        for (uint32_t i = 0; i < PEERS; i++)
            for (uint32_t t = 0; t < TAGS; t++) {
                for (uint64_t k = 0; k < sizes[t % 4]; k++) data[i][t][k] = input(i + t, k);
                struct engine_reduce reduce = reduce_of(data[i][t], data[i][t], t, sizes[t % 4], pcclSum, 0, 0);
                CHECK(engine_post(world->sides[i].engine, &reduce, adopted) == ENGINE_OK);
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
                struct engine_outcome outcome;
                engine_wait(world->sides[i].engine, t, platform_now_ns() + 20 * SECOND_NS, &outcome);
                CHECK(outcome.result == ENGINE_OK);
                uint64_t wrong = 0;
                for (uint64_t k = 0; k < sizes[t % 4]; k++) wrong += data[i][t][k] != input(t, k) + input(t + 1, k) + input(t + 2, k);
                CHECK(wrong == 0);
            }
    }
    world_free(world);
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t t = 0; t < TAGS; t++) free(data[i][t]);
}

static void test_mismatch(uint64_t count_a, uint64_t count_b) {
    struct world *world = world_new(2, 1);
    float *a = filled(0, count_a), *b = filled(1, count_b);
    struct engine_reduce ra = reduce_of(a, a, 3, count_a, pcclSum, 0, 0), rb = reduce_of(b, b, 3, count_b, pcclSum, 0, 0);
    CHECK(engine_post(world->sides[0].engine, &ra, world->epoch) == ENGINE_OK);
    CHECK(engine_post(world->sides[1].engine, &rb, world->epoch) == ENGINE_OK);
    for (int i = 0; i < 5000; i++) {
        pthread_mutex_lock(&world->lock);
        bool seen = world->mismatches > 0;
        pthread_mutex_unlock(&world->lock);
        if (seen) break;
        usleep(1000);
    }
    pthread_mutex_lock(&world->lock);
    CHECK(world->mismatches > 0);
    CHECK(world->mismatch.name.tag == 3);
    CHECK(world->mismatch.mine.count != world->mismatch.theirs.count);
    struct wire_op_name name = world->mismatch.name;
    pthread_mutex_unlock(&world->lock);
    enter(world, false);
    links_ready(world);
    wait_reports(world);
    struct wire_verdict *verdict = calloc(1, sizeof *verdict);
    verdict->name = name;
    verdict->kind = WIRE_VERDICT_MISMATCH;
    verdict->text.length = 5;
    memcpy(verdict->text.chars, "count", 5);
    verdict_to_all(world, verdict);
    free(verdict);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_outcome outcome;
        engine_wait(world->sides[i].engine, 3, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == ENGINE_MISMATCH);
        CHECK(strcmp(outcome.text, "count") == 0);
    }
    CHECK(a[0] == input(0, 0) && b[0] == input(1, 0));
    world_free(world);
    free(a);
    free(b);
}

static void test_stop_with_live_ops(void) {
    struct world *world = world_new(2, 1);
    float *a = filled(0, 500000);
    struct engine_reduce reduce = reduce_of(a, a, 3, 500000, pcclSum, 0, 0);
    CHECK(engine_post(world->sides[0].engine, &reduce, world->epoch) == ENGINE_OK);
    struct engine_outcome outcome;
    engine_wait(world->sides[0].engine, 3, platform_now_ns() + 20 * MS_NS, &outcome);
    CHECK(outcome.result == ENGINE_IN_PROGRESS);
    engine_kill(world->sides[0].engine);
    engine_wait(world->sides[0].engine, 3, platform_now_ns() + 5 * SECOND_NS, &outcome);
    CHECK(outcome.result == ENGINE_DEAD);
    engine_wait(world->sides[0].engine, 3, INT64_MAX, &outcome);
    CHECK(outcome.result == ENGINE_UNKNOWN);
    CHECK(engine_post(world->sides[0].engine, &reduce, world->epoch) == ENGINE_DEAD);
    world_free(world);
    free(a);
}

static void test_all(void) {
    for (int in_place = 0; in_place < 2; in_place++) {
        test_sum(2, 1, 10, in_place, pcclSum);
        test_sum(2, 2, 700001, in_place, pcclSum);
        test_sum(3, 2, 5000, in_place, pcclAvg);
        test_sum(3, 3, 333333, in_place, pcclSum);
        test_sum(4, 1, 100003, in_place, pcclAvg);
        test_sum(5, 2, 300007, in_place, pcclSum);
        test_quantised(2, 300000, pcclUint8, pcclQuantMinMax, in_place);
        test_quantised(4, 1000001, pcclUint8, pcclQuantMinMax, in_place);
        test_quantised(3, 5, pcclInt8, pcclQuantZeroPointScale, in_place);
        test_loss(100, in_place);
        test_loss(400000, in_place);
    }
    test_many();
    test_relink();
    test_mismatch(10, 11);
    test_mismatch(10, 500000);
    test_mismatch(500000, 500001);
    test_stop_with_live_ops();
}

int main(void) {
    test_all();
    same_host = true;
    test_all();
    return check_status();
}
