// The ops' state machine: what a member of a peer group knows of its ops, and what it agrees on about them with the
// others.
//
// Pure: no lock, no clock, no socket, no thread, and no tensor is touched. Whoever drives it (struct op_driver) tells
// it what happens and does what it asks: the data plane under its lock, the simulator in virtual time.
//
// Life of an op: posted by a caller; begun under a name as soon as the links of the newest epoch are there; moved by
// the driver; complete, of which the master is told (small ops: the others, by acknowledging); ended by a verdict
// (small ops: at once); taken by the caller. Entering an epoch freezes every op that has no verdict, and `report` tells
// where each stood. The verdicts that follow end them or redo them. An op in retry mode is redone after a loss instead
// of ending with it, and when it is large only in the segments that were under way (ops/segments).
//
// Where memory is refused and others would wait for what cannot be done, the driver's `failed` is called; it ends all
// ops soon (call_table_end_all).
#ifndef PCCL_OPS_CALL_TABLE_H
#define PCCL_OPS_CALL_TABLE_H

#include "ops/op.h"

// ---- what is kept by tag beside the ops: what comes before an op is posted, and results after it has ended ----
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

// Verdicts of a mismatch on calls that were not made here yet.
struct early_verdict;

struct call_table_verdicts {
    struct early_verdict *first; // owned
    uint32_t count;
    uint64_t since; // group epoch: see call_table_verdicts_voted
};

// A result of a small op that this member has and others may still lack (call_table_signals.c).
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

// ---- the table ----
enum { CALL_TABLE_LOSSES_MAX = WIRE_MAX_MEMBERS };

struct call_table {
    struct op_driver driver;
    size_t work_bytes;          // of the driver, behind each op
    const struct epoch *now;    // in force; epoch_none() before the first
    struct op_member **members; // of it, by rank, NULL at the own rank; owned
    struct team *team;          // all of it, for calls without a group; of an older epoch until one is begun
    bool ready;                 // its links are there, and no newer one is known
    // Group epoch in which a mismatch or a cancellation was told: nothing begins in it any more. A member that ended
    // its call at once would otherwise give its next op the name of that one, which others may still be running.
    uint64_t ended_in;
    uint64_t losses[CALL_TABLE_LOSSES_MAX]; // group epochs in which members were lost, in order
    uint32_t loss_count;

    struct op *table[TAG_SLOTS];
    struct op *unused;
    // un-awaited calls; segments of theirs under way beyond one each. Together WIRE_MAX_LIVE_OPS at most
    size_t live, extra;
    struct op_queue waiting; // OP_WAITING, in posting order
    struct retained_table retained;
    struct unexpected_table unexpected;
    struct op_counters counters;
    bool epoch_requested; // a fresh group epoch was asked for, since the counters have come far
    struct call_table_verdicts verdicts;
};

void call_table_init(struct call_table *table, const struct op_driver *driver, size_t work_bytes);
// Frees all ops, which have ended. Restores the inputs of those that nobody took.
void call_table_fini(struct call_table *table);

// ---- callers ----
// Posts a call. Returns what engine_post does, except CALL_DEAD. `element`: bytes of an element. If CALL_OK, `out` is
// the op, which may have ended, and the table owns the parts and the reference to the subgroup.
enum call_result call_table_post(struct call_table *table, const struct call_args *args, size_t element,
                                 uint64_t adopted, struct op **out);
// Returns the call with this tag, or NULL.
struct op *call_table_find(const struct call_table *table, uint64_t tag);
// Asks to end the call on all members with CALL_CANCELLED. It still ends well if a member has completed it.
void call_table_cancel(struct call_table *table, struct op *call);
// Removes a call that has ended and whose input is restored.
void call_table_take(struct call_table *table, struct op *op, struct call_outcome *out);
// Acknowledges everything before this member leaves, and asks the others to do likewise. All has drained when
// `retained.count` is 0.
void call_table_drain(struct call_table *table);
// Ends all ops with CALL_DEAD.
void call_table_end_all(struct call_table *table);

// ---- other members ----
// Handles READY, GRANT, POSTED or SMALL of the epoch in force, from a member of it. Takes the block, which may be NULL.
// Returns false if the member sent more than is allowed, or the frame is malformed.
bool call_table_signal(struct call_table *table, struct op_member *from, uint16_t type, const struct wire_head *head,
                       struct block *block, size_t bytes);
// Handles ACK. `asked`: the member leaves, and wants acknowledgements at once.
void call_table_acked(struct call_table *table, struct op_member *from, const struct wire_op_name *names,
                      uint32_t count, bool asked);
// Handles SUPPLY. Takes the block.
void call_table_supplied(struct call_table *table, const struct wire_op_name *name, struct block *result);
// Forgets a member that is about to be freed.
void call_table_forget(struct call_table *table, const struct op_member *member);

// ---- for the driver ----
// Calls `act` for all calls and segments.
void call_table_for_each(struct call_table *table, void (*act)(struct call_table *, struct op *));
// Returns the op of this name that runs in the epoch in force, or NULL.
struct op *call_table_find_running(const struct call_table *table, const struct wire_op *what);
// Takes a signal or input of this type that came from the member before the op began. The caller frees it. NULL: none.
struct unexpected *call_table_unexpected(struct call_table *table, const struct op *op, const struct op_member *from,
                                         uint16_t type);
// Completes an op that has received and sent everything. A small op ends, and `op->result` is kept. Returns true for a
// large op, of which the caller sends DONE.
bool call_table_complete(struct call_table *table, struct op *op);
void call_table_report_mismatch(struct call_table *table, struct op *op, const struct op_member *other,
                                const struct wire_fingerprint *theirs);
// Ends an op for which memory was refused, and with it the communicator, since others wait for the op.
void call_table_refuse(struct call_table *table, struct op *op);

// ---- epochs ----
// Notes that members were lost in this group epoch.
void call_table_note_loss(struct call_table *table, uint64_t epoch);
// Enters an epoch, and reports where each op stood; the caller frees `report->ops`. Returns false if memory was
// refused: the epoch is not in force then.
bool call_table_enter(struct call_table *table, const struct epoch *epoch, struct wire_report *report);
// Begins the ops that wait: all links of the epoch in force are there, and no newer epoch is known.
void call_table_links_ready(struct call_table *table);
void call_table_verdict(struct call_table *table, const struct wire_verdict *verdict);

// ---- what is kept beside the ops ----
// Returns how many bytes one of so many members may send another one that has not posted their ops.
uint64_t call_table_unexpected_limit(uint32_t members);
// Returns how many of those bytes may be chunks, which fill a long link until READY comes (1 Gbit/s, 80 ms: 10 MB). The
// rest is for small ops, which would have to wait.
static inline uint64_t call_table_unexpected_chunk_limit(uint32_t members) {
    return call_table_unexpected_limit(members) / 4 * 3;
}
// Returns whether anything of this tag came from that member.
bool call_table_has_unexpected(const struct call_table *table, uint64_t tag, const struct wire_id *from);
// Drops the acknowledgement of the previous op of this tag: a signal of this op is on its way, and implies it.
void call_table_drop_implied(struct op_member *to, const struct wire_op_name *name);
// Drops verdicts on epochs older than this one, to which a vote of the program has led. A member votes when its own
// calls have ended, so calls that such verdicts mean are not made any more. The next ones meet others, perhaps those of
// newcomers, who know of no such verdict.
void call_table_verdicts_voted(struct call_table_verdicts *verdicts, uint64_t group_epoch);
// Iterates over the ops of a call whose inputs may have to be restored: the call, then its segments. `after` is the
// previous one, NULL at first. Returns NULL at the end.
struct op *segments_part(struct op *call, const struct op *after);

#endif
