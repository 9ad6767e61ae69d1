// Private header of the op table: book.c (calls, beginnings, ends) and book_epochs.c (freezing, reports, verdicts).
#ifndef PCCL_OPS_BOOK_PRIVATE_H
#define PCCL_OPS_BOOK_PRIVATE_H

#include "ops/book.h"

uint64_t book_first_loss(const struct book *book, uint64_t adopted); // 0: none since
// The loss that ends an op, as its caller counts on all members; 0: none, or it counts on none.
uint64_t book_counted_loss(const struct book *book, const struct op *op);
// Ends the call if others were told of a mismatch or a cancellation of it.
bool book_take_mismatch(struct book *book, struct op *call, uint64_t loss); // sets `call->ending`
bool book_is_over(const struct book *book, const struct wire_op *head);
// Whether those of its group that are members suffice.
bool book_may_go_on(const struct book *book, const struct op *op);
void book_begin(struct book *book, struct op *op); // now, or when the links are there
void book_begin_segments(struct book *book, struct op *parent);
void book_wait_for_links(struct book *book, struct op *op);
void book_end(struct book *book, struct op *op, enum call_result result); // frees a segment that was committed
void book_end_lost(struct book *book, struct op *op);
void book_release(struct book *book, struct op *op);
void book_remove_segments(struct book *book, struct op *parent, bool restore);
void book_free_op(struct book *book, struct op *op, bool restore);

#endif
