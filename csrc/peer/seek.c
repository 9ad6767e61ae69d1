#include "peer/seek.h"

#include "base/platform.h"

void seek_begin(struct seek *seek, bool again, int64_t now) {
    seek->at = 0;
    seek->again = again;
    seek->began = seek->next = seek->told = now;
}

const struct wire_address *seek_master(const struct seek *seek) { return &seek->masters[seek->at]; }

bool seek_failed(struct seek *seek, int64_t now) {
    seek->next = now;
    if (++seek->at < seek->count) return true;
    seek->at = 0;
    seek->next = now + (now - seek->began < SEEK_FAST_FOR_MS * MS_NS ? SEEK_FAST_MS : SEEK_SLOW_MS) * MS_NS;
    return seek->again;
}

void seek_anew(struct seek *seek, int64_t now) {
    seek->at = 0;
    seek->next = now;
}

bool seek_tells(struct seek *seek, int64_t now) {
    if (now - seek->told < SEEK_TELL_MS * MS_NS) return false;
    seek->told = now;
    return true;
}
