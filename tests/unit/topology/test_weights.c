// Plans are tried out in a plain model of members, sites and what they can send and receive: it tells what would be
// seen of each edge, and how long the way takes. Repeated votes have to end near the best time, of few members that of
// all weights on a grid.
#include "topology/topology.h"

#include <math.h>

#include "check.h"

enum { VOTES = 20, MANY_VOTES = 100, GRID = 20 };

// Sanitized builds run each fifth trial: the trials differ in their numbers alone.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

static uint64_t seed = 11;

static double between(double least, double most) {
    return least + (most - least) * (double)(check_random(&seed) % 1000) / 999;
}

struct world {
    uint32_t n;
    double up[WEIGHTS_MOST], down[WEIGHTS_MOST]; // of members, bytes per second
    uint16_t site[WEIGHTS_MOST];                 // from 0 on
    double place[WEIGHTS_MOST];                  // each way between a site and all others; 0: without a limit
    double trip_us;                              // between sites
    double link[WEIGHTS_MOST][WEIGHTS_MOST];     // of each two members, each way; 0: without a limit
    double noise;                                // times of ops differ by up to that part
    double extra;                                // part of its time that a spread takes longer
};

static double load[WEIGHTS_MOST][WEIGHTS_MOST];

static uint32_t size_of(const struct world *world, uint16_t site) {
    uint32_t size = 0;
    for (uint32_t i = 0; i < world->n; i++) size += world->site[i] == site;
    return size;
}

static void load_ring(const struct world *world) {
    for (uint32_t i = 0; i < world->n; i++) load[i][(i + 1) % world->n] = 2.0 * (world->n - 1) / world->n;
}

static void load_spread(const struct world *world, const double *x) {
    for (uint32_t i = 0; i < world->n; i++)
        for (uint32_t k = 0; k < world->n; k++)
            if (i != k) load[i][k] = x[i] + x[k];
}

static void load_sites(const struct world *world, const double *x) {
    double own[WEIGHTS_MOST] = {0};
    for (uint32_t i = 0; i < world->n; i++) own[world->site[i]] += x[i];
    for (uint32_t i = 0; i < world->n; i++)
        for (uint32_t k = 0; k < world->n; k++) {
            uint16_t here = world->site[i], there = world->site[k];
            double pairs = size_of(world, here) * (double)size_of(world, there);
            if (i != k) load[i][k] = here == there ? 2.0 / size_of(world, here) : (own[here] + own[there]) / pairs;
        }
}

// Seconds per byte of the tensor, and what is seen meanwhile.
static double run(const struct world *world, const struct weights_plan *plan, struct weights_edge *edges) {
    double x[WEIGHTS_MOST] = {0}, sum = 0, time = 0, out[WEIGHTS_MOST] = {0}, in[WEIGHTS_MOST] = {0};
    double leaves[WEIGHTS_MOST] = {0}, comes[WEIGHTS_MOST] = {0};
    uint32_t n = world->n;
    memset(load, 0, sizeof load);
    for (uint32_t i = 0; i < n; i++) sum += plan->weight[i];
    for (uint32_t i = 0; i < n; i++) x[i] = sum > 0 ? plan->weight[i] / sum : 0;
    if (plan->algorithm == WEIGHTS_RING) load_ring(world);
    if (plan->algorithm == WEIGHTS_FLAT) load_spread(world, x);
    if (plan->algorithm == WEIGHTS_SITES) load_sites(world, x);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++) {
            out[i] += load[i][k];
            in[k] += load[i][k];
            if (world->site[i] == world->site[k]) continue;
            leaves[world->site[i]] += load[i][k];
            comes[world->site[k]] += load[i][k];
        }
    for (uint32_t i = 0; i < n; i++) {
        double place = world->place[world->site[i]];
        time = fmax(time, fmax(out[i] / world->up[i], in[i] / world->down[i]));
        if (place > 0) time = fmax(time, fmax(leaves[world->site[i]], comes[world->site[i]]) / place);
        for (uint32_t k = 0; k < n; k++)
            if (world->link[i][k] > 0) time = fmax(time, load[i][k] / world->link[i][k]);
    }
    double full_time = time;
    time *= (1 + between(0, world->noise)) * (plan->algorithm == WEIGHTS_RING ? 1 : 1 + world->extra);
    for (uint32_t i = 0; i < n && edges != NULL; i++)
        for (uint32_t k = 0; k < n; k++) {
            uint16_t here = world->site[i], there = world->site[k];
            bool full = out[i] / world->up[i] > 0.97 * full_time || in[k] / world->down[k] > 0.97 * full_time;
            if (here != there && world->place[here] > 0) full |= leaves[here] / world->place[here] > 0.97 * full_time;
            if (here != there && world->place[there] > 0) full |= comes[there] / world->place[there] > 0.97 * full_time;
            edges[i * n + k] = (struct weights_edge){load[i][k] / time, load[i][k] > 0 && full ? 0.9 : 0.05,
                                                     here == there ? 300 : world->trip_us};
            if (world->link[i][k] > 0) // busy for a part of the time
                edges[i * n + k].backlogged = (1 - between(0, world->noise)) * load[i][k] / world->link[i][k] / time;
        }
    return time;
}

// The time after some votes; they settle.
static double settle(const struct world *world, struct weights_memory *memory, struct weights_plan *plan) {
    struct weights_edge edges[WEIGHTS_MOST * WEIGHTS_MOST];
    struct weights_plan next;
    double time = run(world, plan, edges);
    int vote = 0;
    for (; vote < VOTES && weights_plan(world->n, edges, memory, plan, &next, NULL); vote++) {
        *plan = next;
        time = run(world, plan, edges);
    }
    CHECK(vote < VOTES);
    return time;
}

static struct world even(uint32_t n, double rate) {
    struct world world = {.n = n, .trip_us = 80000};
    for (uint32_t i = 0; i < n && i < WEIGHTS_MOST; i++) world.up[i] = world.down[i] = rate;
    return world;
}

// All far from each other.
static struct world apart(uint32_t n, double rate) {
    struct world world = even(n, rate);
    for (uint16_t i = 0; i < n; i++) world.site[i] = i;
    return world;
}

static void add_weights(struct world *world, uint16_t sites, bool in_turn, double rate) {
    for (uint32_t i = 0; i < world->n; i++) world->site[i] = (uint16_t)(in_turn ? i % sites : i * sites / world->n);
    for (uint16_t s = 0; s < sites; s++) world->place[s] = rate;
}

static void test_one_slow(void) {
    for (uint32_t n = 3; n <= WEIGHTS_MOST; n++)
        for (uint32_t slow = 0; slow < n; slow += 3) {
            check_case("member %u of %u at a quarter", slow, n);
            struct world world = even(n, 25e6);
            struct weights_plan plan = {0};
            struct weights_memory memory = {0};
            world.up[slow] = world.down[slow] = 25e6 / 4;
            double ring = run(&world, &plan, NULL), time = settle(&world, &memory, &plan);
            CHECK_EQ(plan.algorithm, WEIGHTS_FLAT);
            CHECK_EQ(plan.weight[slow], 0);
            CHECK(time <= 1.02 * 4 / 25e6 && ring >= 1.3 * time);
        }
}

static void test_one_slow_far(void) {
    check_case("the same, all far from each other");
    struct world world = apart(4, 5e6);
    struct weights_plan plan = {0};
    struct weights_memory memory = {0};
    world.up[1] = world.down[1] = 1.25e6;
    CHECK(settle(&world, &memory, &plan) <= 1.02 / 1.25e6);
    CHECK(plan.algorithm == WEIGHTS_FLAT && plan.weight[1] == 0);
}

static void test_one_way_slow(void) {
    for (int down = 0; down < 2; down++) {
        check_case("slow %s", down ? "down" : "up");
        struct world world = even(4, 25e6);
        struct weights_plan plan = {0};
        struct weights_memory memory = {0};
        (down ? world.down : world.up)[2] = 25e6 / 4;
        CHECK(settle(&world, &memory, &plan) <= 1.02 * 4 / 25e6);
        CHECK_EQ(plan.weight[2], 0);
    }
}

static void test_sites(void) {
    for (int in_turn = 0; in_turn < 2; in_turn++) {
        check_case("6 members in 3 sites, %s", in_turn ? "in turn" : "one after another");
        struct world world = even(6, 500e6);
        struct weights_plan plan = {0};
        struct weights_memory memory = {0};
        add_weights(&world, 3, in_turn, 25e6);
        CHECK(settle(&world, &memory, &plan) <= 1.02 * (1 + 1.0 / 3) / 25e6);
        CHECK_EQ(plan.algorithm, WEIGHTS_SITES);
        CHECK_EQ(plan.site[0], 1);
        for (uint32_t i = 0; i < 6; i++) CHECK_EQ(plan.site[i], world.site[i] + 1);
    }
    check_case("one site of five has a tenth");
    struct world world = even(10, 500e6);
    struct weights_plan plan = {0};
    struct weights_memory memory = {0};
    add_weights(&world, 5, false, 25e6);
    world.place[1] = 2.5e6;
    CHECK(settle(&world, &memory, &plan) <= 1.02 / 2.5e6);
    CHECK_EQ(plan.algorithm, WEIGHTS_SITES);
    check_case("two sites, one with a single member");
    world = even(4, 500e6);
    plan = (struct weights_plan){0};
    memory = (struct weights_memory){0};
    world.site[3] = 1;
    world.place[0] = world.place[1] = 25e6;
    CHECK(settle(&world, &memory, &plan) <= 1.02 / 25e6);
    CHECK(plan.algorithm == WEIGHTS_SITES && plan.site[0] == 1 && plan.site[3] == 0 && plan.weight[3] > 0);
}

static void test_stays(void) {
    for (uint32_t n = 1; n <= WEIGHTS_MOST + 1; n++) {
        check_case("%u equal members", n);
        struct weights_edge edges[(WEIGHTS_MOST + 1) * (WEIGHTS_MOST + 1)] = {{0}};
        struct weights_plan plan = {0}, next;
        struct weights_memory memory = {0};
        struct world world = even(n, 25e6);
        if (n <= WEIGHTS_MOST) run(&world, &plan, edges);
        CHECK(!weights_plan(n, edges, &memory, &plan, &next, NULL));
        CHECK_EQ(next.algorithm, WEIGHTS_RING);
    }
    check_case("two members, one slow");
    struct weights_edge edges[16];
    struct weights_plan plan = {0}, next;
    struct weights_memory memory = {0};
    struct world world = even(2, 25e6);
    world.up[1] = 1e6;
    run(&world, &plan, edges);
    CHECK(!weights_plan(2, edges, &memory, &plan, &next, NULL));
    check_case("nothing waits");
    world = even(4, 25e6);
    world.up[1] = 1e6;
    run(&world, &plan, edges);
    for (int i = 0; i < 16; i++) edges[i].backlogged = 0.1;
    CHECK(!weights_plan(4, edges, &memory, &plan, &next, NULL));
    check_case("a fast network");
    world = even(4, 10e9);
    world.up[1] = world.down[1] = 2e9;
    run(&world, &plan, edges);
    CHECK(!weights_plan(4, edges, &memory, &plan, &next, NULL));
}

static void test_recovers(void) {
    check_case("the slow member is fast again");
    struct world world = even(4, 25e6);
    struct weights_plan plan = {0};
    struct weights_memory memory = {0};
    world.up[1] = world.down[1] = 5e6;
    settle(&world, &memory, &plan);
    CHECK_EQ(plan.algorithm, WEIGHTS_FLAT);
    world = even(4, 25e6);
    CHECK(settle(&world, &memory, &plan) <= 1.12 * 1.5 / 25e6);
}

// The best time of all weights on a grid: the rest of `left` goes to members from `at` on.
static double best_of(const struct world *world, struct weights_plan *plan, uint32_t at, uint32_t left) {
    if (at + 1 == world->n) {
        plan->weight[at] = (uint16_t)left;
        return run(world, plan, NULL);
    }
    double best = HUGE_VAL;
    for (uint32_t give = 0; give <= left; give++) {
        plan->weight[at] = (uint16_t)give;
        best = fmin(best, best_of(world, plan, at + 1, left - give));
    }
    return best;
}

// Where each member receives as fast as it sends, or nearly; what is several times as fast as what was seen takes more
// votes than one.
static void test_against_grid(void) {
    for (int trial = 0; trial < 300; trial += STRIDE) {
        uint32_t n = 3 + (uint32_t)trial % 2;
        check_case("trial %d, %u members", trial, n);
        struct world world = even(n, 25e6);
        struct weights_plan plan = {0}, other = {.algorithm = WEIGHTS_FLAT};
        struct weights_memory memory = {0};
        for (uint32_t i = 0; i < n; i++) world.up[i] = world.down[i] = between(5e6, 50e6);
        struct weights_edge edges[16];
        double ring = run(&world, &plan, edges), best = fmin(ring, best_of(&world, &other, 0, GRID));
        double time = settle(&world, &memory, &plan);
        bool tells = false; // where all edges of the ring wait, nothing does
        for (uint32_t i = 0; i < n; i++) tells |= edges[i * n + (i + 1) % n].backlogged < 0.5;
        CHECK(time <= 1.001 * ring);
        CHECK(!tells || time <= 1.2 * best); // what is less than a tenth better is not tried
    }
}

struct course {
    double time; // the median of the second half
    int changes, late;
};

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// Many votes, whatever they choose.
static struct course follow(const struct world *world, struct weights_memory *memory, struct weights_plan *plan) {
    struct weights_edge edges[WEIGHTS_MOST * WEIGHTS_MOST];
    struct course course = {0};
    struct weights_plan next;
    double times[MANY_VOTES / 2];
    for (int vote = 0; vote < MANY_VOTES; vote++) {
        double time = run(world, plan, edges);
        bool late = vote >= MANY_VOTES / 2, changes = weights_plan(world->n, edges, memory, plan, &next, NULL);
        if (late) times[vote - MANY_VOTES / 2] = time;
        course.changes += changes;
        course.late += changes && late;
        *plan = next;
    }
    qsort(times, MANY_VOTES / 2, sizeof *times, by_size);
    course.time = times[MANY_VOTES / 4];
    return course;
}

static void relink(struct world *world, double least, double most) {
    for (uint32_t i = 0; i < world->n; i++)
        for (uint32_t k = 0; k < i; k++) world->link[i][k] = world->link[k][i] = between(least, most);
}

static struct world linked(uint32_t n, double least, double most) {
    struct world world = apart(n, 1e9);
    relink(&world, least, most);
    return world;
}

static double best_time(const struct world *world) {
    struct weights_plan ring = {0}, spread = {.algorithm = WEIGHTS_FLAT};
    return fmin(run(world, &ring, NULL), best_of(world, &spread, 0, GRID));
}

// All far from each other; what limits ops is a link between each two, or what members send and receive. It is found
// out, and then nothing changes any more; if times of ops differ by almost a third, seldom.
static void test_far(void) {
    for (int trial = 0; trial < 800; trial += STRIDE) {
        uint32_t n = 3 + (uint32_t)trial % 2;
        bool links = trial < 400, noisy = trial / 200 % 2 == 1;
        check_case("trial %d, %u members with %s", trial, n, links ? "links" : "ports");
        struct world world = links ? linked(n, 2e6, 8e6) : apart(n, 5e6);
        struct weights_plan plan = {0};
        struct weights_memory memory = {0};
        for (uint32_t i = 0; i < n && !links; i++) world.up[i] = world.down[i] = between(1e6, 10e6);
        double best = best_time(&world);
        world.noise = noisy ? 0.3 : 0;
        struct course course = follow(&world, &memory, &plan);
        CHECK(course.time <= (noisy ? 1.7 : 1.4) * best);
        CHECK(course.changes <= (noisy ? 16 : 10));
        CHECK(course.late <= (noisy ? 6 : 2));
    }
}

// Other plans are slower than any model says: they are tried, and ever more seldom.
static void test_returns(void) {
    check_case("a spread costs more than the bytes it moves");
    struct world world = even(4, 25e6);
    struct weights_plan plan = {0};
    struct weights_memory memory = {0};
    world.up[2] = world.down[2] = 10e6;
    world.extra = 1;
    struct course course = follow(&world, &memory, &plan);
    CHECK_EQ(plan.algorithm, WEIGHTS_RING);
    CHECK(course.changes >= 2 && course.changes <= 10);
    CHECK(course.late <= 4);
}

// Whoever chooses may not get it: a vote may fail.
static void test_insists(void) {
    check_case("what was faster, and even weights, are asked for until they are in force");
    struct weights_edge edges[WEIGHTS_MOST * WEIGHTS_MOST];
    struct world world = linked(4, 4e6, 4e6);
    struct weights_plan ring = {0}, slow = {.algorithm = WEIGHTS_FLAT, .weight = {1, 0, 0, 0}}, next;
    struct weights_memory memory = {0};
    world.extra = 1;
    for (int vote = 0; vote < 5; vote++) {
        run(&world, &ring, edges);
        CHECK(weights_plan(4, edges, &memory, &ring, &next, NULL));
        CHECK(next.algorithm == WEIGHTS_FLAT && next.weight[0] == next.weight[3]);
    }
    bool returns = false;
    for (int vote = 0; vote < 10; vote++) {
        run(&world, &slow, edges);
        bool changes = weights_plan(4, edges, &memory, &slow, &next, NULL);
        CHECK(!returns || (changes && next.algorithm == WEIGHTS_RING));
        returns |= changes && next.algorithm == WEIGHTS_RING;
    }
    CHECK(returns && memory.waits == 0);
    run(&world, &ring, edges);
    CHECK(!weights_plan(4, edges, &memory, &ring, &next, NULL));
    CHECK(memory.waits > 0);
}

static void test_follows_changes(void) {
    static const double factors[] = {0.25, 0.6, 0.75, 1, 4};
    for (int trial = 0; trial < 200; trial++) {
        double factor = factors[trial % 5];
        check_case("trial %d, other links in the middle of the run, %.2f times as fast", trial, factor);
        struct world world = linked(4, 2e6, 8e6);
        struct weights_plan plan = {0};
        struct weights_memory memory = {0};
        follow(&world, &memory, &plan);
        relink(&world, factor * 2e6, factor * 8e6);
        for (int round = 0; round < 4; round++) follow(&world, &memory, &plan);
        struct course course = follow(&world, &memory, &plan);
        CHECK(course.time <= 1.5 * best_time(&world));
    }
}

static void test_lasts(void) {
    check_case("tens of thousands of votes, most of them with nothing new, and then other links");
    struct world world = linked(4, 2e6, 8e6);
    struct weights_plan plan = {0};
    struct weights_memory memory = {0};
    for (int round = 0; round < 300; round++) follow(&world, &memory, &plan);
    CHECK(plan.algorithm == WEIGHTS_FLAT);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t k = 0; k < 4; k++) CHECK(memory.pair[i][k] < 1e9);
    relink(&world, 0.5e6, 2e6);
    struct course course = follow(&world, &memory, &plan);
    CHECK(course.time <= 1.5 * best_time(&world));
}

static void test_properties(void) {
    static const double odd[] = {0, -1, 1, 1e3, 1e6, 25e6, 1e9, 1e300, HUGE_VAL, NAN};
    for (int trial = 0; trial < 20000; trial += STRIDE) {
        uint32_t n = 3 + (uint32_t)(check_random(&seed) % 6);
        check_case("trial %d, %u members", trial, n);
        struct weights_edge edges[64];
        struct weights_plan plan = {.algorithm = WEIGHTS_RING}, next, again;
        struct weights_memory memory = {.explored = trial % 3 > 0,
                                        .error = {trial % 4 == 0, trial % 4 == 0 ? 0.01 : 0}};
        struct weights_times times;
        uint64_t rates[64];
        for (uint32_t i = 0; i < n * n; i++) {
            bool strange = check_random(&seed) % 8 == 0;
            edges[i].rate = strange ? odd[check_random(&seed) % 10] : between(1e6, 50e6);
            edges[i].backlogged = strange ? odd[check_random(&seed) % 10] : between(0, 1);
            edges[i].round_trip_us = strange ? odd[check_random(&seed) % 10] : between(trial % 4 == 0 ? 2000 : 0, 4000);
        }
        for (uint32_t i = 0; i < n && trial % 2 == 0; i++) {
            plan.algorithm = WEIGHTS_FLAT;
            plan.weight[i] = (uint16_t)check_random(&seed);
        }
        uint16_t site[WEIGHTS_MOST];
        bool explores = !memory.explored && plan.algorithm == WEIGHTS_RING && weights_sites(n, edges, site) == n;
        bool changes = weights_plan(n, edges, &memory, &plan, &next, &times);
        uint32_t shared = 0;
        for (uint32_t i = 0; i < n; i++) shared += next.weight[i] > 0;
        for (uint32_t i = n; i < WEIGHTS_MOST; i++) CHECK(next.weight[i] == 0 && next.site[i] == 0);
        CHECK_EQ(shared > 0, next.algorithm != WEIGHTS_RING);
        if (changes && !explores && next.algorithm != WEIGHTS_RING)
            CHECK(fmin(times.flat, times.sites) <= 0.9 * times.now);
        if (changes && !explores && next.algorithm != WEIGHTS_RING) CHECK(fmin(times.flat, times.sites) < times.ring);
        // What was chosen by ports stays, if what is seen does not change; the other model learns from each look.
        memory.best_s = memory.promise[WEIGHTS_PORTS] = memory.promise[WEIGHTS_PAIRS] = 0;
        if (changes && !explores && trial % 4 > 0) CHECK(!weights_plan(n, edges, &memory, &next, &again, NULL));
        weights_rates(n, edges, &memory, rates);
        for (uint32_t i = 0; i < n; i++) CHECK_EQ(rates[i * n + i], 0);
    }
}

int main(void) {
    test_one_slow();
    test_one_slow_far();
    test_one_way_slow();
    test_sites();
    test_stays();
    test_recovers();
    test_against_grid();
    test_far();
    test_returns();
    test_insists();
    test_follows_changes();
    test_lasts();
    test_properties();
    return check_status();
}
