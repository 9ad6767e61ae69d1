// Share of one turn of a thread: time that it spends on some of those that it serves, so that others have theirs. Work
// that is left over waits for the next turn. For one thread.
#ifndef PCCL_BASE_SHARE_H
#define PCCL_BASE_SHARE_H

#include "base/platform.h"

struct share {
    int64_t limit_ns, spent_ns, began_ns;
};

// Begins a turn.
static inline void share_renew(struct share *share, int64_t limit_ns) { *share = (struct share){.limit_ns = limit_ns}; }
// Begins a piece of work. Returns false if no time is left for it.
static inline bool share_enter(struct share *share) {
    if (share->spent_ns >= share->limit_ns) return false;
    share->began_ns = platform_now_ns();
    return true;
}
// Returns whether the piece of work that has begun has no more time.
static inline bool share_is_over(const struct share *share) {
    return share->spent_ns + platform_now_ns() - share->began_ns >= share->limit_ns;
}
static inline void share_leave(struct share *share) { share->spent_ns += platform_now_ns() - share->began_ns; }

#endif
