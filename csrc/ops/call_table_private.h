// Private header of the op table: call_table.c (calls, beginnings, ends), call_table_epochs.c (freezing, reports,
// verdicts), call_table_signals.c (what members tell each other) and segments.c (large ops in retry mode).
#ifndef PCCL_OPS_CALL_TABLE_PRIVATE_H
#define PCCL_OPS_CALL_TABLE_PRIVATE_H

#include "ops/call_table.h"

// ---- call_table.c ----
// Returns the first group epoch after `adopted` that lost members; 0: none.
uint64_t call_table_first_loss(const struct call_table *table, uint64_t adopted);
// Returns the loss that ends an op whose caller counts on all members; 0: none, or it counts on none.
uint64_t call_table_counted_loss(const struct call_table *table, const struct op *op);
// Takes a mismatch or a cancellation of this call that came before it, and sets `call->ending`. False: there is none.
bool call_table_take_mismatch(struct call_table *table, struct op *call, uint64_t loss);
// Returns true if the op goes on without its lost members.
bool call_table_may_go_on(const struct call_table *table, const struct op *op);
// Sets the team of the op in the epoch in force. False: memory was refused.
bool call_table_find_team(struct call_table *table, struct op *op);
// Begins the op now, or when the links are there.
void call_table_begin(struct call_table *table, struct op *op);
void call_table_begin_segments(struct call_table *table, struct op *parent);
void call_table_wait_for_links(struct call_table *table, struct op *op);
// Ends the op. Frees a segment that was committed.
void call_table_end(struct call_table *table, struct op *op, enum call_result result);
void call_table_end_lost(struct call_table *table, struct op *op);
void call_table_release(struct call_table *table, struct op *op);
void call_table_remove_segments(struct call_table *table, struct op *parent, bool restore);
// Allocates room for a result that `members` may have to acknowledge. NULL: memory was refused.
struct retained *call_table_new_retained(uint32_t members);
void call_table_free_retained(struct retained *retained, const struct op_driver *driver);
void call_table_free_ops(struct call_table *table); // all, as the last step of call_table_fini

// Adds a verdict, unless it is older than the last vote. Of more than WIRE_MAX_LIVE_OPS it drops the oldest, which was
// of subgroups without this member. Returns false if memory was refused.
bool call_table_verdicts_add(struct call_table_verdicts *verdicts, const struct wire_verdict *verdict,
                             const char text[WIRE_MAX_TEXT + 1]);
// Returns how the verdict of this kind ends a call: MISMATCH, CANCEL or DEADLOCK.
enum call_result call_table_ending(uint8_t kind);
// Returns whether a verdict of a mismatch is about ops of this subgroup: each of both sides had one.
bool call_table_verdict_concerns(uint32_t own, uint32_t subgroup, uint16_t other);
// Returns whether a call with this tag, over this subgroup, ends with the oldest mismatch, and copies its text to
// `text`. `loss` is the epoch of the first loss since the caller's epoch (0: none). If members that had begun the op
// met the loss first, the loss counts. `result`: as call_table_ending.
bool call_table_verdicts_take(struct call_table_verdicts *verdicts, uint64_t tag, uint32_t subgroup, uint64_t loss,
                              char text[WIRE_MAX_TEXT + 1], enum call_result *result);

// ---- call_table_signals.c ----
// Returns true if an op, or a segment, that does not run here began here in this epoch and is over.
bool call_table_is_over(const struct call_table *table, const struct wire_op *op);
void call_table_clear_unexpected(struct call_table *table);
// Lets only the members that the verdict names acknowledge the result from now on. Returns false if memory was refused.
bool call_table_appoint(struct call_table *table, const struct wire_verdict *verdict, bool supplier);
// Supplies what this member was appointed to supply.
void call_table_supply(const struct call_table *table);

// ---- segments.c ----
struct segments {
    uint32_t count, next; // `next`: the first that was not begun
    uint32_t live;        // begun, not ended
    uint8_t mode;         // enum wire_op_mode; WHOLE: one segment, since others run the op in one piece
    bool fall_back;       // that turned out: from the next epoch on
    uint64_t epoch;       // the last one in which a segment was named; 0: none yet
    uint32_t sequence;    // in it
    enum call_result failure;
    struct op *ops[PLAN_SEGMENTS_AHEAD]; // live, or failed and to be put back; NULL: free
    const struct epoch *epochs[];        // in which they were committed, by segment; NULL: not yet
};

// Divides an op. Returns false if memory was refused.
bool segments_new(struct op *parent);
void segments_free(struct op *parent);
// Returns whether a segment is to be begun. `room`: for more than one of this op.
bool segments_may_add(const struct segments *segments, bool room);
// Makes an unused op the next segment.
void segments_add(struct op *parent, struct op *op);
// Sets the sequence of a segment that begins in this epoch. Returns false if memory was refused.
bool segments_name(struct op *op, uint64_t epoch, struct op_counters *counters);
// Notes the outcome of a segment. Returns true if it was committed, and nobody needs it any more.
bool segments_ended(struct op *op);
// Removes a segment from its parent.
void segments_remove(struct op *op);
// Returns true if the segments run under this name, or are yet to get one in its epoch.
bool segments_are_meant(const struct op *parent, const struct wire_op_name *name);
// Returns true if the op has segments under names of this epoch and sequence, and this one is not committed: it is
// under way, or yet to begin.
bool segments_lack(const struct op *parent, uint64_t epoch, uint32_t sequence, uint32_t segment);
// Notes that others run the op of this name in one piece, so this member restarts it with the next epoch.
void segments_fall_back(struct op *parent, const struct wire_op_name *name);
// Falls back to one piece. All segments are removed, and none can have been committed: a member that runs the op in one
// piece has completed none.
void segments_begin_unsegmented(struct op *parent);
// Returns the contributors of an op that has ended; NULL: memory was refused.
struct call_contributors *segments_contributors(const struct op *op);

#endif
