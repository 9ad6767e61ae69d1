// Addresses whose newcomers have failed to make their links: the members waited for those in vain, so from the second
// time on they wait behind the others.
#include "master/membership_private.h"

#include <string.h>

enum {
    FREE_FAILURES = 1,   // of an address, before its newcomers wait
    FIRST_WAIT = 2,      // heartbeat limits since the last failure; twice as many with each further one
    DOUBLINGS = 5,       // at most
    FORGOTTEN_AFTER = 3, // times the wait
};

// An IPv6 host has a whole /64 to choose from.
static bool same_host(const struct wire_address *a, const struct wire_address *b) {
    return a->family == b->family && memcmp(a->bytes, b->bytes, a->family == 4 ? 4 : 8) == 0;
}

static int64_t wait_ns(const struct membership *m, const struct strike *strike) {
    if (strike->failures <= FREE_FAILURES) return FIRST_WAIT * m->limit_ns;
    uint32_t doublings = strike->failures - FREE_FAILURES - 1;
    return FIRST_WAIT * m->limit_ns << (doublings < DOUBLINGS ? doublings : DOUBLINGS);
}

static struct strike *strike_of(struct membership *m, const struct wire_address *address) {
    for (uint32_t i = 0; i < STRIKES_MAX; i++) {
        struct strike *strike = &m->strikes[i];
        if (strike->failures == 0 || !same_host(&strike->host, address)) continue;
        if (m->now_ns >= strike->at_ns + FORGOTTEN_AFTER * wait_ns(m, strike)) strike->failures = 0;
        return strike->failures > 0 ? strike : NULL;
    }
    return NULL;
}

void membership_strike(struct membership *m, const struct wire_address *address) {
    struct strike *strike = strike_of(m, address), *oldest = &m->strikes[0];
    for (uint32_t i = 0; i < STRIKES_MAX && strike == NULL; i++) {
        struct strike *other = &m->strikes[i];
        if (other->failures == 0) strike = other;
        if (other->at_ns < oldest->at_ns) oldest = other;
    }
    if (strike == NULL) {
        strike = oldest;
        strike->failures = 0;
    }
    strike->host = *address;
    strike->failures++;
    strike->at_ns = m->now_ns;
}

void membership_forgive(struct membership *m, const struct wire_address *address) {
    struct strike *strike = strike_of(m, address);
    if (strike != NULL) strike->failures = 0;
}

int64_t membership_waits_behind_until(struct membership *m, const struct wire_address *address) {
    const struct strike *strike = strike_of(m, address);
    return strike == NULL || strike->failures <= FREE_FAILURES ? 0 : strike->at_ns + wait_ns(m, strike);
}
