// The door of an engine: a UNIX socket at which processes of this host say which links they hold.
//
// A peer tells the name of its door over the link; whoever holds the other end knocks there with a claim. The kernel
// says which process has knocked, and of which user it is, so that the engine never reads the memory of a process on
// another's mere word (docs/decisions/same-host-memory.md). The names are no secrets: anybody of this host may knock
// with anything.
#ifndef PCCL_DEVICE_DOOR_H
#define PCCL_DEVICE_DOOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/memory.h"

enum { DOOR_NAME_BYTES = 16, DOOR_CLAIM_BYTES = 16 * 1024 }; // at most

struct door;

struct door_claim {
    struct memory_process process; // of our user; who takes the claim closes it
    int shared;                    // a descriptor that came with it, or -1; whoever takes the claim closes it
    size_t length;
    uint8_t bytes[DOOR_CLAIM_BYTES];
};

// Opens a door whose sockets are added to `epoll` with `tag`. NULL when the system refuses.
struct door *door_open(int epoll, void *tag);
// NULL is allowed.
void door_close(struct door *door);
const uint8_t *door_name(const struct door *door);
// The next claim; to be called until there is none whenever `tag` has an event. Never blocks; claims of other users are
// dropped.
bool door_take(struct door *door, struct door_claim *out);
// Brings a claim to the door of this name, and a copy of the descriptor `shared` unless that is -1. Never blocks.
// False: it could not be brought.
bool door_knock(const uint8_t name[DOOR_NAME_BYTES], const void *claim, size_t length, int shared);

#endif
