// The rate of a stream of bytes that comes in, as samples of it tell. Pure.
#ifndef PCCL_PEER_MEASUREMENT_H
#define PCCL_PEER_MEASUREMENT_H

#include <stdint.h>

enum { MEASUREMENT_SAMPLES = 256 };

// When how many bytes had come. All 0 at first.
struct measurement {
    uint64_t bytes;
    int64_t last;
    uint32_t count;
    struct sample {
        int64_t at;
        uint64_t bytes;
    } samples[MEASUREMENT_SAMPLES];
};

void measurement_add(struct measurement *m, uint64_t bytes, int64_t now_ns);
// Bytes/s in the later two thirds: the start of a connection tells of its window and of token buckets, not of the link.
uint64_t measurement_rate(const struct measurement *m);

#endif
