// The beginning of a stream that leads through a relay (`pccl relay`). Both ends dial it, and it joins the two that
// name the same link. From then on it copies bytes, and knows nothing of them: the ends shake hands through it.
//
//     relay:  "pccl relay 1 " NONCE "\n"              32 hexadecimal digits
//     peer:   SELF " " OTHER " " INDEX " " PROOF "\n"   ids of 32 digits, 8, 64
//     relay:  "+"                                      the other end is here
//
// PROOF is SHA-256 of the same words with the nonce before them and a key behind them, which is the SHA-256 of
// "pccl relay key" and the first secret of the run; 0 without keys. docs/addresses.md says who may use a relay.
#ifndef PCCL_NET_RELAY_H
#define PCCL_NET_RELAY_H

#include <stdbool.h>
#include <stdint.h>

#include "net/wire.h"

enum { RELAY_GREETING_BYTES = 46, RELAY_HELLO_BYTES = 140, RELAY_TEXT = 160 };

struct keys;

struct relay_hello {
    struct wire_id self, other;
    uint32_t index;
    enum relay_state { RELAY_CONNECTS, RELAY_GREETS, RELAY_WAITS, RELAY_JOINED } state;
    const struct keys *keys; // borrowed; NULL: none
    uint8_t received;        // of the greeting
    char greeting[RELAY_GREETING_BYTES];
};

// Makes the next step on a connection to a relay. 0: the other end is here. -EAGAIN: `awaits` (EPOLLIN or EPOLLOUT) is
// set. Else -errno.
int relay_step(struct relay_hello *hello, int fd, uint32_t *awaits);

#endif
