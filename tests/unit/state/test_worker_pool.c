// The helpers that bring leaves to their places and check them.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "compute/hash.h"
#include "device/reader.h"
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
        .length = LEAF,
        .expected = hash_xxh3_64(theirs + leaf * LEAF, LEAF),
        .process = getpid(),
        .from = (uint64_t)(uintptr_t)(theirs + leaf * LEAF),
    };
}

static void test_work(void) {
    void *hole = mmap(NULL, LEAF, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(hole != MAP_FAILED);
    static const struct {
        const char *name;
        bool here, flipped, hole, nobody;
        enum worker_pool_result want;
    } rows[] = {
        {"placed", false, false, false, false, WORKER_POOL_RIGHT},
        {"placed, wrong", false, true, false, false, WORKER_POOL_WRONG},
        {"placed where nothing is", false, false, true, false, WORKER_POOL_UNREADABLE},
        {"placed in no process", false, false, false, true, WORKER_POOL_UNREADABLE},
        {"here", true, false, false, false, WORKER_POOL_RIGHT},
        {"here, wrong", true, true, false, false, WORKER_POOL_WRONG},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        memset(mine, 0, LEAF);
        struct worker_pool_job job = job_of(0);
        if (rows[i].here) {
            memcpy(mine, theirs, LEAF);
            job.landing = mine;
            job.process = 0;
        }
        if (rows[i].flipped) job.expected ^= 1;
        if (rows[i].hole) job.from = (uint64_t)(uintptr_t)hole;
        if (rows[i].nobody) job.process = 0;
        struct reader *reader = reader_new();
        REQUIRE(reader != NULL);
        worker_pool_do(&job, reader);
        reader_free(reader);
        CHECK_EQ(job.result, rows[i].want);
        if (rows[i].want == WORKER_POOL_RIGHT) CHECK_MEM(mine, theirs, LEAF);
    }
    munmap(hole, LEAF);
}

static void test_order(void) {
    check_case("order");
    memset(mine, 0, sizeof mine);
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
        CHECK_EQ(job.result, WORKER_POOL_RIGHT);
        CHECK(!worker_pool_has(pool, taken));
        taken++;
    }
    CHECK(refused > 0);
    CHECK(worker_pool_idle(pool));
    CHECK_MEM(mine, theirs, sizeof mine);
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

// Memory that does not answer: what lies there is unreadable, the rest is done, and the end does not wait.
static void test_hang(void) {
    check_case("hang");
    int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    uint8_t *silent = mmap(NULL, LEAF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(silent != MAP_FAILED);
    struct uffdio_register range = {.range = {(uint64_t)(uintptr_t)silent, LEAF}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) != 0 || ioctl(faults, UFFDIO_REGISTER, &range) != 0) {
        fprintf(stderr, "test_hang: skipped, userfaultfd needs a right that is not here\n");
        return;
    }
    memset(mine, 1, LEAF);
    struct worker_pool_job silent_job = job_of(0), job;
    silent_job.from = (uint64_t)(uintptr_t)silent;
    for (int trial = 0; trial < 2; trial++) {
        struct worker_pool *pool = worker_pool_new(tell, NULL);
        REQUIRE(pool != NULL && worker_pool_give(pool, &silent_job));
        uint64_t rest = trial == 0 ? 10 : 0; // at the second trial nobody looks before the end
        for (uint64_t leaf = 1; leaf <= rest; leaf++) {
            job = job_of(leaf);
            CHECK(worker_pool_give(pool, &job));
        }
        for (uint64_t taken = 0; rest > 0 && taken <= rest;) {
            worker_pool_watch(pool);
            if (!worker_pool_take(pool, &job)) {
                usleep(1000);
                continue;
            }
            CHECK_EQ(job.result, taken++ == 0 ? WORKER_POOL_UNREADABLE : WORKER_POOL_RIGHT);
        }
        worker_pool_free(pool);
    }
    CHECK_EQ(ioctl(faults, UFFDIO_UNREGISTER, &range.range), 0); // now they are answered: with zeros
    close(faults);
    usleep(10000);
    for (size_t i = 0; i < LEAF; i++) CHECK(mine[i] == 1);
    munmap(silent, LEAF);
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
    test_hang();
    return check_status();
}
