// Statistics of the edges between the members of a group (topology/weights, topology/pairs).
#ifndef PCCL_TOPOLOGY_EDGE_H
#define PCCL_TOPOLOGY_EDGE_H

enum { WEIGHTS_MOST = 32 }; // members; more stay on the ring

// Statistics of the traffic from one member to another while ops ran.
struct weights_edge {
    double rate;          // bytes per second, on average
    double backlogged;    // 0 to 1: how often bytes waited to be sent
    double round_trip_us; // the shortest; 0: unknown
};

#endif
