// The life of a communicator: making it with all its parts, connecting it, destroying it.
#ifndef PCCL_PEER_CONNECT_H
#define PCCL_PEER_CONNECT_H

#include "peer/communicator.h"

// No network, no thread. NULL when the system refuses.
struct communicator *connect_new(const struct communicator_params *params);
// Begins to connect: see ticket.h. Success: accepted and adopted. After an error of the master it may be begun again,
// as a new peer.
pcclResult_t connect_begin(struct communicator *c, uint64_t *ticket);
// Leaves the run, ends all ops and both threads, and makes every call in other threads return: with an error, but for
// awaits of ops that had ended. Ops may be awaited afterwards, which does not wait for others. Bounded.
void connect_stop(struct communicator *c);
// Stops, and frees: by the thread that stops it. Bounded. NULL is allowed.
void connect_free(struct communicator *c);

#endif
