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
// All ops have ended. Forgets them, and with that puts back the inputs of those that nobody took.
void call_table_fini(struct call_table *table);

// ---- callers ----
// As engine_post, but CALL_DEAD. `element`: bytes; `out`: the op, if CALL_OK, which may have ended. Of a call that is
// posted the reference to its group and its parts are the call table's.
enum call_result call_table_post(struct call_table *table, const struct call_args *args, size_t element,
                                 uint64_t adopted, struct op **out);
struct op *call_table_find(const struct call_table *table, uint64_t tag); // the call with this tag; NULL: there is none
// Asks to end the call on all members with CALL_CANCELLED. It still ends well if a member has completed it.
void call_table_cancel(struct call_table *table, struct op *call);
// Removes a call that has ended and whose input is restored.
void call_table_take(struct call_table *table, struct op *op, struct call_outcome *out);
// Before leaving: acknowledges everything, and asks the others to do likewise. All has drained when `retained.count` is
// 0.
void call_table_drain(struct call_table *table);
void call_table_end_all(struct call_table *table); // with CALL_DEAD

// ---- other members ----
// READY, GRANT, POSTED or SMALL of the epoch in force, from a member of it. Takes the block, which may be NULL. False:
// more than is allowed, or malformed.
bool call_table_signal(struct call_table *table, struct op_member *from, uint16_t type, const struct wire_head *head,
                       struct block *block, size_t bytes);
// ACK.
void call_table_acked(struct call_table *table, struct op_member *from, const struct wire_op_name *names,
                      uint32_t count, bool asked);
// SUPPLY. Takes the block.
void call_table_supplied(struct call_table *table, const struct wire_op_name *name, struct block *result);
void call_table_forget(struct call_table *table, const struct op_member *member); // it is about to be freed

// ---- what moves ops ----
// All calls and segments.
void call_table_for_each(struct call_table *table, void (*act)(struct call_table *, struct op *));
// The one that runs in the epoch in force; NULL: there is none.
struct op *call_table_find_running(const struct call_table *table, const struct wire_op *what);
// Returns the data that arrived for this op before its start; the caller frees it. NULL: none.
struct unexpected *call_table_unexpected(struct call_table *table, const struct op *op, const struct op_member *from,
                                         uint16_t type);
// Everything is here and everything is sent. A small op ends, and `op->result` is kept. True: a large one, and DONE is
// to be sent.
bool call_table_complete(struct call_table *table, struct op *op);
void call_table_report_mismatch(struct call_table *table, struct op *op, const struct op_member *other,
                                const struct wire_fingerprint *theirs);
// Memory for the op was refused: it ends, and the communicator, since others wait for it.
void call_table_refuse(struct call_table *table, struct op *op);

// ---- epochs ----
void call_table_note_loss(struct call_table *table, uint64_t epoch); // members were lost in it
// Enters an epoch. `report`, where each op stood, is the caller's to free. False: memory was refused, and the epoch is
// not in force.
bool call_table_enter(struct call_table *table, const struct epoch *epoch, struct wire_report *report);
void call_table_links_ready(struct call_table *table); // of the epoch in force, and no newer one is known
void call_table_verdict(struct call_table *table, const struct wire_verdict *verdict);

// ---- what is kept beside the ops ----
// Bytes that one of so many members may send another one before that one has posted their ops.
uint64_t call_table_unexpected_limit(uint32_t members);
// How much of that may be chunks, which fill a long link until READY comes (1 Gbit/s, 80 ms: 10 MB); the rest is for
// small ops, which would have to wait.
static inline uint64_t call_table_unexpected_chunk_limit(uint32_t members) {
    return call_table_unexpected_limit(members) / 4 * 3;
}
// Returns whether anything of this tag came from that member.
bool call_table_has_unexpected(const struct call_table *table, uint64_t tag, const struct wire_id *from);
// A signal of this op is on its way: that the op before it, of the same tag, is complete need not be told.
void call_table_drop_implied(struct op_member *to, const struct wire_op_name *name);
// The program has ended a vote that led to this group epoch. A member votes when its own calls have ended, so those of
// verdicts on older epochs that this member did not make are not made any more: its next ones meet others, perhaps of
// newcomers, who know of no such verdict.
void call_table_verdicts_voted(struct call_table_verdicts *mismatches, uint64_t group_epoch);
// The ops of a call whose inputs may have to be put back: itself, then the segments that it has. `after`: the last one,
// NULL at first. NULL: there are no more.
struct op *segments_part(struct op *call, const struct op *after);

#endif
