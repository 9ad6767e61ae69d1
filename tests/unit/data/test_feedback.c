// Error feedback of the sharded algorithm: over the contributors of each range, what was given is what was applied and
// what is left; with losses, in segments, in place; and what belongs to the caller alone is only read.
#include <math.h>

#include "compute/kernels.h"
#include "engine_world.h"
#include "ops/plan.h"

enum { TAG = 3 };

struct tensor {
    uint64_t count;
    uint8_t codec, op;
    bool in_place;
    float *input[PEERS_MAX], *recv[PEERS_MAX], *before[PEERS_MAX], *after[PEERS_MAX], *kept[PEERS_MAX];
};

CHECK_UNWATCHED static float *noise(uint64_t *seed, uint64_t count) {
    float *values = malloc(count * sizeof *values);
    for (uint64_t i = 0; i < count; i++)
        values[i] = ((float)(check_random(seed) >> 40) * 0x1p-24f - 0.5f) * ldexpf(1, -(int)(i / 512 % 9));
    return values;
}

static float *copy(const float *values, uint64_t count) {
    return memcpy(malloc(count * sizeof *values), values, count * sizeof *values);
}

static struct tensor tensor_new(uint64_t count, int algorithm, int op, bool in_place) {
    struct tensor t = {.count = count,
                       .codec = codec_of_options(pcclFloat, 0, algorithm, 256),
                       .op = (uint8_t)op,
                       .in_place = in_place};
    uint64_t seed = count;
    for (uint32_t i = 0; i < PEERS_MAX; i++) {
        t.input[i] = noise(&seed, count);
        t.recv[i] = copy(t.input[i], count);
        t.before[i] = noise(&seed, count);
        t.kept[i] = copy(t.before[i], count);
        t.after[i] = calloc(count, sizeof *t.after[i]);
    }
    return t;
}

static void tensor_free(struct tensor *t) {
    for (uint32_t i = 0; i < PEERS_MAX; i++) {
        free(t->input[i]);
        free(t->recv[i]);
        free(t->before[i]);
        free(t->kept[i]);
        free(t->after[i]);
    }
}

static void post(struct world *world, const struct tensor *t, uint32_t side, bool retry) {
    struct call_args reduce =
        reduce_of(t->in_place ? t->recv[side] : t->input[side], t->recv[side], TAG, t->count, t->op, t->codec);
    reduce.retry = reduce.tell = retry;
    reduce.stochastic = side % 2 == 1;
    reduce.rounding.seed = side;
    reduce.residual_in = side == 1 ? NULL : t->before[side];
    reduce.residual_out = t->after[side];
    CHECK(engine_post(world->sides[side].engine, &reduce, world->epoch) == CALL_OK);
}

static struct call_outcome await(struct world *world, uint32_t side) {
    struct call_outcome outcome;
    engine_wait(world->sides[side].engine, TAG, platform_now_ns() + 60 * SECOND_NS, &outcome);
    return outcome;
}

// Of elements that these sides are in. All members have the result of the first.
CHECK_UNWATCHED static void check_conserved(const struct tensor *t, uint64_t begin, uint64_t end, uint32_t sides) {
    double off = 0, whole = 0, left = 0;
    check_reads(t->recv[0] + begin, (end - begin) * sizeof(float));
    for (uint32_t side = 0; side < sides; side++) check_reads(t->after[side] + begin, (end - begin) * sizeof(float));
    for (uint64_t i = begin; i < end; i++) {
        double given = 0, applied = (double)t->recv[0][i] * (t->op == pcclAvg ? sides : 1);
        for (uint32_t side = 0; side < sides; side++) {
            given += (double)t->input[side][i] + (side == 1 ? 0 : (double)t->before[side][i]);
            applied += (double)t->after[side][i];
            left += pow((double)t->after[side][i], 2);
        }
        off += pow(given - applied, 2);
        whole += pow(given, 2);
    }
    CHECK(sqrt(off / whole) < 1e-6);
    CHECK(sqrt(left / whole) > 1e-3);
}

static void check_kept(const struct tensor *t) {
    for (uint32_t i = 0; i < PEERS_MAX; i++) CHECK_MEM(t->before[i], t->kept[i], t->count * sizeof(float));
}

static void test_conserved(uint32_t peers, uint64_t count, int algorithm, int op, bool in_place) {
    check_case("%u peers, %llu, algorithm %d, %s%s", peers, (unsigned long long)count, algorithm, red_op_name(op),
               in_place ? ", in place" : "");
    struct world *world = world_new(peers, 2);
    struct tensor t = tensor_new(count, algorithm, op, in_place);
    for (uint32_t i = 0; i < peers; i++) post(world, &t, i, false);
    for (uint32_t i = 0; i < peers; i++) CHECK(await(world, i).result == CALL_OK);
    for (uint32_t i = 1; i < peers; i++) CHECK_MEM(t.recv[i], t.recv[0], count * sizeof(float));
    check_conserved(&t, 0, count, peers);
    check_kept(&t);
    world_free(world);
    tensor_free(&t);
}

// Side 2 is lost when so many segments are committed, and the others are complete or under way.
static void test_loss(int64_t commits, int op, bool in_place) {
    uint64_t count = SEGMENTED_MIN / sizeof(float) + 77;
    check_case("loss after %d segments, %s%s", (int)commits, red_op_name(op), in_place ? ", in place" : "");
    struct world *world = world_new(3, 2);
    struct tensor t = tensor_new(count, pcclQuantBlockInt4, op, in_place);
    world->commits = commits;
    for (uint32_t i = 0; i < 3; i++) post(world, &t, i, true);
    for (bool done = false; !done; usleep(1000)) {
        pthread_mutex_lock(&world->lock);
        done = world->commits == 0;
        pthread_mutex_unlock(&world->lock);
    }
    kill_side(world, 2);
    new_epoch(world, true);
    struct call_outcome outcomes[2] = {await(world, 0), await(world, 1)};
    for (uint32_t side = 0; side < 2; side++) CHECK(outcomes[side].result == CALL_OK);
    CHECK_MEM(t.recv[1], t.recv[0], count * sizeof(float));
    const struct call_contributors *who = outcomes[0].contributors;
    REQUIRE(who != NULL);
    for (uint32_t i = 0; i < who->count; i++)
        check_conserved(&t, who->ranges[i].begin, who->ranges[i].end, who->ranges[i].count);
    CHECK(commits == 0 || who->ranges[0].count == 3);
    check_kept(&t);
    for (uint32_t side = 0; side < 2; side++) free(outcomes[side].contributors);
    world_free(world);
    tensor_free(&t);
}

// Without retry mode: the input comes back, and residual_in is as it was.
static void test_abort(bool in_place) {
    uint64_t count = 200001;
    check_case("abort%s", in_place ? ", in place" : "");
    struct world *world = world_new(3, 2);
    struct tensor t = tensor_new(count, pcclQuantBlockE3M0, pcclSum, in_place);
    world->commits = 0;
    for (uint32_t i = 0; i < 3; i++) post(world, &t, i, false);
    kill_side(world, 2);
    new_epoch(world, true);
    for (uint32_t side = 0; side < 2; side++) {
        struct call_outcome outcome = await(world, side);
        CHECK(outcome.result == CALL_OK || outcome.result == CALL_LOST);
        if (in_place && outcome.result == CALL_LOST) CHECK_MEM(t.recv[side], t.input[side], count * sizeof(float));
    }
    check_kept(&t);
    world_free(world);
    tensor_free(&t);
}

int main(void) {
    static const int algorithms[] = {pcclQuantBlockInt8, pcclQuantBlockInt4, pcclQuantBlockE3M0};
    static const uint64_t counts[] = {1000, 65537, 300001};
    for (uint32_t row = 0; row < 9; row++)
        test_conserved(2 + row % 4, counts[row % 3], algorithms[row / 3], row % 2 ? pcclSum : pcclAvg, row % 4 < 2);
    for (int64_t commits = 0; commits < 4; commits++) test_loss(commits, commits % 2 ? pcclAvg : pcclSum, commits >= 2);
    test_abort(false);
    test_abort(true);
    return check_status();
}
