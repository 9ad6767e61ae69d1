// Signals, inputs and first chunks that come before the op that they are for is posted here.
//
// What they hold is bounded by the sender: it counts the inputs and chunks that it has sent and the receiver has not
// shown to have posted (data/algorithms/direct, data/algorithms/ring). What lies here was sent and is not posted, so it
// is part of that count, and a member that keeps to the bound is never found above it. Beyond it a frame is a
// violation, and its link is closed. No link ever waits for room: READY, ACK and heartbeats behind an early input are
// heard, and ops posted in different orders cannot wait for each other.
#ifndef PCCL_OPS_UNEXPECTED_H
#define PCCL_OPS_UNEXPECTED_H

#include "ops/op.h"

enum {
    UNEXPECTED_BYTES = 16 * 1024 * 1024,     // inputs and chunks of one member
    UNEXPECTED_ALL_BYTES = 64 * 1024 * 1024, // of all together: among many, each may send that much less
    UNEXPECTED_MAX = 3 * WIRE_MAX_LIVE_OPS,  // signals, inputs and chunks of one member
};

struct unexpected {
    struct unexpected *next;
    struct op_member *from;
    uint16_t type;
    struct wire_head head;
    struct block *block; // owned reference, or NULL
    size_t bytes;
    int64_t heard_ns; // of the member
};

struct unexpected_table {
    struct unexpected *slots[TAG_SLOTS];
};

enum unexpected_result { UNEXPECTED_OK, UNEXPECTED_TOO_MANY, UNEXPECTED_NO_MEMORY };

// Bytes that one of so many members may send another one before that one has posted their ops.
uint64_t unexpected_limit(uint32_t members);
// How much of that may be chunks, which fill a long link until READY comes (1 Gbit/s, 80 ms: 10 MB); the rest is for
// small ops, which would have to wait.
static inline uint64_t unexpected_chunk_limit(uint32_t members) { return unexpected_limit(members) / 4 * 3; }
// Adds a copy of `what`, with its block; only if OK the block is the table's.
enum unexpected_result unexpected_add(struct unexpected_table *table, const struct unexpected *what, uint32_t members);
// Returns the data that arrived from a member for an op; the caller frees it, and the block's reference. NULL: none.
struct unexpected *unexpected_take(struct unexpected_table *table, const struct op_member *from,
                                   const struct wire_op *op, uint16_t type);
// The first of the chain, from `at` on, that is for that op and has other arguments. NULL: none.
const struct unexpected *unexpected_differing(const struct unexpected *at, const struct wire_op *op);
// Whether anything of this tag came from that member.
bool unexpected_has(const struct unexpected_table *table, uint64_t tag, const struct wire_id *from);
void unexpected_clear(struct unexpected_table *table, const struct op_driver *driver);

#endif
