// Verdicts of a mismatch on calls that were not made here yet, in the order in which the others ended them.
#ifndef PCCL_OPS_MISMATCHES_H
#define PCCL_OPS_MISMATCHES_H

#include "net/wire_control.h"
#include "ops/call.h"

struct mismatch_verdict;

struct mismatches {
    struct mismatch_verdict *first; // owned
    uint32_t count;
    uint64_t since; // group epoch: see mismatches_voted
};

// Nothing for what is older than the last vote. Of more than WIRE_MAX_LIVE_OPS the oldest is dropped: it was of lists
// that this member is not in. False: memory was refused.
bool mismatches_add(struct mismatches *mismatches, const struct wire_verdict *verdict,
                    const char text[WIRE_MAX_TEXT + 1]);
// Whether a verdict of a mismatch is about ops of this subgroup: each of both sides had one.
bool mismatch_concerns(uint32_t own, uint32_t subgroup, uint16_t other);
// Returns whether a call with this tag, over this subgroup, ends with the oldest mismatch, and copies its text to
// `text`. `loss` is the epoch of the first loss since the caller's epoch (0: none). If members that had begun the op
// met the loss first, the loss counts. `result`: CALL_MISMATCH or CALL_CANCELLED.
bool mismatches_take(struct mismatches *mismatches, uint64_t tag, uint32_t subgroup, uint64_t loss,
                     char text[WIRE_MAX_TEXT + 1], enum call_result *result);
// The program has ended a vote that led to this group epoch. A member votes when its own calls have ended, so those of
// verdicts on older epochs that this member did not make are not made any more: its next ones meet others, perhaps of
// newcomers, who know of no such verdict.
void mismatches_voted(struct mismatches *mismatches, uint64_t group_epoch);
void mismatches_clear(struct mismatches *mismatches);

#endif
