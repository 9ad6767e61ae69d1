// Finds the neighbours that are processes of this host, and exchanges shared-memory slots with them (data/slots).
//
// Each member sends the others the name of its socket. A peer with the same address at both ends of the link claims
// there to hold the links of this pair, each named by its two addresses, and hands over its slots. So no process that
// does not know the links can pass for a peer, and none of another user.
#ifndef PCCL_DATA_SAME_HOST_H
#define PCCL_DATA_SAME_HOST_H

#include <stdbool.h>

struct engine;
struct lane;

void same_host_offer(struct engine *engine);       // all links are there
void same_host_offered(struct lane *lane);         // thread
void same_host_take_claims(struct engine *engine); // thread
// Returns whether the other end may be a process of this host.
bool same_host_may_come(const struct lane *lane);

// ---- for the engine ----
struct same_host;
// The rendezvous's events on `epoll` have what is returned as their tag. NULL: no memory.
struct same_host *same_host_new(int epoll);
void same_host_free(struct same_host *host); // NULL is allowed

#endif
