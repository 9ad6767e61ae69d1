// The rendezvous socket of an engine: a UNIX socket at which processes of this host claim the links that they hold.
//
// A peer sends the name of its socket over the link. The process that holds the other end connects and sends a claim,
// with a descriptor of the shared memory that it writes to. The kernel tells which user owns that process, and others
// than our own are turned away. The names are no secrets: any process of this host may connect and send anything.
#ifndef PCCL_DEVICE_RENDEZVOUS_H
#define PCCL_DEVICE_RENDEZVOUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
// Takes the next claim. Call it until it returns false whenever `tag` has an event. Never blocks. Drops claims of other
// users.
bool rendezvous_take(struct rendezvous *rendezvous, struct rendezvous_claim *out);
// Sends a claim to the socket of this name, with a copy of the descriptor `shared` unless that is -1. Never blocks.
// Returns false if it cannot be sent.
bool rendezvous_send(const uint8_t name[RENDEZVOUS_NAME_BYTES], const void *claim, size_t length, int shared);

#endif
