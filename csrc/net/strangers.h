// Choice of the connection that is dropped when too many have not said yet what they are for: among those that have
// shown least of who they are, the oldest from the address that has most of them. So silent connections never drop one
// whose handshake is under way, and those without keys never drop one that has proved who it is. Pure.
#ifndef PCCL_NET_STRANGERS_H
#define PCCL_NET_STRANGERS_H

#include <stdbool.h>
#include <stdint.h>

#include "net/socket.h"
#include "net/transport.h"

enum { STRANGERS_ADDRESSES = 256 }; // slots: addresses may share one

enum strangers_shown { STRANGERS_NOTHING, STRANGERS_BYTES, STRANGERS_PROOF, STRANGERS_KINDS };

// How many connections have shown as much, by the slot of their address. All 0 at first.
struct strangers {
    uint32_t counts[STRANGERS_KINDS][STRANGERS_ADDRESSES];
};

static inline uint8_t strangers_slot(const struct wire_address *address) {
    return (uint8_t)(socket_address_network(address) % STRANGERS_ADDRESSES);
}

// Returns what an accepted stream has shown; `bytes`: some have come.
static inline enum strangers_shown strangers_shown(const struct transport *stream, bool bytes) {
    if (stream->peer.party != TRANSPORT_STRANGER) return STRANGERS_PROOF;
    return bytes ? STRANGERS_BYTES : STRANGERS_NOTHING;
}

// Returns which of them are dropped first: those with the highest rank. All of them have been counted.
static inline uint64_t strangers_rank(const struct strangers *strangers, enum strangers_shown shown, uint8_t slot) {
    return (uint64_t)(STRANGERS_KINDS - shown) << 32 | strangers->counts[shown][slot];
}

#endif
