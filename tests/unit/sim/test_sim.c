// The simulator over some hundred seeds: every one passes, everything that is counted happens, and a seed replays
// exactly. A longer run: test_sim FIRST COUNT [FAILURES AT MOST [FAULTS]], with the faults by their number in sim.h; a
// failing seed is told with the last lines of its trace.
#include "check.h"

#include "sim/sim.h"

enum { DEFAULT_FIRST = 3001, DEFAULT_SEEDS = 1000, EVENTS = 1 << 16, TRACE_LINES = 60, FAILURES_MOST = 3 };

static enum pccl_sim_state run(struct pccl_sim *sim, const struct pccl_sim_config *config) {
    enum pccl_sim_state state = pccl_sim_begin(sim, config);
    while (state == PCCL_SIM_RUNNING) state = pccl_sim_go(sim, EVENTS);
    return state;
}

static uint64_t total(const struct pccl_sim *sim) {
    uint64_t sum = 0;
    for (uint32_t i = 0; pccl_sim_count_name(i) != NULL; i++) sum += pccl_sim_count(sim, i);
    return sum;
}

static void test_replay(void) {
    struct pccl_sim_config config = {.seed = 7, .trace_fd = -1};
    struct pccl_sim *sim = pccl_sim_new(), *other = pccl_sim_new();
    REQUIRE(sim != NULL && other != NULL);
    for (config.seed = 1; config.seed <= 20; config.seed++) {
        config.trace_lines = 0;
        CHECK_EQ(run(sim, &config), PCCL_SIM_PASSED);
        config.trace_lines = TRACE_LINES; // telling changes nothing
        CHECK_EQ(run(other, &config), PCCL_SIM_PASSED);
        for (uint32_t i = 0; pccl_sim_count_name(i) != NULL; i++)
            CHECK_EQ(pccl_sim_count(sim, i), pccl_sim_count(other, i));
    }
    config.seed = 1;
    uint64_t before = total(other), first = total(sim);
    pccl_sim_begin(other, &config);
    pccl_sim_go(other, 100); // given up
    config.seed = 3;
    before = total(other);
    run(other, &config);
    uint64_t again = total(other) - before;
    run(sim, &config);
    CHECK_EQ(total(sim) - first, again);
    pccl_sim_free(sim);
    pccl_sim_free(other);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : DEFAULT_FIRST;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : argc > 1 ? 1 : DEFAULT_SEEDS;
    uint64_t most = argc > 3 ? strtoull(argv[3], NULL, 10) : FAILURES_MOST;
    uint32_t faults = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0;
    struct pccl_sim *sim = pccl_sim_new();
    REQUIRE(sim != NULL);
    uint64_t failures = 0;
    for (uint64_t seed = first; seed < first + count && failures < most; seed++) {
        struct pccl_sim_config config = {.seed = seed, .faults = faults, .trace_fd = -1};
        check_case("seed %llu", (unsigned long long)seed);
        if (CHECK_EQ(run(sim, &config), PCCL_SIM_PASSED)) continue;
        failures++;
        config.trace_lines = TRACE_LINES;
        run(sim, &config);
        fprintf(stderr, "%s", pccl_sim_report(sim));
    }
    for (uint64_t seed = 1; seed <= 20 && argc == 1; seed++) {
        struct pccl_sim_config config = {.seed = seed, .peers = 20, .trace_fd = -1};
        check_case("20 peers, seed %llu", (unsigned long long)seed);
        if (!CHECK_EQ(run(sim, &config), PCCL_SIM_PASSED)) fprintf(stderr, "%s", pccl_sim_report(sim));
    }
    check_case("%s", "");
    for (uint32_t i = 0; pccl_sim_count_name(i) != NULL; i++)
        fprintf(stderr, "%s%llu %s", i > 0 ? ", " : "", (unsigned long long)pccl_sim_count(sim, i),
                pccl_sim_count_name(i));
    fprintf(stderr, "\n");
    if (argc == 1) {
        for (uint32_t i = 0; pccl_sim_count_name(i) != NULL; i++)
            if (!CHECK(pccl_sim_count(sim, i) > 0)) fprintf(stderr, "none of: %s\n", pccl_sim_count_name(i));
        test_replay();
    }
    pccl_sim_free(sim);
    return check_status();
}
