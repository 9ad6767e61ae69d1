// Verdicts of a mismatch on calls that were not made here yet, in the order in which the others ended them.
#ifndef PCCL_OPS_MISMATCHES_H
#define PCCL_OPS_MISMATCHES_H

#include "net/wire_control.h"

struct mismatch_verdict;

struct mismatches {
    struct mismatch_verdict *first; // owned
    uint32_t count;
};

// Beyond WIRE_MAX_LIVE_OPS it is dropped. False: memory was refused.
bool mismatches_add(struct mismatches *mismatches, const struct wire_op_name *name, const char text[WIRE_MAX_TEXT + 1]);
// Whether a call with this tag ends with the oldest one of them; then `text` tells. Of that and `loss`, the first loss
// since the caller's epoch (0: none), whichever came first for those that had begun the op counts.
bool mismatches_take(struct mismatches *mismatches, uint64_t tag, uint64_t loss, char text[WIRE_MAX_TEXT + 1]);
void mismatches_clear(struct mismatches *mismatches);

#endif
