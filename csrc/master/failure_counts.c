#include "master/failure_counts.h"

#include <string.h>

enum {
    FREE_FAILURES = 1,   // of a host, before its newcomers wait
    FIRST_WAIT = 2,      // heartbeat limits since the last failure; twice as many with each further one
    DOUBLINGS = 5,       // at most
    FORGOTTEN_AFTER = 3, // times the wait
};

void failure_counts_init(struct failure_counts *failure_counts, int64_t limit_ns) {
    *failure_counts = (struct failure_counts){.limit_ns = limit_ns};
}

// An IPv6 host has a whole /64 to choose from.
static bool same_host(const struct wire_address *a, const struct wire_address *b) {
    return a->family == b->family && memcmp(a->bytes, b->bytes, a->family == 4 ? 4 : 8) == 0;
}

static int64_t wait_ns(const struct failure_counts *failure_counts, const struct failure_count *strike) {
    if (strike->failures <= FREE_FAILURES) return FIRST_WAIT * failure_counts->limit_ns;
    uint32_t doublings = strike->failures - FREE_FAILURES - 1;
    return FIRST_WAIT * failure_counts->limit_ns << (doublings < DOUBLINGS ? doublings : DOUBLINGS);
}

static struct failure_count *find(struct failure_counts *failure_counts, const struct wire_address *address,
                                  int64_t now_ns) {
    for (uint32_t i = 0; i < FAILURE_COUNTS_MAX; i++) {
        struct failure_count *strike = &failure_counts->hosts[i];
        if (strike->failures == 0 || !same_host(&strike->host, address)) continue;
        if (now_ns >= strike->at_ns + FORGOTTEN_AFTER * wait_ns(failure_counts, strike)) strike->failures = 0;
        return strike->failures > 0 ? strike : NULL;
    }
    return NULL;
}

void failure_counts_add(struct failure_counts *failure_counts, const struct wire_address *address, int64_t now_ns) {
    struct failure_count *strike = find(failure_counts, address, now_ns), *oldest = &failure_counts->hosts[0];
    for (uint32_t i = 0; i < FAILURE_COUNTS_MAX && strike == NULL; i++) {
        struct failure_count *other = &failure_counts->hosts[i];
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

void failure_counts_forgive(struct failure_counts *failure_counts, const struct wire_address *address, int64_t now_ns) {
    struct failure_count *strike = find(failure_counts, address, now_ns);
    if (strike != NULL) strike->failures = 0;
}

int64_t failure_counts_until(struct failure_counts *failure_counts, const struct wire_address *address,
                             int64_t now_ns) {
    const struct failure_count *strike = find(failure_counts, address, now_ns);
    return strike == NULL || strike->failures <= FREE_FAILURES ? 0 : strike->at_ns + wait_ns(failure_counts, strike);
}
