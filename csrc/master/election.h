// The election of one round of shared state: who wins, who receives, who gives, who is expelled. Pure; the numbers are
// those of the rules in docs/protocol.md, section "Shared state". The outcome does not depend on the order of the
// voters.
#ifndef PCCL_MASTER_ELECTION_H
#define PCCL_MASTER_ELECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "net/wire_control.h"

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

    // written by election_hold
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
bool election_is_ahead(const struct election_group *group, uint64_t revision);
// Rules 2 to 8. Writes the fate of every voter.
void election_hold(const struct election_group *group, struct election_voter *voters, uint32_t count,
                   struct election_result *out);
// Rule 9: the revision that is expected after a commit at `revision`.
uint64_t election_expect(uint64_t revision);
// Is this fate an expulsion?
bool election_expels(enum election_fate fate);

#endif
