// Decides which master a peer dials, and when: the list in its order, once for a new peer, repeatedly for a peer that
// has lost its master. Pure.
#ifndef PCCL_PEER_SEEK_H
#define PCCL_PEER_SEEK_H

#include <stdbool.h>
#include <stdint.h>

#include "net/wire.h"

enum {
    SEEK_FAST_MS = 15,       // between two rounds through the list,
    SEEK_FAST_FOR_MS = 2000, // for so long; most masters that come back do so at once
    SEEK_SLOW_MS = 100,
    SEEK_DIAL_MS = 1000, // for one that does not answer
    SEEK_TELL_MS = 10000,
};

struct seek {
    const struct wire_address *masters; // borrowed
    uint32_t count, at;
    bool again;          // after the last one the first
    int64_t began, next; // when the next one is dialled
    int64_t told;
};

// `again`: the master was lost. It is the one dialled first if it is the only one, else the first of the list.
void seek_begin(struct seek *seek, bool again, int64_t now_ns);
// The one to be dialled.
const struct wire_address *seek_master(const struct seek *seek);
// Notes that the master could not be reached, or left. Returns false if there is none left to try.
bool seek_failed(struct seek *seek, int64_t now_ns);
// From the first one on, at once: a better one may be there by now.
void seek_anew(struct seek *seek, int64_t now_ns);
// Returns true when another log line is due.
bool seek_tells(struct seek *seek, int64_t now_ns);

#endif
