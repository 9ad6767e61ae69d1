// What members tell the master of their ops and of each other, and what an engine reports of its links to a program, while
// ops run, links break and members leave.
#include "data/telemetry.h"
#include "link/pace.h"

#include "engine_world.h"

enum { PEERS = 4, ROUNDS = 3, SMALL = 10, LARGE = 100000 };

static void reduce_all(struct world *world, uint64_t count) {
    float *data[PEERS];
    for (uint32_t i = 0; i < PEERS; i++) {
        data[i] = filled(i, count);
        struct call_args reduce = reduce_of(data[i], data[i], 5, count, pcclSum, CODEC_RAW);
        REQUIRE(engine_post(world->sides[i].engine, &reduce, world->epoch) == CALL_OK);
    }
    for (uint32_t i = 0; i < PEERS; i++) {
        struct call_outcome outcome;
        engine_wait(world->sides[i].engine, 5, platform_now_ns() + 20 * SECOND_NS, &outcome);
        CHECK(outcome.result == CALL_OK);
    }
    for (uint32_t i = 0; i < PEERS; i++) free(data[i]);
}

static bool is_told(struct world *world, uint64_t ops) {
    bool told = true;
    pthread_mutex_lock(&world->lock);
    for (uint32_t i = 0; i < PEERS; i++) told &= world->sides[i].ops == ops;
    pthread_mutex_unlock(&world->lock);
    return told;
}

static void test_entries(void) {
    check_case("when the successor begins each op, be it small or large");
    struct world *world = world_new(PEERS, 1);
    for (int round = 0; round < ROUNDS; round++) {
        reduce_all(world, LARGE);
        reduce_all(world, SMALL);
    }
    int64_t deadline_ns = platform_now_ns() + 20 * SECOND_NS;
    while (!is_told(world, 2 * ROUNDS)) {
        REQUIRE(platform_now_ns() < deadline_ns);
        usleep(10000);
    }
    for (uint32_t i = 0; i < PEERS; i++)
        for (uint32_t k = 0; k < PEERS; k++)
            CHECK_EQ(world->sides[i].entries[k], k == (i + 1) % PEERS ? 2 * ROUNDS : 0);
    world_free(world);
}

// ---- for a program that asks ----
enum { TAG = 1, MEMBERS = 3, LANES = 4, ELEMENTS = 300000 };

static void reduce_once(struct world *world) {
    float *data[PEERS_MAX];
    for (uint32_t i = 0; i < world->count; i++) {
        data[i] = filled(i, ELEMENTS);
        struct call_args args = reduce_of(data[i], data[i], TAG, ELEMENTS, pcclSum, CODEC_RAW);
        if (world->sides[i].alive) CHECK(engine_post(world->sides[i].engine, &args, world->epoch) == CALL_OK);
    }
    for (uint32_t i = 0; i < world->count; i++) {
        struct call_outcome outcome = {.result = CALL_OK};
        if (world->sides[i].alive) engine_wait(world->sides[i].engine, TAG, INT64_MAX, &outcome);
        CHECK(outcome.result == CALL_OK);
        free(data[i]);
    }
}

static struct world *world_by_connections(uint32_t members) {
    setenv("PCCL_SAME_HOST_MEMORY", "0", 1);
    struct world *world = world_new(members, LANES);
    unsetenv("PCCL_SAME_HOST_MEMORY");
    return world;
}

static void test_members(void) {
    check_case("one report for each other member");
    struct world *world = world_by_connections(MEMBERS);
    struct link_report reports[MEMBERS];
    reduce_once(world);
    CHECK_EQ(telemetry_report_links(world->sides[1].engine, reports, MEMBERS), MEMBERS - 1);
    for (uint32_t i = 0; i < MEMBERS - 1; i++) {
        const struct link_report *report = &reports[i];
        CHECK_EQ(report->uuid.data[0], i == 0 ? 1 : 3);
        CHECK(report->connected && !report->far && !report->by_memory);
        CHECK_EQ(report->lanes, LANES);
        CHECK_EQ(report->lanes_in_use, LANES);
        CHECK_STR(report->reason, pace_reason_text(PACE_NEAR));
        CHECK(report->congestion_control[0] != 0);
        CHECK(report->acked_bytes > 0 && report->shortest_round_trip_s > 0);
    }
    check_case("as many as there is room for");
    CHECK_EQ(telemetry_report_links(world->sides[1].engine, reports, 1), MEMBERS - 1);
    CHECK_EQ(telemetry_report_links(world->sides[1].engine, NULL, 0), MEMBERS - 1);
    check_case("a member that is gone");
    kill_side(world, 2);
    new_epoch(world, true);
    reduce_once(world);
    CHECK_EQ(telemetry_report_links(world->sides[1].engine, reports, MEMBERS), 1);
    CHECK(reports[0].connected);
    world_free(world);
    check_case("before the first epoch");
    struct engine_callbacks callbacks = {0};
    struct engine *engine = engine_new(&(struct wire_id){{9}}, &callbacks);
    REQUIRE(engine != NULL);
    CHECK_EQ(telemetry_report_links(engine, reports, MEMBERS), 0);
    engine_free(engine);
}

static struct link_report report_of(struct world *world) {
    struct link_report report;
    CHECK_EQ(telemetry_report_links(world->sides[0].engine, &report, 1), 1);
    return report;
}

static void test_by_memory(void) {
    check_case("lanes to a member whose memory is read carry no large tensors");
    struct world *world = world_new(2, LANES);
    int64_t deadline_ns = platform_now_ns() + 20 * SECOND_NS;
    while (!report_of(world).by_memory && platform_now_ns() < deadline_ns) reduce_once(world);
    struct link_report report = report_of(world);
    CHECK(report.by_memory);
    CHECK_EQ(report.lanes, LANES);
    CHECK_EQ(report.lanes_in_use, 0);
    CHECK_STR(report.reason, pace_reason_text(PACE_MEMORY));
    world_free(world);
}

static double rate_of(struct world *world) { return report_of(world).bytes_per_second; }

static void test_rate(void) {
    check_case("the rate of a link is that of the last ops, however long ago they were");
    struct world *world = world_by_connections(2);
    int64_t end_ns = platform_now_ns() + 2200 * MS_NS; // at least two reports
    while (platform_now_ns() < end_ns) reduce_once(world);
    double rate = rate_of(world);
    CHECK(rate > 0);
    usleep(2500000); // the report at hand, and one without ops, were made
    CHECK(rate_of(world) > rate / 10);
    world_free(world);
}

struct asker {
    struct engine *engine;
    atomic_bool ends;
    uint32_t answers;
};

static void *ask(void *context) {
    struct asker *asker = context;
    struct link_report reports[MEMBERS];
    while (!atomic_load(&asker->ends) || asker->answers == 0) {
        CHECK(telemetry_report_links(asker->engine, reports, MEMBERS) < MEMBERS);
        asker->answers++;
    }
    return NULL;
}

// Connections are closed while the kernel is asked of them.
static void test_meanwhile(void) {
    check_case("links break while they are reported");
    struct world *world = world_new(MEMBERS, LANES);
    struct asker asker = {.engine = world->sides[0].engine};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, ask, &asker) == 0);
    for (int i = 0; i < 5; i++) reduce_once(world);
    kill_side(world, 1);
    new_epoch(world, true);
    reduce_once(world);
    kill_side(world, 2);
    engine_stop(world->sides[0].engine);
    atomic_store(&asker.ends, true);
    pthread_join(thread, NULL);
    world_free(world);
}

int main(void) {
    test_entries();
    same_host = true; // by TCP
    test_members();
    test_by_memory();
    test_rate();
    test_meanwhile();
    return check_status();
}
