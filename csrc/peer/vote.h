// The votes of a communicator.
#ifndef PCCL_PEER_VOTE_H
#define PCCL_PEER_VOTE_H

#include "peer/ticket.h"

// Begins a vote other than that of a round of shared state: see ticket.h. Update and optimise adopt when they succeed.
pcclResult_t vote_begin(struct communicator *c, enum wire_vote_kind kind, uint64_t *ticket);
// Whether the open call is are_peers_pending, beside which ops may be launched.
bool vote_is_pending(const struct communicator *c);

#endif
