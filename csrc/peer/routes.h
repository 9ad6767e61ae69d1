// Chooses the card of this host and the address of another peer for each dial. Pure.
//
// Links are spread: link i takes the i-th pair of cards, in the order in which both sides list them, so cards that are
// listed in the same places belong together. Where a dial fails, the pairs that are left follow. A pair that has
// failed, or on which links were silent, comes last for a while; of several such ones the one that failed last.
#ifndef PCCL_PEER_ROUTES_H
#define PCCL_PEER_ROUTES_H

#include <stdbool.h>
#include <stdint.h>

#include "net/cards.h"

enum {
    ROUTES_AVOID_MS = 30000, // for so long a pair that has failed comes last
    ROUTES_AVOIDED = 64,     // pairs that are remembered
};

struct routes {
    struct cards cards;
    uint32_t next; // of `avoided`, to be overwritten
    struct {
        struct wire_address from, to; // family 0 of `from`: the system chooses
        int64_t until_ns;
    } avoided[ROUTES_AVOIDED];
};

struct route {
    const struct card *card; // NULL: the system chooses
    const struct wire_address *to;
};

// Chooses the pair for a link. `tried` has a bit for each pair that has failed for it, and gets that of the one chosen.
// False: none is left.
bool routes_next(const struct routes *routes, const struct wire_reach *reach, uint32_t index, uint32_t *tried,
                 int64_t now_ns, struct route *out);
// How many pairs are left to try.
uint32_t routes_left(const struct routes *routes, const struct wire_reach *reach, uint32_t tried);
// A dial by this pair failed, or links by it were silent. The port of `to` does not count.
void routes_avoid(struct routes *routes, const struct wire_address *from, const struct wire_address *to,
                  int64_t now_ns);

#endif
