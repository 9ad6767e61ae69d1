// The judge of the simulator: what it is shown here breaks an invariant, and it says which. The mutants (tests/sim)
// show the same of bugs in shipped code.
#include "check.h"

#include "pccl.h"
#include "sim/judge_ends.h"
#include "sim/process.h"
#include "sim/program.h"
#include "sim/sim.h"
#include "sim/state.h"
#include "sim/trace.h"
#include "sim/watch.h"

enum { PEERS = 4, EVENTS = 400, SEED = 3 };

static struct pccl_sim *sim;

// A run in which all are members and have voted, and nothing is wrong so far.
static void begin(const char *what) {
    struct pccl_sim_config config = {.seed = SEED, .peers = PEERS, .faults = PCCL_SIM_DELAY, .trace_fd = -1};
    check_case("%s", what);
    pccl_sim_begin(sim, &config);
    for (uint32_t went = 0; went < EVENTS * 100 && sim->ends->voted[0] < 4; went += EVENTS) pccl_sim_go(sim, EVENTS);
    REQUIRE(sim->state == PCCL_SIM_RUNNING && sim->ends->voted[0] >= 4);
    for (int slot = 0; slot < PEERS; slot++) REQUIRE(sim->processes[slot].running);
}

static void check_fails(const char *text) {
    CHECK_EQ(sim->state, PCCL_SIM_FAILED);
    if (!CHECK(strstr(sim->trace->failure, text) != NULL)) fprintf(stderr, "it said: %s\n", sim->trace->failure);
}

// The end that another peer heard of the last vote.
static struct member_action end_of_vote(const struct vote_record **out) {
    uint64_t number = member_barrier(sim->processes[0].mind)->number;
    const struct vote_record *record = NULL;
    for (uint32_t i = 0; i < VOTES_MOST; i++)
        if (sim->ends->votes[i].number == number) record = &sim->ends->votes[i];
    REQUIRE(record != NULL);
    *out = record;
    return (struct member_action){
        .kind = MEMBER_VOTE_END,
        .code = (int)record->code,
        .value = record->value,
        .view = {.number = record->epoch, .global_world = record->world, .groups = record->groups}};
}

static void test_votes(void) {
    const struct vote_record *record;
    begin("a vote that ends alike");
    struct member_action action = end_of_vote(&record);
    sim->ends->voted[0]--;
    judge_vote(sim, 0, &action);
    CHECK_EQ(sim->state, PCCL_SIM_RUNNING);
    check_case("a vote that ends twice");
    judge_vote(sim, 0, &action);
    check_fails("hears the end of vote");
    begin("a vote with another value");
    action = end_of_vote(&record);
    action.value++;
    sim->ends->voted[0]--;
    judge_vote(sim, 0, &action);
    check_fails("agreement: vote");
    begin("a vote with another world");
    action = end_of_vote(&record);
    action.view.global_world++;
    sim->ends->voted[0]--;
    judge_vote(sim, 0, &action);
    check_fails("agreement: vote");
}

static void test_syncs(void) {
    struct wire_sync_end end = {.round = UINT64_MAX, .revision = 3};
    begin("a revision that goes back");
    judge_sync(sim, 1, &end, 1, 5);
    check_fails("parity: round");
    begin("the revision after");
    judge_sync(sim, 1, &end, 1, 4);
    CHECK_EQ(sim->state, PCCL_SIM_RUNNING);
    check_case("the same round with another code");
    end.code = pcclNoSharedStateAvailable;
    judge_sync(sim, 2, &end, 1, 4);
    check_fails("ends with code 9 at peer 3, with 0 at another");
    struct member_action action = {.kind = MEMBER_VOTE_END, .code = pcclInvalidUsage};
    begin("a sync that ends with a code that it cannot have");
    sim->processes[1].program->step = STEP_SYNCING;
    program_vote_ended(sim, 1, &action);
    check_fails("a sync of peer 2 ends with code 4");
}

static void test_deaths(void) {
    begin("a member that knows what cannot be");
    judge_dies(sim, 1, "what it knows does not fit the run", "dead");
    check_fails("for what it knows");
    begin("a revision that a sync gave");
    judge_dies(sim, 1, "shared state: it gave revision 4", "dead");
    check_fails("for a revision that a sync gave it");
    begin("a loss long after the last fault");
    sim->calm_from = 0;
    judge_dies(sim, 1, "silent", "dead");
    check_fails("although nothing went wrong");
}

static void set_apart(int a, int b) {
    sim->only_apart = true;
    sim->processes[a].group = sim->processes[b].group = 0;
    sim->apart[a].other = b + 1;
    sim->apart[b].other = a + 1;
    sim->apart[a].until = sim->apart[b].until = sim->calm_from = sim->now;
}

static void test_pairs_apart(void) {
    begin("somebody that reaches everybody is lost for two that do not reach each other");
    set_apart(0, 1);
    judge_dies(sim, 2, "its links failed twice", "dead");
    check_fails("peer 3 is dead although it reaches everybody");
    begin("one of the two is lost");
    set_apart(0, 1);
    judge_dies(sim, 1, "its links failed twice", "dead");
    judge_dies(sim, 1, "no data connection between this peer and another", "refused");
    CHECK_EQ(sim->state, PCCL_SIM_RUNNING);
    check_case("and then the other");
    judge_dies(sim, 0, "its links failed twice", "dead");
    check_fails("peer 1 is dead, as was peer 2");
    begin("of two groups");
    set_apart(0, 1);
    sim->processes[1].group = 1;
    judge_dies(sim, 1, "its links failed twice", "dead");
    check_fails("although it reaches everybody");
}

int main(void) {
    sim = pccl_sim_new();
    REQUIRE(sim != NULL);
    test_votes();
    test_syncs();
    test_deaths();
    test_pairs_apart();
    pccl_sim_free(sim);
    return check_status();
}
