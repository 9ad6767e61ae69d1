#include "data/op_stats.h"

#include "base/platform.h"

bool op_stats_posted(struct op_stats *op_stats) { return !atomic_exchange(&op_stats->awake, true); }

void op_stats_ended(struct op_stats *op_stats, int64_t posted_ns, int64_t now_ns) {
    op_stats->ops++;
    if (posted_ns != 0 && now_ns > posted_ns) op_stats->op_us += (uint64_t)((now_ns - posted_ns) / US_NS);
    op_stats_moved(op_stats);
}
