// An all-reduce that is spread by weights and sites: what members end with is, to the bit, what the tree of each block
// gives, whatever comes when; also among some of the members, in segments and after losses.
#define PEERS_MAX 7
#include "engine_world.h"

#include "compute/kernels.h"
#include "link/pace.h"
#include "ops/plan.h"

#ifdef __SANITIZE_THREAD__ // which takes minutes for more, whose threads do the same
enum { ROUNDS = 1, STEP = 3, TYPES = pcclInt8 + 1, LONG = 1500001 };
#elif defined(__SANITIZE_ADDRESS__) // more elements of one type touch no other code
enum { ROUNDS = 1, STEP = 2, TYPES = KERNEL_DTYPES, LONG = 1500001 };
#else
enum { ROUNDS = 2, STEP = 1, TYPES = KERNEL_DTYPES, LONG = 12000001 };
#endif

enum { LARGE = PLAN_SMALL_MAX + 1 };

struct trial {
    struct world *world;
    uint32_t size, sides[PEERS_MAX]; // those that take part, by place
    uint64_t count, tag;
    int dtype, op;
    bool in_place, retry;
    struct plan_weights *weighted;
    uint8_t *send[PEERS_MAX], *recv[PEERS_MAX], *expected; // by place
};

static uint64_t seed = 1;

static uint64_t below(uint64_t limit) { return check_random(&seed) % limit; }

// Sums of these depend on their order, where a type rounds.
CHECK_UNWATCHED static void fill(const struct trial *t, uint32_t place, uint8_t *to) {
    uint64_t state = t->sides[place] + 1;
    bool rounds = t->dtype == pcclFloat || t->dtype == pcclDouble;
    for (uint64_t i = 0; i < t->count; i++) {
        uint64_t number = check_random(&state);
        double wide = (double)(number % 20011) * 1.0e-3 + 0.5;
        if (t->dtype == pcclFloat) ((float *)(void *)to)[i] = (float)wide;
        if (t->dtype == pcclDouble) ((double *)(void *)to)[i] = wide;
        if (t->dtype == pcclFloat16 || t->dtype == pcclBFloat16) {
            float near = (float)wide;
            codec_narrow(t->dtype, to + 2 * i, &near, 1);
        } else if (!rounds) {
            for (size_t b = 0; b < dtype_size(t->dtype); b++) to[i * dtype_size(t->dtype) + b] = (uint8_t)(number >> b);
            if (t->dtype == pcclBool) to[i] = number & 1;
        }
    }
}

// What this member makes of a block: the own input, and what comes from below in the order of places.
static void add_up(const struct trial *t, uint32_t shard, uint64_t block, uint32_t place, struct plan_range range,
                   uint8_t *out) {
    size_t element = dtype_size(t->dtype), count = range.end - range.begin;
    uint8_t *other = malloc(count * element + 1);
    memcpy(out, t->send[place] + range.begin * element, count * element);
    for (uint32_t step = 1; step < t->size; step++) {
        uint32_t from = (place + step) % t->size;
        if (from == shard || plan_weights_parent(t->weighted, shard, block, from) != place) continue;
        add_up(t, shard, block, from, range, other);
        kernels_get()->reduce[t->op][t->dtype](out, other, out, count);
    }
    free(other);
    if (place == shard && t->op == pcclAvg) kernels_get()->divide[t->dtype](out, count, t->size);
}

static void expect(const struct trial *t) {
    size_t element = dtype_size(t->dtype);
    for (uint32_t shard = 0; shard < t->size; shard++) {
        struct plan_range range = plan_weights_shard(t->weighted, t->count, t->size, shard);
        uint64_t size = pace_block(range.end - range.begin, element, epoch_latency_us);
        for (uint64_t block = 0, at = range.begin; at < range.end; block++, at += size) {
            struct plan_range part = {at, at + size < range.end ? at + size : range.end};
            add_up(t, shard, block, shard, part, t->expected + at * element);
        }
    }
}

// Of all sides, unless it is told which ones.
static void begin(struct trial *t) {
    uint16_t by_place[2][PEERS_MAX];
    for (uint32_t i = 0; i < t->world->count && t->size == 0; i++) t->sides[i] = i;
    if (t->size == 0) t->size = t->world->count;
    for (uint32_t i = 0; i < t->size; i++) {
        by_place[0][i] = member_weights[t->sides[i]];
        by_place[1][i] = member_sites[t->sides[i]];
    }
    t->weighted = plan_weights_new(by_place[0], by_place[1], t->size);
    REQUIRE(t->weighted != NULL);
    size_t bytes = t->count * dtype_size(t->dtype);
    for (uint32_t i = 0; i < t->size; i++) {
        t->send[i] = malloc(bytes + 1);
        fill(t, i, t->send[i]);
        t->recv[i] = t->in_place ? t->send[i] : calloc(1, bytes + 1);
    }
    t->expected = malloc(bytes + 1);
    expect(t);
}

static void end(struct trial *t) {
    for (uint32_t i = 0; i < t->size; i++) {
        if (!t->in_place) free(t->recv[i]);
        free(t->send[i]);
    }
    free(t->expected);
    plan_weights_free(t->weighted);
}

static void post(const struct trial *t, uint32_t place) {
    struct call_args args = reduce_of(t->send[place], t->recv[place], t->tag, t->count, t->op, CODEC_RAW);
    args.fingerprint.dtype = (uint8_t)t->dtype;
    args.retry = args.tell = t->retry;
    if (t->size < t->world->count) {
        struct wire_id ids[PEERS_MAX];
        for (uint32_t i = 0; i < t->size; i++) ids[i] = t->world->sides[t->sides[i]].id;
        args.subgroup = subgroup_new(ids, t->size, place);
    }
    CHECK(engine_post(t->world->sides[t->sides[place]].engine, &args, t->world->epoch) == CALL_OK);
}

static struct call_outcome result_of(const struct trial *t, uint32_t place) {
    struct call_outcome outcome;
    engine_wait(t->world->sides[t->sides[place]].engine, t->tag, platform_now_ns() + 60 * SECOND_NS, &outcome);
    return outcome;
}

// What goes out of a member, and comes in, in units of the tensor: what the weights promise.
static void check_volume(const struct trial *t, uint32_t place, const struct call_outcome *outcome) {
    struct plan_range own = plan_weights_shard(t->weighted, t->count, t->size, place);
    uint64_t bytes = (t->count + (t->size - 2) * (own.end - own.begin)) * dtype_size(t->dtype);
    bool flat = t->weighted->sites == t->size;
    CHECK_EQ(outcome->info.tx_bytes, outcome->info.rx_bytes);
    if (flat) CHECK_EQ(outcome->info.tx_bytes, bytes);
}

static void run(struct trial *t) {
    begin(t);
    for (uint32_t i = 0; i < t->size; i++) post(t, i);
    for (uint32_t i = 0; i < t->size; i++) {
        struct call_outcome outcome = result_of(t, i);
        CHECK(outcome.result == CALL_OK);
        CHECK_MEM(t->recv[i], t->expected, t->count * dtype_size(t->dtype));
        if (!t->retry) check_volume(t, i, &outcome);
        free(outcome.contributors);
    }
    end(t);
}

// Some have nothing, one at least has something; sites may be alone, common, or none.
static void draw_members(uint32_t peers, bool with_sites) {
    for (uint32_t i = 0; i < peers; i++) {
        member_weights[i] = below(3) == 0 ? 0 : (uint16_t)below(below(2) == 0 ? 4 : 65536);
        member_sites[i] = with_sites ? (uint16_t)below(4) : 0;
    }
    member_weights[below(peers)] = (uint16_t)(1 + below(9));
}

static void test_bits(uint32_t round, uint32_t peers) {
    seed = round * 100 + peers;
    draw_members(peers, round % 3 != 0);
    struct trial t = {.world = world_new(peers, 1 + (uint32_t)below(3)), .in_place = round % 2};
    do {
        t.dtype = (int)below(KERNEL_DTYPES);
        t.op = (int)below(KERNEL_OPS);
    } while (!red_op_takes(t.op, t.dtype));
    t.count = LARGE / dtype_size(t.dtype) + below(below(2) == 0 ? 100 : LARGE);
    check_case("round %u: %u peers, %llu of %s, %s", round, peers, (unsigned long long)t.count, dtype_name(t.dtype),
               red_op_name(t.op));
    run(&t);
    world_free(t.world);
}

// Whatever the type, and whatever is done with it.
static void test_kinds(void) {
    static const uint16_t weights[] = {3, 0, 1, 2}, site[] = {1, 2, 1, 2};
    memcpy(member_weights, weights, sizeof weights);
    memcpy(member_sites, site, sizeof site);
    struct world *world = world_new(4, 1);
    for (int dtype = 0; dtype < TYPES; dtype++)
        for (int op = 0; op < KERNEL_OPS; op++) {
            if (!red_op_takes(op, dtype)) continue;
            check_case("%s of %s", red_op_name(op), dtype_name(dtype));
            struct trial t = {
                .world = world, .dtype = dtype, .op = op, .in_place = op % 2, .count = LARGE / dtype_size(dtype) + 7};
            run(&t);
        }
    world_free(world);
}

// Members of a list, who are not neighbours in the ring of all: their weights are in proportion to each other.
static void test_lists(void) {
    static const struct {
        uint32_t size, sides[PEERS_MAX];
    } lists[] = {{3, {0, 2, 4}}, {4, {1, 2, 3, 5}}, {3, {0, 1, 5}}};
    static const uint16_t weights[] = {5, 1, 0, 2, 7, 3}, site[] = {1, 1, 2, 2, 1, 0};
    memcpy(member_weights, weights, sizeof weights);
    memcpy(member_sites, site, sizeof site);
    struct world *world = world_new(6, 2);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        check_case("list %zu", i);
        struct trial t = {
            .world = world, .size = lists[i].size, .count = 700001, .tag = i, .dtype = pcclFloat, .in_place = i % 2};
        memcpy(t.sides, lists[i].sides, sizeof t.sides);
        run(&t);
    }
    world_free(world);
}

// Several windows long.
static void test_windows(bool with_sites) {
    check_case("a long one%s", with_sites ? ", in sites" : "");
    static const uint16_t weights[] = {1, 60000, 1, 0}, site[] = {1, 1, 2, 2};
    memcpy(member_weights, weights, sizeof weights);
    memset(member_sites, 0, sizeof member_sites);
    if (with_sites) memcpy(member_sites, site, sizeof site);
    struct trial t = {.world = world_new(4, 2), .count = LONG, .dtype = pcclFloat, .in_place = true};
    run(&t);
    world_free(t.world);
}

// Blocks of one shard go to one agent after another, and nothing else comes from those that would wake a lane to them.
static void test_agents(void) {
    static const uint16_t weights[] = {0, 0, 0, 1}, site[] = {1, 1, 1, 0};
    check_case("agents in turn");
    memcpy(member_weights, weights, sizeof weights);
    memcpy(member_sites, site, sizeof site);
    struct world *world = world_new(4, 2);
    for (uint64_t round = 0; round < 10 * ROUNDS; round++) {
        struct trial t = {.world = world, .count = LARGE + below(2 * LARGE), .dtype = pcclFloat, .tag = round};
        run(&t);
    }
    world_free(world);
}

static void test_segments(void) {
    check_case("in segments");
    static const uint16_t weights[] = {2, 0, 1}, site[] = {1, 1, 0};
    memcpy(member_weights, weights, sizeof weights);
    memcpy(member_sites, site, sizeof site);
    struct trial t = {
        .world = world_new(3, 2), .count = SEGMENTED_MIN / sizeof(float) + 77, .dtype = pcclInt32, .retry = true};
    run(&t);
    world_free(t.world);
}

// One dies without having posted, when the others may have sent it what they may: inputs come back; in retry mode the
// others do it among themselves, with the weights that they have.
static void test_loss(bool retry, uint64_t count) {
    check_case("loss%s", retry ? " in retry mode" : "");
    static const uint16_t weights[] = {1, 0, 3, 2}, site[] = {1, 1, 2, 2};
    memcpy(member_weights, weights, sizeof weights);
    memcpy(member_sites, site, sizeof site);
    struct trial t = {.world = world_new(4, 2), .count = count, .dtype = pcclInt32, .in_place = true, .retry = retry};
    begin(&t);
    for (uint32_t i = 0; i < 3; i++) post(&t, i);
    kill_side(t.world, 3);
    new_epoch(t.world, true);
    struct trial among = {.world = t.world, .size = 3, .sides = {0, 1, 2}, .count = count, .dtype = pcclInt32};
    begin(&among);
    for (uint32_t i = 0; i < 3; i++) {
        struct call_outcome outcome = result_of(&t, i);
        CHECK(outcome.result == (retry ? CALL_OK : CALL_LOST));
        CHECK_MEM(t.recv[i], retry ? among.expected : among.send[i], count * sizeof(int32_t));
        free(outcome.contributors);
    }
    end(&among);
    end(&t);
    world_free(t.world);
}

// Deadlines pass while the last member has not posted, and change nothing.
static void test_late(void) {
    check_case("a member that posts late");
    static const uint16_t weights[] = {1, 1, 3, 2};
    memcpy(member_weights, weights, sizeof weights);
    memset(member_sites, 0, sizeof member_sites);
    struct trial t = {.world = world_new(4, 1), .count = 400001, .dtype = pcclDouble};
    begin(&t);
    for (uint32_t i = 1; i < 4; i++) post(&t, i);
    struct call_outcome outcome;
    engine_wait(t.world->sides[1].engine, t.tag, platform_now_ns() + SECOND_NS / 50, &outcome);
    CHECK(outcome.result == CALL_IN_PROGRESS);
    post(&t, 0);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(result_of(&t, i).result == CALL_OK);
        CHECK_MEM(t.recv[i], t.expected, t.count * sizeof(double));
    }
    end(&t);
    world_free(t.world);
}

int main(void) {
    for (uint32_t round = 0; round < ROUNDS; round++)
        for (uint32_t peers = 3; peers <= PEERS_MAX; peers += STEP) {
            epoch_latency_us = (round + peers) % 2 == 0 ? PACE_FAR_US : 30;
            test_bits(round, peers);
        }
    epoch_latency_us = 30;
    test_kinds();
    test_lists();
    test_windows(false);
    test_windows(true);
    test_agents();
    test_segments();
    test_loss(false, 400001);
    test_loss(true, 400001);
    test_loss(true, SEGMENTED_MIN / sizeof(int32_t) + 77);
    test_late();
    return check_status();
}
