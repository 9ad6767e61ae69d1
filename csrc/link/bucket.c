#include "link/bucket.h"

#include "base/platform.h"

enum {
    DEPTH_MS = 2,        // ms at the rate: a late wake-up loses nothing
    DEPTH_LEAST = 64000, // bytes, depth at least
};

bool bucket_has_room(struct bucket *bucket, int64_t now_ns) {
    double depth = bucket->rate * DEPTH_MS * MS_NS;
    if (depth < DEPTH_LEAST) depth = DEPTH_LEAST;
    bucket->room += bucket->rate * (double)(now_ns - bucket->filled_ns);
    if (bucket->room > depth || bucket->rate == 0) bucket->room = depth;
    bucket->filled_ns = now_ns;
    bucket->waits = bucket->rate > 0 && bucket->room <= 0;
    if (bucket->waits) bucket->empty_ns = now_ns;
    return !bucket->waits;
}

void bucket_take(struct bucket *bucket, size_t bytes) {
    if (bucket->rate > 0) bucket->room -= (double)bytes;
}
