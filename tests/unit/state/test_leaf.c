// Leaves on their way: what comes out of a packed one, what hostile bytes do, when packing is chosen; and the helpers
// that check leaves and bring them to their places.
#define _GNU_SOURCE
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "compute/hash.h"
#include "state/leaf.h"

enum { LEAF = HASH_LEAF_BYTES, PAGE = 4096 };

static uint8_t leaf[LEAF], packed[LEAF];
static uint64_t seed = 3;

static void fill(unsigned kinds) {
    for (size_t i = 0; i < LEAF; i++) leaf[i] = (uint8_t)(check_random(&seed) % kinds);
}

// A place of `length` bytes whose neighbours cannot be touched.
static uint8_t *guarded(size_t length) {
    uint8_t *pages = mmap(NULL, LEAF + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED && mprotect(pages + LEAF, PAGE, PROT_NONE) == 0);
    return pages + LEAF - length;
}

static void unguard(uint8_t *place, size_t length) { munmap(place + length - LEAF, LEAF + PAGE); }

static void test_lengths(void) {
    static const uint32_t lengths[] = {LEAF_PACKED_LEAST, 65537, LEAF - 1, LEAF};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint32_t length = lengths[i];
        check_case("length %u", length);
        fill(4);
        uint32_t short_length = leaf_pack(packed, leaf, length);
        CHECK(short_length > 0 && short_length < length);
        uint8_t *to = guarded(length), *from = guarded(short_length);
        memcpy(from, packed, short_length);
        CHECK(leaf_unpack(to, length, from, short_length));
        CHECK_MEM(to, leaf, length);
        CHECK(!leaf_unpack(to, length - 1, from, short_length));
        CHECK(!leaf_unpack(to, length, from, short_length - 1));
        unguard(to, length);
        unguard(from, short_length);
        to = guarded(length + 1 > LEAF ? length : length + 1);
        if (length < LEAF) CHECK(!leaf_unpack(to, length + 1, packed, short_length));
        unguard(to, length + 1 > LEAF ? length : length + 1);
    }
    check_case("what cannot be made shorter");
    fill(256);
    CHECK_EQ(leaf_pack(packed, leaf, LEAF), 0);
}

// Nothing is read or written outside, and a leaf that unpacks to other bytes has another hash.
static void test_hostile(void) {
    fill(8);
    uint32_t length = leaf_pack(packed, leaf, LEAF);
    uint64_t right = hash_xxh3_64(leaf, LEAF);
    uint8_t *to = guarded(LEAF);
    for (int trial = 0; trial < 3000; trial++) {
        check_case("hostile, trial %d", trial);
        uint32_t cut = trial % 3 == 0 ? (uint32_t)(check_random(&seed) % length) : length;
        uint8_t *from = guarded(cut);
        memcpy(from, packed, cut);
        unsigned flips = 1 + (unsigned)(check_random(&seed) % 8);
        for (unsigned i = 0; i < flips && cut > 0; i++)
            from[check_random(&seed) % cut] = trial % 2 == 0 ? 255 : (uint8_t)check_random(&seed);
        bool same = cut == length && memcmp(from, packed, length) == 0;
        if (leaf_unpack(to, LEAF, from, cut)) CHECK((hash_xxh3_64(to, LEAF) == right) == (memcmp(to, leaf, LEAF) == 0));
        CHECK(!same || memcmp(to, leaf, LEAF) == 0);
        unguard(from, cut);
    }
    unguard(to, LEAF);
}

static void test_switch(void) {
    check_case("switched off");
    setenv("PCCL_LZ4", "0", 1);
    CHECK(!leaf_packing_available());
    unsetenv("PCCL_LZ4");
    CHECK(leaf_packing_available());
}

static void test_choice(void) {
    static const struct {
        const char *name;
        double bytes_per_ns, pack_ns; // per leaf
        uint32_t packed;              // length, 0 = not shorter
        bool pays;
    } rows[] = {
        {"200 Mbit/s, half", 0.025, 500e3, LEAF / 2, true},
        {"200 Mbit/s, not shorter", 0.025, 100e3, 0, false},
        {"200 Mbit/s, a little shorter", 0.025, 100e3, LEAF - LEAF / 16, false},
        {"10 Gbit/s, half, slow to pack", 1.25, 500e3, LEAF / 2, false},
        {"loopback, half", 3, 300e3, LEAF / 2, false},
        {"loopback, zeros", 3, 20e3, LEAF / 250, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        struct leaf_packing choice = {0};
        double speed = rows[i].bytes_per_ns;
        CHECK(!leaf_packing_tries(&choice, 0)); // nothing is known of the link
        double trials = 0, plain = 0;
        bool pays = false;
        for (int n = 0; n < 20000; n++) {
            if (!leaf_packing_tries(&choice, speed)) {
                plain++;
                continue;
            }
            pays = leaf_packing_tried(&choice, speed, LEAF, rows[i].packed, (int64_t)rows[i].pack_ns);
            trials++;
        }
        CHECK_EQ(pays, rows[i].pays);
        double sent = plain * LEAF / rows[i].bytes_per_ns;
        if (rows[i].pays)
            CHECK(plain == 0);
        else
            CHECK(trials > 0 && trials * rows[i].pack_ns < 0.03 * sent);
        // The content changes, or the link does.
        for (int n = 0; n < 5000; n++)
            if (leaf_packing_tries(&choice, 0.01)) pays = leaf_packing_tried(&choice, 0.01, LEAF, LEAF / 3, 400000);
        CHECK(pays);
    }
}

// ---- helpers ----
enum { SMALL = 64 << 10, LEAVES = 500 };

static uint8_t theirs[LEAVES * SMALL], mine[LEAVES * SMALL];
static atomic_uint told;

static void tell(void *context) {
    (void)context;
    atomic_fetch_add(&told, 1);
}

static struct leaf_job job_of(uint64_t number) {
    return (struct leaf_job){
        .leaf = number,
        .donor = (uint32_t)(number % 7),
        .to = mine + number * SMALL,
        .staging = mine + number * SMALL,
        .length = SMALL,
        .expected = hash_xxh3_64(theirs + number * SMALL, SMALL),
    };
}

static void test_work(void) {
    memcpy(mine, theirs, SMALL);
    struct leaf_job job = job_of(0);
    check_case("right");
    leaf_check(&job);
    CHECK_EQ(job.result, LEAF_RIGHT);
    check_case("wrong");
    mine[SMALL - 1] ^= 1;
    leaf_check(&job);
    CHECK_EQ(job.result, LEAF_WRONG);
}

static void test_order(void) {
    check_case("order");
    memcpy(mine, theirs, sizeof mine);
    mine[3 * SMALL] ^= 1;
    struct leaf_pool *pool = leaf_pool_new(tell, NULL);
    REQUIRE(pool != NULL);
    CHECK(leaf_pool_idle(pool));
    uint64_t given = 0, taken = 0, refused = 0;
    struct leaf_job job;
    while (taken < LEAVES) {
        while (given < LEAVES) {
            job = job_of(given);
            if (!leaf_pool_give(pool, &job)) break;
            CHECK(leaf_pool_has(pool, given));
            given++;
        }
        refused += given < LEAVES;
        CHECK(given - taken <= LEAF_JOBS_MOST);
        unsigned before = atomic_load(&told);
        if (!leaf_pool_take(pool, &job)) {
            // Nothing is done yet: then it will be told.
            for (int i = 0; i < 5000 && atomic_load(&told) == before; i++) usleep(1000);
            CHECK(atomic_load(&told) != before);
            continue;
        }
        CHECK_EQ(job.leaf, taken);
        CHECK_EQ(job.result, taken == 3 ? LEAF_WRONG : LEAF_RIGHT);
        CHECK(!leaf_pool_has(pool, taken));
        taken++;
    }
    CHECK(refused > 0);
    CHECK(leaf_pool_idle(pool));
    leaf_pool_free(pool);
}

// Nothing is written after the end.
static void test_end(void) {
    for (uint64_t trial = 0; trial < 20; trial++) {
        check_case("end, trial %d", (int)trial);
        struct leaf_pool *pool = leaf_pool_new(tell, NULL);
        REQUIRE(pool != NULL);
        for (uint64_t i = 0; i < LEAF_JOBS_MOST; i++) {
            struct leaf_job job = job_of(i);
            CHECK(leaf_pool_give(pool, &job));
        }
        usleep((useconds_t)(trial * 100));
        leaf_pool_stop(pool);
        leaf_pool_free(pool);
        memset(mine, 1, sizeof mine);
        usleep(1000);
        for (size_t i = 0; i < sizeof mine; i += 4096) CHECK(mine[i] == 1);
    }
    leaf_pool_free(NULL);
}

int main(void) {
    for (size_t i = 0; i + 8 <= sizeof theirs; i += 8) {
        uint64_t word = check_random(&seed);
        memcpy(theirs + i, &word, 8);
    }
    test_choice();
    if (leaf_packing_available()) {
        test_lengths();
        test_hostile();
        test_switch();
    } else {
        CHECK(!leaf_unpack(leaf, LEAF, packed, 100));
        CHECK_EQ(leaf_pack(packed, leaf, LEAF), 0);
    }
    test_work();
    test_order();
    test_end();
    return check_status();
}
