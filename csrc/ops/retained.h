// Results of small ops that this member has and others may still lack, and the acknowledgements of theirs.
//
// A small op is over for a member as soon as it has all inputs, without the master. What makes that safe when a member
// dies half-way through its sends: whoever has the result keeps it until all others are known to have it too, by an
// ACK, or by a signal of the next op of the same tag, which implies one. After a loss the master asks who stands where;
// what anyone kept is supplied to those that lack it.
#ifndef PCCL_OPS_RETAINED_H
#define PCCL_OPS_RETAINED_H

#include "ops/op.h"

struct retained {
    struct retained *next;
    struct wire_op_name name;
    struct block *result; // owned reference
    bool supplier;        // the unacked get the result from here
    uint32_t unacked_count;
    struct op_member *unacked[]; // room for the epoch's members
};

struct retained_table {
    struct retained *slots[TAG_SLOTS];
    size_t count;
};

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
// A signal of this op is on its way: that the op before it, of the same tag, is complete need not be told.
void acks_drop_implied(struct op_member *to, const struct wire_op_name *name);
void acks_send(struct op_member *to, bool ask, const struct op_driver *driver);

#endif
