// Reads the kernel's metrics of a TCP connection. No other module reads them.
#ifndef PCCL_NET_GAUGE_H
#define PCCL_NET_GAUGE_H

#include <stdbool.h>
#include <stdint.h>

// A sample of the metrics. A metric that the kernel does not have is 0.
struct gauge {
    bool tells_queue;        // `queued` is known
    uint64_t queued;         // bytes that were handed to the kernel and that the other side has not acknowledged
    uint64_t acked, busy_us; // bytes acknowledged so far, and the time in which there were some to send
    uint32_t round_trip_us;  // the shortest of late: a process that is slow to answer does not make it longer
    uint32_t smoothed_us;    // the round trip as it is now, queues on the way included
    uint32_t window;         // bytes that may be under way: the congestion window
    uint32_t retransmits;    // segments sent again so far
    uint32_t segments;       // with data, sent so far
    uint32_t waiting;        // bytes that were handed to the kernel and that it has not sent yet
    uint64_t window_us;      // of busy_us, in which the other side's receive window was full
    uint64_t buffer_us;      // of busy_us, in which the send buffer was full
};

struct gauge gauge_read(int fd);

#endif
