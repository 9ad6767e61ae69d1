// The rendezvous of an engine: a UNIX socket at which processes of this host say which links they hold.
//
// A peer tells the name of its rendezvous over the link; whoever holds the other end knocks there with a claim. The kernel
// says which process has knocked, and of which user it is, so that the engine never reads the memory of a process on
// another's mere word (docs/decisions/same-host-memory.md). The names are no secrets: anybody of this host may knock
// with anything.
#ifndef PCCL_DEVICE_RENDEZVOUS_H
#define PCCL_DEVICE_RENDEZVOUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/memory.h"

enum { RENDEZVOUS_NAME_BYTES = 16, RENDEZVOUS_CLAIM_BYTES = 16 * 1024 }; // at most

struct rendezvous;

struct rendezvous_claim {
    struct memory_process process; // of our user; who takes the claim closes it
    int shared;                    // a descriptor that came with it, or -1; whoever takes the claim closes it
    size_t length;
    uint8_t bytes[RENDEZVOUS_CLAIM_BYTES];
};

// Opens a rendezvous whose sockets are added to `epoll` with `tag`. NULL when the system refuses.
struct rendezvous *rendezvous_open(int epoll, void *tag);
// NULL is allowed.
void rendezvous_close(struct rendezvous *rendezvous);
const uint8_t *rendezvous_name(const struct rendezvous *rendezvous);
// The next claim; to be called until there is none whenever `tag` has an event. Never blocks; claims of other users are
// dropped.
bool rendezvous_take(struct rendezvous *rendezvous, struct rendezvous_claim *out);
// Brings a claim to the rendezvous of this name, and a copy of the descriptor `shared` unless that is -1. Never blocks.
// False: it could not be brought.
bool rendezvous_send(const uint8_t name[RENDEZVOUS_NAME_BYTES], const void *claim, size_t length, int shared);

#endif
