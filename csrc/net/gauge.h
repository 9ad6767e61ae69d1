// What the kernel says of a TCP connection. Nobody else asks it.
#ifndef PCCL_NET_GAUGE_H
#define PCCL_NET_GAUGE_H

#include <stdbool.h>
#include <stdint.h>

// One reading. What the kernel does not tell is 0, and so are those that older ones do not know.
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
