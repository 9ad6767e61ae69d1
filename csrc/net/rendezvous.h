// UNIX sockets at which processes of one user on one host meet. The kernel tells of which user a process is, so no key
// is needed. Anybody of the host may take such a name first, or connect and send anything, so both sides check the
// other one's user.
#ifndef PCCL_NET_RENDEZVOUS_H
#define PCCL_NET_RENDEZVOUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire.h"

// ---- the sockets of a master ----
// Each is named after a TCP address of the master, since the same port of another address may be another master's. The
// names are in the abstract namespace of the network namespace.

// Returns a listening socket for the master at this TCP address, or -errno.
int rendezvous_listen_master(const struct wire_address *master);
// Connects to the socket of the master at this address, at once. Returns the socket, or -errno: the address is not of
// this host, there is no such socket, or it is of another user.
int rendezvous_dial_master(const struct wire_address *master);

// ---- the socket of an engine ----
// Processes of this host claim there the links that they hold. A peer sends the random name of its socket over the
// link. The process that holds the other end connects and sends a claim, with a descriptor of the shared memory that it
// writes to.

enum { RENDEZVOUS_NAME_BYTES = 16, RENDEZVOUS_CLAIM_BYTES = 16 * 1024 }; // at most

struct rendezvous;

struct rendezvous_claim {
    int shared; // a descriptor that came with it, or -1; whoever takes the claim closes it
    size_t length;
    uint8_t bytes[RENDEZVOUS_CLAIM_BYTES];
};

// Opens a socket and adds it and its connections to `epoll` with `tag`. Returns NULL if the system refuses.
struct rendezvous *rendezvous_open(int epoll, void *tag);
// NULL is allowed.
void rendezvous_close(struct rendezvous *rendezvous);
const uint8_t *rendezvous_name(const struct rendezvous *rendezvous);
// Ends a pause of the socket that is over: after a flood of connections of other users, or for want of descriptors, it
// takes no connection for a second. Returns when to call again; INT64_MAX: it listens.
int64_t rendezvous_tick(struct rendezvous *rendezvous);
// Takes the next claim. Call it until it returns false whenever `tag` has an event. Never blocks. Drops claims of other
// users.
bool rendezvous_take(struct rendezvous *rendezvous, struct rendezvous_claim *out);
// Sends a claim to the socket of this name, with a copy of the descriptor `shared` unless that is -1. Never blocks.
// Returns 0, or -errno if it cannot be sent; -EAGAIN: too many connections wait there.
int rendezvous_send(const uint8_t name[RENDEZVOUS_NAME_BYTES], const void *claim, size_t length, int shared);

#endif
