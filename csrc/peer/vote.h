// The votes of a communicator. One is open at a time, that of a round of shared state (peer/sync) included. It is begun
// once, and waited for as often as it takes: a wait that is cut short leaves it open, and whoever asks for the same
// vote next waits on.
#ifndef PCCL_PEER_VOTE_H
#define PCCL_PEER_VOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/communicator.h"

// Guarded by the communicator's lock.
struct vote {
    uint8_t kind; // enum wire_vote_kind, 0 = none is open
    bool waited;  // a call is inside
    bool done;    // answered, with what follows
    int code;
    uint64_t value;
    struct member_view view;
};

struct vote *vote_new(void); // NULL: memory was refused

// Votes, or waits on for this vote; `deadline_ns` is monotonic, INT64_MAX = for ever. pcclTimedOut: it goes on. `value`
// (may be NULL) is the answer of WIRE_VOTE_PENDING. Update and optimise adopt when they succeed.
pcclResult_t vote_call(struct communicator *c, enum wire_vote_kind kind, int64_t deadline_ns, bool *value);

// ---- lock held ----
// That none is open: or pcclInvalidUsage.
pcclResult_t vote_check_none(const struct communicator *c);
// Whether a vote of this kind is open, and no call waits for it.
bool vote_is_left(const struct communicator *c, enum wire_vote_kind kind);
// Opens one, of a call that is inside.
void vote_open(struct communicator *c, enum wire_vote_kind kind);
// Ends the one that is open, if any.
void vote_end(struct communicator *c, int code, uint64_t value, const struct member_view *view);

#endif
