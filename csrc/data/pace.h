// How fast bytes go, how many may be under way, and in what pieces: what the data plane and shared state decide about
// their links by figures, they decide here. Pure: figures in (the kernel's of a link, net/gauge; those of the epoch;
// what has come), decisions out.
//
// Speeds are bytes per nanosecond, 0 is unknown.
#ifndef PCCL_DATA_PACE_H
#define PCCL_DATA_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/gauge.h"

enum {
    PACE_CHUNK_MAX = 256 * 1024, // bytes; send, scratch and result of one chunk fit an L2 cache of 1 MiB together
    // bytes of a chunk that the neighbour reads out of our memory; worked through in parts
    PACE_PLACED_MAX = 1024 * 1024,
    PACE_CHUNK_MIN = 128 * 1024, // bytes; a chunk costs two wake-ups at every member, whatever its size
    PACE_TURN_BYTES = 16 * 1024, // that a lane sends before the others have their turn, or one frame
    PACE_TICK_MS = 20,           // between two readings of one link
    PACE_FLOW_LEAST = 1 << 20,   // bytes on the way from one giver
    PACE_FLOW_MOST = 64 << 20,
};

// The mean after one more measurement of the same speed; an unknown one changes nothing.
double pace_mean(double mean, double newest);

// ---- one link, by what the kernel says ----
// All 0 at the beginning.
struct pace {
    struct gauge gauge; // as last read
    int64_t measured_ns;
    uint64_t acked, busy_us; // where the next measurement of its speed begins
    double speed;            // in the last tick, while it had something to send
};

// Whether the last measurement of its speed is a tick old.
bool pace_is_due(const struct pace *pace, int64_t now_ns);
// A reading; if it is due, a measurement too.
void pace_note(struct pace *pace, const struct gauge *gauge, int64_t now_ns);

// ---- one giver, by what comes ----
// Of what was asked for (leaves of shared state), however it comes. All 0 at the beginning.
struct pace_flow {
    int64_t delay_ns; // the shortest from a question to the first byte of its answer; 0: unknown
    double speed;     // mean
    int64_t since_ns; // the measurement at hand; 0: none
    uint64_t came;    // bytes since then
};

void pace_flow_begin(struct pace_flow *flow, int64_t now_ns); // something is asked for; may be under way already
void pace_flow_delayed(struct pace_flow *flow, int64_t delay_ns);
void pace_flow_came(struct pace_flow *flow, uint64_t bytes, int64_t now_ns);
// Nothing is asked for: idle time is no slowness.
void pace_flow_pause(struct pace_flow *flow);
// Bytes that may be on the way from this giver.
uint64_t pace_flow_window(const struct pace_flow *flow);

// ---- rings ----
// Bytes of own chunks that a member, one of two at least, keeps under way in the rings of all its ops together: no link
// is without work, and more would only wait in buffers and leave the caches (docs/decisions/what-limits-tcp.md). The
// figures are those of the epoch: what was measured of its slowest link.
uint64_t pace_window(uint32_t members, uint32_t latency_us, uint32_t megabytes_per_s);
// Elements per chunk of a shard with this many elements, of at most `max_bytes`; at least 1. A segment has others
// beside it to keep the ring busy, so it needs fewer.
uint64_t pace_chunk(uint64_t shard_elements, size_t element_bytes, size_t max_bytes, bool segment);

#endif
