// Broadcast: every member ends with the root's bytes, whoever the root is, or none does.
#include "engine_world.h"
#include "ops/plan.h"

enum { TAG = 5 };

static enum call_result result_of(struct world *world, uint32_t side, struct call_outcome *out) {
    engine_wait(world->sides[side].engine, TAG, platform_now_ns() + 20 * SECOND_NS, out);
    return out->result;
}

static void test_bytes(uint32_t peers, uint32_t lanes, uint64_t count, bool in_place) {
    struct world *world = world_new(peers, lanes);
    float *send[PEERS_MAX], *recv[PEERS_MAX];
    for (uint32_t i = 0; i < peers; i++) {
        send[i] = filled(i, count);
        recv[i] = in_place ? send[i] : calloc(count + 1, sizeof(float));
    }
    for (uint32_t root = 0; root < peers; root++) {
        for (uint64_t k = 0; k < count; k++) send[root][k] = input(root, k);
        for (uint32_t i = 0; i < peers; i++) {
            struct call_args reduce = broadcast_of(world, i, root, send[i], recv[i], TAG, count);
            CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
        }
        for (uint32_t i = 0; i < peers; i++) {
            struct call_outcome outcome;
            CHECK(result_of(world, i, &outcome) == CALL_OK);
            CHECK(outcome.info.contributors == peers);
            CHECK_EQ(outcome.info.rx_bytes, i == root ? 0 : count * 4);
            if (count * 4 > PLAN_SMALL_ANY) CHECK_EQ(outcome.info.tx_bytes, (i + 1) % peers == root ? 0 : count * 4);
            uint64_t wrong = 0;
            const float *got = i == root ? send[i] : recv[i];
            for (uint64_t k = 0; k < count; k++) wrong += got[k] != input(root, k);
            CHECK_EQ(wrong, 0);
        }
    }
    world_free(world);
    for (uint32_t i = 0; i < peers; i++) {
        if (!in_place) free(recv[i]);
        free(send[i]);
    }
}

// A look at what the data thread may be writing: it only tells that something has come.
__attribute__((noinline, no_sanitize("thread"))) static bool has_come(const volatile float *at, float value) {
    return *at == value;
}

// The last member never posts, and dies: what the others have received is taken back.
static void test_loss(uint64_t count) {
    struct world *world = world_new(4, 2);
    float *data[PEERS_MAX];
    for (uint32_t i = 0; i < 4; i++) data[i] = filled(i, count);
    for (uint32_t i = 0; i < 3; i++) {
        struct call_args reduce = broadcast_of(world, i, 0, data[i], data[i], TAG, count);
        CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
    }
    AWAIT(has_come(&data[2][count - 1], input(0, count - 1)), usleep(1000));
    kill_side(world, 3);
    new_epoch(world, true);
    for (uint32_t i = 0; i < 3; i++) {
        struct call_outcome outcome;
        CHECK(result_of(world, i, &outcome) == CALL_LOST);
        CHECK_STR(outcome.text, "rank 3");
    }
    world_free(world);
    for (uint32_t i = 0; i < 4; i++) free(data[i]);
}

// A new epoch without a loss: it is done again, unseen.
static void test_redo(uint64_t count) {
    struct world *world = world_new(3, 1);
    float *data[PEERS_MAX];
    for (uint32_t i = 0; i < 3; i++) data[i] = filled(i, count);
    for (uint32_t i = 0; i < 2; i++) {
        struct call_args reduce = broadcast_of(world, i, 1, data[i], data[i], TAG, count);
        CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
    }
    usleep(20000);
    new_epoch(world, false);
    struct call_args reduce = broadcast_of(world, 2, 1, data[2], data[2], TAG, count);
    CHECK(engine_post(world->sides[2].engine, &reduce, world->epoch) == CALL_OK);
    for (uint32_t i = 0; i < 3; i++) {
        struct call_outcome outcome;
        uint64_t wrong = 0;
        CHECK(result_of(world, i, &outcome) == CALL_OK);
        for (uint64_t k = 0; k < count; k++) wrong += data[i][k] != input(1, k);
        CHECK_EQ(wrong, 0);
    }
    world_free(world);
    for (uint32_t i = 0; i < 3; i++) free(data[i]);
}

// That members name different roots is told to the master.
static void test_mismatch(void) {
    struct world *world = world_new(2, 1);
    float *data[2] = {filled(0, 1000), filled(1, 1000)};
    for (uint32_t i = 0; i < 2; i++) {
        struct call_args reduce = broadcast_of(world, i, i, data[i], data[i], TAG, 1000);
        CHECK(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
    }
    int told = 0;
    for (int64_t until = platform_now_ns() + 20 * SECOND_NS; told == 0 && platform_now_ns() < until; usleep(1000)) {
        pthread_mutex_lock(&world->lock);
        told = world->mismatches;
        pthread_mutex_unlock(&world->lock);
    }
    CHECK(told > 0);
    world_free(world);
    for (uint32_t i = 0; i < 2; i++) free(data[i]);
}

int main(void) {
    static const uint64_t counts[] = {0, 1, 1000, 300001, 3000000};
    for (uint32_t peers = 2; peers <= PEERS_MAX; peers++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            test_bytes(peers, 1 + peers % 3, counts[i], i % 2);
    test_bytes(3, 0, 300001, true);
    same_host = true;
    test_bytes(3, 2, 300001, false);
    same_host = false;
    test_loss(300001);
    test_redo(300001);
    test_mismatch();
    return check_status();
}
