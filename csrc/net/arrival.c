#include "net/arrival.h"

#include <stdlib.h>

#include "base/platform.h"

enum {
    SHORT_GAPS = 10,  // divisor of the limit: shorter gaps are inside a burst and do not count
    MEAN_OF = 8,      // divisor: weight of a gap in the mean
    DEVIATION_OF = 4, // divisor: weight of a gap in the mean deviation
    DEVIATIONS = 4,   // mean deviations above the mean
    ROUND_TRIPS = 8,  // round trips that a wait lasts, at least
};

void arrival_note(struct arrival *arrival, int64_t now_ns, int64_t limit_ns) {
    int64_t gap = now_ns - arrival->at_ns;
    if (gap < 0) return;
    if (arrival->at_ns != 0 && gap >= limit_ns / SHORT_GAPS) {
        arrival->deviation_ns += (llabs(gap - arrival->mean_ns) - arrival->deviation_ns) / DEVIATION_OF;
        arrival->mean_ns += (gap - arrival->mean_ns) / MEAN_OF;
    }
    arrival->at_ns = now_ns;
}

int64_t arrival_wait_ns(const struct arrival *arrival, int64_t limit_ns) {
    int64_t usual =
        platform_later(arrival->mean_ns + DEVIATIONS * arrival->deviation_ns, ROUND_TRIPS * arrival->round_trip_ns);
    int64_t most = ARRIVAL_STRETCH * limit_ns;
    return platform_later(limit_ns, platform_earlier(usual, most));
}

int64_t arrival_deadline_ns(const struct arrival *arrival, int64_t limit_ns) {
    return arrival->at_ns + arrival_wait_ns(arrival, limit_ns);
}
