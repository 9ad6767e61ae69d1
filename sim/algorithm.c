// Models an algorithm: a reduced value is a sum of random numbers, which shows who contributed, once each.
#include "sim/algorithm.h"

#include <stdlib.h>

#include "sim/controls.h"
#include "sim/links.h"
#include "sim/refuse.h"
#include "sim/trace.h"

// State of an operation's algorithm.
struct moving {
    uint64_t input;
    bool dirty;       // there are results in its place
    uint32_t members; // slots, of the epoch in which it was begun
    // small: slots
    uint32_t missing, arrived, owed, eager;
    // large
    bool next_ready;
    uint32_t ready; // pieces: slots
    uint32_t to_receive, to_send;
    uint32_t shards, results; // that travel in the model; that are here
    struct frame held[HELD_MOST];
    uint32_t held_count;
    // of what has been reduced
    uint64_t value;
    uint32_t contributors;
};

const size_t sim_algorithm_work_bytes = sizeof(struct moving);

uint32_t sim_algorithm_members(const struct op *op) { return ((const struct moving *)op->work)->members; }

// ---- helpers ----

static struct neighbour *neighbour_of(struct op_member *member) { return (struct neighbour *)(void *)member; }

int sim_algorithm_slot(const struct op_member *member) {
    return ((const struct neighbour *)(const void *)member)->slot;
}

static uint32_t bit(const struct op_member *member) { return 1U << sim_algorithm_slot(member); }

static const struct epoch_ring *ring_of(const struct engine_model *e) { return &e->call_table.now->ring; }

// Returns the participant so many places behind this member in the ring.
static struct op_member *behind(const struct op *op, uint32_t places) {
    return op->team->members[(op->team->place + places) % op->team->count];
}

static struct op_member *successor(const struct op *op) { return behind(op, 1); }
static struct op_member *predecessor(const struct op *op) { return behind(op, op->team->count - 1); }

// Whether the member so many places behind, 0: this one, is the root.
static bool is_root(const struct op *op, uint32_t places) {
    return op->team->ranks[(op->team->place + places) % op->team->count] == op->root;
}

struct call *sim_algorithm_call(const struct engine_model *e, const struct op *op) {
    return (struct call *)&e->calls[op->args.tag & ((1U << CALL_BITS) - 1)];
}

struct wire_header sim_algorithm_header(const struct engine_model *e) {
    const struct epoch *now = e->call_table.now;
    return (struct wire_header){.run = now->run, .generation = now->generation, .epoch = now->group_epoch};
}

struct block *sim_algorithm_block(uint32_t bytes, uint64_t value, uint32_t contributors) {
    struct block *block = refuse_never(sizeof *block);
    *block = (struct block){1, bytes, contributors, value};
    return block;
}

void sim_algorithm_block_put(struct block *block) {
    if (block != NULL && --block->references == 0) free(block);
}

static struct frame frame_of(const struct engine_model *e, const struct op *op, uint16_t type) {
    return (struct frame){.type = type,
                          .run = e->call_table.now->run,
                          .epoch = e->call_table.now->group_epoch,
                          .tag = op->name.tag,
                          .sequence = op->name.sequence,
                          .segment = op->name.segment,
                          .fingerprint = op->args.fingerprint};
}

// The member's own input.
static struct frame input_frame(const struct engine_model *e, const struct op *op, uint16_t type) {
    struct frame frame = frame_of(e, op, type);
    frame.value = ((const struct moving *)op->work)->input;
    frame.contributors = 1U << e->slot;
    return frame;
}

void sim_algorithm_send(struct engine_model *e, struct op_member *to, uint32_t index, const struct frame *frame) {
    const struct neighbour *n = neighbour_of(to);
    if (e->sim->processes[n->slot].life == n->life) sim_send(e->sim, e->slot, n->slot, index, frame);
}

void sim_algorithm_wake(struct engine_model *e) {
    struct pccl_sim *s = e->sim;
    if (e->woken) return;
    e->woken = true;
    sim_push_for(s, e->slot, EVENT_ENGINE, s->now + (sim_chance(s, 4) ? (int64_t)sim_below(s, 3 * MS_NS) : 0));
}

// Returns the call's input for this operation, or segment.
static uint64_t input_of(const struct engine_model *e, const struct op *op) {
    return sim_mix(sim_algorithm_call(e, op)->input + op->name.segment);
}

// Returns the members whose inputs are in a result at this member. Small operations bring all inputs to all.
static uint32_t holds(const struct engine_model *e, const struct op *op) {
    const struct moving *m = op->work;
    const struct call *call = sim_algorithm_call(e, op);
    const struct plan_collective *collective = op_collective(op);
    bool gets = op->args.fingerprint.kind == PLAN_REDUCE || op->args.fingerprint.kind == PLAN_GATHER;
    if (op->algorithm == PLAN_SMALL || op->algorithm == PLAN_RING || op->algorithm == PLAN_WEIGHTED ||
        !collective->rooted || (gets && op_is_root(op)))
        return m->members;
    return gets ? 1U << e->slot : 1U << sim_slot(&call->root_id, &(uint32_t){0});
}

struct judged_op sim_algorithm_shown(const struct engine_model *e, const struct op *op) {
    const struct moving *m = op->work;
    enum call_result result = op->outcome.result;
    return (struct judged_op){.name = op->name,
                              .epoch = e->call_table.now,
                              .small = op->algorithm == PLAN_SMALL,
                              .members = m->members,
                              .holds = holds(e, op),
                              .calls = sim_algorithm_call(e, op)->calls,
                              .input = input_of(e, op),
                              .value = m->value,
                              .contributors = m->contributors,
                              .shards = m->shards,
                              .results = m->results,
                              .outcome = op->phase != OP_ENDED      ? OUTCOME_NONE
                                         : result == CALL_OK        ? OUTCOME_OK
                                         : result == CALL_LOST      ? OUTCOME_LOST
                                         : result == CALL_CANCELLED ? OUTCOME_CANCELLED
                                                                    : OUTCOME_MISMATCH};
}

// ---- small ops ----

static void complete_small(struct engine_model *e, struct op *op) {
    struct moving *m = op->work;
    if (m->missing > 0 || op->mismatch_reported) return;
    struct judged_op judged = sim_algorithm_shown(e, op);
    judge_reduced(e->sim, e->slot, &judged);
    op->result = sim_algorithm_block((uint32_t)op->bytes, m->value, m->contributors);
    call_table_complete(&e->call_table, op);
}

static void send_input(struct engine_model *e, struct op *op, struct op_member *to) {
    struct frame mine = input_frame(e, op, WIRE_SMALL);
    call_table_drop_implied(to, &op->name);
    sim_algorithm_send(e, to, 0, &mine);
}

// Takes the block. What is known to have posted the op gets the input that is owed to it.
static void take_input(struct engine_model *e, struct op *op, struct op_member *from, struct block *block) {
    struct moving *m = op->work;
    if (m->eager & bit(from)) neighbour_of(from)->eager_bytes -= op->bytes;
    m->eager &= ~bit(from);
    if (m->owed & bit(from)) send_input(e, op, from);
    m->owed &= ~bit(from);
    if (block != NULL && (m->arrived & bit(from)) == 0) {
        m->arrived |= bit(from);
        m->value += block->value;
        m->contributors |= block->contributors;
        m->missing--;
    }
    sim_algorithm_block_put(block);
}

static void meet(struct engine_model *e, struct op *op, struct op_member *other) {
    struct moving *m = op->work;
    struct unexpected *posted = call_table_unexpected(&e->call_table, op, other, WIRE_POSTED);
    struct unexpected *input = call_table_unexpected(&e->call_table, op, other, WIRE_SMALL);
    bool seen = posted != NULL || input != NULL;
    if (!seen && neighbour_of(other)->eager_bytes + op->bytes > call_table_unexpected_limit(ring_of(e)->count)) {
        struct frame frame = frame_of(e, op, WIRE_POSTED);
        m->owed |= bit(other);
        call_table_drop_implied(other, &op->name);
        sim_algorithm_send(e, other, 0, &frame);
    } else {
        if (!seen) {
            m->eager |= bit(other);
            neighbour_of(other)->eager_bytes += op->bytes;
        }
        send_input(e, op, other);
    }
    if (input != NULL) take_input(e, op, other, input->block);
    free(posted);
    free(input);
}

static void begin_small(struct engine_model *e, struct op *op) {
    struct moving *m = op->work;
    m->value = m->input;
    m->contributors = 1U << e->slot;
    m->missing = op->team->count - 1;
    m->arrived = m->owed = m->eager = 0;
    for (uint32_t step = 1; step < op->team->count; step++) meet(e, op, behind(op, step));
    complete_small(e, op);
}

// ---- large ops ----

// The shards of an op that travel in the model.
static bool travels(const struct op *op, uint32_t members, uint32_t shard) {
    uint32_t first = (uint32_t)(sim_mix(op->name.epoch * 131 + op->name.tag) % members);
    return (shard + members - first) % members < SHARDS_MOST;
}

static void complete_large(struct engine_model *e, struct op *op) {
    struct moving *m = op->work;
    if (op->phase != OP_RUNNING || op->mismatch_reported || m->to_receive > 0 || m->to_send > 0) return;
    struct judged_op judged = sim_algorithm_shown(e, op);
    judge_reduced(e->sim, e->slot, &judged);
    if (!call_table_complete(&e->call_table, op)) return;
    judged = sim_algorithm_shown(e, op);
    judge_complete(e->sim, e->slot, &judged);
    struct wire_op_done done = {op->name, (uint16_t)(op->args.subgroup == NULL ? 0 : op->team->count)};
    SIM_TELL(e->sim, e->slot, op_done, sim_algorithm_header(e), &done);
}

// Over a lane, which neighbours of the ring have, or the direct link.
static void send_chunk(struct engine_model *e, struct op_member *to, const struct frame *frame) {
    uint32_t n = ring_of(e)->count, places = (to->rank + n - ring_of(e)->rank) % n;
    sim_algorithm_send(e, to, places == 1 || places == n - 1 ? 1 + frame->shard % LANES : 0, frame);
}

static void forward(struct engine_model *e, struct op *op, const struct frame *frame) {
    struct moving *m = op->work;
    if (m->next_ready) {
        send_chunk(e, successor(op), frame);
        m->to_send--;
    } else if (m->held_count == HELD_MOST) {
        sim_fail(e->sim, "bounded memory", "peer %d holds more chunks than an op has", e->slot + 1);
    } else {
        m->held[m->held_count++] = *frame;
    }
}

static void next_is_ready(struct engine_model *e, struct op *op) {
    struct moving *m = op->work;
    if (m->next_ready) return;
    m->next_ready = true;
    uint32_t count = m->held_count;
    m->held_count = 0;
    for (uint32_t i = 0; i < count; i++) forward(e, op, &m->held[i]);
    complete_large(e, op);
}

// Tells the predecessor that its chunks may come, and sends the own one, if it has one.
static void begin_around(struct engine_model *e, struct op *op, bool sends, uint32_t shard) {
    struct unexpected *posted = call_table_unexpected(&e->call_table, op, successor(op), WIRE_READY);
    struct frame ready = frame_of(e, op, WIRE_READY), chunk = input_frame(e, op, WIRE_CHUNK);
    sim_algorithm_send(e, predecessor(op), 0, &ready);
    chunk.shard = (uint16_t)shard;
    if (sends) forward(e, op, &chunk);
    if (posted != NULL) next_is_ready(e, op);
    free(posted);
}

static void begin_ring(struct engine_model *e, struct op *op) {
    struct moving *m = op->work;
    uint32_t n = op->team->count, rank = op->team->place;
    for (uint32_t shard = 0; shard < n; shard++) {
        if (!travels(op, n, shard)) continue;
        m->shards++;
        m->to_send += shard == rank;
        for (uint32_t hop = 0; hop <= 2 * n - 3; hop++) {
            enum plan_step step = plan_ring_step(n, rank, shard, hop);
            m->to_receive += step != STEP_INVALID;
            m->to_send += step != STEP_INVALID && step != STEP_GATHER_LAST;
        }
    }
    begin_around(e, op, travels(op, n, rank), rank);
}

// The root's number travels round the ring.
static void begin_chain(struct engine_model *e, struct op *op) {
    struct moving *m = op->work;
    bool root = is_root(op, 0), last = is_root(op, 1);
    m->shards = 1;
    m->to_receive = !root;
    m->to_send = !last;
    m->next_ready = last; // nothing is sent there
    m->results = root;
    m->value = root ? m->input : 0;
    m->contributors = root ? 1U << e->slot : 0;
    begin_around(e, op, root, 0);
}

// Returns `to_root` if only the root receives, `from_root` if only the root sends, and otherwise true.
static bool gives(const struct op *op, bool from_root, bool to_root) {
    switch (op->args.fingerprint.kind) {
    case PLAN_REDUCE:
    case PLAN_GATHER: return to_root;
    case PLAN_SCATTER:
    case PLAN_SEND: return from_root;
    default: return true;
    }
}

static void piece_is_ready(struct engine_model *e, struct op *op, struct op_member *other) {
    struct moving *m = op->work;
    bool root = op->team->ranks[op->team->places[other->rank]] == op->root;
    if ((m->ready & bit(other)) != 0 || !gives(op, is_root(op, 0), root)) return;
    m->ready |= bit(other);
    struct frame chunk = input_frame(e, op, WIRE_CHUNK);
    send_chunk(e, other, &chunk);
    m->to_send--;
    complete_large(e, op);
}

// Each sends to each what is for it.
static void begin_pieces(struct engine_model *e, struct op *op) {
    struct moving *m = op->work;
    bool root = is_root(op, 0), own = gives(op, root, root);
    m->value = own ? m->input : 0;
    m->contributors = own ? 1U << e->slot : 0;
    if (!own && !gives(op, true, false)) m->value = m->input, m->contributors = 1U << e->slot; // nothing is to come
    m->ready = 0;
    for (uint32_t step = 1; step < op->team->count; step++) {
        m->to_send += gives(op, root, is_root(op, step));
        m->to_receive += gives(op, is_root(op, step), root);
    }
    for (uint32_t step = 1; step < op->team->count; step++) {
        struct frame ready = frame_of(e, op, WIRE_READY);
        sim_algorithm_send(e, behind(op, step), 0, &ready);
    }
    for (uint32_t step = 1; step < op->team->count && op->phase == OP_RUNNING; step++) {
        struct unexpected *posted = call_table_unexpected(&e->call_table, op, behind(op, step), WIRE_READY);
        if (posted != NULL) piece_is_ready(e, op, behind(op, step));
        free(posted);
    }
    complete_large(e, op);
}

static void begin_large(struct engine_model *e, struct op *op) {
    struct moving *m = op->work;
    m->next_ready = false;
    m->held_count = m->to_receive = m->to_send = m->shards = m->results = 0;
    if (op->algorithm == PLAN_RING || op->algorithm == PLAN_WEIGHTED) begin_ring(e, op);
    if (op->algorithm == PLAN_CHAIN) begin_chain(e, op);
    if (op->algorithm == PLAN_PIECES) begin_pieces(e, op);
}

struct wire_head sim_algorithm_head(const struct frame *frame) {
    return (struct wire_head){.op = {.tag = frame->tag,
                                     .fingerprint = frame->fingerprint,
                                     .sequence = frame->sequence,
                                     .segment = frame->segment}};
}

static void take_ring_chunk(struct engine_model *e, struct op *op, int from, const struct frame *frame) {
    struct moving *m = op->work;
    bool chain = op->algorithm == PLAN_CHAIN;
    enum plan_step step = plan_ring_step(op->team->count, op->team->place, frame->shard, frame->hop);
    if (chain) step = m->next_ready && m->to_send == 0 ? STEP_GATHER_LAST : STEP_GATHER;
    if (sim_algorithm_slot(predecessor(op)) != from || step == STEP_INVALID || m->to_receive == 0) {
        sim_fail(e->sim, "no mixing", "peer %d got a chunk of shard %u at hop %u from %d that it does not expect",
                 e->slot + 1, frame->shard, frame->hop, from + 1);
        return;
    }
    m->to_receive--;
    struct frame next = *frame;
    next.hop++;
    if (step == STEP_REDUCE || step == STEP_REDUCE_LAST) {
        if (frame->contributors >> e->slot & 1)
            sim_fail(e->sim, "exactness", "peer %d is to add its input to a sum that has it", e->slot + 1);
        next.value += m->input;
        next.contributors |= 1U << e->slot;
        m->dirty = true;
    }
    if (step != STEP_REDUCE) {
        bool first = m->results++ == 0;
        if (!first && (m->value != next.value || m->contributors != next.contributors))
            sim_fail(e->sim, "exactness", "two shards of an op hold different contributors at peer %d", e->slot + 1);
        m->value = next.value;
        m->contributors = next.contributors;
    }
    if (step != STEP_GATHER_LAST) forward(e, op, &next);
    complete_large(e, op);
}

static void take_piece(struct engine_model *e, struct op *op, int from, const struct frame *frame) {
    struct moving *m = op->work;
    if (m->to_receive == 0 || (m->contributors & frame->contributors) != 0) {
        sim_fail(e->sim, "no mixing", "peer %d got a piece from %d that it does not expect", e->slot + 1, from + 1);
        return;
    }
    m->to_receive--;
    m->value += frame->value;
    m->contributors |= frame->contributors;
    complete_large(e, op);
}

void sim_algorithm_chunk(struct engine_model *e, int from, const struct frame *frame) {
    struct wire_head head = sim_algorithm_head(frame);
    struct op *op = call_table_find_running(&e->call_table, &head.op);
    if (op == NULL)
        sim_fail(e->sim, "no mixing", "peer %d got a chunk of op (%ju, %ju, %u) from %d, which it has not begun",
                 e->slot + 1, OP_NAME(*frame), from + 1);
    if (op == NULL || op->phase != OP_RUNNING || !wire_fingerprint_equal(&op->args.fingerprint, &frame->fingerprint))
        return;
    if (op->algorithm == PLAN_PIECES)
        take_piece(e, op, from, frame);
    else
        take_ring_chunk(e, op, from, frame);
}

// ---- what the call table asks for ----

// Takes the input as if it lay in the result's buffer: a restart that has not put it back reduces something else.
static void take_up_input(struct engine_model *e, struct op *op) {
    struct moving *m = op->work;
    if (op->restart) e->sim->counts[COUNT_OPS_REDONE]++;
    if (op->restart) m->dirty = false;
    op->restart = false;
    m->input = m->dirty ? 1 : input_of(e, op);
    m->value = m->contributors = m->shards = m->results = 0;
    m->members = 1U << e->slot;
    for (uint32_t i = 0; i < op->team->count; i++)
        if (op->team->members[i] != NULL) m->members |= bit(op->team->members[i]);
    SIM_TRACE(e->sim, "peer %d: begins %s op (%ju, %ju, %u.%u)", e->slot + 1,
              op->algorithm == PLAN_SMALL ? "small" : "large", OP_NAME(op->name), op->name.segment);
    struct judged_op judged = sim_algorithm_shown(e, op);
    judge_begins(e->sim, e->slot, &judged);
}

bool sim_algorithm_start(void *context, struct op *op) {
    struct engine_model *e = context;
    if (op->algorithm == PLAN_SMALL) {
        take_up_input(e, op);
        begin_small(e, op);
    } else {
        op_queue_append(&e->posted, op);
        sim_algorithm_wake(e);
    }
    return true;
}

bool sim_algorithm_signal(void *context, struct op *op, struct op_member *from, uint16_t type,
                          const struct wire_head *head, struct block *block) {
    struct engine_model *e = context;
    (void)head;
    if (op->algorithm == PLAN_SMALL) {
        take_input(e, op, from, block);
        complete_small(e, op);
    } else if (type == WIRE_READY && op->algorithm == PLAN_PIECES) {
        piece_is_ready(e, op, from);
    } else if (type == WIRE_READY) {
        next_is_ready(e, op);
    }
    return true;
}

void sim_algorithm_release(void *context, struct op *op) {
    (void)context;
    sim_algorithm_block_put(op->result);
    op->result = NULL;
}

bool sim_algorithm_fill(void *context, struct op *op, struct block *result) {
    struct engine_model *e = context;
    struct moving *m = op->work;
    if (result->bytes != op->bytes) return false;
    e->sim->counts[COUNT_OPS_SUPPLIED]++;
    m->value = result->value;
    m->contributors = result->contributors;
    struct judged_op judged = sim_algorithm_shown(e, op);
    judge_reduced(e->sim, e->slot, &judged);
    return true;
}

void sim_algorithm_apply(struct engine_model *e) {
    for (struct op *op; (op = op_queue_pop(&e->posted)) != NULL;) {
        op->phase = OP_RUNNING;
        take_up_input(e, op);
        begin_large(e, op);
    }
}
