// Tells waiting members and the log who waits for whom: after MEMBERSHIP_WARN_MS, then less often. Decides nothing.
#ifndef PCCL_MASTER_WAITS_H
#define PCCL_MASTER_WAITS_H

#include "master/membership.h"
#include "master/failure_counts.h"

// Tells those that have waited long enough. `idle`: false while links are made or rates measured for all.
void waits_tick(struct membership *table, struct failure_counts *failure_counts, bool idle);

#endif
