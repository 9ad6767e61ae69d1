// The run that a master serves: its peers, and one struct for each subject that they have to agree on. It lets the
// subjects' decisions have their effect on each other: who is out, which epoch comes into force, which votes pass.
//
// An event changes the state and settles: the peers that are gone are taken out, the epochs that this makes necessary
// come into force, and votes pass, until nothing is left to do.
#ifndef PCCL_MASTER_RUN_H
#define PCCL_MASTER_RUN_H

#include "master/breaks.h"
#include "master/candidate.h"
#include "master/membership.h"
#include "master/matrix.h"
#include "master/quorum.h"
#include "master/rounds.h"
#include "master/verdicts.h"
#include "master/selection.h"

enum {
    RUN_RANDOM_BYTES = 24,     // id and secret
    RUN_RELAY_WAIT_MS = 10000, // a newcomer waits so long for a member that relays for it
    RUN_YOUNG_MS = 10000,      // for so long after its first peer a run gives way to an older one
};

enum run_phase {
    RUN_IDLE,      // votes are being collected
    RUN_CANDIDATE, // links of a candidate epoch are being made
    RUN_SURVEY,    // rounds of measurements
};

struct survivors;
struct configuration;

struct run {
    uint8_t random[RUN_RANDOM_BYTES];
    bool wants_random;
    bool left;                       // a member left the run by itself
    bool completed;                  // so it was with the run that ended here last,
    int64_t ended_ns;                // at this time; 0: none has
    uint64_t next_join, votes_ended; // votes_ended: of all members
    // The newest epoch that a member has said it is in; the last one that lost somebody.
    uint64_t heard_number, lost_number;
    // The run, of newcomers alone, gives way to one that another master has left; 0: it was taken up, or there is none.
    int64_t yields_until;
    int64_t woken_until; // this master has stood still: until then its peers may find that they have left it
    int64_t short_until; // the update vote, which has passed, waits for more members; INT64_MAX: it does not
    enum run_phase phase;
    struct breaks breaks[WIRE_MAX_MEMBERS];     // by the group's slot
    struct verdicts verdicts[WIRE_MAX_MEMBERS]; // by the group's slot
    struct matrix matrix;
    struct selection selection;

    struct signer signer;
    struct quorum_verified verified;
    struct quorum quorum;
    struct candidate candidate;
    struct rounds rounds;
    struct membership table;
    struct wire_op_report reported[2 * WIRE_MAX_LIVE_OPS]; // for decoding
};

// `random` is for the id and the secret; `id_key` spreads ids over tables, and changes nothing that can be seen.
void run_init(struct run *run, int64_t limit_ns, const uint8_t random[RUN_RANDOM_BYTES], uint64_t id_key,
              int64_t now_ns);
void run_fini(struct run *run);

static inline struct breaks *run_breaks(struct run *run, const struct peer_group *group) {
    return &run->breaks[membership_group_slot(&run->table, group)];
}

static inline struct verdicts *run_verdicts(struct run *run, const struct peer_group *group) {
    return &run->verdicts[membership_group_slot(&run->table, group)];
}

// ---- epochs and votes: run.c ----

// A newcomer copies the state before it is admitted, is so far, or has done so. Harmless from a member.
void run_precopy(struct run *run, struct peer_record *peer, const struct wire_precopy *precopy);
// A newcomer said HELLO: it is registered, or refused. The owner settles after it.
void run_register(struct run *run, uint32_t conn, const struct wire_address *source, const struct wire_hello *hello);
void run_settle(struct run *run);
// A member has announced that it leaves: all members are told.
void run_leaving(struct run *run, struct peer_record *peer, const struct wire_leaving *leaving);
// Gives the run up as if this master had restarted: its members come with RESUME.
void run_give_up(struct run *run);
// The members have been taken over from another master: a new group epoch for every group.
void run_resume(struct run *run);

// ---- the run of another master: run_takeover.c ----

// The members of the configuration that are here become those of the run, which has none; they are survivors no more
// (master/gather).
void run_take_over(struct run *run, struct survivors *survivors, const struct configuration *config,
                   uint64_t generation);

#endif
