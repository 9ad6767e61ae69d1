// Ops in retry mode that are large: done segment by segment (plan.h), and a loss costs only the segments under way.
//
// A segment is an op of its own, with a name, a verdict and a backup of its own. So what is agreed for ops is agreed
// for segments, and there is nothing else to agree on: the segments committed so far are the point that the op goes on
// from. All members begin them in index order, and a verdict reaches all: so all of them work on the first one that is
// not committed, whatever else is under way, and none waits for ever.
//
// The call itself, the parent of its segments, moves no data, has no name, and is never frozen; it ends when its last
// segment has ended.
#ifndef PCCL_OPS_SEGMENTS_H
#define PCCL_OPS_SEGMENTS_H

#include "ops/op.h"

struct segments {
    uint32_t count, next; // `next`: the first that was not begun
    uint32_t live;        // begun, not ended
    uint8_t mode;         // enum wire_op_mode; WHOLE: one segment, since others run the op in one piece
    bool fall_back;       // that turned out: from the next epoch on
    uint64_t epoch;       // the last one in which a segment was named; 0: none yet
    uint32_t sequence;    // in it
    enum call_result failure;
    struct op *ops[PLAN_SEGMENTS_AHEAD]; // live, or failed and to be put back; NULL: free place
    const struct epoch *epochs[];        // in which they were committed, by segment; NULL: not yet
};

bool segments_new(struct op *parent); // divides it; false: memory was refused
void segments_free(struct op *parent);
// Whether a segment is to be begun. `room`: for more than one of this op.
bool segments_may_add(const struct segments *segments, bool room);
void segments_add(struct op *parent, struct op *op); // makes an unused op the next segment
// The sequence of a segment that begins in this epoch; false: memory was refused.
bool segments_name(struct op *op, uint64_t epoch, struct op_counters *counters);
// Notes its outcome. True: it was committed, and nobody needs it any more.
bool segments_ended(struct op *op);
void segments_remove(struct op *op); // it has no place any more
// The ops of a call whose inputs may have to be put back: itself, then the segments that it has. `after`: the last one,
// NULL at first. NULL: there are no more.
struct op *segments_part(struct op *call, const struct op *after);
// Runs under this name, or is yet to get one in its epoch
bool segments_are_meant(const struct op *parent, const struct wire_op_name *name);
// Has segments under names of this epoch and sequence, of which this one is not committed: it is under way, or yet to
// be begun.
bool segments_lack(const struct op *parent, uint64_t epoch, uint32_t sequence, uint32_t segment);
// Others run the op of this name in one piece, so that this member is to begin it anew with the next epoch.
void segments_fall_back(struct op *parent, const struct wire_op_name *name);
// All segments are removed, and none can have been committed: a member that runs the op in one piece has completed
// none.
void segments_begin_unsegmented(struct op *parent);
// Returns the contributors of an op that has ended; NULL: memory was refused.
struct call_contributors *segments_contributors(const struct op *op);

#endif
