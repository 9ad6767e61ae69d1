// Rounds of shared state, one at a time in each group and independent of all other groups: votes, the election, the
// watch over the transfer, the commit. No member can be added during a round, since an update needs the votes of all;
// so a round only ever loses members, and each loss is judged by what is left: who still has to receive, and who can
// give.
#ifndef PCCL_MASTER_ROUNDS_H
#define PCCL_MASTER_ROUNDS_H

#include "master/membership.h"
#include "master/election.h"

enum rounds_phase {
    ROUNDS_VOTING,
    ROUNDS_ELECTED, // those that the election expelled have to be gone before the others hear of it
    ROUNDS_MOVING,  // the plan was sent
};

// How a round ended.
struct rounds_end {
    uint64_t round, revision;
    uint8_t code;
};

struct rounds_group {
    bool committed;         // `expected` is set
    uint64_t expected;      // E
    struct rounds_end last; // the round that ended last
    // the round at hand
    enum rounds_phase phase;
    bool ahead;      // a vote was ahead of E
    uint64_t number; // from ELECTED on
    struct election_result result;
    struct peer_label failed; // a receiver could not get its state: who; "" otherwise
};

struct rounds {
    bool due;                                     // a vote, a SYNC_DONE or a loss may let a round go on
    uint64_t number;                              // of the last one
    struct rounds_group groups[WIRE_MAX_MEMBERS]; // by the group's slot; all 0: its first round is to come
    // From here on nothing is read before it is written.
    struct wire_sync_vote votes[WIRE_MAX_MEMBERS]; // by the peer's slot, while its vote is open
    struct election_voter voters[WIRE_MAX_MEMBERS];
};

void rounds_init(struct rounds *rounds);
void rounds_vote(struct rounds *rounds, struct membership *table, struct peer_record *peer,
                 const struct wire_sync_vote *vote);
void rounds_done(struct rounds *rounds, struct membership *table, struct peer_record *peer,
                 const struct wire_sync_done *done);
// Once nobody is gone.
void rounds_advance(struct rounds *rounds, struct membership *table);

// A run is taken up: what a member knows of its group, and the end of its round if that has ended without it.
void rounds_recall(struct rounds *rounds, const struct membership *table, struct peer_record *peer,
                   const struct wire_resume *resume);
bool rounds_missed(struct rounds *rounds, const struct membership *table, struct peer_record *peer,
                   const struct wire_resume *resume, struct wire_sync_end *out);

#endif
