// Collects what this member measures of each other member, until it reports to the master
// (data/telemetry). Pure.
//
// No clocks are compared but through differences. When another member begins an op, relative to this one, is the time
// from the own beginning to the first sign of that member for the same op. How long a heartbeat was on its way is
// compared with the fastest of late between the same two, whatever their clocks say.
//
// Where packets are lost on the way, some are sent again all the time; where a queue overflows, many at once, and then
// none for as long as it takes to fill. So what is sent again in no more than half of the looks is not lost on the way.
#ifndef PCCL_LINK_STATS_H
#define PCCL_LINK_STATS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    STATS_BEATS = 64,       // heartbeats of late, by which the delay of a link is judged
    STATS_LATEST = 3,       // of them, by which the queue of now is judged
    STATS_LATEST_MS = 1000, // the last of those is no older
    STATS_LOOKS = 16,       // shares of segments sent again in a report
    STATS_SENT_LEAST = 300, // segments, for such a share; looks at fewer are taken together
    STATS_BASE_MS = 120000, // the fastest heartbeat of so long ago, at least, is what others are compared with
};

// Statistics of a neighbour. All 0 at the beginning.
struct link_stats {
    // lock
    uint64_t entries, late_ns, early_ns;
    uint32_t awaited;   // in a report that is being made
    double bytes_per_s; // that it has acknowledged in the last report
    // thread
    uint64_t samples, backlogged, delay_us;
    bool sampled, backlogs; // in the look at hand
    uint32_t round_trip_us;
    uint64_t segments, retransmits;               // since the last report, as the look at hand finds them
    uint64_t judged_segments, judged_retransmits; // of those, what the shares are of
    double again[STATS_LOOKS];                    // the shares
    uint32_t looks;                               // how many
    uint32_t beats;                               // since the last report
    int64_t travel_us[STATS_BEATS], least_us[2], least_at;
    int64_t latest_us[STATS_LATEST], latest_ns; // whatever was reported; when the last one came
    uint32_t latest;
};

// The first sign of this neighbour came for an op that was begun here at `begun_ns`.
void stats_entered(struct link_stats *stats, int64_t begun_ns, int64_t heard_ns);
// A heartbeat came, which was sent at that time of the sender's clock, 0: it says nothing; `loaded`: while a large op
// ran there. Thread.
void stats_beat(struct link_stats *stats, uint64_t sent_us, bool loaded, int64_t now_ns);
// Adds the segments sent since the last report, and how many of them were retransmitted. Thread.
void stats_sent(struct link_stats *stats, uint64_t segments, uint64_t retransmits);
// How many of them were lost on the way: the middle one of the shares of the looks. Begins anew. Thread.
uint64_t stats_lost(struct link_stats *stats, uint64_t segments, uint64_t retransmits);
// By how much the heartbeats since the last report were slower than the fastest: the median. Begins anew. Thread.
uint64_t stats_queue_us(struct link_stats *stats);
// By how much the fastest of the last few was slower than the fastest of all: a busy thread, or a loss, can only make
// them slower. 0 where there are too few. Thread.
uint64_t stats_latest_queue_us(const struct link_stats *stats, int64_t now_ns);

#endif
