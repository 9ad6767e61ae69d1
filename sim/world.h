// Shared by all parts of the simulator: the run's configuration, its clock, its randomness, and the state of each part.
//
// From below to above: world; queue (events in virtual time), trace, effect, process; links and controls (what
// connects processes), partition; truth, judge_ops, judge_master (the invariants); engine, state and program (models of
// a peer's data plane, of its shared state, and of what uses it); masters, watch, peers (the bodies around the state
// machines); faults; run.
//
// A process is a slot; slot MASTER + i is that of the i-th master of the list. Whoever starts in a slot has a new life:
// what was meant for an older life is void.
#ifndef PCCL_SIM_WORLD_H
#define PCCL_SIM_WORLD_H

#include <stdbool.h>

#include "base/platform.h"
#include "net/wire_control.h"
#include "net/wire_data.h"
#include "ops/members.h"
#include "sim/sim.h"

#ifndef SIM_SLOTS
#define SIM_SLOTS 1000 // a page needs fewer
#endif

enum {
    SLOTS = SIM_SLOTS, // peers at most
    DATA_SLOTS = 16,   // peers at most whose programs do more than vote
    MASTER = SLOTS,    // slot of the first master
    MASTERS_MOST = 3,
    PROCESSES = MASTER + MASTERS_MOST,
    GROUPS = 2,
    TEXT_BYTES = 512,
};

// The counters of a run, each with its name in reports.
#define WORLD_COUNTS(X) \
    X(EVENTS, "events") \
    X(STARTS, "starts") \
    X(CRASHES, "crashes") \
    X(POWER_OFFS, "power losses") \
    X(STALLS, "stalls") \
    X(DELAYS, "slow paths") \
    X(BREAKS, "broken links") \
    X(PARTITIONS, "partitions") \
    X(ONE_WAYS, "one-way losses") \
    X(DUPLICATES, "duplicate connects") \
    X(APARTS, "pairs apart") \
    X(LEAVES, "leaves") \
    X(MISUSES, "misuses") \
    X(FLIPS, "flipped bits") \
    X(MASTERS, "master crashes") \
    X(HELD, "deaths held by a child") \
    X(BLOCKS, "blocked threads") \
    X(REFUSALS, "refused allocations") \
    X(FOUND, "masters found again") \
    X(TOLD_LATE, "ends told late") \
    X(AFRESH, "runs begun afresh") \
    X(GIVEN_UP, "runs given up") \
    X(RESTARTED, "syncs begun again") \
    X(REFUSED, "refused") \
    X(EXPELLED, "dead communicators") \
    X(EPOCHS, "group epochs entered") \
    X(ORDERS, "new orders") \
    X(OPS_OK, "ops committed") \
    X(OPS_LOST, "ops lost") \
    X(OPS_REDONE, "ops redone") \
    X(OPS_SUPPLIED, "ops supplied") \
    X(MISMATCHES, "mismatches") \
    X(CANCELS, "cancels") \
    X(CANCELLED, "ops cancelled") \
    X(SYNCS, "syncs") \
    X(FETCHES, "states fetched") \
    X(NOT_FETCHED, "states not fetched") \
    X(TORN, "torn states") \
    X(NO_STATE, "syncs without a state") \
    X(RESUMED, "states begun anew") \
    X(NOTICES, "notices") \
    X(LEFT, "left on a notice") \
    X(SHORT, "waits for members in vain") \
    X(SPARES, "spares") \
    X(ROUNDS, "rounds") \
    X(CALMS, "calms") \
    X(TAKEOVERS, "takeovers")

enum count {
#define X(name, text) COUNT_##name,
    WORLD_COUNTS(X)
#undef X
        COUNTS
};

// Memory is refused to a process `times` times, when so many more allocations have been granted.
struct shortage {
    uint32_t granted, times;
    uint32_t refused; // in this life
};

// State that peers and masters have alike, by their slots.
struct body {
    int64_t stopped_until; // it stands still
    int64_t tick_at;       // of the tick that is queued; INT64_MAX: none
    struct shortage shortage;
};

// Two peers that cannot reach each other.
struct apart {
    int other, cost; // + 1: who it is apart from, and which of the two was lost of it; 0: none so far
    int64_t until;
};

struct pccl_sim {
    struct pccl_sim_config config;
    enum pccl_sim_state state;
    bool tracing;
    uint64_t random;
    int64_t now;
    uint64_t counts[COUNTS];

    // drawn from the seed
    uint32_t peers, master_count, faults;
    int64_t limit_ns, user_timeout_ns, fault_every_ns, end_at;
    uint32_t recovery_ms; // for which peers look for a master
    struct wire_limits limits;
    const char *only;     // all that goes wrong, where that may cost nobody; NULL: more
    bool naps, only_naps; // a single master stands still again and again; nothing else goes wrong
    int64_t nap_from;     // for the next one
    bool only_apart;      // pairs are apart; nothing else goes wrong
    bool only_notice;     // members leave in order; nothing else goes wrong
    bool only_votes;      // more than DATA_SLOTS peers: programs reduce and sync nothing
    bool prompt;          // who dials a process that has ended is refused at once
    bool in_part;         // of what a master said that ends some hear the first part
    struct wire_address addresses[MASTERS_MOST];

    bool faulty;                   // now
    int64_t faults_end, calm_from; // calm_from: end of the last fault's effect
    int64_t (*cut_until)[PROCESSES], (*slow_until)[PROCESSES];
    struct body bodies[PROCESSES];
    struct apart apart[SLOTS];
    uint32_t serial, master_lives; // no two connections, and no two masters, have the same
    uint32_t tainted[SLOTS];       // lives: a frame of theirs was changed, so what they say is not judged

    // of the parts
    struct queue *queue;
    struct trace *trace;
    struct process *processes; // SLOTS
    struct master *masters;    // MASTERS_MOST
    struct connection *controls;
    struct links *links;
    struct truths *truths;
    struct judged_ops *ops;
    struct judged_ends *ends;
    struct rosters *rosters;
    struct judged_masters *said;
    struct watch *watch;
};

uint64_t sim_mix(uint64_t x); // a hash
uint64_t sim_random(struct pccl_sim *s);
uint64_t sim_below(struct pccl_sim *s, uint64_t limit);
static inline bool sim_chance(struct pccl_sim *s, uint32_t in) { return sim_below(s, in) == 0; }
uint32_t sim_draw_master(struct pccl_sim *s); // without a draw where there is one

struct wire_id sim_id_of(int slot, uint32_t life);
int sim_slot(const struct wire_id *id, uint32_t *life); // -1: no id of ours

// How long what is sent now takes.
int64_t sim_delay(struct pccl_sim *s, int from, int to);
bool sim_cut(const struct pccl_sim *s, int a, int b); // either way

#endif
