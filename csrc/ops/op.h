// An op: the part that members agree on, and the part that moves its bytes; its number; and what the op table needs of
// its driver. A call is an op that its caller sees; a
// large one in retry mode is divided into segments, ops of their own (ops/segments).
#ifndef PCCL_OPS_OP_H
#define PCCL_OPS_OP_H

#include <stdatomic.h>

#include "ops/call.h"
#include "ops/members.h"
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
    uint32_t root;                // of a rooted one: the root's rank in that team (team->ranks)
    struct op *parent;            // the call that this is a segment of; NULL: it is a call
    struct segments *segments;    // of a divided op, or NULL
    const struct epoch *epoch;    // in which it was begun; NULL: never yet
    enum plan_algorithm algorithm;
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
    enum call_result ending;   // of a call: MISMATCH, CANCELLED or DEADLOCK, as the master's verdict on it says
    struct call_outcome outcome;

    // the driver's
    struct waiter *waiter;      // the caller that waits for its end
    struct wait_span wait;      // of a call: how long that has waited
    bool caller_waits;          // and it is the only thread that calls the communicator
    uint32_t holding;           // callers that let a stream wait for it, right now: it stays
    int64_t posted_ns, tell_ns; // when its caller is told next for whom it waits
    int64_t begun_ns;           // when it was started in the epoch in force
    uint64_t recorded;          // of a call: its record (base/recorder); 0: none yet
    atomic_bool moved_any;      // of a call: bytes of it have come or gone since that was last looked at
    struct backup backup;       // the thread's, then the caller's
    struct backup room;         // ring: for partial sums that have no place in the result; neighbours may read it
    void *work;                 // of what moves it
    struct block *result;       // small: room for it, to be kept
    const void *input;          // small, of a device: a mapped view of all of it
    uint64_t fence;             // of a device: to be passed before it begins, or is complete
    bool moved;                 // of a device: complete but for that
};

// Ops in the order in which they were added. An op is in one queue at most.
struct op_queue {
    struct op *first, *last; // `last` means nothing while `first` is NULL
};

void op_queue_append(struct op_queue *queue, struct op *op);
void op_queue_insert(struct op_queue *queue, struct op *op); // at the end, but before ops in the background
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
// True if this member is the root.
static inline bool op_is_root(const struct op *op) {
    return op->args.subgroup == NULL ? op->args.is_root : op->args.subgroup->rank == op->args.root;
}
// Sets its sizes, by its count.
void op_measure(struct op *op);

// Returns true if frames that name these ops are for the same one.
static inline bool op_is_same(const struct wire_op *a, const struct wire_op *b) {
    return a->tag == b->tag && a->sequence == b->sequence && a->segment == b->segment;
}

// Returns the op as frames name it.
struct wire_op op_on_wire(const struct op *op);

// ---- tags: slots in tables, and the counters that number the ops of a tag ----
enum { TAG_BITS = 10, TAG_SLOTS = 1 << TAG_BITS };

// Returns the slot in which the chain of a tag begins, in each table by tag.
static inline size_t tag_slot(uint64_t tag) { return (tag * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - TAG_BITS); }

struct op_counter {
    uint64_t tag;
    uint32_t next; // 0: empty slot
};

// The ops begun in one group epoch, by tag. All 0: none yet.
struct op_counters {
    struct op_counter *list; // open addressing; owned
    uint32_t count, slots;
    bool full; // so many tags or ops that a fresh group epoch is wanted
};

// Makes room for one more op of any tag. False: memory was refused.
bool op_counters_reserve(struct op_counters *counters);
// The number of the next op of this tag. False: memory was refused.
bool op_counter_take(struct op_counters *counters, uint64_t tag, uint32_t *sequence);
// Returns the number of the last op of this tag; 0: none; UINT32_MAX: the next one needs another group epoch.
uint32_t op_counter_last(const struct op_counters *counters, uint64_t tag);
void op_counters_clear(struct op_counters *counters);

// ---- driver ----
// The bytes of an input or a result: the driver's, counted. The call table has one reference to each that it is given.
struct block;

// Driver of the op table (ops/call_table): the data plane (data/engine) or the simulator (sim/engine).
//
// Each is called from within a function of the call table, on its caller's thread and under its caller's lock, and must
// not block. Where nothing else is said, it must not call the call table.
struct op_driver {
    void *context; // first argument of each
    // The other member of this id, who is in the epoch that is entered. NULL: memory was refused.
    struct op_member *(*member)(void *context, const struct wire_id *id);
    // Moves the op from now on; if `op->restart`, its input has to be put back first. May complete it at once. False:
    // memory was refused.
    bool (*start)(void *context, struct op *op);
    // A signal or an input for an op that was started, with the same arguments. Takes the block, which may be NULL. May
    // complete the op. False: it is malformed.
    bool (*signal)(void *context, struct op *op, struct op_member *from, uint16_t type, const struct wire_head *head,
                   struct block *block);
    // No buffer of the op is touched from now on, nothing of it is sent, and what moves it is let go of. Also called of
    // ops that were not started.
    void (*release)(void *context, struct op *op);
    // The result of a small op came from a member that kept it. False: it has another size.
    bool (*fill)(void *context, struct op *op, struct block *result);
    void (*ended)(void *context, struct op *op); // the outcome of a call is there
    // Nobody looks at the op any more. `restore`: its input has to be put back first.
    void (*forget)(void *context, struct op *op, bool restore);
    // Tells a member which of its results have come here. `ask`: and asks it to do likewise, now and from now on.
    void (*acknowledge)(void *context, struct op_member *to, const struct wire_op_name *names, uint32_t count,
                        bool ask);
    void (*supply)(void *context, struct op_member *to, const struct wire_op_name *name, struct block *result);
    void (*drained)(void *context);                                               // no result is kept any more
    void (*report_mismatch)(void *context, const struct wire_mismatch *mismatch); // MISMATCH, for the master
    void (*request_epoch)(void *context);                                         // a fresh group epoch is wanted
    void (*put)(void *context, struct block *block);                              // lets go of a reference
    void (*failed)(void *context); // memory was refused, and others would wait for this member for ever
    void (*cancel)(void *context, const struct wire_op_name *name); // CANCEL, for the master
};

#endif
