#include "link/stats.h"

#include <stdlib.h>

#include "base/platform.h"

void stats_entered(struct link_stats *stats, int64_t begun_ns, int64_t heard_ns) {
    if (begun_ns == 0 || heard_ns == 0) return;
    stats->entries++;
    if (heard_ns > begun_ns)
        stats->late_ns += (uint64_t)(heard_ns - begun_ns);
    else
        stats->early_ns += (uint64_t)(begun_ns - heard_ns);
}

void stats_beat(struct link_stats *stats, uint64_t sent_us, bool loaded, int64_t now_ns) {
    int64_t travel_us = (int64_t)((uint64_t)(now_ns / US_NS) - sent_us);
    if (sent_us == 0) return;
    if (stats->least_at == 0 || now_ns - stats->least_at > STATS_BASE_MS * MS_NS) {
        stats->least_us[1] = stats->least_at == 0 ? travel_us : stats->least_us[0];
        stats->least_us[0] = travel_us;
        stats->least_at = now_ns;
    }
    if (travel_us < stats->least_us[0]) stats->least_us[0] = travel_us;
    if (!loaded) return;
    stats->travel_us[stats->beats++ % STATS_BEATS] = travel_us;
    if (now_ns - stats->latest_ns > STATS_LATEST_MS * MS_NS) stats->latest = 0;
    stats->latest_us[stats->latest++ % STATS_LATEST] = travel_us;
    stats->latest_ns = now_ns;
}

void stats_sent(struct link_stats *stats, uint64_t segments, uint64_t retransmits) {
    bool fewer = segments < stats->judged_segments || retransmits < stats->judged_retransmits; // a lane is gone
    uint64_t sent = segments - stats->judged_segments, again = retransmits - stats->judged_retransmits;
    if (!fewer && (sent < STATS_SENT_LEAST || stats->looks == STATS_LOOKS)) return;
    if (!fewer) stats->again[stats->looks++] = (double)again / (double)sent;
    stats->judged_segments = segments;
    stats->judged_retransmits = retransmits;
}

static int by_share(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

uint64_t stats_lost(struct link_stats *stats, uint64_t segments, uint64_t retransmits) {
    stats_sent(stats, segments, retransmits);
    uint32_t looks = stats->looks;
    stats->looks = 0;
    stats->judged_segments = stats->judged_retransmits = 0;
    if (looks == 0) return retransmits;
    qsort(stats->again, looks, sizeof *stats->again, by_share);
    double lost = stats->again[(looks - 1) / 2] * (double)segments;
    return lost < (double)retransmits ? (uint64_t)(lost + 0.5) : retransmits;
}

static int by_number(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

// The other side may say anything.
static uint64_t beyond_fastest(const struct link_stats *stats, int64_t travel_us) {
    int64_t least_us = platform_earlier(stats->least_us[0], stats->least_us[1]);
    return travel_us <= least_us ? 0 : (uint64_t)travel_us - (uint64_t)least_us;
}

uint64_t stats_queue_us(struct link_stats *stats) {
    size_t count = stats->beats < STATS_BEATS ? stats->beats : STATS_BEATS;
    stats->beats = 0;
    if (count == 0) return 0;
    qsort(stats->travel_us, count, sizeof *stats->travel_us, by_number);
    return beyond_fastest(stats, stats->travel_us[(count - 1) / 2]);
}

uint64_t stats_latest_queue_us(const struct link_stats *stats, int64_t now_ns) {
    if (stats->latest < STATS_LATEST || now_ns - stats->latest_ns > STATS_LATEST_MS * MS_NS) return 0;
    int64_t least_us = stats->latest_us[0];
    for (uint32_t i = 1; i < STATS_LATEST; i++) least_us = platform_earlier(least_us, stats->latest_us[i]);
    return beyond_fastest(stats, least_us);
}
