// Calls of sync_shared_state: hashing, voting and the end, on the caller's thread; what the master says meanwhile, on
// the control thread. The transfers are state/sync.
#ifndef PCCL_PEER_SHARE_H
#define PCCL_PEER_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/communicator.h"
#include "state/sync.h"

struct share *share_new(void); // NULL: memory was refused
// When nobody else can hold the communicator, and its engine still is there: ends what is open. NULL is allowed.
void share_free(struct communicator *c);

// Begins a round of shared state, whose arguments were checked: see ticket.h. The state and its tensors belong to the
// round until its end was told, or the communicator is freed. It is taken up by one of the same entries, tensors,
// flags, revision and strategy alone. On success the value is the revision of the round.
pcclResult_t share_begin(struct communicator *c, const pcclSharedState_t *state, const bool *read_only, int strategy,
                         uint64_t *ticket);
// Whether a round can be taken up, also when the communicator is dead meanwhile.
bool share_is_left(struct communicator *c);

// Report of the round under way, or of the last one.
struct share_report {
    struct sync_report moved;
    uint64_t tx_bytes;
    double seconds;          // of the whole call
    double hash_seconds;     // of its own hash
    double transfer_seconds; // from the plan on
    bool hashing;
};
void share_look(struct communicator *c, struct share_report *out);

// ---- the control thread ----
void share_planned(struct communicator *c, const struct wire_sync_plan *plan, int64_t now_ns);
// The master has ended the round: called before ticket_end.
void share_ended(struct communicator *c, const struct wire_sync_end *end);
// The master is lost: the transfers of an open round end here, for the next plan may be another one. `tensors` tells
// what they hold then, and `content` is its hash if that is whole. False: memory was refused.
bool share_restart(struct communicator *c, enum member_tensors *tensors, struct wire_hash *content);

#endif
