// The weights that links carry fastest, against all weights on a grid; and what is learned of links from what was seen.
#include "topology/topology.h"

#include <math.h>

#include "check.h"

static uint32_t grid = 24;

static uint64_t seed = 5;

static double between(double least, double most) {
    return least + (most - least) * (double)(check_random(&seed) % 1000) / 999;
}

static struct pairs some_pairs(uint32_t n, double least, double most) {
    struct pairs pairs = {.n = n};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++) {
            pairs.rate[i][k] = pairs.rate[k][i] = between(least, most);
            pairs.seen[i][k] = pairs.seen[k][i] = true;
        }
    return pairs;
}

static double best_of(const struct pairs *pairs, double *x, uint32_t at, uint32_t left) {
    if (at + 1 == pairs->n) {
        x[at] = (double)left / grid;
        return pairs_time(pairs, x);
    }
    double best = HUGE_VAL;
    for (uint32_t give = 0; give <= left; give++) {
        x[at] = (double)give / grid;
        best = fmin(best, best_of(pairs, x, at + 1, left - give));
    }
    return best;
}

static double sum_of(uint32_t n, const double *x) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        CHECK(x[i] >= 0);
        sum += x[i];
    }
    return sum;
}

static void test_fill(void) {
    for (int trial = 0; trial < 300; trial++) {
        uint32_t n = 2 + (uint32_t)trial % 5;
        grid = n < 5 ? 24 : 12;
        check_case("trial %d, %u members", trial, n);
        struct pairs pairs = some_pairs(n, trial % 2 == 0 ? 1e6 : 1e3, 1e8);
        double x[WEIGHTS_MOST], on_grid[WEIGHTS_MOST];
        pairs_fill(&pairs, x);
        CHECK(fabs(sum_of(n, x) - 1) < 1e-6);
        CHECK(pairs_time(&pairs, x) <= 1.04 * best_of(&pairs, on_grid, 0, grid));
    }
    for (uint32_t n = 2; n <= WEIGHTS_MOST; n++) {
        check_case("%u members with equal links", n);
        struct pairs pairs = some_pairs(n, 5e6, 5e6);
        double x[WEIGHTS_MOST];
        pairs_fill(&pairs, x);
        for (uint32_t i = 0; i < n; i++) CHECK(x[i] < 1.1 / n);
        check_case("%u members with any links", n);
        pairs = some_pairs(n, 1e6, 1e9);
        pairs_fill(&pairs, x);
        CHECK(fabs(sum_of(n, x) - 1) < 1e-6);
        double even[WEIGHTS_MOST];
        for (uint32_t i = 0; i < n; i++) even[i] = 1.0 / n;
        CHECK(pairs_time(&pairs, x) <= 1.04 * pairs_time(&pairs, even));
    }
}

// Sites of two clouds, as in bench/regions.py: the best weights are 12.5, 12.5, 17.5, 2.5 and 2.5.
static void test_clouds(void) {
    static const double rates[] = {50, 30, 30, 15, 15, 20, 15, 15, 20, 40};
    struct pairs pairs = {.n = 5};
    double x[WEIGHTS_MOST];
    for (uint32_t i = 1, at = 0; i < 5; i++)
        for (uint32_t k = 0; k < i; k++) pairs.rate[i][k] = pairs.rate[k][i] = rates[at++];
    pairs_fill(&pairs, x);
    CHECK(pairs_time(&pairs, x) <= 1.04 / 47.5);
}

static void test_learn(void) {
    check_case("a full link, one that is busy for half of the time, and others");
    struct weights_edge edges[9] = {
        [1] = {1e6, 0.9, 80000}, [2] = {1e6, 0.5, 80000}, [3] = {0.8e6, 0.1, 80000}, [5] = {1e4, 0, 80000}};
    double known[WEIGHTS_MOST][WEIGHTS_MOST] = {{0}};
    struct pairs pairs;
    pairs_learn(3, edges, known);
    CHECK(fabs(known[0][1] - 1e6 / 0.9) < 1 && fabs(known[0][2] - 2e6) < 1 && fabs(known[1][0] - 4e6) < 1);
    CHECK(known[1][2] == 0);
    pairs_judge(3, edges, known, &pairs);
    CHECK(fabs(pairs.rate[0][1] - 1e6 / 0.9) < 1 && pairs.rate[1][0] == pairs.rate[0][1]);
    CHECK(pairs.seen[0][1] && pairs.seen[2][0] && !pairs.seen[1][2]);
    CHECK(pairs.rate[1][2] >= 4e6);
    const double some[] = {0, 1, 0}, all[] = {0.4, 0.3, 0.3};
    CHECK(!pairs_seen(&pairs, some) && !pairs_seen(&pairs, all) && pairs_ring_time(&pairs) == HUGE_VAL);
    check_case("what was seen once fades when little passes");
    edges[1] = (struct weights_edge){1e5, 0.05, 80000};
    double before = known[0][1];
    for (int look = 0; look < 50; look++) pairs_learn(3, edges, known);
    CHECK(known[0][1] > 3 * before);
    check_case("and at once when it is full again");
    edges[1] = (struct weights_edge){1e6, 1, 80000};
    for (int look = 0; look < 5; look++) pairs_learn(3, edges, known);
    CHECK(known[0][1] < 1.2e6);
}

int main(void) {
    test_fill();
    test_clouds();
    test_learn();
    return check_status();
}
