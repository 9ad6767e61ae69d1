// For tests of the data plane: engines in one process, joined by socket pairs, with a stand-in for the control side and
// a "master" that counts.
#ifndef PCCL_TESTS_ENGINE_WORLD_H
#define PCCL_TESTS_ENGINE_WORLD_H

#include <errno.h>
#include <pccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "check.h"
#include "far_end.h"
#include "compute/codec.h"
#include "data/engine.h"
#include "enter_epoch.h"
#include "net/socket.h"
#include "net/transport.h"
#include "ops/plan.h"

#ifndef PEERS_MAX
#define PEERS_MAX 5
#endif

enum { OPS_MAX = 8192 };

struct world;
struct side {
    struct world *world;
    struct engine *engine;
    struct wire_id id;
    uint32_t index;
    bool alive;
    int failed;
    char why[200];     // it has failed
    int rolls;         // fresh group epochs that were asked for
    uint64_t reported; // newest epoch that a report came for
    // told to the master (TELEMETRY)
    uint64_t ops, entries[PEERS_MAX]; // by the index of another side
};

struct world {
    pthread_mutex_t order; // a verdict reaches all before or after an epoch does; taken before `lock`
    pthread_mutex_t lock;
    uint32_t count, lanes;
    struct side sides[PEERS_MAX];
    uint64_t epoch;
    uint32_t members; // of it, also those that have died since
    int64_t commits;  // to be given still; the rest waits for the next epoch
    struct tally {
        struct wire_op_name name;
        uint32_t done;
    } tallies[OPS_MAX];
    size_t tally_count;
    struct wire_op_report reports[PEERS_MAX][OPS_MAX];
    uint32_t report_counts[PEERS_MAX];
    int mismatches;
    struct wire_mismatch mismatch;
};

// The side that this thread makes a call for, which may be another one than the side whose thread it is.
static _Thread_local const struct side *acting;
#define AS(side, call) (acting = (side), (call), acting = NULL)

static inline uint32_t living(const struct world *world) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->count; i++) count += world->sides[i].alive;
    return count;
}

static inline void verdict_to_all(struct world *world, const struct wire_verdict *verdict) {
    for (uint32_t i = 0; i < world->count; i++)
        if (world->sides[i].alive) AS(&world->sides[i], engine_verdict(world->sides[i].engine, verdict));
}

static inline void on_done(void *context, const struct wire_op_done *said) {
    struct side *side = context;
    struct world *world = side->world;
    const struct wire_op_name *name = &said->name;
    pthread_mutex_lock(&world->order);
    pthread_mutex_lock(&world->lock);
    bool commit = false;
    if (name->epoch == world->epoch && world->commits > 0) {
        size_t i = 0;
        while (i < world->tally_count && !wire_op_name_equal(&world->tallies[i].name, name)) i++;
        if (i == world->tally_count) world->tallies[world->tally_count++] = (struct tally){*name, 0};
        commit = ++world->tallies[i].done == (said->members == 0 ? world->members : said->members);
        if (commit) {
            world->tallies[i] = world->tallies[--world->tally_count];
            world->commits--;
        }
    }
    pthread_mutex_unlock(&world->lock);
    struct wire_verdict verdict = {.name = *name, .kind = WIRE_VERDICT_COMMIT};
    if (commit) verdict_to_all(world, &verdict);
    pthread_mutex_unlock(&world->order);
}

static inline void on_mismatch(void *context, const struct wire_mismatch *mismatch) {
    struct side *side = context;
    pthread_mutex_lock(&side->world->lock);
    side->world->mismatches++;
    side->world->mismatch = *mismatch;
    pthread_mutex_unlock(&side->world->lock);
}

static inline void on_frozen(void *context, uint64_t epoch, const struct wire_report *report) {
    struct side *side = context;
    pthread_mutex_lock(&side->world->lock);
    side->reported = epoch;
    side->world->report_counts[side->index] = report->count;
    memcpy(side->world->reports[side->index], report->ops, report->count * sizeof *report->ops);
    pthread_mutex_unlock(&side->world->lock);
}

static inline void on_telemetry(void *context, const struct wire_telemetry *told) {
    struct side *side = context;
    CHECK(told->count < PEERS_MAX && told->ops.span_us > 0);
    pthread_mutex_lock(&side->world->lock);
    side->ops += told->ops.ops;
    for (uint32_t i = 0; i < told->count; i++)
        side->entries[told->others[i].id.bytes[0] - 1] += told->others[i].seen.entries;
    pthread_mutex_unlock(&side->world->lock);
}

static inline void on_frame(void *side, const struct wire_header *header, const uint8_t *body) {
    static _Thread_local struct wire_op_report ops[2 * WIRE_MAX_LIVE_OPS];
    struct wire_op_done done;
    struct wire_mismatch mismatch;
    struct wire_report report = {.ops = ops};
    struct wire_telemetry telemetry;
    CHECK(header->run == 7 && header->generation == 1);
    if (header->type == WIRE_DONE && wire_decode_op_done(body, header->length, &done))
        on_done(side, &done);
    else if (header->type == WIRE_MISMATCH && wire_decode_mismatch(body, header->length, &mismatch))
        on_mismatch(side, &mismatch);
    else if (header->type == WIRE_REPORT && wire_decode_report(body, header->length, &report))
        on_frozen(side, header->epoch, &report);
    else if (header->type == WIRE_TELEMETRY && wire_decode_telemetry(body, header->length, &telemetry))
        on_telemetry(side, &telemetry);
    else
        CHECK(false);
}

static inline void on_to_master(void *side, const struct wire_buffer *frames) {
    struct wire_header header;
    for (size_t at = 0; at < frames->length; at += WIRE_HEADER_BYTES + header.length) {
        CHECK(wire_header_decode(frames->bytes + at, &header));
        on_frame(side, &header, frames->bytes + at + WIRE_HEADER_BYTES);
    }
}

static inline void on_link_down(void *context, const struct wire_id *id, uint32_t index, uint64_t serial,
                                enum wire_link_reason reason) {
    struct side *side = context;
    (void)index, (void)serial, (void)reason;
    if (!wire_id_equal(id, &side->id)) return;
    pthread_mutex_lock(&side->world->lock);
    side->rolls++;
    pthread_mutex_unlock(&side->world->lock);
}

static inline void on_failed(void *context, const char *why) {
    struct side *side = context;
    pthread_mutex_lock(&side->world->lock);
    side->failed++;
    snprintf(side->why, sizeof side->why, "%s", why);
    pthread_mutex_unlock(&side->world->lock);
}

// Joined by TCP on loopback, the engines find that they can read each other's memory; joined by socket pairs they send
// everything.
static bool same_host;

static inline bool tcp_pair(int pair[2]) {
    struct wire_address address = {.family = 4, .bytes = {127, 0, 0, 1}}, from;
    int listener = socket_listen(&address);
    bool made = listener >= 0 && socket_local_address(listener, &address) && (pair[0] = socket_dial(&address)) >= 0;
    AWAIT(!made || (pair[1] = socket_accept(listener, &from)) != -EAGAIN, usleep(100));
    close(listener);
    return made && pair[1] >= 0;
}

static inline void link_pair(struct world *world, uint32_t a, uint32_t b) {
    uint32_t n = living(world);
    bool neighbours = n <= 3;
    for (uint32_t i = 0; i < world->count && !neighbours; i++)
        neighbours = (a + 1) % world->count == b || (b + 1) % world->count == a;
    for (uint32_t index = 0; index <= (neighbours ? world->lanes : 0); index++) {
        if (engine_has_link(world->sides[a].engine, &world->sides[b].id, index) &&
            engine_has_link(world->sides[b].engine, &world->sides[a].id, index))
            continue;
        int pair[2];
        CHECK(same_host ? tcp_pair(pair) : socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        AS(&world->sides[a], engine_add_link(world->sides[a].engine, &world->sides[b].id, index, far_end_new(pair[0])));
        AS(&world->sides[b], engine_add_link(world->sides[b].engine, &world->sides[a].id, index, far_end_new(pair[1])));
    }
}

// Of the sides, in each epoch from now on.
static uint16_t member_weights[PEERS_MAX], member_sites[PEERS_MAX];

static inline void enter(struct world *world, bool lost) {
    pthread_mutex_lock(&world->order);
    pthread_mutex_lock(&world->lock);
    world->epoch++;
    world->members = living(world);
    world->tally_count = 0;
    world->commits = INT64_MAX; // what nobody had heard of begins before the reports are there, and may be done at once
    pthread_mutex_unlock(&world->lock);
    struct wire_member members[PEERS_MAX];
    uint32_t n = 0, rank[PEERS_MAX] = {0};
    for (uint32_t i = 0; i < world->count; i++)
        if (world->sides[i].alive) {
            rank[i] = n;
            members[n++] =
                (struct wire_member){.id = world->sides[i].id, .weight = member_weights[i], .site = member_sites[i]};
        }
    for (uint32_t i = 0; i < world->count; i++) {
        if (!world->sides[i].alive) continue;
        struct epoch *epoch = make_epoch(world->epoch, members, n, rank[i], lost);
        AS(&world->sides[i], engine_enter_epoch(world->sides[i].engine, epoch));
        epoch_put(epoch);
    }
    pthread_mutex_unlock(&world->order);
}

static inline void links_ready(struct world *world) {
    for (uint32_t a = 0; a < world->count; a++)
        for (uint32_t b = a + 1; b < world->count; b++)
            if (world->sides[a].alive && world->sides[b].alive) link_pair(world, a, b);
    for (uint32_t i = 0; i < world->count; i++)
        if (world->sides[i].alive) AS(&world->sides[i], engine_links_ready(world->sides[i].engine, world->epoch));
}

// Bytes of an op in retry mode from which it is divided here.
enum { SEGMENTED_MIN = 4 * PLAN_SEGMENT_MIN };

static inline struct world *world_new(uint32_t count, uint32_t lanes) {
    plan_segmented_min = SEGMENTED_MIN;
    struct world *world = calloc(1, sizeof *world);
    pthread_mutex_init(&world->order, NULL);
    pthread_mutex_init(&world->lock, NULL);
    world->count = count;
    world->lanes = lanes;
    for (uint32_t i = 0; i < count; i++) {
        struct side *side = &world->sides[i];
        *side = (struct side){.world = world, .index = i, .alive = true};
        side->id.bytes[0] = (uint8_t)(i + 1);
        struct engine_callbacks callbacks = {
            .context = side, .to_master = on_to_master, .link_down = on_link_down, .failed = on_failed};
        side->engine = engine_new(&side->id, &callbacks);
        CHECK(side->engine != NULL);
    }
    enter(world, false);
    links_ready(world);
    return world;
}

static inline void world_free(struct world *world) {
    for (uint32_t i = 0; i < world->count; i++) engine_stop(world->sides[i].engine);
    for (uint32_t i = 0; i < world->count; i++) engine_free(world->sides[i].engine);
    pthread_mutex_destroy(&world->order);
    pthread_mutex_destroy(&world->lock);
    free(world);
}

static inline bool all_reported(struct world *world) {
    bool all = true;
    pthread_mutex_lock(&world->lock);
    for (uint32_t i = 0; i < world->count; i++)
        all &= !world->sides[i].alive || world->sides[i].reported == world->epoch;
    pthread_mutex_unlock(&world->lock);
    return all;
}

static inline void wait_reports(struct world *world) { AWAIT(all_reported(world), usleep(1000)); }

// The master's rules for what was reported.
static inline void judge(struct world *world, bool lost) {
    struct wire_verdict *verdict = calloc(1, sizeof *verdict);
    for (uint32_t i = 0; i < world->count; i++)
        for (uint32_t k = 0; world->sides[i].alive && k < world->report_counts[i]; k++) {
            const struct wire_op_report *op = &world->reports[i][k];
            uint32_t done = 0, kept = PEERS_MAX;
            memset(verdict, 0, sizeof *verdict);
            verdict->name = op->name;
            for (uint32_t j = 0; j < world->count; j++)
                for (uint32_t m = 0; world->sides[j].alive && m < world->report_counts[j]; m++) {
                    const struct wire_op_report *other = &world->reports[j][m];
                    if (!wire_op_name_equal(&other->name, &op->name)) continue;
                    done += other->state == WIRE_OP_DONE;
                    if (other->state == WIRE_OP_RETAINED) kept = j;
                    if (other->state == WIRE_OP_OPEN) verdict->needy[verdict->count++] = world->sides[j].id;
                }
            verdict->kind = lost ? WIRE_VERDICT_ABORT : WIRE_VERDICT_REDO;
            if (done == living(world)) verdict->kind = WIRE_VERDICT_COMMIT;
            if (kept < PEERS_MAX) {
                verdict->kind = WIRE_VERDICT_COMMIT;
                verdict->supplier = world->sides[kept].id;
            }
            verdict_to_all(world, verdict);
        }
    free(verdict);
}

CHECK_UNWATCHED static inline float input(uint32_t peer, uint64_t i) { return (float)((peer + 1) * 1000 + i % 997); }

CHECK_UNWATCHED static inline void fill_input(float *data, uint32_t peer, uint64_t count) {
    check_writes(data, count * sizeof *data);
    for (uint64_t i = 0; i < count; i++) data[i] = input(peer, i);
}

// Returns how many elements differ from the sum of the inputs of `peers` peers from `first` on, divided by `divisor`.
CHECK_UNWATCHED static inline uint64_t wrong_sums(const float *got, uint64_t count, uint32_t first, uint32_t peers,
                                                  uint32_t divisor) {
    uint64_t wrong = 0;
    check_reads(got, count * sizeof *got);
    for (uint64_t i = 0; i < count; i++) {
        float expected = 0;
        for (uint32_t k = 0; k < peers; k++) expected += input(first + k, i);
        wrong += got[i] != expected / (float)divisor;
    }
    return wrong;
}

static inline float *filled(uint32_t peer, uint64_t count) {
    float *data = malloc(count * sizeof *data + 1);
    fill_input(data, peer, count);
    return data;
}

static inline struct call_args reduce_of(const void *send, void *recv, uint64_t tag, uint64_t count, int op,
                                         uint8_t codec) {
    return (struct call_args){
        .send = send,
        .recv = recv,
        .tag = tag,
        .fingerprint = {.count = count, .dtype = pcclFloat, .op = (uint8_t)op, .codec = codec},
    };
}

// All sides by rank, as one of them calls with them.
static inline struct subgroup *group_of(const struct world *world, uint32_t side) {
    struct wire_id ids[PEERS_MAX];
    for (uint32_t i = 0; i < world->count; i++) ids[i] = world->sides[i].id;
    return subgroup_new(ids, world->count, side);
}

static inline struct call_args broadcast_of(const struct world *world, uint32_t side, uint32_t root, const void *send,
                                            void *recv, uint64_t tag, uint64_t count) {
    struct call_args args = reduce_of(send, recv, tag, count, 0, CODEC_RAW);
    args.subgroup = group_of(world, side);
    args.root = root;
    args.fingerprint.kind = PLAN_BROADCAST;
    args.fingerprint.layout = 1 + root;
    return args;
}

static inline void kill_side(struct world *world, uint32_t victim) {
    pthread_mutex_lock(&world->order);
    pthread_mutex_lock(&world->lock);
    world->sides[victim].alive = false;
    pthread_mutex_unlock(&world->lock);
    pthread_mutex_unlock(&world->order);
    engine_stop(world->sides[victim].engine);
    for (uint32_t i = 0; i < world->count; i++)
        if (world->sides[i].alive) engine_drop_peer(world->sides[i].engine, &world->sides[victim].id);
}

static inline void new_epoch(struct world *world, bool lost) {
    enter(world, lost);
    links_ready(world);
    wait_reports(world);
    judge(world, lost);
}

#endif
