#include "data/sight.h"

#include <stdlib.h>

#include "base/platform.h"

bool sights_posted(struct sights *sights) { return !atomic_exchange(&sights->awake, true); }

void sights_ended(struct sights *sights, int64_t posted_ns, int64_t now_ns) {
    sights->ops++;
    if (posted_ns != 0 && now_ns > posted_ns) sights->op_us += (uint64_t)((now_ns - posted_ns) / US_NS);
    sights_moved(sights);
}

void sight_entered(struct sight *sight, int64_t begun_ns, int64_t heard_ns) {
    if (begun_ns == 0 || heard_ns == 0) return;
    sight->entries++;
    if (heard_ns > begun_ns)
        sight->late_ns += (uint64_t)(heard_ns - begun_ns);
    else
        sight->early_ns += (uint64_t)(begun_ns - heard_ns);
}

void sight_beat(struct sight *sight, uint64_t sent_us, bool loaded, int64_t now_ns) {
    int64_t travel_us = (int64_t)((uint64_t)(now_ns / US_NS) - sent_us);
    if (sent_us == 0) return;
    if (sight->least_at == 0 || now_ns - sight->least_at > SIGHT_BASE_MS * MS_NS) {
        sight->least_us[1] = sight->least_at == 0 ? travel_us : sight->least_us[0];
        sight->least_us[0] = travel_us;
        sight->least_at = now_ns;
    }
    if (travel_us < sight->least_us[0]) sight->least_us[0] = travel_us;
    if (!loaded) return;
    sight->travel_us[sight->beats++ % SIGHT_BEATS] = travel_us;
    if (now_ns - sight->latest_ns > SIGHT_LATEST_MS * MS_NS) sight->latest = 0;
    sight->latest_us[sight->latest++ % SIGHT_LATEST] = travel_us;
    sight->latest_ns = now_ns;
}

void sight_sent(struct sight *sight, uint64_t segments, uint64_t retransmits) {
    bool fewer = segments < sight->judged_segments || retransmits < sight->judged_retransmits; // a lane is gone
    uint64_t sent = segments - sight->judged_segments, again = retransmits - sight->judged_retransmits;
    if (!fewer && (sent < SIGHT_SENT_LEAST || sight->looks == SIGHT_LOOKS)) return;
    if (!fewer) sight->again[sight->looks++] = (double)again / (double)sent;
    sight->judged_segments = segments;
    sight->judged_retransmits = retransmits;
}

static int by_share(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

uint64_t sight_lost(struct sight *sight, uint64_t segments, uint64_t retransmits) {
    sight_sent(sight, segments, retransmits);
    uint32_t looks = sight->looks;
    sight->looks = 0;
    sight->judged_segments = sight->judged_retransmits = 0;
    if (looks == 0) return retransmits;
    qsort(sight->again, looks, sizeof *sight->again, by_share);
    double lost = sight->again[(looks - 1) / 2] * (double)segments;
    return lost < (double)retransmits ? (uint64_t)(lost + 0.5) : retransmits;
}

static int by_number(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

// The other side may say anything.
static uint64_t beyond_fastest(const struct sight *sight, int64_t travel_us) {
    int64_t least_us = platform_earlier(sight->least_us[0], sight->least_us[1]);
    return travel_us <= least_us ? 0 : (uint64_t)travel_us - (uint64_t)least_us;
}

uint64_t sight_queue_us(struct sight *sight) {
    size_t count = sight->beats < SIGHT_BEATS ? sight->beats : SIGHT_BEATS;
    sight->beats = 0;
    if (count == 0) return 0;
    qsort(sight->travel_us, count, sizeof *sight->travel_us, by_number);
    return beyond_fastest(sight, sight->travel_us[(count - 1) / 2]);
}

uint64_t sight_latest_queue_us(const struct sight *sight, int64_t now_ns) {
    if (sight->latest < SIGHT_LATEST || now_ns - sight->latest_ns > SIGHT_LATEST_MS * MS_NS) return 0;
    int64_t least_us = sight->latest_us[0];
    for (uint32_t i = 1; i < SIGHT_LATEST; i++) least_us = platform_earlier(least_us, sight->latest_us[i]);
    return beyond_fastest(sight, least_us);
}
