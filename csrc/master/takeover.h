// Taking a run up which another master has left, from the sum of what its members know. The last vote of all, or the
// last round of a group, may have ended for some and not for others: those hear how. All groups begin a new group
// epoch, so all ops are frozen, reported and judged as after any other change. What no report can show is a verdict
// that some have and others lack: COMMITs and MISMATCHes are told with RESUME and given again.
#ifndef PCCL_MASTER_TAKEOVER_H
#define PCCL_MASTER_TAKEOVER_H

#include "master/run.h"
#include "master/survivors.h"

// The members of the configuration that are here become those of the run, which has none; they are survivors no more.
void takeover(struct run *run, struct survivors *survivors, const struct configuration *config, uint64_t generation);

#endif
