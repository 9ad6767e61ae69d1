// Ops, and what the members agree on about them.
#ifndef PCCL_DATA_OP_H
#define PCCL_DATA_OP_H

#include <pthread.h>

#include "base/platform.h"
#include "data/backup.h"
#include "data/core.h"
#include "data/core_private.h"
#include "data/frame.h"
#include "data/lane.h"
#include "data/lane_private.h"
#include "data/link.h"
#include "data/pool.h"
#include "data/same_host.h"
#include "ops/plan.h"
#include "ops/ranges.h"

enum {
    EAGER_BYTES = 4 * 1024 * 1024, // per neighbour: inputs of small ops sent before the neighbour has posted them
    // held for all neighbours together: among many members each may send that much less
    EAGER_ALL_BYTES = 64 * 1024 * 1024,
    ACK_BYTES = 512 * 1024, // results kept by a neighbour for want of our acks, then they are sent on their own
    ACK_NAME_BYTES = 24,
    TAG_COUNTERS_MAX = 1 << 16,        // distinct tags in one group epoch, then a fresh one is asked for
    TAG_OPS_MAX = 1 << 30,             // ops of one tag in one group epoch, then likewise
    EARLY_MAX = 2 * WIRE_MAX_LIVE_OPS, // signals and inputs per neighbour for ops not posted here
    CHUNKS_AHEAD = 8,                  // own chunks of an op under way when the successor reads them out of our memory
    // segments under way that are not the only one of their op; the rest is left to further ops
    EXTRA_MAX = 3 * WIRE_MAX_LIVE_OPS / 4,
};

// A chunk to forward that the successor is not ready for.
struct held {
    struct held *next;
    struct wire_op head;
    size_t bytes;
    uint32_t lane;
};

enum op_phase {
    OP_WAITING, // posted, has no name yet; begins when the links are ready
    OP_QUEUED,  // large, named; the thread has not begun it
    OP_RUNNING,
    OP_COMPLETE, // large: everything done here, DONE sent
    OP_DIVIDED,  // its segments do the work
    OP_ENDED,    // outcome is set; only the caller touches it
};

struct small_part {
    struct block *block; // the member's input
    bool owed;           // POSTED was sent instead of our input
    bool eager;          // our input was sent before the member was known to have posted
};

// One block of the shard that this member owns.
struct sharded_slot {
    uint32_t arrived;
    uint32_t unsent;       // RESULT frames not yet written
    struct block **inputs; // by rank
};

struct sharded {
    uint64_t window;            // blocks in work at the owner
    uint64_t blocks;            // of the own shard
    uint64_t freed, granted;    // own blocks that are over; that the others may send
    struct sharded_slot *slots; // [window]
    struct sharded_target {
        bool ready;
        uint64_t next, granted, blocks; // of the shard of this rank
        struct ranges codes, results;   // that have come from it, or are on their way: blocks
    } *targets;                         // by rank
    uint64_t codes_left, results_left;  // to be sent, to be received
    uint64_t frames_left;               // of RESULT, to be sent
};

struct op {
    struct op *chain; // in the table, or the free list
    struct op *next;  // in the engine's list of waiting, or of running large ops
    pthread_cond_t ended;
    struct engine_reduce reduce; // of a segment: its own part of the buffers, and the fingerprint of the whole
    size_t element;              // bytes
    uint64_t count, bytes;       // of this op, or segment
    struct op *whole;            // that this is a segment of, or NULL: the caller sees it
    struct segments *segments;   // of a divided op, or NULL
    struct roster *roster;       // the members when it was begun, if they are to be told
    enum plan_path path;
    enum op_phase phase;
    bool frozen;                // begun in an older epoch, no verdict yet
    bool accused;               // a mismatch was reported
    bool mismatched;            // and confirmed: ends when the epoch that follows freezes it
    bool waited;                // somebody is in engine_wait
    int64_t posted_ns, tell_ns; // when its caller is told next for whom it waits
    uint64_t adopted;
    struct wire_op_name name;
    uint32_t contributors;
    struct engine_outcome outcome;

    struct small_part *parts; // small: by rank
    struct kept *kept;        // small: made ready, so that completion cannot fail
    uint32_t missing;

    bool restart;                      // thread: put the input back first
    bool next_ready;                   // thread: the successor has posted the op
    bool next_reads;                   // thread: and takes its chunks out of our memory
    uint64_t injected, returned;       // thread: own chunks under way
    uint64_t under_way;                // thread: their bytes, unless the successor reads them
    struct held *held;                 // thread: chunks to forward once it has
    uint64_t inject, inject_end;       // thread: own shard, elements
    uint64_t receive_left, send_left;  // thread: bytes
    struct ranges reducing, gathering; // thread: what has come, or is on its way: elements
    uint64_t tx_bytes, rx_bytes;
    struct sharded *sharded; // thread
    struct backup backup;    // thread, then the caller's
};

// A result that other members may still lack.
struct kept {
    struct kept *next;
    struct wire_op_name name;
    struct block *result;
    bool supplier; // the unacked get the result from here
    uint32_t unacked_count;
    struct peer *unacked[]; // room for the epoch's members
};

// What came for an op that is not posted here.
struct early {
    struct early *next;
    struct peer *from;
    uint16_t type;
    struct wire_op head;
    struct block *block;
};

// ---- op.c ----
struct op *op_find(struct engine *engine, uint64_t tag); // the one that the caller sees
// begun in the epoch in force, not frozen
struct op *op_find_running(struct engine *engine, const struct wire_op *head);
struct op *op_find_named(struct engine *engine, const struct wire_op_name *name); // running or complete, perhaps frozen
struct op *op_new(struct engine *engine, uint64_t tag);
void op_free(struct engine *engine, struct op *op);                           // takes it from the table
void op_end(struct engine *engine, struct op *op, enum engine_result result); // frees a segment that was committed
// memory was refused: the op ends, and the engine, since others wait for the op
void op_end_refused(struct engine *engine, struct op *op);
void ops_for_each(struct engine *engine, void (*act)(struct engine *, struct op *));
// ranges_take; refused memory ends the engine; lock held
bool op_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end);
void op_list_append(struct op_list *list, struct op *op);
struct op *op_list_pop(struct op_list *list);             // the first; NULL: the list is empty
void op_list_remove(struct op_list *list, struct op *op); // nothing if it is not there
void roster_put(struct roster *roster);                   // NULL is allowed
void op_head(const struct op *op, struct wire_op *out);
bool counter_take(struct engine *engine, uint64_t tag, uint32_t *sequence); // false: no memory
// the next op of this tag needs another group epoch
bool counter_is_spent(const struct engine *engine, uint64_t tag);
void counters_clear(struct engine *engine);

// ---- engine_ops.c, lock held ----
uint64_t engine_first_loss(const struct engine *engine, uint64_t adopted); // 0: none since
void engine_begin(struct engine *engine, struct op *op);                   // now, or
void engine_wait_for_links(struct engine *engine, struct op *op);          // until
void engine_begin_waiting(struct engine *engine);                          // is called
void engine_end_lost(struct engine *engine, struct op *op);

// ---- engine_epochs.c, thread, lock held ----
// false: memory was refused, the engine is dead
bool engine_enter_pending(struct engine *engine, struct wire_report *report);
// no lane has a frame of a large op any more, none is running
void engine_let_go(struct engine *engine);

// ---- engine_verdicts.c ----
void engine_complete(struct engine *engine, struct op *op); // thread, lock not held: DONE
// lock held
void engine_accuse(struct engine *engine, struct op *op, const struct peer *other,
                   const struct wire_fingerprint *theirs);
void engine_forget(struct engine *engine, struct op *op); // it has not begun, or is frozen; lock held
// Lock held. Whether the call ends with a mismatch that came before it was made; then `outcome.text` tells. Of that and
// `loss`, the first loss since the caller's epoch (0: none), whichever came first for those that had begun the op
// counts.
bool poison_take(struct engine *engine, struct op *op, uint64_t loss);

// ---- early.c, lock held ----
// bytes of inputs that one member may send another one before that one has posted their ops
uint64_t early_limit(const struct engine *engine);
// takes `block`; false: more than is allowed
bool early_add(struct engine *engine, struct peer *from, uint16_t type, const struct wire_op *head,
               struct block *block);
// NULL: none
struct early *early_take(struct engine *engine, const struct peer *from, const struct wire_op *head, uint16_t type);
void early_free(struct engine *engine, struct early *early);
void early_clear(struct engine *engine);
// accuses those whose arguments differ from those of an op that begins
void early_compare(struct engine *engine, struct op *op);

// ---- direct.c, lock held ----
void small_begin(struct engine *engine, struct op *op);
// false: more than is allowed
bool small_arrived(struct engine *engine, struct peer *from, uint16_t type, const struct wire_op *head,
                   struct block *block);
void small_supplied(struct engine *engine, const struct wire_op *head, uint64_t epoch, struct block *block);
void small_supply(struct engine *engine, const struct wire_verdict *verdict);
void small_release(struct engine *engine, struct op *op);
void small_acked(struct engine *engine, struct peer *from, const struct wire_op_name *name);
void small_settle(struct engine *engine); // acknowledges, and asks to be acknowledged
void small_asked(struct engine *engine, struct peer *from);
void small_send_supplies(struct engine *engine); // links have become ready
void small_forget(struct engine *engine, struct peer *peer);
void small_implied_ack(struct engine *engine, struct peer *from, const struct wire_op *head);
void kept_clear(struct engine *engine);

// ---- waits.c, lock held ----
void op_waits_for(const struct engine *engine, const struct op *op, char *out, size_t capacity);

// ---- segments.c, lock held unless told otherwise ----
bool segments_new(struct op *whole); // divides it; false: no memory
void segments_begin(struct engine *engine, struct op *whole);
bool segments_name(struct engine *engine, struct op *op); // the sequence of a segment that begins; false: no memory
void segments_ended(struct engine *engine, struct op *op);
// runs under this name, or is yet to get one in its epoch
bool segments_are_meant(const struct op *whole, const struct wire_op_name *name);
// those that have not ended
void segments_for_each(struct engine *engine, struct op *whole, void (*act)(struct engine *, struct op *));
void segments_turn_whole(struct op *whole, const struct wire_op_name *name); // others run it in one piece
bool segments_wants_whole(const struct op *whole);
void segments_begin_whole(struct engine *engine, struct op *whole); // thread, frozen
bool segments_must_restore(const struct op *whole);
void segments_restore(struct op *whole); // ended; without the lock
void segments_free(struct engine *engine, struct op *whole);
struct engine_contributors *segments_contributors(const struct op *op); // of any op that has ended; NULL: no memory

// ---- ring.c, thread ----
void ring_begin(struct engine *engine, struct op *op);
// As in struct lane_route.
bool ring_place(struct engine *engine, struct op *op, struct incoming *in);
bool ring_arrived(struct engine *engine, struct op *op, struct incoming *in);
void ring_next_ready(struct engine *engine, struct op *op, bool reads); // lock held
void ring_release(struct op *op);
struct frame *ring_next(struct engine *engine, struct op *op, struct lane *lane); // NULL: none, or not now
void ring_sent(struct engine *engine, struct op *op, const struct frame *frame);

// ---- sharded.c, thread ----
bool sharded_begin(struct engine *engine, struct op *op);
void sharded_release(struct engine *engine, struct op *op);
void sharded_signal(struct engine *engine, struct op *op, struct peer *from, uint16_t type, const struct wire_op *head);
bool sharded_place(struct engine *engine, struct op *op, struct incoming *in);
bool sharded_arrived(struct engine *engine, struct op *op, struct incoming *in);
struct frame *sharded_next(struct engine *engine, struct op *op, struct lane *lane);
void sharded_sent(struct engine *engine, struct op *op, const struct frame *frame);

#endif
