// Tells waiting members and the log who waits for whom, after DESK_WARN_MS and then ever more rarely. Decides nothing.
#ifndef PCCL_MASTER_WAITS_H
#define PCCL_MASTER_WAITS_H

#include "master/desk.h"
#include "master/failure_counts.h"

// Tells those that have waited long enough. `idle`: false while links are made or rates measured for all.
void waits_tick(struct desk *desk, struct failure_counts *failure_counts, bool idle);

#endif
