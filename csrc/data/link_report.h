// Reports of links for a program (data/telemetry), as the Python package reads them.
//
// This file is read by the generator of the extension: plain declarations only.
#ifndef PCCL_DATA_LINK_REPORT_H
#define PCCL_DATA_LINK_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "pccl.h"

enum {
    LINK_PATHS = 16, // pairs of addresses that a report has
    LINK_CONGESTION_BYTES = 16,
};

// All connections of a communicator to one other member of its group together. Bytes, segments and times are sums over
// the connections there are, since each was made.
struct link_path {
    char local[64], remote[64]; // addresses of the two ends; port 0
    uint32_t connections;
};

struct link_report {
    pcclRankUuid_t uuid;
    char name[64];
    char address[64]; // where other members reach it
    uint32_t rank;    // in the group
    bool connected;   // false: the connection is being made again
    bool by_memory;   // a process of this host, which shares memory with this one: little goes by connections
    bool far;         // the number of lanes in use is tuned
    bool relayed;     // through a relay, whose address `paths` have
    uint32_t path_count;
    struct link_path paths[LINK_PATHS];
    uint32_t lanes;                                 // made beside the direct connection
    uint32_t lanes_in_use;                          // of these, those that carry large tensors; with `by_memory` none
    char congestion_control[LINK_CONGESTION_BYTES]; // "": unknown
    double shortest_round_trip_s;                   // the shortest round trip of late; 0: unknown
    double round_trip_s;                            // the round trip now, the mean of the connections in use; likewise
    double bytes_per_second;                        // sent and acknowledged in the last second of ops
    double acked_bytes;
    double segments, retransmits;
    double busy_s;                 // with bytes to send or under way
    double window_limited_s;       // of these, while the receive window was full
    double buffer_limited_s;       // of these, while the send buffer was full
    double limit_bytes_per_second; // that the lanes together may send at most; 0: as fast as they can
    char reason[160];              // why so many lanes are in use
};

#endif
