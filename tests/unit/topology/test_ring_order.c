// The exact answer is compared with all rings of up to 8 members; the search with what was hidden in the rates.
#include "topology/topology.h"

#include <time.h>

#include "check.h"

static uint64_t seed = 7;

static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

static bool is_permutation(uint32_t n, const uint32_t *order) {
    bool seen[RING_ORDER_MAX] = {false};
    for (uint32_t i = 0; i < n; i++) {
        if (order[i] >= n || seen[order[i]]) return false;
        seen[order[i]] = true;
    }
    return true;
}

static uint64_t slowest_of(uint32_t n, const uint64_t *rates, const uint32_t *order) {
    uint64_t slowest = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t rate = rates[(size_t)order[i] * n + order[(i + 1) % n]];
        if (rate < slowest) slowest = rate;
    }
    return slowest;
}

static double sum_of(uint32_t n, const uint64_t *rates, const uint32_t *order) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t rate = rates[order[i] * n + order[(i + 1) % n]];
        sum += rate == 0 ? 1.0 : 1.0 / (double)rate;
    }
    return sum;
}

// The best of all rings that begin with `order[0..fixed)`.
static void try_all(uint32_t n, const uint64_t *rates, uint32_t *order, uint32_t fixed, uint64_t *slowest,
                    double *sum) {
    if (fixed == n) {
        uint64_t here = slowest_of(n, rates, order);
        double cost = sum_of(n, rates, order);
        if (here > *slowest || (here == *slowest && cost < *sum)) {
            *slowest = here;
            *sum = cost;
        }
        return;
    }
    for (uint32_t i = fixed; i < n; i++) {
        uint32_t member = order[i];
        order[i] = order[fixed];
        order[fixed] = member;
        try_all(n, rates, order, fixed + 1, slowest, sum);
        order[fixed] = order[i];
        order[i] = member;
    }
}

static void shuffle(uint32_t n, uint32_t *order) {
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)below(i), member = order[i - 1];
        order[i - 1] = order[k];
        order[k] = member;
    }
}

static void test_exact(void) {
    static uint64_t rates[8 * 8];
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t n = 3 + round % 5 + (round % 50 == 0); // 8 a few times
        check_case("exact, round %u, %u members", round, n);
        uint64_t kinds = 1 + below(6), unknown = below(4);
        for (uint32_t i = 0; i < n * n; i++)
            rates[i] = below(10) < unknown ? 0 : 1000000 * (1 + below(kinds)) * (1 + below(2) * 3);
        uint32_t order[8], all[8], first[8];
        shuffle(n, order);
        memcpy(first, order, sizeof first);
        uint64_t before = slowest_of(n, rates, order), slowest = 0;
        double cost_before = sum_of(n, rates, order), cost = 1e300;
        for (uint32_t i = 0; i < n; i++) all[i] = i;
        try_all(n, rates, all, 1, &slowest, &cost);
        bool changed = ring_order(n, rates, order);
        CHECK(is_permutation(n, order));
        CHECK_EQ(order[0], first[0]);
        CHECK_EQ(changed, memcmp(order, first, n * sizeof order[0]) != 0);
        CHECK_EQ(slowest_of(n, rates, order), slowest);
        CHECK(sum_of(n, rates, order) <= cost * 1.0011);
        if (changed) CHECK(slowest > before || sum_of(n, rates, order) < cost_before);
        CHECK(!ring_order(n, rates, order)); // settled
    }
}

// Never worse, the same twice, settled.
static void test_search(void) {
    static uint64_t rates[64 * 64];
    for (uint32_t round = 0; round < 6; round++) {
        uint32_t n = RING_ORDER_EXACT + 1 + (uint32_t)below(20), order[64], again[64], hidden[64];
        check_case("search, round %u, %u members", round, n);
        for (uint32_t i = 0; i < n * n; i++) rates[i] = below(5) == 0 ? 0 : 1000000 * (1 + below(20));
        shuffle(n, hidden);
        for (uint32_t i = 0; i < n; i++) rates[hidden[i] * n + hidden[(i + 1) % n]] = 1000000 * (18 + below(3));
        shuffle(n, order);
        memcpy(again, order, sizeof again);
        uint64_t before = slowest_of(n, rates, order);
        double cost_before = sum_of(n, rates, order);
        CHECK(ring_order(n, rates, order));
        CHECK(ring_order(n, rates, again));
        CHECK_MEM(order, again, n * sizeof order[0]);
        CHECK(is_permutation(n, order));
        uint64_t after = slowest_of(n, rates, order);
        CHECK(after > before || (after == before && sum_of(n, rates, order) < cost_before));
        CHECK(after >= 15 * 1000000); // random rings have an unknown link; the hidden one has 18
        ring_order(n, rates, order);  // may improve once more, never worsen
        CHECK(slowest_of(n, rates, order) >= after);
    }
    check_case("all links alike, many members");
    for (uint32_t i = 0; i < 64 * 64; i++) rates[i] = 1000;
    uint32_t order[64];
    shuffle(64, order);
    CHECK(!ring_order(64, rates, order));
}

// Two sites with a slow link between them: two slow links are needed, not more; one peer behind a slow uplink takes
// part with the least harm.
static void test_shapes(void) {
    check_case("two sites");
    enum { N = 24 };
    static uint64_t rates[N * N];
    uint32_t order[N];
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t k = 0; k < N; k++) rates[i * N + k] = i % 2 == k % 2 ? 1000000000 : 10000000;
    for (uint32_t i = 0; i < N; i++) order[i] = i;
    CHECK(ring_order(N, rates, order));
    uint32_t crossings = 0;
    for (uint32_t i = 0; i < N; i++) crossings += order[i] % 2 != order[(i + 1) % N] % 2;
    CHECK_EQ(crossings, 2);

    check_case("one slow pair");
    for (uint32_t i = 0; i < N * N; i++) rates[i] = 1000000;
    rates[3 * N + 4] = rates[4 * N + 3] = 1000;
    for (uint32_t i = 0; i < N; i++) order[i] = i;
    CHECK(ring_order(N, rates, order));
    CHECK_EQ(slowest_of(N, rates, order), 1000000);

    check_case("fewer than three");
    CHECK(!ring_order(2, rates, order));
    CHECK(!ring_order(0, rates, order));
}

static void test_large(void) {
    check_case("1024 members");
    enum { N = 1024 };
    uint64_t *rates = malloc(N * N * sizeof *rates);
    static uint32_t order[N];
    for (uint32_t i = 0; i < N * N; i++) rates[i] = 1000 + below(1000000);
    for (uint32_t i = 0; i < N; i++) order[i] = i;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    uint64_t before = slowest_of(N, rates, order);
    CHECK(ring_order(N, rates, order));
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK(is_permutation(N, order));
    CHECK(slowest_of(N, rates, order) > 100 * before);
    double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    fprintf(stderr, "1024 members: slowest link %llu -> %llu in %.3f s\n", (unsigned long long)before,
            (unsigned long long)slowest_of(N, rates, order), seconds);
    CHECK(seconds < 10); // with sanitizers and a busy machine
    free(rates);
}

int main(void) {
    test_exact();
    test_search();
    test_shapes();
    test_large();
    return check_status();
}
