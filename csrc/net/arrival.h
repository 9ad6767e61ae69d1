// How long silence of one connection means nothing yet. Pure.
//
// Both sides say a heartbeat five times in a limit, so on a calm connection the limit is the limit. Where arrivals are
// far apart again and again, or a round trip takes long, a slow process or line is not taken for a dead one: the wait
// is the mean gap and four mean deviations (as RFC 6298 has it for round trips), or a multiple of the round trip, if
// that is longer than the limit. It never grows beyond ARRIVAL_STRETCH limits, and a single gap does not stretch it.
#ifndef PCCL_NET_ARRIVAL_H
#define PCCL_NET_ARRIVAL_H

#include <stdint.h>

enum { ARRIVAL_STRETCH = 3 };

struct arrival {
    int64_t at_ns;                 // the last one
    int64_t mean_ns, deviation_ns; // of the gaps that are not short
    int64_t round_trip_ns;         // as measured; 0: unknown
};

void arrival_note(struct arrival *arrival, int64_t now_ns, int64_t limit_ns);
// The wait, from `limit_ns` to ARRIVAL_STRETCH of them.
int64_t arrival_wait_ns(const struct arrival *arrival, int64_t limit_ns);
// When what was heard last is too long ago.
int64_t arrival_deadline_ns(const struct arrival *arrival, int64_t limit_ns);

#endif
