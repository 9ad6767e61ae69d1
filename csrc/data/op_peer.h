// Another member as the engine knows it: its connections (link/neighbour), what the call table knows of it, and the
// memory that the two share.
#ifndef PCCL_DATA_OP_PEER_H
#define PCCL_DATA_OP_PEER_H

#include <stddef.h>

#include "net/rendezvous.h"
#include "link/connection.h"
#include "ops/members.h"

struct engine;

// The memory shared with a neighbour (data/slots), of the epoch in force; all 0: there is none. Lock held; the thread
// reads `other` without it.
struct slots {
    uint8_t *own;         // for chunks that go to the neighbour
    uint32_t free;        // slots of it, a bit each
    bool populated;       // it has pages
    bool mapped;          // the neighbour has mapped it
    const uint8_t *other; // chunks that come from the neighbour
    uint32_t to_return;   // slots of it, a bit each
};

struct op_peer {
    struct neighbour link;   // first
    struct op_member member; // rank UINT32_MAX: it is no member
    bool offered;            // in this epoch it has told the name of its
    uint8_t rendezvous[RENDEZVOUS_NAME_BYTES];
    struct slots slots;
    uint64_t eager_bytes; // algorithms/direct, algorithms/ring: sent before the peer posted the op
};

static inline struct op_peer *op_peer_of(const struct neighbour *peer) { return (struct op_peer *)(uintptr_t)peer; }
// NULL for NULL, which stands for the own place in a team.
static inline struct neighbour *neighbour_of(struct op_member *member) {
    return member == NULL ? NULL : (struct neighbour *)(void *)((char *)member - offsetof(struct op_peer, member));
}
// Returns true if large tensors pass to the neighbour through shared memory.
static inline bool neighbour_is_by_memory(const struct neighbour *peer) { return op_peer_of(peer)->slots.mapped; }
static inline struct engine *engine_of(const struct lane *lane) { return lane->all->context; }

#endif
