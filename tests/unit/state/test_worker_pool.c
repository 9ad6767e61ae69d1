// The helpers that check leaves and bring them to their places.
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "compute/hash.h"
#include "state/worker_pool.h"

enum { LEAF = 64 << 10, LEAVES = 500 };

static uint8_t theirs[LEAVES * LEAF], mine[LEAVES * LEAF];
static atomic_uint told;

static void tell(void *context) {
    (void)context;
    atomic_fetch_add(&told, 1);
}

static struct worker_pool_job job_of(uint64_t leaf) {
    return (struct worker_pool_job){
        .leaf = leaf,
        .donor = (uint32_t)(leaf % 7),
        .to = mine + leaf * LEAF,
        .landing = mine + leaf * LEAF,
        .length = LEAF,
        .expected = hash_xxh3_64(theirs + leaf * LEAF, LEAF),
    };
}

static void test_work(void) {
    memcpy(mine, theirs, LEAF);
    struct worker_pool_job job = job_of(0);
    check_case("right");
    worker_pool_do(&job);
    CHECK_EQ(job.result, WORKER_POOL_RIGHT);
    check_case("wrong");
    mine[LEAF - 1] ^= 1;
    worker_pool_do(&job);
    CHECK_EQ(job.result, WORKER_POOL_WRONG);
}

static void test_order(void) {
    check_case("order");
    memcpy(mine, theirs, sizeof mine);
    mine[3 * LEAF] ^= 1;
    struct worker_pool *pool = worker_pool_new(tell, NULL);
    REQUIRE(pool != NULL);
    CHECK(worker_pool_idle(pool));
    uint64_t given = 0, taken = 0, refused = 0;
    struct worker_pool_job job;
    while (taken < LEAVES) {
        while (given < LEAVES) {
            job = job_of(given);
            if (!worker_pool_give(pool, &job)) break;
            CHECK(worker_pool_has(pool, given));
            given++;
        }
        refused += given < LEAVES;
        CHECK(given - taken <= WORKER_POOL_JOBS_MOST);
        unsigned before = atomic_load(&told);
        if (!worker_pool_take(pool, &job)) {
            // Nothing is done yet: then it will be told.
            for (int i = 0; i < 5000 && atomic_load(&told) == before; i++) usleep(1000);
            CHECK(atomic_load(&told) != before);
            continue;
        }
        CHECK_EQ(job.leaf, taken);
        CHECK_EQ(job.result, taken == 3 ? WORKER_POOL_WRONG : WORKER_POOL_RIGHT);
        CHECK(!worker_pool_has(pool, taken));
        taken++;
    }
    CHECK(refused > 0);
    CHECK(worker_pool_idle(pool));
    worker_pool_free(pool);
}

// Nothing is written after the end.
static void test_end(void) {
    for (uint64_t trial = 0; trial < 20; trial++) {
        check_case("end, trial %d", (int)trial);
        struct worker_pool *pool = worker_pool_new(tell, NULL);
        REQUIRE(pool != NULL);
        for (uint64_t leaf = 0; leaf < WORKER_POOL_JOBS_MOST; leaf++) {
            struct worker_pool_job job = job_of(leaf);
            CHECK(worker_pool_give(pool, &job));
        }
        usleep((useconds_t)(trial * 100));
        worker_pool_stop(pool);
        worker_pool_free(pool);
        memset(mine, 1, sizeof mine);
        usleep(1000);
        for (size_t i = 0; i < sizeof mine; i += 4096) CHECK(mine[i] == 1);
    }
    worker_pool_free(NULL);
}

int main(void) {
    uint64_t seed = 1;
    for (size_t i = 0; i + 8 <= sizeof theirs; i += 8) {
        uint64_t word = check_random(&seed);
        memcpy(theirs + i, &word, 8);
    }
    test_work();
    test_order();
    test_end();
    return check_status();
}
