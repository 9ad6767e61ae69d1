// Ops by name, with one set of member ranks per state: who is done with an op, or who said what about it in a report.
// O(1) find and add; memory is taken at the first add. The bound is one per member, so that none of them can use up the
// room of the others.
#ifndef PCCL_MASTER_OP_TABLE_H
#define PCCL_MASTER_OP_TABLE_H

#include "net/wire_control.h"

enum { OP_TABLE_NONE = UINT32_MAX };

struct op_entry {
    struct wire_op_name name;
    uint32_t next; // in its bucket, or in the free list
    bool live;
    uint32_t open, done, retained; // members in each state
    uint32_t members;              // that have to be done; the most that anybody has told
    uint16_t other;                // of a mismatch: the mark of the other side's subgroup
    bool cancelled;                // of a verdict of the master before: CANCEL, not MISMATCH
    uint32_t supplier;             // lowest rank in state RETAINED, or OP_TABLE_NONE
    uint64_t bits[];               // ranks in state OPEN, then ranks in any other state
};

struct op_table {
    uint32_t ranks, limit; // `limit`: ops that one member may have a state for
    uint32_t count, used, capacity, free;
    uint32_t *noted;   // by rank: ops that this member has a state for
    uint32_t *buckets; // 2 * capacity, a power of two
    uint8_t *entries;
};

enum op_table_result {
    OP_TABLE_OK,
    OP_TABLE_TWICE,
    OP_TABLE_FULL, // for this member
    OP_TABLE_NO_MEMORY
};

// Empties the table and gives its memory back; entries will have room for `ranks` members, each of which may have a
// state for `limit` ops.
void op_table_reset(struct op_table *table, uint32_t ranks, uint32_t limit);
// Notes that the member `rank` is in `state`. TWICE: it has a state for this op already. `*out` is valid until the next
// note.
enum op_table_result op_table_note(struct op_table *table, const struct wire_op_name *name, uint32_t rank,
                                   enum wire_op_state state, struct op_entry **out);
struct op_entry *op_table_find(const struct op_table *table, const struct wire_op_name *name); // NULL: there is none
void op_table_remove(struct op_table *table, struct op_entry *entry);
// Entries in the order in which they were first noted (as long as none was removed): start with *cursor = 0; NULL at
// the end.
struct op_entry *op_table_next(struct op_table *table, uint32_t *cursor);

bool op_entry_is_open(const struct op_entry *entry, uint32_t rank);
bool op_entry_has(const struct op_table *table, const struct op_entry *entry, uint32_t rank); // in any state

#endif
