// How fast a connection is, by the bytes that have come on it. Pure.
#ifndef PCCL_PEER_MEASUREMENT_H
#define PCCL_PEER_MEASUREMENT_H

#include <stdint.h>

enum { MEASUREMENT_SAMPLES = 256 };

// All zero at the beginning.
struct measurement {
    uint64_t bytes;
    int64_t last;
    uint32_t count;
    struct sample {
        int64_t at;
        uint64_t bytes;
    } samples[MEASUREMENT_SAMPLES];
};

// Notes that `bytes` more have come.
void measurement_note(struct measurement *m, uint64_t bytes, int64_t now_ns);
// Returns the rate in bytes per second; 0: nothing has come.
uint64_t measurement_rate(const struct measurement *m);

#endif
