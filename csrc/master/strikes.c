#include "master/strikes.h"

#include <string.h>

enum {
    FREE_FAILURES = 1,   // of a host, before its newcomers wait
    FIRST_WAIT = 2,      // heartbeat limits since the last failure; twice as many with each further one
    DOUBLINGS = 5,       // at most
    FORGOTTEN_AFTER = 3, // times the wait
};

void strikes_init(struct strikes *strikes, int64_t limit_ns) { *strikes = (struct strikes){.limit_ns = limit_ns}; }

// An IPv6 host has a whole /64 to choose from.
static bool same_host(const struct wire_address *a, const struct wire_address *b) {
    return a->family == b->family && memcmp(a->bytes, b->bytes, a->family == 4 ? 4 : 8) == 0;
}

static int64_t wait_ns(const struct strikes *strikes, const struct strike *strike) {
    if (strike->failures <= FREE_FAILURES) return FIRST_WAIT * strikes->limit_ns;
    uint32_t doublings = strike->failures - FREE_FAILURES - 1;
    return FIRST_WAIT * strikes->limit_ns << (doublings < DOUBLINGS ? doublings : DOUBLINGS);
}

static struct strike *find(struct strikes *strikes, const struct wire_address *address, int64_t now_ns) {
    for (uint32_t i = 0; i < STRIKES_MAX; i++) {
        struct strike *strike = &strikes->hosts[i];
        if (strike->failures == 0 || !same_host(&strike->host, address)) continue;
        if (now_ns >= strike->at_ns + FORGOTTEN_AFTER * wait_ns(strikes, strike)) strike->failures = 0;
        return strike->failures > 0 ? strike : NULL;
    }
    return NULL;
}

void strikes_add(struct strikes *strikes, const struct wire_address *address, int64_t now_ns) {
    struct strike *strike = find(strikes, address, now_ns), *oldest = &strikes->hosts[0];
    for (uint32_t i = 0; i < STRIKES_MAX && strike == NULL; i++) {
        struct strike *other = &strikes->hosts[i];
        if (other->failures == 0) strike = other;
        if (other->at_ns < oldest->at_ns) oldest = other;
    }
    if (strike == NULL) {
        strike = oldest;
        strike->failures = 0;
    }
    strike->host = *address;
    strike->failures++;
    strike->at_ns = now_ns;
}

void strikes_forgive(struct strikes *strikes, const struct wire_address *address, int64_t now_ns) {
    struct strike *strike = find(strikes, address, now_ns);
    if (strike != NULL) strike->failures = 0;
}

int64_t strikes_until(struct strikes *strikes, const struct wire_address *address, int64_t now_ns) {
    const struct strike *strike = find(strikes, address, now_ns);
    return strike == NULL || strike->failures <= FREE_FAILURES ? 0 : strike->at_ns + wait_ns(strikes, strike);
}
