// A master's socket for processes of its user on its host. The kernel tells of which user a process is, so no key is
// needed.
//
// Its name is that of the master's TCP port, in the abstract namespace of the network namespace. Anybody of the host
// may take that name first, so both sides check the other one's user.
#ifndef PCCL_NET_LOCAL_H
#define PCCL_NET_LOCAL_H

#include "net/wire.h"

// Returns a listening socket for the master at this TCP port, or -errno.
int local_listen(uint16_t port);
// Connects to the socket of the master at this address, at once. Returns the socket, or -errno: the address is not of
// this host, there is no such socket, or it is of another user.
int local_dial(const struct wire_address *master);

#endif
