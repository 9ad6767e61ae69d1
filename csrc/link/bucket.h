// Token bucket: the rate at which all connections to one far neighbour send together. Pure.
//
// The kernel can pace each connection by itself, but then a timer of its own sends every two segments. Over 1 Gbit/s
// these timers cost more of the processor than all else (docs/decisions/far-links.md). The bucket costs one wake-up per
// millisecond.
#ifndef PCCL_LINK_BUCKET_H
#define PCCL_LINK_BUCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BUCKET_TICK_MS = 1 }; // between two looks at a bucket that somebody waits for

// All 0 at the beginning.
struct bucket {
    double rate; // bytes per nanosecond; 0: no limit
    double room; // bytes that may be sent now; below 0 after a frame that was larger
    int64_t filled_ns;
    bool waits;       // a sender found it empty
    int64_t empty_ns; // when that was last
};

// Fills the bucket for the time that has passed, and returns whether anything may be sent. Notes in `waits` if not.
bool bucket_has_room(struct bucket *bucket, int64_t now_ns);
// Takes bytes that are about to be sent out of the bucket.
void bucket_take(struct bucket *bucket, size_t bytes);

#endif
