// Memory that is refused to one member, at one request after another, once or from then on, while real engines reduce
// in every way: each call of each member ends soon, and what ends well has the right bytes. With an argument no request
// is left out.
#define _GNU_SOURCE
#include "engine_world.h"

#include <sys/mman.h>

#include "data/engine.h"
#include "data/core.h"
#include "ops/plan.h"
#include "sim/refuse.h"

enum { PEERS = 3, VICTIM = 1, ROOT = 2, OPS = 2 };

// ---- refusing ----
static struct world *_Atomic watched; // NULL: nothing is counted
static _Atomic uint32_t requests;     // of the victim
static uint32_t refuse_at;            // the first that is refused
static bool lasting;                  // and all after it

bool refuse_now(void) {
    struct world *world = watched;
    if (world == NULL) return false;
    const struct side *victim = &world->sides[VICTIM];
    if (acting != NULL ? acting != victim : !pthread_equal(pthread_self(), victim->engine->thread)) return false;
    uint32_t request = ++requests;
    return lasting ? request >= refuse_at : request == refuse_at;
}

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return refuse_now() ? NULL : __real_aligned_alloc(alignment, bytes);
}
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return refuse_now() ? MAP_FAILED : __real_mmap(at, bytes, protection, flags, fd, offset);
}

// ---- one trial ----
struct way {
    const char *name;
    uint64_t count;
    bool quantised, retry, same_host;
    uint8_t kind;
    bool weighted;
};

struct call {
    float *send, *recv;
    bool posted, ended;
    enum call_result result;
    struct call_contributors *contributors;
};

struct trial {
    const struct way *way;
    bool in_place;
    bool all; // the victim was there when the calls were made
    struct world *world;
    int64_t deadline;
    struct call calls[PEERS][OPS];
};

// Exact in every way of adding and of quantising: each block has one value.
static float value_of(uint32_t peer, uint32_t tag) { return (float)(1u << (peer + tag)); }

// By rows: the sanitizers look at a row at once.
enum { ROW = 4096 };

static const float *row_of(float value) {
    static float row[ROW];
    if (row[0] != value)
        for (size_t i = 0; i < ROW; i++) row[i] = value;
    return row;
}

static uint64_t row_end(uint64_t at, uint64_t end) { return end - at < ROW ? end : at + ROW; }

static void fill(float *to, uint64_t count, float value) {
    for (uint64_t at = 0, next; at < count; at = next) {
        next = row_end(at, count);
        memcpy(to + at, row_of(value), (next - at) * sizeof *to);
    }
}

static bool is_late(const struct trial *t) { return platform_now_ns() > t->deadline; }

static bool has_failed(struct world *world, uint32_t side) {
    pthread_mutex_lock(&world->lock);
    bool failed = world->sides[side].failed > 0;
    pthread_mutex_unlock(&world->lock);
    return failed;
}

// False: the victim has failed meanwhile.
static bool enter_together(struct trial *t, bool lost) {
    struct world *world = t->world;
    enter(world, lost);
    links_ready(world);
    for (bool all = false; !all && !is_late(t); usleep(100)) {
        if (world->sides[VICTIM].alive && has_failed(world, VICTIM)) return false;
        all = true;
        pthread_mutex_lock(&world->lock);
        for (uint32_t i = 0; i < PEERS; i++) all &= !world->sides[i].alive || world->sides[i].reported == world->epoch;
        pthread_mutex_unlock(&world->lock);
    }
    judge(world, lost);
    return true;
}

// As a master does: a member that leaves is lost; links that broke are made again.
static void mend(struct trial *t) {
    struct world *world = t->world;
    bool whole = true, first = true;
    for (uint32_t a = 0; a < PEERS; a++)
        for (uint32_t b = 0; b < PEERS; b++)
            whole &= a == b || !world->sides[a].alive || !world->sides[b].alive ||
                     engine_has_link(world->sides[a].engine, &world->sides[b].id, 0);
    bool lost = world->sides[VICTIM].alive && has_failed(world, VICTIM);
    if (whole && !lost) return;
    while (first || (lost = world->sides[VICTIM].alive && has_failed(world, VICTIM))) {
        if (lost) kill_side(world, VICTIM);
        if (enter_together(t, lost)) return;
        first = false;
    }
}

static void post_all(struct trial *t) {
    static const uint32_t order[PEERS] = {0, 2, VICTIM};
    t->all = t->world->sides[VICTIM].alive;
    for (uint32_t k = 0; k < PEERS; k++)
        for (uint32_t n = 0; n < OPS; n++) {
            uint32_t side = order[k], tag = side == VICTIM ? OPS - 1 - n : n;
            struct call *call = &t->calls[side][tag];
            call->posted = false;
            if (!t->world->sides[side].alive) continue;
            if (!t->in_place) fill(call->recv, t->way->count, -1); // what is there already is no result
            fill(call->send, t->way->count, value_of(side, tag));
            struct call_args reduce = reduce_of(call->send, call->recv, tag, t->way->count, pcclSum,
                                                t->way->quantised ? CODEC_MINMAX_UINT8 : CODEC_RAW);
            reduce.retry = reduce.tell = t->way->retry;
            if (t->way->kind == PLAN_REDUCE) { // the victim passes on
                reduce.fingerprint.kind = PLAN_REDUCE;
                reduce.subgroup = group_of(t->world, side);
                reduce.root = ROOT;
            }
            enum call_result result;
            AS(&t->world->sides[side], result = engine_post(t->world->sides[side].engine, &reduce, t->world->epoch));
            CHECK(result == CALL_OK || (side == VICTIM && (result == CALL_NO_MEMORY || result == CALL_DEAD)));
            if (result != CALL_OK) subgroup_put(reduce.subgroup);
            call->posted = result == CALL_OK;
            call->ended = false;
        }
}

static void look(struct trial *t, uint32_t side, uint32_t tag) {
    struct call *call = &t->calls[side][tag];
    struct call_outcome outcome = {0};
    AS(&t->world->sides[side], engine_wait(t->world->sides[side].engine, tag, 0, &outcome));
    if (outcome.result == CALL_IN_PROGRESS) return;
    call->ended = true;
    call->result = outcome.result;
    call->contributors = outcome.contributors;
}

// Rows that are not what they should be.
static uint64_t wrong_in(const struct call *call, uint64_t begin, uint64_t end, float expected) {
    uint64_t wrong = 0;
    for (uint64_t at = begin, next; at < end; at = next) {
        next = row_end(at, end);
        wrong += memcmp(call->recv + at, row_of(expected), (next - at) * sizeof(float)) != 0;
    }
    return wrong;
}

static void check_call(struct trial *t, uint32_t side, uint32_t tag) {
    struct call *call = &t->calls[side][tag];
    uint64_t count = t->way->count, wrong = 0;
    bool dead = side == VICTIM && (call->result == CALL_DEAD || call->result == CALL_NO_MEMORY);
    bool lost = call->result == CALL_LOST && !t->world->sides[VICTIM].alive && !t->way->retry;
    if (!CHECK(call->result == CALL_OK || dead || lost))
        fprintf(stderr, "side %u, tag %u: result %d\n", side, tag, call->result);
    if (call->contributors != NULL) {
        for (uint32_t r = 0; r < call->contributors->count; r++) {
            const struct call_range *range = &call->contributors->ranges[r];
            float sum = 0;
            for (uint32_t c = 0; c < range->count; c++) sum += value_of(range->ids[c].bytes[0] - 1u, tag);
            if (range->count > 0) wrong += wrong_in(call, range->begin, range->end, sum);
            if (range->count == 0 && t->in_place)
                wrong += wrong_in(call, range->begin, range->end, value_of(side, tag));
        }
    } else if (call->result == CALL_OK && !t->way->retry && (t->way->kind != PLAN_REDUCE || side == ROOT)) {
        wrong = wrong_in(call, 0, count, value_of(0, tag) + value_of(2, tag) + (t->all ? value_of(VICTIM, tag) : 0));
    } else if (call->result != CALL_OK && t->in_place && !t->way->retry) {
        wrong = wrong_in(call, 0, count, value_of(side, tag));
    }
    CHECK_EQ(wrong, 0);
    free(call->contributors);
    call->contributors = NULL;
}

// Until all calls have ended. False: some have not.
static bool drive(struct trial *t) {
    for (;;) {
        bool all = true;
        for (uint32_t side = 0; side < PEERS; side++)
            for (uint32_t tag = 0; tag < OPS; tag++) {
                struct call *call = &t->calls[side][tag];
                if (call->posted && !call->ended) look(t, side, tag);
                all &= !call->posted || call->ended;
            }
        if (all) break;
        mend(t);
        if (is_late(t)) return false;
        usleep(500);
    }
    for (uint32_t side = 0; side < PEERS; side++)
        for (uint32_t tag = 0; tag < OPS; tag++)
            if (t->calls[side][tag].posted) check_call(t, side, tag);
    return true;
}

// Without an argument, the test does not refuse every request. The distance to the next one is a quarter of the
// requests before it, or half of them where trials take long. The thread sanitizer leaves out the last way too: it
// quantises 8 MiB a trial, and its threads are those of the ways before it.
#ifdef __SANITIZE_THREAD__
enum { SPREAD = 2, LEFT_OUT = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SPREAD = 2, LEFT_OUT = 0 };
#else
enum { SPREAD = 4, LEFT_OUT = 0 };
#endif

// For all trials: the system takes longer to give such large ones than the ops take.
static float buffers[PEERS][OPS][2][SEGMENTED_MIN / sizeof(float)];

// True: as many requests came as it took to refuse one.
static bool run_trial(const struct way *way, bool in_place) {
    check_case("%s, %s: request %u is refused%s", way->name, in_place ? "in place" : "out of place", refuse_at,
               lasting ? ", and all after it" : "");
    same_host = way->same_host;
    // The victim and the last one are of a site: it stands for that one.
    for (uint32_t side = 0; side < PEERS; side++) {
        member_weights[side] = way->weighted && side <= VICTIM;
        member_sites[side] = way->weighted && side >= VICTIM;
    }
    struct trial t = {.way = way,
                      .in_place = in_place,
                      .world = world_new(PEERS, 2),
                      .deadline = platform_now_ns() + 120 * SECOND_NS};
    for (uint32_t side = 0; side < PEERS; side++)
        for (uint32_t tag = 0; tag < OPS; tag++) {
            struct call *call = &t.calls[side][tag];
            call->send = buffers[side][tag][0];
            call->recv = buffers[side][tag][!in_place];
        }
    requests = 0;
    watched = t.world;
    for (uint32_t round = 0; round < 2; round++) {
        post_all(&t);
        // links are as if made again: ops are redone
        if (round == 1 && t.world->sides[VICTIM].alive && !has_failed(t.world, VICTIM)) enter_together(&t, false);
        if (!CHECK(drive(&t))) exit(check_status()); // a call hangs, and would hang the rest of the test
    }
    watched = NULL;
    bool refused = requests >= refuse_at;
    for (uint32_t side = 0; side < PEERS; side++) CHECK(side == VICTIM || !has_failed(t.world, side));
    world_free(t.world);
    return refused;
}

int main(int count, char **arguments) {
    (void)arguments;
    static const struct way ways[] = {
        {"small", 300, false, false, false, PLAN_ALL_REDUCE, false},
        {"ring", 150000, false, false, false, PLAN_ALL_REDUCE, false},
        {"ring by memory", 150000, false, false, true, PLAN_ALL_REDUCE, false},
        {"reduce", 150000, false, false, false, PLAN_REDUCE, false},
        {"spread", 150000, false, false, false, PLAN_ALL_REDUCE, true},
        {"sharded", 90000, true, false, false, PLAN_ALL_REDUCE, false},
        {"small in retry mode", 300, false, true, false, PLAN_ALL_REDUCE, false},
        {"segments", SEGMENTED_MIN / sizeof(float), false, true, false, PLAN_ALL_REDUCE, false},
        {"sharded segments", SEGMENTED_MIN / sizeof(float), true, true, false, PLAN_ALL_REDUCE, false},
    };
    uint32_t total = 0;
    for (size_t w = 0; w < sizeof ways / sizeof ways[0] - LEFT_OUT; w++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (int all = 0; all < 2; all++) {
                lasting = all;
                for (refuse_at = 1; run_trial(&ways[w], in_place); refuse_at += count > 1 ? 1 : 1 + refuse_at / SPREAD)
                    total++;
            }
    CHECK(total > 100);
    return check_status();
}
