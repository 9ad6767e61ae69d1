// Events of a peer for its flight recorder (base/recorder) beside operations: epochs and members.
#ifndef PCCL_PEER_RECORDING_H
#define PCCL_PEER_RECORDING_H

#include "base/recorder.h"
#include "ops/members.h"

// Records that `epoch` takes the place of `known` (NULL: it is the first): who has joined, who is gone, and the weights
// that the master has chosen. `group`: of the peer `self`.
void recording_epoch(struct recorder *recorder, const struct wire_id *self, uint32_t group, const struct epoch *known,
                     const struct epoch *epoch);

#endif
