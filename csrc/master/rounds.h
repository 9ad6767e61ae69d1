// Rounds of shared state, one at a time in each group and independent of all other groups: votes, the election, the
// watch over the transfer, the commit. No member can be added during a round, since an update needs the votes of all;
// so a round only ever loses members, and each loss is judged by what is left: who still has to receive, and who can
// give.
#ifndef PCCL_MASTER_ROUNDS_H
#define PCCL_MASTER_ROUNDS_H

#include "master/membership.h"

// ---- the election: who wins, who receives, who gives, who is expelled ----
//
// The numbers are those of the rules in docs/protocol.md, section "Shared state". The outcome does not depend on the
// order of the voters.

enum election_state {
    ELECTION_NEW,       // the group has not committed yet: no revision is expected
    ELECTION_EXPECTING, // `expected` is
    ELECTION_LOST,      // the group has committed, but no present member took part in a commit
};

struct election_group {
    enum election_state state;
    uint64_t expected; // E; EXPECTING and LOST
    bool ahead;        // rule 1 has expelled somebody in this round
};

enum election_fate {
    ELECTION_KEEPS,    // its content is the winner's; its revision becomes that of the round
    ELECTION_RECEIVES, // its content differs
    ELECTION_STRATEGY, // expelled: not ENFORCE_POPULAR beside one that is (2)
    ELECTION_MASK,     // expelled: other entries than the winner (5)
    ELECTION_BEHIND,   // expelled: SEND_ONLY at another revision (7)
    ELECTION_MINORITY, // expelled: SEND_ONLY with other content (7)
};

struct election_voter {
    uint64_t join_number; // unique among the voters
    struct wire_sync_vote vote;
    bool committed; // took part in the last commit of the group

    // written by rounds_elect
    enum election_fate fate;
    bool donor; // holds the winner and may send
};

struct election_result {
    bool elected; // false: no candidate; nobody is expelled, nobody receives, and the rest is not written
    bool repeat;  // of the last commit
    uint64_t revision;
    struct wire_hash mask, content;
};

// Rule 1, for the moment at which a vote comes in: such a voter is expelled at once and takes no part in the election.
bool rounds_is_ahead(const struct election_group *group, uint64_t revision);
// Rules 2 to 8. Writes the fate of every voter.
void rounds_elect(const struct election_group *group, struct election_voter *voters, uint32_t count,
                  struct election_result *out);
// Rule 9: the revision that is expected after a commit at `revision`.
uint64_t rounds_expect(uint64_t revision);
// Is this fate an expulsion?
bool rounds_expels(enum election_fate fate);

// ---- rounds ----

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

static inline void rounds_init(struct rounds *rounds) { memset(rounds, 0, offsetof(struct rounds, votes)); }
void rounds_vote(struct rounds *rounds, struct membership *table, struct peer_record *peer,
                 const struct wire_sync_vote *vote);
void rounds_done(struct rounds *rounds, struct membership *table, struct peer_record *peer,
                 const struct wire_sync_done *done);
// Once nobody is gone.
void rounds_advance(struct rounds *rounds, struct membership *table);

// A run is taken up: the state that a member says it has; the end of its group's last round as `resume` tells it, but
// for the code; and whether that round ended without the member, and how.
void rounds_recall(struct peer_record *peer, const struct wire_resume *resume);
void rounds_recall_end(struct rounds *rounds, const struct membership *table, const struct peer_group *group,
                       const struct wire_resume *resume, uint8_t code);
bool rounds_missed(struct rounds *rounds, const struct membership *table, struct peer_record *peer,
                   const struct wire_resume *resume, struct wire_sync_end *out);

#endif
