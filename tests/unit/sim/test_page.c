// The simulator for browsers: peers and the master end and start again by hand, and the run goes on; what it describes
// is JSON.
#include "check.h"

#include "sim/web/page.c" // NOLINT: its functions are exported to pages only

static double now_ms;

static void go(double ms) {
    for (now_ms += ms; sim->state == PCCL_SIM_RUNNING && (double)(sim->now - SECOND_NS) < now_ms * MS_NS;)
        page_go(now_ms);
    CHECK_STR(sim->trace->failure, "");
}

// Brackets and strings are closed, in the order of JSON.
static void check_json(const char *json) {
    char open[64];
    int depth = 0;
    bool quoted = false;
    for (; *json != 0; json++) {
        if (*json == '"') quoted = !quoted;
        if (quoted) continue;
        if (*json == '{' || *json == '[') open[depth++] = *json;
        if (*json == '}' || *json == ']') REQUIRE(depth > 0 && open[--depth] == (*json == '}' ? '{' : '['));
        REQUIRE(depth < 64);
    }
    CHECK_EQ(depth, 0);
    CHECK(!quoted);
}

static uint32_t members(void) {
    uint32_t count = 0;
    for (int slot = 0; slot < (int)sim->peers; slot++)
        count += sim->processes[slot].running && member_phase(sim->processes[slot].core) == MEMBER_ACCEPTED;
    return count;
}

static void test_seed(uint32_t seed) {
    check_case("seed %u", seed);
    now_ms = 0;
    REQUIRE(page_begin(seed, 3));
    go(500);
    CHECK_EQ(members(), 3);
    check_json(page_describe());

    page_end_peer(1, seed % 2 == 0); // or nobody is told
    go(500);
    CHECK_EQ(members(), 2);
    CHECK_EQ(core_peer_count(sim->masters[0].core), 2);
    check_json(page_describe());
    page_start_peer(1);
    go(1000);
    CHECK_EQ(members(), 3);

    uint64_t rounds = sim->counts[COUNT_ROUNDS];
    page_end_master();
    go(100);
    check_json(page_describe());
    page_start_master();
    go(2000);
    CHECK_EQ(members(), 3);
    CHECK(sim->counts[COUNT_ROUNDS] > rounds);

    page_stop_peer(2, 150); // shorter than the heartbeat limit
    go(1000);
    CHECK_EQ(members(), 3);
    page_stop_peer(2, 2000); // longer: it is expelled, and ends
    go(3000);
    CHECK(!sim->processes[2].running);
    CHECK_EQ(members(), 2);
    check_json(page_describe());
    page_end_peer(7, true); // there is none
}

int main(void) {
    for (uint32_t seed = 1; seed <= 20; seed++) test_seed(seed);
    pccl_sim_free(sim);
    return check_status();
}
