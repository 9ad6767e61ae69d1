// Calls of the peers' programs.
#ifndef PCCL_SIM_PROGRAM_H
#define PCCL_SIM_PROGRAM_H

#include "peer/member.h"
#include "sim/world.h"

enum { ROSTERS_MOST = 32 };

// Members that the programs name in their calls over lists: those that were let in, or stayed, when the last vote of
// all to update had passed. The same for all who have passed that vote. Members may be lost since.
struct roster {
    uint64_t run, number;
    uint32_t group, count;
    uint32_t users[DATA_SLOTS]; // lives of those that go by it
    struct wire_id ids[DATA_SLOTS];
};

struct rosters {
    struct roster list[ROSTERS_MOST];
    uint32_t next;
};

enum step { STEP_JOINING, STEP_THINKING, STEP_VOTING, STEP_REDUCING, STEP_SYNCING, STEP_LEAVING };

struct program {
    enum step step;
    uint8_t vote;
    uint64_t key_number, key_round; // where in the program: the same at all that pass the same point
    uint32_t phase, phases;         // of reduces in this round
    uint32_t tags;                  // in use in this phase
    const struct roster *roster;    // for calls over lists
    uint32_t rounds;                // that this life has passed
    int64_t since;                  // begin of the call; INT64_MAX: none is open
    int64_t leave_by;
};

// A peer passes an update that ended with the epoch of that number. A tainted one gets a roster that nobody else goes
// by.
const struct roster *program_pass_roster(struct pccl_sim *s, int slot, uint64_t number);
void program_connected(struct pccl_sim *s, int slot, const struct member_action *action);
// True: it has done what it has to before it leaves, and leaves now.
bool program_go_on(struct pccl_sim *s, int slot);
void program_vote_ended(struct pccl_sim *s, int slot, const struct member_action *action);

#endif
