// Chooses which connection is dropped when too many have not said yet what they are for. Whoever comes from an address
// that has more than a quarter of them goes first, so that one host drops nobody else. Then go those that have shown
// least of who they are: whoever only opens connections, or repeats what others have said, drops no process that has
// keys. Of equals, the oldest from the address that has most of them. Pure.
#ifndef PCCL_NET_STRANGERS_H
#define PCCL_NET_STRANGERS_H

#include <stdbool.h>
#include <stdint.h>

#include "net/socket.h"

enum {
    STRANGERS_ADDRESSES = 256, // slots: addresses may share one
    STRANGERS_CROWD = 4,       // an address with more than one of so many is a crowd
    STRANGERS_TURN_US = 5000,  // of a turn of a thread that serves others, too; the rest waits for the next turn
};

enum strangers_shown { STRANGERS_NOTHING, STRANGERS_BYTES, STRANGERS_PROOF, STRANGERS_KINDS };

// How many connections there are, by what they have shown and the slot of their address. All 0 at first.
struct strangers {
    uint32_t counts[STRANGERS_KINDS][STRANGERS_ADDRESSES], of_slot[STRANGERS_ADDRESSES], all;
};

static inline uint8_t strangers_slot(const struct wire_address *address) {
    return (uint8_t)(socket_address_network(address) % STRANGERS_ADDRESSES);
}

// Returns what somebody has shown who has `proved` who he is, or of whom some `bytes` have come.
static inline enum strangers_shown strangers_shown(bool proved, bool bytes) {
    return proved ? STRANGERS_PROOF : bytes ? STRANGERS_BYTES : STRANGERS_NOTHING;
}

static inline void strangers_count(struct strangers *strangers, enum strangers_shown shown, uint8_t slot) {
    strangers->counts[shown][slot]++;
    strangers->of_slot[slot]++;
    strangers->all++;
}

// The one that is dropped first, of those that were compared. All 0 at first.
struct strangers_first {
    void *who;
    uint64_t rank;
    int64_t since_ns;
};

// All of them have been counted.
static inline void strangers_compare(struct strangers_first *first, const struct strangers *strangers,
                                     enum strangers_shown shown, uint8_t slot, int64_t since_ns, void *who) {
    bool crowd = strangers->of_slot[slot] > strangers->all / STRANGERS_CROWD;
    uint64_t rank = (uint64_t)crowd << 40 | (uint64_t)(STRANGERS_KINDS - shown) << 32 | strangers->counts[shown][slot];
    bool before = first->who == NULL || rank > first->rank || (rank == first->rank && since_ns < first->since_ns);
    if (before) *first = (struct strangers_first){who, rank, since_ns};
}

#endif
