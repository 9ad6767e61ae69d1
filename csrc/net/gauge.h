// What the kernel knows of a connection.
#ifndef PCCL_NET_GAUGE_H
#define PCCL_NET_GAUGE_H

#include <stdbool.h>
#include <stdint.h>

// All 0 at the beginning.
struct gauge {
    uint64_t acked, busy_us; // so far
};

// Bytes per ns since the last look, counting the time in which the connection had something to do; 0: not enough of it,
// or unknown.
double gauge_rate(struct gauge *gauge, int fd);
// The shortest round trip of late in microseconds; 0: unknown. A process that is slow to answer does not make it
// longer.
uint32_t gauge_round_trip_us(int fd);
// Bytes that were handed to the kernel and are not acknowledged. False: unknown.
bool gauge_queued(int fd, uint64_t *out);

#endif
