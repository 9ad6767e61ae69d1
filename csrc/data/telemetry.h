// Telemetry: how this member sees its ops and the other members (link/stats). The master is told about once a second
// while ops are called, for whoever asks why they are slow (docs/diagnosis.md), and a program when it asks.
#ifndef PCCL_DATA_TELEMETRY_H
#define PCCL_DATA_TELEMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "link/pace.h"
#include "net/wire_control.h"

struct engine;

// Does what is due. In how many milliseconds to step again at the latest: no later than in `timeout_ms`, -1: never.
// Nothing of an op waits for it. Thread.
int telemetry_step(struct engine *engine, int timeout_ms);

enum { LINK_CONGESTION_BYTES = 16 };

// All connections to another member together.
enum { LINK_PATHS = 16 }; // pairs of addresses that a report tells

// Connections between the same two addresses, without their ports.
struct link_path {
    struct wire_address local, remote;
    uint32_t connections;
};

struct link_report {
    struct wire_member member;
    uint32_t rank;  // by joining, in the group
    bool connected; // the direct link is there
    bool by_memory; // large tensors pass to it through shared memory
    bool far;       // PACE_FAR_US
    bool relayed;   // through a relay
    uint32_t path_count;
    struct link_path paths[LINK_PATHS];
    uint32_t lanes, in_use;                 // made beside the direct link; carry bulk, none if it passes by memory
    enum pace_reason reason;                // why so many carry bulk
    char congestion[LINK_CONGESTION_BYTES]; // control of congestion; "": unknown
    struct gauge sums;                      // round_trip_us: the shortest
    uint32_t smoothed_us;                   // the mean of those that carry bulk
    // acknowledged since the last report to the master, or in the last one in which ops ran
    double bytes_per_s;
    double limit_bytes_per_s; // of the lanes together (link/throttle); 0: none
};

// Reports on each other member of the own group in the latest epoch that the engine knows, in ring order. Writes up to
// `capacity` reports and returns how many there are. Any thread: takes the engine's lock for a moment for each member,
// and never while it asks the kernel.
size_t telemetry_report_links(struct engine *engine, struct link_report *out, size_t capacity);

#endif
