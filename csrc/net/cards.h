// Network cards of this host, as a program names them: by interface (PCCL_INTERFACE) or by address (PCCL_ADDRESS).
//
// Connections are spread over them. A connection to another host leaves by its card, also where the routes of the
// system would choose another one (SO_BINDTODEVICE), and has the address of its card.
#ifndef PCCL_NET_CARDS_H
#define PCCL_NET_CARDS_H

#include <stdbool.h>

#include "net/socket.h"
#include "net/wire.h"

// Cards and addresses of a peer: where it listens, dials from, and is dialled. All 0: the system chooses, and the peer
// announces nothing.
struct cards {
    uint32_t count;
    struct card list[WIRE_MAX_ADDRESSES];
    // To be announced. A port of 0 stands for the one that the peer listens at.
    struct wire_reach reach;
};

enum { CARDS_WHY_BYTES = 320 };

// Reads PCCL_INTERFACE (`interfaces`: eth0,eth1) and PCCL_ADDRESS (`addresses`: 10.0.1.5,10.0.2.5, [fd00::5]:7000, or
// none). Either may be NULL or empty. Interfaces give cards; without them the addresses that this host has do.
// Announced are the addresses, or else those of the interfaces. False: `why` says what is wrong.
bool cards_read(struct cards *out, const char *interfaces, const char *addresses, char why[CARDS_WHY_BYTES]);

#endif
