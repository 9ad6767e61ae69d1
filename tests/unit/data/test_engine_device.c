// Ops whose tensors only a device can touch (tests/fakes/device.c, or a GPU of tests/fakes/cuda): in every way, redone
// after losses, and when the device fails at one thing after another. A member whose device fails ends with the
// device's words and its input as it was, and the others hear of a loss.
#include <stdio.h>

#include "../../fakes/device.h"
#include "engine_world.h"
#include "ops/plan.h"

enum { PEERS = 3, VICTIM = 1, LAST = PEERS - 1 };

static const struct way {
    const char *name;
    uint64_t count;
    bool in_place, retry, same_host, weighted, feeds_back;
    uint8_t kind, codec;
} ways[] = {
    {.name = "nothing", .count = 0},
    {.name = "direct", .count = 1000},
    {.name = "direct, in place", .count = 1000, .in_place = true},
    {.name = "ring", .count = 400001},
    {.name = "ring, in place", .count = 400001, .in_place = true},
    {.name = "ring, in place, next to memory that is read", .count = 400001, .in_place = true, .same_host = true},
    {.name = "weighted", .count = 400001, .weighted = true},
    {.name = "weighted, in place", .count = 400001, .in_place = true, .weighted = true},
    {.name = "sharded", .count = 400001, .codec = CODEC_MINMAX_UINT8},
    {.name = "sharded, in place", .count = 400001, .in_place = true, .codec = CODEC_MINMAX_UINT8},
    {.name = "sharded in blocks", .count = 20001, .codec = CODEC_BLOCK_INT8},
    {.name = "sharded in blocks, in place", .count = 20001, .in_place = true, .codec = CODEC_BLOCK_INT8},
    {.name = "sharded with feedback", .count = 400001, .codec = CODEC_MINMAX_UINT8, .feeds_back = true},
    {.name = "sharded in blocks with feedback", .count = 20001, .codec = CODEC_BLOCK_INT8, .feeds_back = true},
    {.name = "broadcast", .count = 400001, .kind = PLAN_BROADCAST},
    {.name = "broadcast, next to memory that is shared", .count = 400001, .kind = PLAN_BROADCAST, .same_host = true},
    {.name = "all-gather", .count = 400001, .kind = PLAN_ALL_GATHER},
    {.name = "all-gather, next to memory that is shared", .count = 400001, .kind = PLAN_ALL_GATHER, .same_host = true},
    {.name = "reduce", .count = 400001, .kind = PLAN_REDUCE},
    {.name = "reduce, in place", .count = 400001, .in_place = true, .kind = PLAN_REDUCE},
    {.name = "reduce-scatter", .count = 400002, .kind = PLAN_REDUCE_SCATTER},
    {.name = "segments", .count = 3000001, .retry = true},
    {.name = "segments, in place", .count = 3000001, .in_place = true, .retry = true},
    {.name = "weighted in segments, in place", .count = 3000001, .in_place = true, .retry = true, .weighted = true},
};

struct trial {
    const struct way *way;
    struct world *world;
    float *send[PEERS], *recv[PEERS];
    float *before[PEERS], *after[PEERS]; // residuals
};

// Of all elements, so that the sums are exact with it.
#define RESIDUAL 3.0f

// Exact in every way of adding and of quantising.
static float value_of(uint32_t peer) { return (float)(1u << peer); }

CHECK_UNWATCHED static float *tensor_of(const struct trial *t, uint32_t side, float value) {
    bool plain = t->way->same_host && side != VICTIM;
    float *tensor = plain ? malloc(t->way->count * sizeof(float) + 1) : fake_device_new(t->way->count * sizeof(float));
    REQUIRE(tensor != NULL);
    float *bytes = fake_device_bytes(tensor);
    for (uint64_t k = 0; k < t->way->count; k++) bytes[k] = value;
    return tensor;
}

static void tensor_free(const struct trial *t, uint32_t side, float *tensor) {
    if (t->way->same_host && side != VICTIM)
        free(tensor);
    else
        fake_device_free(tensor);
}

CHECK_UNWATCHED static bool holds_first(const float *tensor, uint64_t count, float value) {
    const float *bytes = fake_device_bytes(tensor);
    check_reads(bytes, count * sizeof *bytes);
    for (uint64_t k = 0; k < count; k++)
        if (bytes[k] != value) return false;
    return true;
}

static bool holds(const struct trial *t, const float *tensor, float value) {
    return holds_first(tensor, t->way->count, value);
}

static struct trial trial_new(const struct way *way) {
    struct trial t = {.way = way};
    same_host = way->same_host;
    // The last one is the owner of nothing, and the victim stands for the site of both.
    static const uint16_t by_side[] = {2, 1, 0}, site[] = {0, 1, 1};
    memset(member_weights, 0, sizeof member_weights);
    if (way->weighted) memcpy(member_weights, by_side, sizeof by_side);
    memcpy(member_sites, site, sizeof site);
    t.world = world_new(PEERS, 2);
    for (uint32_t i = 0; i < PEERS; i++) {
        t.send[i] = tensor_of(&t, i, value_of(i));
        t.recv[i] = way->in_place ? t.send[i] : tensor_of(&t, i, -1);
        if (!way->feeds_back) continue;
        t.before[i] = tensor_of(&t, i, RESIDUAL);
        t.after[i] = tensor_of(&t, i, -1);
    }
    return t;
}

static void trial_free(struct trial *t) {
    world_free(t->world);
    for (uint32_t i = 0; i < PEERS; i++) {
        if (!t->way->in_place) tensor_free(t, i, t->recv[i]);
        tensor_free(t, i, t->send[i]);
        if (t->way->feeds_back) tensor_free(t, i, t->before[i]);
        if (t->way->feeds_back) tensor_free(t, i, t->after[i]);
    }
    same_host = false;
}

// An all-gather to which the first member alone gives something.
static struct call_args gather_of(const struct trial *t, uint32_t side) {
    struct call_args args = broadcast_of(t->world, side, 0, t->send[side], t->recv[side], 5, t->way->count);
    args.fingerprint.kind = PLAN_ALL_GATHER;
    args.parts = calloc(1, sizeof *args.parts + 2 * PEERS * sizeof(struct call_part) + PEERS * sizeof(uint64_t));
    struct call_part *to = args.parts->parts, *from = to + PEERS;
    uint64_t *weights = (uint64_t *)(void *)(from + PEERS);
    for (uint32_t i = 0; side == 0 && i < PEERS; i++) to[i].count = t->way->count;
    from[0].count = weights[0] = args.parts->out = t->way->count;
    args.parts->in = to[0].count;
    args.parts->to = to;
    args.parts->from = from;
    args.parts->sizes = weights;
    return args;
}

// Of a reduce-scatter.
static struct call_parts *thirds(uint64_t count, uint32_t side) {
    struct call_parts *parts = calloc(1, sizeof *parts + 2 * PEERS * sizeof(struct call_part));
    uint64_t each = count / PEERS;
    for (uint32_t i = 0; i < PEERS; i++) {
        parts->parts[i] = (struct call_part){i * each, each};
        parts->parts[PEERS + i] = (struct call_part){0, each};
    }
    parts->to = parts->parts;
    parts->from = parts->parts + PEERS;
    parts->in = count;
    parts->out = each;
    parts->own_at = side * each;
    return parts;
}

static enum call_result post(struct trial *t, uint32_t side) {
    const struct way *way = t->way;
    struct call_args args = reduce_of(t->send[side], t->recv[side], 5, way->count, pcclSum, way->codec);
    if (way->kind == PLAN_BROADCAST)
        args = broadcast_of(t->world, side, 0, t->send[side], t->recv[side], 5, way->count);
    args.fingerprint.kind = way->kind;
    if (way->kind == PLAN_ALL_GATHER) args = gather_of(t, side);
    if (args.subgroup == NULL && way->kind != PLAN_ALL_REDUCE) args.subgroup = group_of(t->world, side);
    if (way->kind == PLAN_REDUCE) args.root = LAST; // the victim passes on
    if (way->kind == PLAN_REDUCE_SCATTER) args.parts = thirds(way->count, side);
    args.retry = way->retry;
    args.residual_in = t->before[side];
    args.residual_out = t->after[side];
    enum call_result result = engine_post(t->world->sides[side].engine, &args, t->world->epoch);
    if (result != CALL_OK) subgroup_put(args.subgroup);
    if (result != CALL_OK) free(args.parts);
    return result;
}

static enum call_result take(struct trial *t, uint32_t side, struct call_outcome *outcome) {
    engine_wait(t->world->sides[side].engine, 5, platform_now_ns() + 60 * SECOND_NS, outcome);
    return outcome->result;
}

// The root of a broadcast has the result in its input.
static bool has_result(const struct trial *t, uint32_t side) {
    uint64_t count = t->way->count;
    if (t->way->kind == PLAN_BROADCAST) return holds(t, side == 0 ? t->send[0] : t->recv[side], value_of(0));
    if (t->way->kind == PLAN_ALL_GATHER) return holds(t, t->recv[side], value_of(0));
    if (t->way->kind == PLAN_REDUCE && side != LAST) count = 0;
    if (t->way->kind == PLAN_REDUCE_SCATTER) count /= PEERS;
    float sum = value_of(0) + value_of(1) + value_of(2);
    if (!t->way->feeds_back) return holds_first(t->recv[side], count, sum);
    return holds(t, t->recv[side], sum + PEERS * RESIDUAL) && holds(t, t->after[side], 0) &&
           holds(t, t->before[side], RESIDUAL);
}

static void test_result(const struct way *way) {
    check_case("%s", way->name);
    struct trial t = trial_new(way);
    struct call_outcome outcome;
    for (uint32_t i = 0; i < PEERS; i++) CHECK_EQ(post(&t, i), CALL_OK);
    for (uint32_t i = 0; i < PEERS; i++) {
        CHECK_EQ(take(&t, i, &outcome), CALL_OK);
        CHECK(has_result(&t, i));
        if (!way->in_place) CHECK(holds(&t, t.send[i], value_of(i)));
    }
    trial_free(&t);
}

// A fresh epoch without a loss while the op is under way: it is done again, and nobody sees it.
static void test_redo(const struct way *way, unsigned wait_us) {
    check_case("%s, redone after %u us", way->name, wait_us);
    struct trial t = trial_new(way);
    struct call_outcome outcome;
    for (uint32_t i = 0; i < PEERS - 1; i++) CHECK_EQ(post(&t, i), CALL_OK);
    usleep(wait_us);
    new_epoch(t.world, false);
    CHECK_EQ(post(&t, PEERS - 1), CALL_OK);
    for (uint32_t i = 0; i < PEERS; i++) {
        CHECK_EQ(take(&t, i, &outcome), CALL_OK);
        CHECK(has_result(&t, i));
    }
    trial_free(&t);
}

static bool wait_failed(struct world *world, uint32_t side) {
    for (int i = 0; i < 20000; i++) {
        pthread_mutex_lock(&world->lock);
        bool failed = world->sides[side].failed > 0;
        pthread_mutex_unlock(&world->lock);
        if (failed) return true;
        usleep(1000);
    }
    return false;
}

// False: the device was not asked for so much.
static bool test_failure(const struct way *way, uint32_t at) {
    check_case("%s, failure %u", way->name, at);
    struct trial t = trial_new(way);
    struct call_outcome outcome;
    const char *words = fake_device_words;
    size_t length = strlen(words);
    for (uint32_t i = 0; i < PEERS; i++)
        if (i != VICTIM) CHECK_EQ(post(&t, i), CALL_OK);
    fake_device_fail(at, 1);
    enum call_result posted = post(&t, VICTIM);
    bool refused = posted != CALL_OK; // a device that opens no queue
    if (!refused) take(&t, VICTIM, &outcome);
    uint32_t asked = fake_device_fail(0, 0);
    bool failed = refused || outcome.result != CALL_OK;
    CHECK(failed == (asked >= at) || (fake_device_gets_over && !failed));
    if (!failed) CHECK(has_result(&t, VICTIM));
    if (failed) {
        CHECK_EQ(refused ? posted : outcome.result, refused ? CALL_NO_MEMORY : CALL_DEAD);
        if (!refused) CHECK_MEM(outcome.text, words, length);
        CHECK(wait_failed(t.world, VICTIM));
        if (!refused) CHECK_MEM(t.world->sides[VICTIM].why, words, length);
        if (!way->retry) CHECK(holds(&t, t.send[VICTIM], value_of(VICTIM)));
        kill_side(t.world, VICTIM);
        new_epoch(t.world, true);
    }
    for (uint32_t i = 0; i < PEERS; i++) {
        if (i == VICTIM) continue;
        enum call_result result = take(&t, i, &outcome);
        CHECK(result == CALL_OK || (failed && result == CALL_LOST));
        if (result == CALL_OK && !way->retry) CHECK(has_result(&t, i));
        if (result == CALL_LOST) CHECK(holds(&t, t.send[i], value_of(i)));
    }
    trial_free(&t);
    return asked >= at;
}

// From the `at`-th request on the device fails for ever: the input is as it was, or the error says that it is lost.
// False: the device was not asked for so much.
static bool test_lost_input(const struct way *way, uint32_t at, bool *lost) {
    check_case("%s, failures from %u on", way->name, at);
    struct trial t = trial_new(way);
    struct call_outcome outcome = {.result = CALL_OK};
    for (uint32_t i = 0; i < PEERS; i++)
        if (i != VICTIM) CHECK_EQ(post(&t, i), CALL_OK);
    fake_device_fail(at, UINT32_MAX / 2);
    bool posted = post(&t, VICTIM) == CALL_OK;
    if (posted) take(&t, VICTIM, &outcome);
    uint32_t asked = fake_device_fail(0, 0);
    if (posted && outcome.result != CALL_OK) {
        bool told = strstr(outcome.text, ENGINE_INPUT_LOST) != NULL;
        *lost |= told;
        CHECK(told || holds(&t, t.send[VICTIM], value_of(VICTIM)));
    }
    kill_side(t.world, VICTIM);
    new_epoch(t.world, true);
    for (uint32_t i = 0; i < PEERS; i++)
        if (i != VICTIM) take(&t, i, &outcome);
    trial_free(&t);
    return asked >= at;
}

// The next request that is to fail: fewer and fewer of them.
static uint32_t next_failure(uint32_t at) {
#if defined(__SANITIZE_THREAD__) // trials take long there
    return 4 * at + 1;
#elif defined(__SANITIZE_ADDRESS__)
    return 2 * at + 1;
#else
    return at + 1 + at / (fake_device_gets_over ? 2 : 3);
#endif
}

int main(void) {
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const struct way *way = &ways[i];
        test_result(way);
        if (way->count > 0) test_redo(way, 0);
        if (way->count > 0) test_redo(way, 2000);
        // Only the victim's tensors lie at the device, so that it is the one that fails.
        struct way alone = *way;
        alone.same_host = true;
        for (uint32_t at = 1; test_failure(&alone, at); at = next_failure(at)) continue;
    }
    struct way in_place = {.name = "ring, in place", .count = 400001, .in_place = true, .same_host = true};
    bool lost = false;
    for (uint32_t at = 1; test_lost_input(&in_place, at, &lost); at = next_failure(at)) continue;
    CHECK(lost);
    return check_status();
}
