// Reduce-scatter and reduce: every member ends with the sum of its own part, or the root with all of it, to the bit in
// the order of the ring, whatever the way. And groups of some members, which are not neighbours in the ring of all.
#define _GNU_SOURCE
#include "engine_world.h"

#include "compute/kernels.h"

enum { TAG = 5, SEGMENT = PLAN_SEGMENT_MIN / sizeof(float) };

struct halves {
    struct world *world;
    uint8_t kind;
    uint32_t size, sides[PEERS_MAX]; // the group's, by rank
    uint64_t sizes[PEERS_MAX];       // by rank; of a reduce the root's alone
    uint64_t count;
    uint32_t root;
    int op;
    bool in_place, retry;
    float *send[PEERS_MAX], *recv[PEERS_MAX]; // by rank
};

// Sums of these depend on their order.
CHECK_UNWATCHED static float value_of(const struct halves *h, uint32_t rank, uint64_t i) {
    return (float)(h->sides[rank] * 7 + 1) * 0.1f + (float)(i % 1009) * 1.0e-3f;
}

static bool scatters(const struct halves *h) { return h->kind == PLAN_REDUCE_SCATTER; }

static bool has_result(const struct halves *h, uint32_t rank) { return h->kind != PLAN_REDUCE || rank == h->root; }

// Of the part of this rank, in the tensor.
static uint64_t part_at(const struct halves *h, uint32_t rank) {
    uint64_t at = 0;
    for (uint32_t i = 0; scatters(h) && i < rank; i++) at += h->sizes[i];
    return at;
}

static uint64_t result_count(const struct halves *h, uint32_t rank) {
    return scatters(h) ? h->sizes[rank] : has_result(h, rank) ? h->count : 0;
}

CHECK_UNWATCHED static void make(struct halves *h) {
    for (uint32_t rank = 0; scatters(h) && rank < h->size; rank++) h->count += h->sizes[rank];
    for (uint32_t rank = 0; rank < h->size; rank++) {
        h->send[rank] = malloc(h->count * sizeof(float) + 1);
        for (uint64_t i = 0; i < h->count; i++) h->send[rank][i] = value_of(h, rank, i);
        bool same = h->in_place && !scatters(h) && has_result(h, rank);
        h->recv[rank] = same ? h->send[rank] : calloc(result_count(h, rank) + 1, sizeof(float));
    }
}

static void drop(struct halves *h) {
    world_free(h->world);
    for (uint32_t rank = 0; rank < h->size; rank++) {
        if (h->recv[rank] != h->send[rank]) free(h->recv[rank]);
        free(h->send[rank]);
    }
}

static struct call_parts *parts_of(const struct halves *h, uint32_t own) {
    struct call_parts *parts = calloc(1, sizeof *parts + 2 * h->size * sizeof(struct call_part));
    for (uint32_t rank = 0; rank < h->size; rank++) {
        parts->parts[rank] = (struct call_part){part_at(h, rank), h->sizes[rank]};
        parts->parts[h->size + rank] = (struct call_part){0, h->sizes[own]};
    }
    parts->to = parts->parts;
    parts->from = parts->parts + h->size;
    parts->in = h->count;
    parts->out = h->sizes[own];
    parts->own_at = part_at(h, own);
    return parts;
}

static void post(const struct halves *h, uint32_t rank) {
    struct world *world = h->world;
    struct call_args args =
        reduce_of(h->send[rank], has_result(h, rank) ? h->recv[rank] : NULL, TAG, h->count, h->op, CODEC_RAW);
    struct wire_id ids[PEERS_MAX];
    for (uint32_t i = 0; i < h->size; i++) ids[i] = world->sides[h->sides[i]].id;
    args.subgroup = subgroup_new(ids, h->size, rank);
    args.root = h->root;
    args.fingerprint.kind = h->kind;
    args.fingerprint.layout = 1;
    args.retry = args.tell = h->retry;
    if (scatters(h)) args.parts = parts_of(h, rank);
    CHECK(engine_post(world->sides[h->sides[rank]].engine, &args, world->epoch) == CALL_OK);
}

static enum call_result take(const struct halves *h, uint32_t rank, struct call_outcome *out) {
    engine_wait(h->world->sides[h->sides[rank]].engine, TAG, platform_now_ns() + 60 * SECOND_NS, out);
    return out->result;
}

// The ranks of those that take part, in the order of the ring.
static uint32_t places_of(const struct halves *h, uint32_t missing, uint32_t ranks[PEERS_MAX]) {
    uint32_t count = 0;
    for (uint32_t side = 0; side < h->world->count; side++)
        for (uint32_t rank = 0; rank < h->size; rank++)
            if (h->sides[rank] == side && rank != missing) ranks[count++] = rank;
    return count;
}

// The ranks whose values are added, in that order.
struct summands {
    uint32_t ranks[PEERS_MAX], count;
};

// The sum for an owner begins with the place behind its own; a small one begins with the first place.
static struct summands summands_of(const struct halves *h, uint32_t owner, uint32_t missing) {
    uint32_t ranks[PEERS_MAX], n = places_of(h, missing, ranks), first = 0;
    while (first < n && ranks[first] != owner) first++;
    uint64_t bytes = h->count * sizeof(float);
    bool small = bytes * (n - 1) <= PLAN_SMALL_ANY;
    struct summands found = {.count = n};
    for (uint32_t k = 0; k < n; k++) found.ranks[k] = ranks[((small ? 0 : first + 1) + k) % n];
    return found;
}

CHECK_UNWATCHED static float sum_of(const struct halves *h, const struct summands *added, uint64_t i) {
    float sum = value_of(h, added->ranks[0], i);
    for (uint32_t k = 1; k < added->count; k++) sum += value_of(h, added->ranks[k], i);
    if (h->op == pcclAvg) kernels_get()->divide[pcclFloat](&sum, 1, added->count);
    return sum;
}

// An all-reduce has other owners: it is only compared roughly.
CHECK_UNWATCHED static uint64_t count_wrong(const struct halves *h, uint32_t rank, uint64_t from, uint64_t to,
                                            uint32_t missing) {
    uint64_t wrong = 0, at = part_at(h, rank);
    check_reads(h->recv[rank] + from, (to - from) * sizeof(float));
    struct summands added = summands_of(h, h->kind == PLAN_REDUCE ? h->root : rank, missing);
    for (uint64_t i = from; i < to; i++) {
        float sum = sum_of(h, &added, at + i), got = h->recv[rank][i];
        wrong += h->kind == PLAN_ALL_REDUCE ? got < sum - 1e-3f || got > sum + 1e-3f : got != sum;
    }
    return wrong;
}

CHECK_UNWATCHED static bool has_input(const struct halves *h, uint32_t rank) {
    check_reads(h->send[rank], h->count * sizeof(float));
    for (uint64_t i = 0; i < h->count; i++)
        if (h->send[rank][i] != value_of(h, rank, i)) return false;
    return true;
}

static void check_results(const struct halves *h) {
    for (uint32_t rank = 0; rank < h->size; rank++) {
        struct call_outcome outcome;
        CHECK_EQ(take(h, rank, &outcome), CALL_OK);
        CHECK_EQ(outcome.info.contributors, h->size);
        CHECK_EQ(count_wrong(h, rank, 0, result_count(h, rank), PEERS_MAX), 0);
        CHECK(h->send[rank] == h->recv[rank] || has_input(h, rank));
        if (!h->retry) continue;
        uint64_t at = 0;
        for (uint32_t k = 0; k < outcome.contributors->count; k++) {
            CHECK_EQ(outcome.contributors->ranges[k].count, h->size);
            at = outcome.contributors->ranges[k].end;
        }
        CHECK_EQ(at, h->count);
        free(outcome.contributors);
    }
}

static struct halves all_of(struct world *world, uint8_t kind, uint64_t count) {
    struct halves h = {.world = world, .kind = kind, .size = world->count, .op = pcclSum, .count = count};
    for (uint32_t i = 0; i < world->count; i++) h.sides[i] = i;
    for (uint32_t i = 0; kind == PLAN_REDUCE_SCATTER && i < world->count; i++) h.sizes[i] = count / world->count;
    if (kind == PLAN_REDUCE_SCATTER) h.count = 0;
    return h;
}

static void test_done(struct halves h) {
    make(&h);
    for (uint32_t rank = 0; rank < h.size; rank++) post(&h, rank);
    check_results(&h);
    drop(&h);
}

// ---- all members ----
static void test_sizes(uint32_t peers, uint32_t lanes, uint64_t count, int op) {
    check_case("%u peers, %u lanes, %llu elements", peers, lanes, (unsigned long long)count);
    struct halves h = all_of(world_new(peers, lanes), PLAN_REDUCE_SCATTER, count);
    h.op = op;
    test_done(h);
    // Roots do not differ but for their place, so of the large ones the first and the last are enough.
    for (uint32_t root = 0; root < peers; root += count > 100000 ? peers - 1 : 1)
        for (int in_place = 0; in_place < 2; in_place++) {
            h = all_of(world_new(peers, lanes), PLAN_REDUCE, count);
            h.root = root;
            h.op = op;
            h.in_place = in_place;
            h.retry = in_place && count > 1000;
            test_done(h);
        }
}

static void test_unequal_parts(uint32_t peers) {
    static const uint64_t sizes[][PEERS_MAX] = {
        {0, 300001, 0, 0, 0}, {1, 0, 250000, 3, 77777}, {100000, 0, 0, 100000, 16}, {5, 70000, 70000, 0, 0}, {3, 2, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_case("%u peers, unequal parts %zu", peers, i);
        struct halves h = all_of(world_new(peers, 2), PLAN_REDUCE_SCATTER, 0);
        memcpy(h.sizes, sizes[i], sizeof h.sizes);
        test_done(h);
    }
}

// ---- some members ----
// Not in the order of the ring, and not neighbours in it.
static void test_some(uint8_t kind, uint64_t count, bool retry) {
    static const struct {
        uint32_t size, sides[PEERS_MAX];
    } groups[] = {{2, {0, 2}}, {2, {3, 1}}, {3, {4, 0, 2}}, {4, {1, 3, 0, 4}}, {1, {2}}};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        check_case("kind %u of group %zu, %llu elements", kind, i, (unsigned long long)count);
        struct halves h = all_of(world_new(PEERS_MAX, 2), kind, count);
        h.size = groups[i].size;
        memcpy(h.sides, groups[i].sides, sizeof h.sides);
        h.root = h.size - 1;
        h.retry = retry;
        test_done(h);
    }
}

// Two groups at the same time, whose members lie between each other in the ring.
static void test_two_groups(uint8_t kind) {
    check_case("two groups, kind %u", kind);
    struct world *world = world_new(4, 2);
    struct halves even = all_of(world, kind, 600001), odd = all_of(world, kind, 600001);
    even.size = odd.size = 2;
    even.sides[1] = 2;
    odd.sides[0] = 1;
    odd.sides[1] = 3;
    even.sizes[1] = 7;
    make(&even);
    make(&odd);
    for (uint32_t rank = 0; rank < 2; rank++) {
        post(&even, rank);
        post(&odd, 1 - rank);
    }
    check_results(&even);
    check_results(&odd);
    for (uint32_t rank = 0; rank < 2; rank++) {
        free(odd.send[rank]);
        free(odd.recv[rank]);
    }
    drop(&even);
}

// ---- disturbed ----
// A fresh epoch without a loss while it is under way: it is done again, and nobody sees it.
static void test_redo(uint8_t kind, bool in_place, unsigned wait_us) {
    check_case("kind %u, redone after %u us", kind, wait_us);
    struct halves h = all_of(world_new(4, 2), kind, 2000001);
    h.in_place = in_place;
    h.root = 1;
    make(&h);
    for (uint32_t rank = 0; rank < 3; rank++) post(&h, rank);
    usleep(wait_us);
    new_epoch(h.world, false);
    usleep(wait_us);
    post(&h, 3);
    usleep(wait_us);
    new_epoch(h.world, false);
    check_results(&h);
    drop(&h);
}

// A member dies, and it ends with an error and the input as it was.
static void test_loss(uint8_t kind, bool in_place, uint32_t victim, bool retry) {
    check_case("kind %u, loss of %u", kind, victim);
    struct halves h = all_of(world_new(4, 2), kind, 2000001);
    h.in_place = in_place;
    h.retry = retry;
    h.root = 2;
    make(&h);
    for (uint32_t rank = 0; rank < 4; rank++)
        if (rank != victim) post(&h, rank);
    usleep(2000);
    kill_side(h.world, victim);
    new_epoch(h.world, true);
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct call_outcome outcome;
        if (rank == victim) continue;
        CHECK_EQ(take(&h, rank, &outcome), CALL_LOST);
        free(outcome.contributors);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < h.count; i++) wrong += h.send[rank][i] != value_of(&h, rank, i);
        CHECK_EQ(wrong, 0);
    }
    drop(&h);
}

static void wait_commits(struct world *world) {
    for (bool over = false; !over; usleep(100)) {
        pthread_mutex_lock(&world->lock);
        over = world->commits == 0;
        pthread_mutex_unlock(&world->lock);
    }
    pthread_mutex_lock(&world->order); // the last one has reached all
    pthread_mutex_unlock(&world->order);
}

// A member dies that is not the root, and the others go on: each range has those that are told. There are more segments
// than can have begun by then, so some are left for the three.
static void test_survivors(bool in_place, int64_t commits, int op) {
    check_case("survivors after %d segments", (int)commits);
    enum { VICTIM = 0, ROOT = 2 };
    struct halves h = all_of(world_new(4, 2), PLAN_REDUCE, (uint64_t)(commits + PLAN_SEGMENTS_AHEAD + 1) * SEGMENT + 1);
    h.in_place = in_place;
    h.retry = true;
    h.root = ROOT;
    h.op = op;
    make(&h);
    h.world->commits = commits;
    for (uint32_t rank = 0; rank < 4; rank++) post(&h, rank);
    wait_commits(h.world);
    kill_side(h.world, VICTIM);
    new_epoch(h.world, true);
    for (uint32_t rank = 1; rank < 4; rank++) {
        struct call_outcome outcome;
        CHECK_EQ(take(&h, rank, &outcome), CALL_OK);
        CHECK_EQ(outcome.info.contributors, 3);
        uint64_t at = 0, full = 0;
        for (uint32_t k = 0; k < outcome.contributors->count; k++) {
            const struct call_range *range = &outcome.contributors->ranges[k];
            CHECK(range->begin == at && (range->count == 3 || range->count == 4));
            at = range->end;
            if (range->count == 4) full += range->end - range->begin;
            if (rank == ROOT)
                CHECK_EQ(count_wrong(&h, rank, range->begin, range->end, range->count == 4 ? PEERS_MAX : VICTIM), 0);
        }
        CHECK(at == h.count && full >= (uint64_t)commits * SEGMENT && full < h.count);
        free(outcome.contributors);
    }
    drop(&h);
}

static void test_all(void) {
// Larger counts run the same code, for minutes under a sanitizer.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    static const uint64_t counts[] = {0, 1, 1000, 65537};
    enum { STEP = PEERS_MAX - 2 };
#else
    static const uint64_t counts[] = {0, 1, 1000, 65537, 300001};
    enum { STEP = 1 };
#endif
    for (uint32_t peers = 2; peers <= PEERS_MAX; peers += STEP) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            test_sizes(peers, 1 + peers % 3, counts[i], i % 2 == 0 ? pcclSum : pcclAvg);
        test_unequal_parts(peers);
    }
    static const uint8_t kinds[] = {PLAN_REDUCE_SCATTER, PLAN_REDUCE, PLAN_ALL_REDUCE};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        test_some(kinds[i], 1000, false);
        test_some(kinds[i], 700001, false);
        if (kinds[i] != PLAN_REDUCE_SCATTER) test_some(kinds[i], 5 * SEGMENT, true);
        test_two_groups(kinds[i]);
        for (int in_place = 0; in_place < 2; in_place++) {
            test_redo(kinds[i], in_place, 0);
            test_redo(kinds[i], in_place, 3000);
            test_loss(kinds[i], in_place, 1, false);
        }
    }
    test_loss(PLAN_REDUCE, true, 2, true); // the root
    for (int64_t commits = 1; commits < 8; commits += 3) {
        test_survivors(false, commits, pcclSum);
        test_survivors(true, commits, pcclAvg);
    }
}

int main(void) {
    test_all();
#ifndef __SANITIZE_THREAD__ // the other way of the bytes takes the same locks, and the same minutes again
    same_host = true;
    test_all();
#endif
    return check_status();
}
