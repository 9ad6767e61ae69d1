// Private header of the op table: call_table.c (calls, beginnings, ends) and call_table_epochs.c (freezing, reports,
// verdicts).
#ifndef PCCL_OPS_CALL_TABLE_PRIVATE_H
#define PCCL_OPS_CALL_TABLE_PRIVATE_H

#include "ops/call_table.h"

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

#endif
