// The helpers that bring leaves to their places and check them.
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "compute/hash.h"
#include "state/crew.h"

enum { LEAF = 64 << 10,
       LEAVES = 500 };

static uint8_t theirs[LEAVES * LEAF], mine[LEAVES * LEAF];
static atomic_uint told;

static void tell(void *context) {
    (void)context;
    atomic_fetch_add(&told, 1);
}

static struct crew_job job_of(uint64_t leaf) {
    return (struct crew_job){
        .kind = CREW_PLACED,
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
        enum crew_result want;
    } rows[] = {
        {"placed", false, false, false, false, CREW_RIGHT},
        {"placed, wrong", false, true, false, false, CREW_WRONG},
        {"placed where nothing is", false, false, true, false, CREW_UNREADABLE},
        {"placed in no process", false, false, false, true, CREW_UNREADABLE},
        {"here", true, false, false, false, CREW_RIGHT},
        {"here, wrong", true, true, false, false, CREW_WRONG},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        memset(mine, 0, LEAF);
        struct crew_job job = job_of(0);
        if (rows[i].here) {
            memcpy(mine, theirs, LEAF);
            job.kind = CREW_HERE;
            job.process = 0;
        }
        if (rows[i].flipped) job.expected ^= 1;
        if (rows[i].hole) job.from = (uint64_t)(uintptr_t)hole;
        if (rows[i].nobody) job.process = 0;
        crew_do(&job);
        CHECK_EQ(job.result, rows[i].want);
        if (rows[i].want == CREW_RIGHT) CHECK_MEM(mine, theirs, LEAF);
    }
    munmap(hole, LEAF);
}

static void test_order(void) {
    check_case("order");
    memset(mine, 0, sizeof mine);
    struct crew *crew = crew_new(tell, NULL);
    REQUIRE(crew != NULL);
    CHECK(crew_idle(crew));
    uint64_t given = 0, taken = 0, refused = 0;
    struct crew_job job;
    while (taken < LEAVES) {
        while (given < LEAVES) {
            job = job_of(given);
            if (!crew_give(crew, &job)) break;
            CHECK(crew_has(crew, given));
            given++;
        }
        refused += given < LEAVES;
        CHECK(given - taken <= CREW_JOBS_MOST);
        unsigned before = atomic_load(&told);
        if (!crew_take(crew, &job)) {
            // Nothing is done yet: then it will be told.
            for (int i = 0; i < 5000 && atomic_load(&told) == before; i++) usleep(1000);
            CHECK(atomic_load(&told) != before);
            continue;
        }
        CHECK_EQ(job.leaf, taken);
        CHECK_EQ(job.result, CREW_RIGHT);
        CHECK(!crew_has(crew, taken));
        taken++;
    }
    CHECK(refused > 0);
    CHECK(crew_idle(crew));
    CHECK_MEM(mine, theirs, sizeof mine);
    crew_free(crew);
}

// Nothing is written after the end.
static void test_end(void) {
    for (uint64_t trial = 0; trial < 20; trial++) {
        check_case("end, trial %d", (int)trial);
        struct crew *crew = crew_new(tell, NULL);
        REQUIRE(crew != NULL);
        for (uint64_t leaf = 0; leaf < CREW_JOBS_MOST; leaf++) {
            struct crew_job job = job_of(leaf);
            CHECK(crew_give(crew, &job));
        }
        usleep((useconds_t)(trial * 100));
        crew_stop(crew);
        crew_free(crew);
        memset(mine, 1, sizeof mine);
        usleep(1000);
        for (size_t i = 0; i < sizeof mine; i += 4096) CHECK(mine[i] == 1);
    }
    crew_free(NULL);
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
