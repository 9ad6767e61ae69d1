// Collectives that move pieces: whatever the counts are, each member ends with its pieces of all others, or none does.
#include "data/core.h"
#include "link/connection.h"
#include "engine_world.h"
#include "ops/plan.h"

enum { TAG = 5, BIG = 100003 };

// What each member gives to each other one, in elements.
struct shape {
    const char *name;
    uint8_t kind;
    uint32_t peers, lanes, root;
    uint64_t counts[PEERS_MAX][PEERS_MAX]; // [from][to]
    bool same_host, in_place;
};

struct trial {
    const struct shape *shape;
    struct world *world;
    float *send[PEERS_MAX], *recv[PEERS_MAX];
};

static bool gives_all_the_same(uint8_t kind) {
    return kind == PLAN_ALL_GATHER || kind == PLAN_GATHER || kind == PLAN_SEND;
}

static uint64_t place_in(const struct shape *s, uint32_t from, uint32_t to, bool sent) {
    uint64_t at = 0;
    if (sent && gives_all_the_same(s->kind)) return 0;
    for (uint32_t i = 0; i < (sent ? to : from); i++) at += sent ? s->counts[from][i] : s->counts[i][to];
    return at;
}

static uint64_t length_of(const struct shape *s, uint32_t side, bool sent) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < s->peers; i++) {
        uint32_t from = sent ? side : i, to = sent ? i : side;
        uint64_t at = place_in(s, from, to, sent) + s->counts[from][to];
        if (at > end) end = at;
    }
    return end;
}

CHECK_UNWATCHED static float value(const struct shape *s, uint32_t from, uint32_t to, uint64_t k) {
    return (float)((from + 1) * 100 + (gives_all_the_same(s->kind) ? 0 : (to + 1) * 10)) + (float)(k % 997) / 1024;
}

static struct call_parts *parts_of(const struct shape *s, uint32_t side) {
    uint32_t n = s->peers;
    struct call_parts *parts = calloc(1, sizeof *parts + 2 * n * sizeof(struct call_part) + n * sizeof(uint64_t));
    struct call_part *to = parts->parts, *from = to + n;
    uint64_t *sizes = (uint64_t *)(void *)(from + n);
    for (uint32_t i = 0; i < n; i++) {
        to[i] = (struct call_part){place_in(s, side, i, true), s->counts[side][i]};
        from[i] = (struct call_part){place_in(s, i, side, false), s->counts[i][side]};
        sizes[i] = length_of(s, i, true);
    }
    parts->in = length_of(s, side, true);
    parts->out = length_of(s, side, false);
    parts->own_at = from[side].at;
    parts->to = to;
    parts->from = from;
    parts->sizes = sizes;
    return parts;
}

static uint64_t total(const struct shape *s) {
    uint64_t count = 0;
    if (s->kind == PLAN_ALL_TO_ALL_V) return 0;
    for (uint32_t i = 0; i < s->peers; i++) count += length_of(s, i, s->kind != PLAN_SCATTER);
    return s->kind == PLAN_ALL_TO_ALL ? count / s->peers : count;
}

static void post(struct trial *t, uint32_t side) {
    const struct shape *s = t->shape;
    struct call_args args = reduce_of(t->send[side], t->recv[side], TAG, total(s), 0, CODEC_RAW);
    args.subgroup = group_of(t->world, side);
    args.parts = parts_of(s, side);
    args.root = s->root;
    args.fingerprint.kind = s->kind;
    args.fingerprint.layout = 1 + s->root;
    CHECK_EQ(engine_post(t->world->sides[side].engine, &args, t->world->epoch), CALL_OK);
}

// The own input of an all-gather in place lies in the result.
CHECK_UNWATCHED static void fill(struct trial *t) {
    const struct shape *s = t->shape;
    for (uint32_t i = 0; i < s->peers; i++) {
        t->recv[i] = calloc(length_of(s, i, false) + 1, sizeof(float));
        t->send[i] =
            s->in_place ? t->recv[i] + place_in(s, i, i, false) : calloc(length_of(s, i, true) + 1, sizeof(float));
        for (uint32_t to = 0; to < s->peers; to++) {
            float *piece = t->send[i] + place_in(s, i, to, true);
            for (uint64_t k = 0; k < s->counts[i][to]; k++) piece[k] = value(s, i, to, k);
        }
    }
}

// Until each side has mapped the other ones' slots, so that nothing is sent that could be shared.
static void wait_for_slots(struct world *world) {
    for (uint32_t i = 0; i < world->count; i++) {
        struct engine *engine = world->sides[i].engine;
        for (bool all = !world->sides[i].alive; !all; usleep(all ? 0 : 1000)) {
            all = true;
            engine_lock(engine);
            for (struct neighbour *peer = engine->lanes->neighbours; peer != NULL; peer = peer->next)
                all &= peer->dropped || (op_peer_of(peer)->slots.own != NULL && op_peer_of(peer)->slots.other != NULL);
            engine_unlock(engine);
        }
    }
}

static bool used_slots(const struct world *world, uint32_t from, uint32_t to) {
    struct engine *engine = world->sides[from].engine;
    engine_lock(engine);
    const struct neighbour *peer = neighbour_find(engine->lanes, &world->sides[to].id);
    bool used = peer != NULL && op_peer_of(peer)->slots.populated;
    engine_unlock(engine);
    return used;
}

static struct trial trial_new(const struct shape *s) {
    struct trial t = {.shape = s};
    same_host = s->same_host;
    t.world = world_new(s->peers, s->lanes);
    if (s->same_host) wait_for_slots(t.world);
    fill(&t);
    return t;
}

static void trial_free(struct trial *t) {
    world_free(t->world);
    for (uint32_t i = 0; i < t->shape->peers; i++) {
        if (!t->shape->in_place) free(t->send[i]);
        free(t->recv[i]);
    }
    same_host = false;
}

CHECK_UNWATCHED static uint64_t wrong_values(const struct shape *s, const float *piece, uint32_t from, uint32_t to) {
    uint64_t wrong = 0;
    check_reads(piece, s->counts[from][to] * sizeof *piece);
    for (uint64_t k = 0; k < s->counts[from][to]; k++) wrong += piece[k] != value(s, from, to, k);
    return wrong;
}

static void check_result(struct trial *t, uint32_t side) {
    const struct shape *s = t->shape;
    struct call_outcome outcome;
    engine_wait(t->world->sides[side].engine, TAG, platform_now_ns() + 20 * SECOND_NS, &outcome);
    CHECK_EQ(outcome.result, CALL_OK);
    uint64_t wrong = 0, sent = 0, came = 0;
    for (uint32_t i = 0; i < s->peers; i++) {
        wrong += wrong_values(s, t->recv[side] + place_in(s, i, side, false), i, side);
        if (i != side) sent += s->counts[side][i] * 4;
        if (i != side) came += s->counts[i][side] * 4;
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(outcome.info.tx_bytes, sent);
    CHECK_EQ(outcome.info.rx_bytes, came);
}

static void test_bytes(const struct shape *s) {
    check_case("%s, %u peers, %u lanes%s%s", s->name, s->peers, s->lanes, s->in_place ? ", in place" : "",
               s->same_host ? ", same host" : "");
    struct trial t = trial_new(s);
    for (int again = 0; again < 2; again++) {
        for (uint32_t i = 0; i < s->peers; i++) post(&t, i);
        for (uint32_t i = 0; i < s->peers; i++) check_result(&t, i);
    }
    for (uint32_t i = 0; i < s->peers; i++)
        for (uint32_t to = 0; to < s->peers; to++)
            if (s->same_host && i != to) CHECK_EQ(used_slots(t.world, i, to), s->counts[i][to] > 0);
    trial_free(&t);
}

// ---- shapes ----
// Odd lengths, and of one member nothing.
static uint64_t odd(uint32_t i) { return i == 1 ? 0 : BIG + 1001 * i; }

static struct shape shape_of(uint8_t kind, uint32_t peers, bool together) {
    struct shape s = {.name = plan_collective(kind)->name,
                      .kind = kind,
                      .peers = peers,
                      .lanes = peers % 3,
                      .root = kind == PLAN_SEND ? 0 : peers - 1,
                      .same_host = together};
    for (uint32_t from = 0; from < peers; from++)
        for (uint32_t to = 0; to < peers; to++) {
            bool gathers = kind == PLAN_ALL_GATHER || (kind == PLAN_GATHER && to == s.root);
            uint64_t count = gathers ? odd(from) : 0;
            if (kind == PLAN_SCATTER && from == s.root) count = odd(to);
            if (kind == PLAN_ALL_TO_ALL) count = BIG;
            if (kind == PLAN_ALL_TO_ALL_V) count = (from + to) % 3 == 0 ? 0 : odd(from) / (to + 1);
            if (kind == PLAN_SEND && from == 0 && to == 1) count = 7 * BIG;
            s.counts[from][to] = count;
        }
    return s;
}

static void test_kinds(void) {
    static const uint8_t kinds[] = {PLAN_ALL_GATHER, PLAN_GATHER,       PLAN_SCATTER,
                                    PLAN_ALL_TO_ALL, PLAN_ALL_TO_ALL_V, PLAN_SEND};
    for (size_t i = 0; i < sizeof kinds; i++)
        for (uint32_t peers = 2; peers <= (kinds[i] == PLAN_SEND ? 2 : PEERS_MAX); peers++)
            for (int together = 0; together < 2; together++) {
                struct shape s = shape_of(kinds[i], peers, together);
                test_bytes(&s);
                s.in_place = kinds[i] == PLAN_ALL_GATHER;
                if (s.in_place) test_bytes(&s);
            }
}

static void test_nothing(void) {
    struct shape s = {.name = "of nothing", .kind = PLAN_ALL_TO_ALL_V, .peers = 3, .lanes = 1};
    test_bytes(&s);
}

// More at once than the slots have room for: who waits for a free slot of one op does not hold up another one.
static void test_many_at_once(void) {
    enum { OPS = 6 };
    struct shape s = shape_of(PLAN_ALL_TO_ALL, 3, true);
    check_case("many at once");
    for (uint32_t from = 0; from < s.peers; from++)
        for (uint32_t to = 0; to < s.peers; to++) s.counts[from][to] = 9 * BIG;
    struct trial t[OPS] = {trial_new(&s)};
    for (int k = 1; k < OPS; k++) {
        t[k] = (struct trial){.shape = &s, .world = t[0].world};
        fill(&t[k]);
    }
    for (uint32_t i = 0; i < s.peers; i++)
        for (int k = 0; k < OPS; k++) {
            int at = i == 1 ? OPS - 1 - k : k; // in another order
            struct call_args args =
                reduce_of(t[at].send[i], t[at].recv[i], TAG + (uint64_t)at, total(&s), 0, CODEC_RAW);
            args.subgroup = group_of(t[0].world, i);
            args.parts = parts_of(&s, i);
            args.fingerprint.kind = s.kind;
            args.fingerprint.layout = 1;
            CHECK_EQ(engine_post(t[0].world->sides[i].engine, &args, t[0].world->epoch), CALL_OK);
        }
    for (uint32_t i = 0; i < s.peers; i++)
        for (int k = 0; k < OPS; k++) {
            struct call_outcome outcome;
            engine_wait(t[0].world->sides[i].engine, TAG + (uint64_t)k, platform_now_ns() + 20 * SECOND_NS, &outcome);
            CHECK_EQ(outcome.result, CALL_OK);
            uint64_t wrong = 0;
            for (uint32_t from = 0; from < s.peers; from++)
                for (uint64_t e = 0; e < s.counts[from][i]; e++)
                    wrong += t[k].recv[i][place_in(&s, from, i, false) + e] != value(&s, from, i, e);
            CHECK_EQ(wrong, 0);
        }
    for (int k = 1; k < OPS; k++)
        for (uint32_t i = 0; i < s.peers; i++) {
            free(t[k].send[i]);
            free(t[k].recv[i]);
        }
    trial_free(&t[0]);
}

// ---- losses ----
// The last member dies after the others have begun, and perhaps itself: they end with its rank.
static void test_loss(uint8_t kind, bool together, bool begun, unsigned wait_us) {
    struct shape s = shape_of(kind, 4, together);
    s.root = 0;
    check_case("%s, loss%s, %u us", s.name, together ? ", same host" : "", wait_us);
    struct trial t = trial_new(&s);
    t.world->commits = 0; // or it may be over
    for (uint32_t i = 0; i < s.peers; i++)
        if (i < 3 || begun) post(&t, i);
    usleep(wait_us);
    kill_side(t.world, 3);
    new_epoch(t.world, true);
    for (uint32_t i = 0; i < 3; i++) {
        struct call_outcome outcome;
        engine_wait(t.world->sides[i].engine, TAG, platform_now_ns() + 20 * SECOND_NS, &outcome);
        // Those that had everything before it died have their result.
        CHECK(outcome.result == CALL_LOST || (begun && outcome.result == CALL_OK));
        if (outcome.result == CALL_LOST) CHECK_STR(outcome.text, "rank 3");
    }
    trial_free(&t);
}

// A new epoch without a loss: it is done again, unseen, and in fresh slots.
static void test_redo(uint8_t kind, bool together, unsigned wait_us) {
    struct shape s = shape_of(kind, 3, together);
    check_case("%s, redone%s, %u us", s.name, together ? ", same host" : "", wait_us);
    struct trial t = trial_new(&s);
    t.world->commits = 0;
    for (uint32_t i = 0; i < 2; i++) post(&t, i);
    usleep(wait_us);
    new_epoch(t.world, false);
    if (together) wait_for_slots(t.world);
    post(&t, 2);
    for (uint32_t i = 0; i < 3; i++) check_result(&t, i);
    trial_free(&t);
}

// ---- disagreement ----
// One expects more than the other one gives: told to the master before a byte is sent.
static void test_mismatch(void) {
    check_case("parts that do not fit together");
    struct shape s = shape_of(PLAN_ALL_TO_ALL_V, 2, false), other = s;
    other.counts[0][1]++;
    struct trial t = trial_new(&other);
    post(&t, 0);
    t.shape = &s;
    post(&t, 1);
    int told = 0;
    for (int64_t until = platform_now_ns() + 20 * SECOND_NS; told == 0 && platform_now_ns() < until; usleep(1000)) {
        pthread_mutex_lock(&t.world->lock);
        told = t.world->mismatches;
        pthread_mutex_unlock(&t.world->lock);
    }
    CHECK(told > 0);
    trial_free(&t);
}

int main(void) {
    test_kinds();
    test_nothing();
    test_many_at_once();
    for (int together = 0; together < 2; together++)
        for (unsigned wait_us = 0; wait_us <= 4000; wait_us = 2 * wait_us + 250) {
            test_loss(PLAN_ALL_GATHER, together, false, wait_us);
            test_loss(PLAN_ALL_TO_ALL, together, true, wait_us);
            test_redo(PLAN_ALL_GATHER, together, wait_us);
            test_redo(PLAN_ALL_TO_ALL_V, together, wait_us);
        }
    test_mismatch();
    return check_status();
}
