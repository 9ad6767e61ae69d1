// Events of a peer for its flight recorder (base/recorder) beside operations: epochs and members.
#ifndef PCCL_PEER_RECORDING_H
#define PCCL_PEER_RECORDING_H

#include "base/recorder.h"
#include "ops/members.h"
#include "peer/decision.h"

// Records that the epoch of MEMBER_ENTER_EPOCH takes the place of `known` (NULL: it is the first): who has joined, who
// is gone and why, and the weights that the master has chosen. `group`: of the peer `self`.
void recording_epoch(struct recorder *recorder, const struct wire_id *self, uint32_t group, const struct epoch *known,
                     const struct member_action *action);

#endif
