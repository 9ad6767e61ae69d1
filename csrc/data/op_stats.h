// Counts the operations of an engine until it reports to the master (data/telemetry). Pure.
#ifndef PCCL_DATA_OP_STATS_H
#define PCCL_DATA_OP_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// All 0 at the beginning.
struct op_stats {
    atomic_bool awake; // ops are called, and the thread reports; set under the lock
    atomic_bool moved; // something of an op came, went or ended since the last step
    // lock
    uint64_t ops, op_us, live;
    int64_t oldest_ns;
    // thread
    _Atomic int64_t since_ns; // the report at hand; 0: not begun. Others read it
    int64_t looks_at, beats_at, tells_at, moved_ns, ran_ns, processor_ns;
};

static inline void op_stats_moved(struct op_stats *op_stats) {
    atomic_store_explicit(&op_stats->moved, true, memory_order_relaxed);
}
// A call is posted. True: the thread is to be woken.
bool op_stats_posted(struct op_stats *op_stats);
// A call that was posted at `posted_ns` has ended; 0: while it was being posted.
void op_stats_ended(struct op_stats *op_stats, int64_t posted_ns, int64_t now_ns);

#endif
