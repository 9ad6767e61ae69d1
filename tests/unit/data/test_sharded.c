// The sharded algorithm with a codec that has four bits for an element and a scale for every 256: nothing but the codec
// knows how long what it writes is. What members end with is exactly what the same steps give in one place.
#include "engine_world.h"
#include "four_bits.h"
#include "ops/plan.h"

enum { TAG = 3 };

struct tensor {
    uint32_t peers;
    uint64_t count;
    int dtype, op;
    bool in_place;
    uint8_t *send[PEERS_MAX], *recv[PEERS_MAX], *expected;
};

static void fill(const struct tensor *t, uint32_t peer, uint8_t *to) {
    float *wide = malloc(t->count * sizeof *wide + 1);
    for (uint64_t i = 0; i < t->count; i++)
        wide[i] = ldexpf((float)((i * 31 + peer * 7) % 201) - 100, -(int)(i / 256 % 5));
    codec_narrow(t->dtype, to, wide, t->count);
    free(wide);
}

// Computes what the owner of each shard does, piece by piece: its own input as it is, the others' decoded, in ring
// order; the sum as it is written.
static void expect(struct tensor *t) {
    static float sum[CODEC_PIECE], input[CODEC_PIECE];
    static uint8_t written[CODEC_PIECE];
    const struct kernels *kernels = kernels_get();
    size_t element = dtype_size(t->dtype);
    struct plan_weights *weighted =
        member_weights[0] == 0 ? NULL : plan_weights_new(member_weights, member_sites, t->peers);
    for (uint32_t owner = 0; owner < t->peers; owner++) {
        struct plan_range shard = plan_weights_shard(weighted, t->count, t->peers, owner);
        for (uint64_t at = shard.begin; at < shard.end; at += CODEC_PIECE) {
            size_t count = shard.end - at < CODEC_PIECE ? shard.end - at : CODEC_PIECE;
            for (uint32_t rank = 0; rank < t->peers; rank++) {
                float *to = rank == 0 ? sum : input;
                codec_widen(t->dtype, to, t->send[rank] + at * element, count);
                if (rank != owner) {
                    codec_encode(&four_bits, t->dtype, written, to, count, NULL);
                    CHECK(codec_decode(&four_bits, t->dtype, to, written, count));
                }
                if (rank > 0) kernels->reduce[t->op][pcclFloat](sum, sum, input, count);
            }
            if (t->op == pcclAvg) kernels->divide[pcclFloat](sum, count, t->peers);
            codec_encode(&four_bits, t->dtype, written, sum, count, NULL);
            CHECK(codec_decode(&four_bits, t->dtype, sum, written, count));
            codec_narrow(t->dtype, t->expected + at * element, sum, count);
        }
    }
    plan_weights_free(weighted);
}

static struct tensor tensor_new(uint32_t peers, uint64_t count, int dtype, int op, bool in_place) {
    struct tensor t = {.peers = peers, .count = count, .dtype = dtype, .op = op, .in_place = in_place};
    size_t bytes = count * dtype_size(dtype);
    for (uint32_t i = 0; i < peers; i++) {
        t.send[i] = malloc(bytes + 1);
        fill(&t, i, t.send[i]);
        t.recv[i] = in_place ? t.send[i] : calloc(1, bytes + 1);
    }
    t.expected = malloc(bytes + 1);
    expect(&t);
    return t;
}

static void tensor_free(struct tensor *t) {
    for (uint32_t i = 0; i < t->peers; i++) {
        if (!t->in_place) free(t->recv[i]);
        free(t->send[i]);
    }
    free(t->expected);
}

static void post(struct world *world, const struct tensor *t, uint32_t side, bool retry) {
    struct call_args reduce = reduce_of(t->send[side], t->recv[side], TAG, t->count, t->op, CODEC_FOUR_BITS);
    reduce.fingerprint.dtype = (uint8_t)t->dtype;
    reduce.retry = reduce.tell = retry;
    CHECK(engine_post(world->sides[side].engine, &reduce, world->epoch) == CALL_OK);
}

static enum call_result result_of(struct world *world, uint32_t side, int64_t patience_ns,
                                  struct call_outcome *outcome) {
    engine_wait(world->sides[side].engine, TAG, platform_now_ns() + patience_ns, outcome);
    return outcome->result;
}

static void test_bits(uint32_t peers, uint64_t count, int dtype, int op, bool in_place) {
    check_case("%u peers, %llu of %s, %s%s", peers, (unsigned long long)count, dtype_name(dtype), red_op_name(op),
               in_place ? ", in place" : "");
    struct world *world = world_new(peers, 3);
    struct tensor t = tensor_new(peers, count, dtype, op, in_place);
    for (uint32_t i = 0; i < peers; i++) post(world, &t, i, false);
    for (uint32_t i = 0; i < peers; i++) {
        struct call_outcome outcome;
        CHECK(result_of(world, i, 60 * SECOND_NS, &outcome) == CALL_OK);
        CHECK_MEM(t.recv[i], t.expected, count * dtype_size(dtype));
        // four bits of each element, and the scales: an eighth of float, and a little
        CHECK(outcome.info.tx_bytes <= 2 * (peers - 1) * (count / 2 + count / 200 + 32 * peers));
    }
    world_free(world);
    tensor_free(&t);
}

// Deadlines pass while the last member has not posted, and change nothing.
static void test_deadlines(void) {
    check_case("deadlines");
    struct world *world = world_new(3, 2);
    struct tensor t = tensor_new(3, 200001, pcclFloat, pcclSum, true);
    struct call_outcome outcome;
    for (uint32_t i = 0; i < 2; i++) post(world, &t, i, false);
    for (uint32_t i = 0; i < 2; i++) CHECK(result_of(world, i, SECOND_NS / 100, &outcome) == CALL_IN_PROGRESS);
    post(world, &t, 2, false);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(result_of(world, i, 60 * SECOND_NS, &outcome) == CALL_OK);
        CHECK_MEM(t.recv[i], t.expected, t.count * sizeof(float));
    }
    world_free(world);
    tensor_free(&t);
}

// A member dies without having posted: inputs come back; in retry mode the others do it among themselves, segment by
// segment.
static void test_loss(uint64_t count, bool retry) {
    check_case("loss of %llu%s", (unsigned long long)count, retry ? ", in retry mode" : "");
    struct world *world = world_new(3, 2);
    struct tensor t = tensor_new(3, count, pcclFloat, pcclSum, true);
    float *input = malloc(count * sizeof *input);
    for (uint32_t i = 0; i < 2; i++) post(world, &t, i, retry);
    kill_side(world, 2);
    new_epoch(world, true);
    for (uint32_t i = 0; i < 2; i++) {
        struct call_outcome outcome;
        CHECK(result_of(world, i, 60 * SECOND_NS, &outcome) == (retry ? CALL_OK : CALL_LOST));
        fill(&t, i, (uint8_t *)input);
        if (!retry) CHECK_MEM(t.recv[i], input, count * sizeof *input);
        free(outcome.contributors);
    }
    if (retry) CHECK_MEM(t.recv[0], t.recv[1], count * sizeof *input);
    free(input);
    world_free(world);
    tensor_free(&t);
}

// In segments, each of which is sharded by itself; every value is one that the codec has.
static void test_segments(uint32_t peers, uint64_t count) {
    check_case("segments of %llu among %u", (unsigned long long)count, peers);
    struct world *world = world_new(peers, 2);
    struct tensor t = tensor_new(peers, count, pcclFloat, pcclSum, false);
    for (uint32_t i = 0; i < peers; i++) {
        float *values = (float *)(void *)t.send[i];
        for (uint64_t k = 0; k < count; k++) values[k] = k % 2 == 0 ? 2 : -1;
        post(world, &t, i, true);
    }
    for (uint32_t i = 0; i < peers; i++) {
        struct call_outcome outcome;
        CHECK(result_of(world, i, 60 * SECOND_NS, &outcome) == CALL_OK);
        const float *got = (const float *)(const void *)t.recv[i];
        uint64_t wrong = 0;
        for (uint64_t k = 0; k < count; k++) wrong += got[k] != (float)peers * (k % 2 == 0 ? 2 : -1);
        CHECK_EQ(wrong, 0);
        CHECK(outcome.contributors != NULL && outcome.contributors->count == 1);
        free(outcome.contributors);
    }
    world_free(world);
    tensor_free(&t);
}

// The result of one block does not decode at the member that gets it. Its lane breaks, and the op must not end well
// without that block. The owner decodes it too, before.
static void test_malformed_result(void) {
    enum { BLOCKS = CODEC_PIECE / FOUR_BITS_BLOCK };
    check_case("a result that does not decode");
    uint64_t count = 4 * CODEC_PIECE;
    struct world *world = world_new(2, 3);
    struct tensor t = tensor_new(2, count, pcclFloat, pcclSum, false);
    for (int i = 0; i < 2; i++)
        for (uint64_t k = 0; k < count; k++) ((float *)t.send[i])[k] = k / CODEC_PIECE == 2 ? FOUR_BITS_COUNTED / 2 : 0;
    atomic_store(&four_bits_until_malformed, BLOCKS + 1);
    for (uint32_t i = 0; i < 2; i++) post(world, &t, i, false);
    struct call_outcome outcome;
    for (uint32_t i = 0; i < 2; i++) CHECK(result_of(world, i, SECOND_NS / 5, &outcome) != CALL_OK);
    CHECK(atomic_load(&four_bits_until_malformed) == 0);
    world_free(world);
    tensor_free(&t);
}

int main(void) {
    static const uint64_t counts[] = {1, 255, 257, 4097, 131073, 500001};
    for (size_t row = 0; row < sizeof counts / sizeof counts[0]; row++)
        for (uint32_t peers = 2; peers <= PEERS_MAX; peers++)
            test_bits(peers, counts[row], row % 2 ? pcclFloat16 : pcclFloat, peers % 2 ? pcclSum : pcclAvg,
                      (row + peers) % 2);
    static const uint16_t weights[] = {3, 0, 1, 60, 2};
    memcpy(member_weights, weights, sizeof weights);
    for (uint32_t peers = 2; peers <= PEERS_MAX; peers++)
        test_bits(peers, 131073, pcclFloat, peers % 2 ? pcclSum : pcclAvg, peers % 2);
    memset(member_weights, 0, sizeof member_weights);
    test_deadlines();
    test_malformed_result();
    test_loss(200001, false);
    test_loss(200001, true);
    test_loss(SEGMENTED_MIN / sizeof(float) + 77, true);
    test_segments(3, SEGMENTED_MIN / sizeof(float) + 77);
    return check_status();
}
