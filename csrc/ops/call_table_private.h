// Private header of the op table: call_table.c (calls, beginnings, ends), call_table_epochs.c (freezing, reports,
// verdicts), unexpected.c (what comes before its op), retained.c (results that others may lack) and segments.c (large
// ops in retry mode).
#ifndef PCCL_OPS_CALL_TABLE_PRIVATE_H
#define PCCL_OPS_CALL_TABLE_PRIVATE_H

#include "ops/call_table.h"

// ---- call_table.c ----
uint64_t call_table_first_loss(const struct call_table *table, uint64_t adopted); // 0: none since
// The loss that ends an op, as its caller counts on all members; 0: none, or it counts on none.
uint64_t call_table_counted_loss(const struct call_table *table, const struct op *op);
// Ends the call if others were told of a mismatch or a cancellation of it.
bool call_table_take_mismatch(struct call_table *table, struct op *call, uint64_t loss); // sets `call->ending`
bool call_table_is_over(const struct call_table *table, const struct wire_op *op);
// Whether those of its group that are members suffice.
bool call_table_may_go_on(const struct call_table *table, const struct op *op);
void call_table_begin(struct call_table *table, struct op *op); // now, or when the links are there
void call_table_begin_segments(struct call_table *table, struct op *parent);
void call_table_wait_for_links(struct call_table *table, struct op *op);
void call_table_end(struct call_table *table, struct op *op,
                    enum call_result result); // frees a segment that was committed
void call_table_end_lost(struct call_table *table, struct op *op);
void call_table_release(struct call_table *table, struct op *op);
void call_table_remove_segments(struct call_table *table, struct op *parent, bool restore);

// ---- unexpected.c ----
enum unexpected_result { UNEXPECTED_OK, UNEXPECTED_TOO_MANY, UNEXPECTED_NO_MEMORY };

// Adds a copy of `what`, with its block; only if OK the block is the table's.
enum unexpected_result unexpected_add(struct unexpected_table *table, const struct unexpected *what, uint32_t members);
// Returns the data that arrived from a member for an op; the caller frees it, and the block's reference. NULL: none.
struct unexpected *unexpected_take(struct unexpected_table *table, const struct op_member *from,
                                   const struct wire_op *op, uint16_t type);
// The first of the chain, from `at` on, that is for that op and has other arguments. NULL: none.
const struct unexpected *unexpected_differing(const struct unexpected *at, const struct wire_op *op);
void unexpected_clear(struct unexpected_table *table, const struct op_driver *driver);

// Nothing for what is older than the last vote. Of more than WIRE_MAX_LIVE_OPS the oldest is dropped: it was of lists
// that this member is not in. False: memory was refused.
bool unexpected_verdict_add(struct unexpected_verdicts *verdicts, const struct wire_verdict *verdict,
                            const char text[WIRE_MAX_TEXT + 1]);
// Whether a verdict of a mismatch is about ops of this subgroup: each of both sides had one.
bool unexpected_verdict_concerns(uint32_t own, uint32_t subgroup, uint16_t other);
// Returns whether a call with this tag, over this subgroup, ends with the oldest mismatch, and copies its text to
// `text`. `loss` is the epoch of the first loss since the caller's epoch (0: none). If members that had begun the op
// met the loss first, the loss counts. `result`: CALL_MISMATCH or CALL_CANCELLED.
bool unexpected_verdict_take(struct unexpected_verdicts *verdicts, uint64_t tag, uint32_t subgroup, uint64_t loss,
                             char text[WIRE_MAX_TEXT + 1], enum call_result *result);
void unexpected_verdicts_clear(struct unexpected_verdicts *verdicts);

// ---- retained.c ----
// Room for a result that `members` may have to acknowledge. NULL: memory was refused.
struct retained *retained_new(uint32_t members);
void retained_free(struct retained *retained, const struct op_driver *driver);
// Takes it: a result of that name, which all other members of the epoch (by rank; NULL: this one) have to acknowledge.
void retained_add(struct retained_table *table, struct retained *retained, const struct wire_op_name *name,
                  struct op_member *const *members, uint32_t count);
void retained_acked(struct retained_table *table, struct op_member *from, const struct wire_op_name *name,
                    const struct op_driver *driver);
// A signal of this op came: who sends it has the result of the op before it, of the same tag.
void retained_implied(struct retained_table *table, struct op_member *from, uint64_t epoch, const struct wire_op *next,
                      const struct op_driver *driver);
// Nobody has to acknowledge the result but those that the verdict names, as far as they are members. False: memory was
// refused.
bool retained_appoint(struct retained_table *table, const struct wire_verdict *verdict, bool supplier, bool now,
                      struct op_member *const *members, uint32_t count, const struct op_driver *driver);
// Supplies what this member was appointed to supply.
void retained_supply(const struct retained_table *table, const struct op_driver *driver);
void retained_forget(struct retained_table *table, const struct op_member *member, const struct op_driver *driver);
void retained_clear(struct retained_table *table, const struct op_driver *driver);

// ---- acknowledgements of what others keep ----
// Sent when there are many, or when the next signal does not imply it.
void acks_add(struct op_member *to, const struct wire_op_name *name, uint64_t bytes, const struct op_driver *driver);
void acks_send(struct op_member *to, bool ask, const struct op_driver *driver);

// ---- segments.c ----
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
