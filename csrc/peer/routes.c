#include "peer/routes.h"

#include <stddef.h>

#include "base/platform.h"
#include "net/socket.h"

// The card of place 0 is the system's choice where no card is named.
static uint32_t card_count(const struct routes *routes) { return routes->cards.count > 0 ? routes->cards.count : 1; }

static struct route route_of(const struct routes *routes, const struct wire_reach *reach, uint32_t pair) {
    uint32_t card = pair / WIRE_MAX_ADDRESSES;
    return (struct route){routes->cards.count > 0 ? &routes->cards.list[card] : NULL,
                          &reach->addresses[pair % WIRE_MAX_ADDRESSES]};
}

// Until when a pair comes last; 0: it does not.
static int64_t avoided_until(const struct routes *routes, const struct route *route, int64_t now_ns) {
    int64_t until = 0;
    for (uint32_t i = 0; i < ROUTES_AVOIDED; i++) {
        if (routes->avoided[i].until_ns <= now_ns) continue;
        bool from = route->card == NULL ? routes->avoided[i].from.family == 0
                                        : socket_address_same_host(&routes->avoided[i].from, &route->card->address);
        if (from && socket_address_same_host(&routes->avoided[i].to, route->to))
            until = platform_later(until, routes->avoided[i].until_ns);
    }
    return until;
}

// The pair at place k of those for a link: first the cards in the same places, from that of the link on; then all.
static uint32_t pair_at(uint32_t cards, uint32_t addresses, uint32_t index, uint32_t k) {
    uint32_t longer = cards > addresses ? cards : addresses;
    if (k < longer) {
        uint32_t place = (index + k) % longer;
        return place % cards * WIRE_MAX_ADDRESSES + place % addresses;
    }
    k -= longer;
    return k / addresses * WIRE_MAX_ADDRESSES + k % addresses;
}

bool routes_next(const struct routes *routes, const struct wire_reach *reach, uint32_t index, uint32_t *tried,
                 int64_t now_ns, struct route *out) {
    uint32_t cards = card_count(routes), addresses = reach->count;
    if (addresses == 0) return false;
    uint32_t places = cards * addresses + (cards > addresses ? cards : addresses);
    int64_t least = INT64_MAX;
    uint32_t best = 0;
    for (uint32_t k = 0; k < places; k++) {
        uint32_t pair = pair_at(cards, addresses, index, k);
        struct route route = route_of(routes, reach, pair);
        int64_t until = (*tried & 1U << pair) != 0 ? INT64_MAX : avoided_until(routes, &route, now_ns);
        if (until >= least) continue;
        least = until;
        best = pair;
        *out = route;
    }
    if (least == INT64_MAX) return false;
    *tried |= 1U << best;
    return true;
}

uint32_t routes_left(const struct routes *routes, const struct wire_reach *reach, uint32_t tried) {
    return card_count(routes) * reach->count - (uint32_t)__builtin_popcount(tried);
}

void routes_avoid(struct routes *routes, const struct wire_address *from, const struct wire_address *to,
                  int64_t now_ns) {
    uint32_t i = routes->next++ % ROUTES_AVOIDED;
    routes->avoided[i].from = from == NULL ? (struct wire_address){0} : *from;
    routes->avoided[i].to = *to;
    routes->avoided[i].until_ns = now_ns + ROUTES_AVOID_MS * MS_NS;
}
