// Models of the algorithms, with one number in place of a tensor: small ops as data/algorithms/direct.c moves them,
// large ones as data/algorithms/ring.c, broadcast.c and pieces.c, by ops/plan. Weighted all-reduces go round the ring
// here.
#ifndef PCCL_SIM_ALGORITHM_H
#define PCCL_SIM_ALGORITHM_H

#include "ops/call_table.h"
#include "sim/judge_ops.h"
#include "sim/queue.h"

enum {
    TAGS = 6,
    CALL_BITS = 3,   // of a tag that tell which of the program's calls has it
    SHARDS_MOST = 2, // of an op that travel, for those of all members
    UNEXPECTED_MOST = 256,
    RETAINED_MOST = 128,
    HELD_MOST = 8,
    SEGMENTS_MOST = 8,
};

// A call of the program.
struct call {
    enum call_result result; // CALL_IN_PROGRESS: open
    bool retry;
    uint64_t tag;
    uint32_t variant, bytes;
    uint64_t input;
    uint64_t epoch;                  // to adopt, or 0
    int64_t cancel_at;               // INT64_MAX: never
    uint32_t calls;                  // with this tag in this phase of the program
    uint32_t members[SEGMENTS_MOST]; // slots that are in each segment; 0: it is not committed
    // of a call over a list, and of one that goes on with everyone
    uint8_t kind;
    bool everyone;
    struct wire_id root_id;
    uint32_t count, rank, root; // count 0: it is one of all
    struct wire_id ids[DATA_SLOTS];
};

// Another process, as long as this one knows it.
struct neighbour {
    struct op_member member; // first
    struct neighbour *next;
    int slot;
    uint32_t life;
    bool dropped;
    uint64_t eager_bytes; // of inputs sent before it is known to have posted their ops
};

// A peer's data plane.
struct engine_model {
    struct pccl_sim *sim; // NULL: it has ended, or never begun
    int slot;
    const struct epoch *pending; // as in data/core.h
    bool pending_ready;
    bool woken;
    struct neighbour *neighbours[SLOTS]; // owned; by slot
    struct call_table call_table;
    struct op_queue posted; // large, to be begun
    struct call calls[TAGS];
};

// An input or a result.
struct block {
    uint32_t references, bytes, contributors;
    uint64_t value;
};

extern const size_t sim_algorithm_work_bytes; // behind each op

// Returns the header of the engine's frames to the master.
struct wire_header sim_algorithm_header(const struct engine_model *e);
struct block *sim_algorithm_block(uint32_t bytes, uint64_t value, uint32_t contributors);
void sim_algorithm_block_put(struct block *block);   // NULL is allowed
uint32_t sim_algorithm_members(const struct op *op); // slots, of the epoch in which it was begun
struct call *sim_algorithm_call(const struct engine_model *e, const struct op *op);
int sim_algorithm_slot(const struct op_member *member);
struct wire_head sim_algorithm_head(const struct frame *frame);
void sim_algorithm_send(struct engine_model *e, struct op_member *to, uint32_t index, const struct frame *frame);
void sim_algorithm_wake(struct engine_model *e);
struct judged_op sim_algorithm_shown(const struct engine_model *e, const struct op *op);

// Callbacks of ops/op.h.
bool sim_algorithm_start(void *context, struct op *op);
bool sim_algorithm_signal(void *context, struct op *op, struct op_member *from, uint16_t type,
                          const struct wire_head *head, struct block *block);
void sim_algorithm_release(void *context, struct op *op);
bool sim_algorithm_fill(void *context, struct op *op, struct block *result);

void sim_algorithm_apply(struct engine_model *e); // begins the large ops that were started
void sim_algorithm_chunk(struct engine_model *e, int from, const struct frame *frame);

#endif
