// Open votes: how many members have cast each, and the end of a vote of all members. Votes on shared state are counted
// here too, and end group by group (master/rounds).
#ifndef PCCL_MASTER_VOTES_H
#define PCCL_MASTER_VOTES_H

#include "master/desk.h"

// What calls return to programs, as in pccl.h.
enum {
    VOTES_SUCCESS = 0,
    VOTES_NO_STATE = 9,
    VOTES_OPTIMIZATION_FAILED = 12,
};

struct votes {
    uint32_t open[WIRE_VOTE_SYNC + 1]; // by wire_vote_kind
    uint64_t barrier;                  // how many votes of all have ended
    bool opened;                       // somebody has begun to wait; the mind clears it
};

void votes_open(struct votes *votes, struct desk *desk, struct desk_peer *peer, uint8_t kind);
// Of this peer, if there is one.
void votes_close(struct votes *votes, struct desk_peer *peer);
bool votes_all(const struct votes *votes, const struct desk *desk, uint8_t kind); // every member has cast it
// The vote of all is over: an epoch or an OUTCOME says how.
void votes_end(struct votes *votes, struct desk *desk, uint8_t kind);
void votes_outcome(struct votes *votes, struct desk *desk, uint8_t kind, uint8_t code, uint64_t value);

#endif
