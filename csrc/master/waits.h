// Who waits for whom: told to those that wait, and to the log, after DESK_WARN_MS and then ever more rarely. Nothing is
// decided here.
#ifndef PCCL_MASTER_WAITS_H
#define PCCL_MASTER_WAITS_H

#include "master/desk.h"
#include "master/failure_counts.h"

// Tells those that have waited long enough. `idle`: false while links are made or rates measured for all.
void waits_tick(struct desk *desk, struct failure_counts *failure_counts, bool idle);

#endif
