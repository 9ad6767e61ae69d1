// The life of a communicator: making it with all its parts, connecting it, destroying it.
#ifndef PCCL_PEER_CONNECT_H
#define PCCL_PEER_CONNECT_H

#include "peer/communicator.h"

// No network, no thread. NULL when the system refuses.
struct communicator *connect_new(const struct communicator_params *params);
// Begins to connect: see ticket.h. Success: accepted and adopted. After an error of the master it may be begun again,
// as a new peer.
pcclResult_t connect_begin(struct communicator *c, uint64_t *ticket);
// Leaves the run, makes every call in other threads return an error, and frees. Bounded. NULL is allowed.
void connect_free(struct communicator *c);

#endif
