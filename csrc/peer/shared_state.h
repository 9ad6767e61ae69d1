// Calls of sync_shared_state: hashing, voting and the end, on the caller's thread; what the master says meanwhile, on
// the control thread. The transfers are state/sync.
#ifndef PCCL_PEER_SHARED_STATE_H
#define PCCL_PEER_SHARED_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/communicator.h"
#include "state/sync.h"

struct shared_state *shared_state_new(void); // NULL: memory was refused
// When nobody else can hold the communicator, and its engine still is there: ends what is open. NULL is allowed.
void shared_state_free(struct communicator *c);

// Begins a round of shared state, whose arguments were checked: see ticket.h. The state and its tensors belong to the
// round until its end was told, or the communicator is freed. It is taken up by one of the same entries, tensors,
// flags, revision and strategy alone. On success the value is the revision of the round.
pcclResult_t shared_state_begin(struct communicator *c, const pcclSharedState_t *state, const bool *read_only,
                                int strategy, uint64_t *ticket);
// Whether a round can be taken up, also when the communicator is dead meanwhile.
bool shared_state_is_left(struct communicator *c);

// Report of the round under way, or of the last one.
struct shared_state_report {
    struct sync_report moved;
    uint64_t tx_bytes;
    double seconds;          // of the whole call
    double hash_seconds;     // of its own hash
    double transfer_seconds; // from the plan on
    bool hashing;
};
void shared_state_look(struct communicator *c, struct shared_state_report *out);

// ---- the control thread ----
void shared_state_planned(struct communicator *c, const struct wire_sync_plan *plan, int64_t now_ns);
// The master has ended the round: called before ticket_end.
void shared_state_ended(struct communicator *c, const struct wire_sync_end *end);
// The master is lost: the transfers of an open round end here, for the next plan may be another one. `tensors` tells
// what they hold then, and `content` is its hash if that is whole. False: memory was refused.
bool shared_state_restart(struct communicator *c, enum member_tensors *tensors, struct wire_hash *content);

#endif
