// What moves ops: the parts of the data plane that know how.
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

enum {
    ACK_NAME_BYTES = 24,
    CHUNKS_AHEAD = 8, // own chunks of an op under way when the successor reads them out of our memory
};

// A chunk to forward that the successor is not ready for.
struct held {
    struct held *next;
    struct wire_op head;
    size_t bytes;
    uint32_t lane;
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

// ---- engine_ops.c ----
struct op_driver engine_driver(struct engine *engine);
// ranges_take; refused memory ends the engine; lock held
bool op_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end);

// ---- engine_epochs.c, thread ----
// Lock held. False: memory was refused, the engine is dead.
bool engine_enter_pending(struct engine *engine, struct wire_report *report);
void pending_free(struct pending_epoch *pending); // NULL is allowed
// No lane has a frame of a large op any more, none is running. Lock held.
void engine_let_go(struct engine *engine);
void engine_complete(struct engine *engine, struct op *op); // everything is here and sent; lock not held

// ---- direct.c, lock held ----
bool small_begin(struct engine *engine, struct op *op); // false: memory was refused
void small_signal(struct engine *engine, struct op *op, struct peer *from, uint16_t type, struct block *block);
void small_release(struct engine *engine, struct op *op);

// ---- waits.c, lock held ----
void op_waits_for(const struct engine *engine, const struct op *op, char *out, size_t capacity);

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
