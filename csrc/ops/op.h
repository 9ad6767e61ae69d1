// An op: the part that members agree on, and the part that moves its bytes. A call is an op that its caller sees; a
// large one in retry mode is divided into segments, ops of their own (ops/segments).
#ifndef PCCL_OPS_OP_H
#define PCCL_OPS_OP_H

#include <stdatomic.h>

#include "ops/call.h"
#include "ops/epoch.h"
#include "ops/plan.h"
#include "ops/ranges.h"

enum op_phase {
    OP_WAITING,  // posted, has no name yet; begins when the links are ready
    OP_QUEUED,   // large, named, handed to the driver, which has not begun to move it
    OP_RUNNING,  // being moved
    OP_COMPLETE, // large: everything done here, DONE sent
    OP_DIVIDED,  // its segments do the work
    OP_ENDED,    // outcome is set; only the caller touches it
};

// The untouched input of an in-place op, saved range by range before it is overwritten (data/backup). All 0: there is
// none, and nothing is saved.
struct backup {
    struct device_queue *queue; // of the tensor's memory
    uint8_t *bytes;             // as long as the tensor, used at the tensor's offsets; a mapping in plain memory
    size_t capacity;
    struct ranges saved; // bytes
};

struct op {
    struct op *chain;             // in the table by tag, or the list of unused ones
    struct op *next;              // in a queue
    struct call_args args;        // of a segment: its own part of the buffers, and the fingerprint of the call
    size_t element;               // bytes
    uint64_t count, bytes;        // of this op, or segment: as in the fingerprint
    uint64_t in_bytes, out_bytes; // this member reads and writes
    uint64_t result_bytes;        // of what all members of a small op have in common at its end
    const struct team *team;      // those who take part in the epoch in which it was begun; valid while it has begun
    struct op *parent;            // the call that this is a segment of; NULL: it is a call
    struct segments *segments;    // of a divided op, or NULL
    const struct epoch *epoch;    // in which it was begun; NULL: never yet
    enum plan_path path;
    enum op_phase phase;
    bool frozen;            // begun in an older epoch, no verdict yet
    bool mismatch_reported; // a mismatch was reported
    bool mismatched;        // and confirmed: ends when the epoch that follows freezes it
    bool cancel;    // of a call: its caller cancels it, and asks the master to, in each epoch in which it begins
    bool cancelled; // the master has said so: ends with the verdict that follows, unless that is COMMIT
    bool restart;   // the input has to be put back before it is moved again
    uint64_t adopted;
    struct wire_op_name name;
    uint32_t contributors;
    uint64_t tx_bytes, rx_bytes;
    struct retained *retained; // small: made ready, so that completion cannot fail
    enum call_result ending;   // of a call: MISMATCH or CANCELLED, as the master's verdict on it says
    struct call_outcome outcome;

    // the driver's
    struct waiter *waiter;      // the caller that waits for its end
    uint32_t holding;           // callers that let a stream wait for it, right now: it stays
    int64_t posted_ns, tell_ns; // when its caller is told next for whom it waits
    int64_t begun_ns;           // when it was started in the epoch in force
    atomic_bool moved_any;      // of a call: bytes of it have come or gone since that was last looked at
    struct backup backup;       // the thread's, then the caller's
    struct backup room;         // ring: for partial sums that have no place in the result; neighbours may read it
    void *work;                 // of what moves it
    struct block *result;       // small: room for it, to be kept
    const void *input;          // small, of a device: a window of all of it
    uint64_t fence;             // of a device: to be passed before it begins, or is complete
    bool moved;                 // of a device: complete but for that
};

// Ops in the order in which they were added. An op is in one queue at most.
struct op_queue {
    struct op *first, *last; // `last` means nothing while `first` is NULL
};

void op_queue_append(struct op_queue *queue, struct op *op);
struct op *op_queue_pop(struct op_queue *queue);             // the first, or NULL
void op_queue_remove(struct op_queue *queue, struct op *op); // does nothing if it is not there

// Named, and its outcome is not there.
static inline bool op_has_begun(const struct op *op) {
    return op->phase == OP_QUEUED || op->phase == OP_RUNNING || op->phase == OP_COMPLETE;
}

// Bytes of the op, or segment, have come or gone. Any thread, while it is being moved.
static inline void op_note_bytes(struct op *op) {
    struct op *call = op->parent == NULL ? op : op->parent;
    atomic_store_explicit(&call->moved_any, true, memory_order_relaxed);
}

// Hash of the call's subgroup; 0 means the whole peer group.
static inline uint32_t op_subgroup_hash(const struct op *op) {
    return op->args.subgroup == NULL ? 0 : op->args.subgroup->hash;
}
static inline const struct plan_collective *op_collective(const struct op *op) {
    return plan_collective(op->args.fingerprint.kind);
}
// True if this rank is the root.
static inline bool op_is_root(const struct op *op) { return op->args.subgroup->rank == op->args.root; }
// True if the result overwrites the input.
bool op_is_in_place(const struct op *op);
// Sets its sizes, by its count.
void op_measure(struct op *op);
// Bytes that the member of this rank gives to a small op.
uint64_t op_part_bytes(const struct op *op, uint32_t rank);

// Returns the op as frames name it.
struct wire_op op_on_wire(const struct op *op);

#endif
