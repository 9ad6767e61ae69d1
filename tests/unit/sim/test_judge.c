// The judge of the simulator: what it is shown here breaks an invariant, and it says which. The mutants (tests/sim)
// show the same of bugs in shipped code.
#include "check.h"

#include "pccl.h"
#include "sim/engine.h"
#include "sim/judge_master.h"
#include "sim/judge_ops.h"
#include "sim/process.h"
#include "sim/program.h"
#include "sim/sim.h"
#include "sim/state.h"
#include "sim/trace.h"
#include "sim/truth.h"
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
    uint64_t number = member_last_vote(sim->processes[0].core)->number;
    const struct vote_record *record = NULL;
    for (uint32_t i = 0; i < VOTES_MOST; i++)
        if (sim->ends->votes[i].number == number) record = &sim->ends->votes[i];
    REQUIRE(record != NULL);
    *out = record;
    return (struct member_action){
        .kind = MEMBER_VOTE_END,
        .code = record->code,
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
    judge_dies(sim, 1, "its recovery record contradicts that of the run", "dead");
    check_fails("for what it knows");
    begin("a revision that a sync gave");
    judge_dies(sim, 1, "shared state: it passed revision 4", "dead");
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

// A small op of two peers, as the judge is shown it by the one that has both inputs.
static struct judged_op op_of_two(void) {
    uint64_t epoch = sim->processes[0].engine->call_table.now->group_epoch;
    return (struct judged_op){.name = {.epoch = epoch, .tag = 77, .sequence = 1},
                              .epoch = sim->processes[0].engine->call_table.now,
                              .small = true,
                              .members = 3,
                              .holds = 3,
                              .contributors = 3,
                              .calls = 1};
}

static struct instance *newest_instance(void) { return &sim->ops->instances[sim->ops->count - 1]; }

static void test_views(void) {
    begin("an op in which two meet that have read the same");
    struct judged_op op = op_of_two();
    sim->processes[1].group = sim->processes[0].group;
    judge_begins(sim, 0, &op);
    judge_begins(sim, 1, &op);
    judge_reduced(sim, 0, &op);
    CHECK_EQ(sim->state, PCCL_SIM_RUNNING);
    check_case("that have not");
    newest_instance()->views[1]++;
    judge_reduced(sim, 0, &op);
    check_fails("peer 1 meets peer 2");
    begin("a mismatched op, begun once more by one that had not begun it");
    sim->processes[1].group = sim->processes[0].group;
    op = op_of_two();
    judge_begins(sim, 0, &op);
    newest_instance()->views[0]++;
    judge_begins(sim, 1, &op);
    CHECK_EQ(sim->state, PCCL_SIM_RUNNING);
}

// Peer 1 was expelled and does not know it; the others, who are still members, have ended.
static void test_epoch_without_members(void) {
    begin("an epoch of which nobody is left, told to two");
    struct wire_header header = member_header(sim->processes[1].core);
    struct truth *truth = judge_truth(sim, header.run);
    struct judged_op op = op_of_two();
    judge_begins(sim, 0, &op);
    truth->lives[0] = 0;
    for (int slot = 1; slot < PEERS; slot++) sim->processes[slot].running = false;
    struct wire_member members[2] = {{.id = sim_id(sim, 1), .lanes = 1, .address.family = 4},
                                     {.id = sim_id(sim, 2), .lanes = 1, .address.family = 4}};
    struct wire_epoch_commit commit = {
        .reason = WIRE_REASON_LOSS,
        .epoch = {.number = truth->number + 1, .latency_us = 1, .megabytes_per_s = 1, .count = 2, .members = members}};
    header.epoch = truth->number + 1;
    header.generation = truth->generation;
    struct actions *actions = calloc(1, sizeof *actions);
    REQUIRE(actions != NULL);
    wire_encode_epoch_commit(actions_frame(actions), header, &commit);
    for (uint32_t conn = 0; conn < 2; conn++) REQUIRE(actions_send(actions, conn));
    judge_sends(sim, truth->master, truth->master_life, actions, 0, 2);
    CHECK_EQ(truth->number, header.epoch);
    CHECK_EQ(newest_instance()->run, header.run);
    check_case("the same number again, with others");
    members[0].id = sim_id(sim, 3);
    actions_clear(actions);
    wire_encode_epoch_commit(actions_frame(actions), header, &commit);
    REQUIRE(actions_send(actions, 0));
    judge_sends(sim, truth->master, truth->master_life, actions, 0, 1);
    CHECK_EQ(newest_instance()->run, 0);
    CHECK_EQ(sim->state, PCCL_SIM_RUNNING);
    actions_fini(actions);
    free(actions);
}

static void test_rosters(void) {
    enum { NUMBER = 1000 };
    begin("a changed frame");
    for (int slot = 0; slot < PEERS; slot++) sim->processes[slot].group = 0;
    sim->processes[1].tainted = true;
    const struct roster *own = program_pass_roster(sim, 1, NUMBER), *others = program_pass_roster(sim, 0, NUMBER);
    CHECK(own != others);
    CHECK(program_pass_roster(sim, 2, NUMBER) == others);
    CHECK(program_pass_roster(sim, 1, NUMBER) != others);
}

int main(void) {
    sim = pccl_sim_new();
    REQUIRE(sim != NULL);
    test_votes();
    test_syncs();
    test_deaths();
    test_pairs_apart();
    test_views();
    test_epoch_without_members();
    test_rosters();
    pccl_sim_free(sim);
    return check_status();
}
