// Small ops: every member sends its whole input to every other, all reduce in ring order. One one-way delay, no master:
// a member that has all inputs has the result and returns (ops/call_table_signals.c says what makes that safe).
//
// Inputs are sent before the others have posted the op, as long as no neighbour has to hold more than
// call_table_unexpected_limit() of ours. Beyond that a POSTED notice goes instead, and the input once the neighbour's
// own notice or input shows that it has posted the op.
#include <stdlib.h>
#include <string.h>

#include <pccl.h>

#include "base/memory.h"
#include "compute/kernels.h"
#include "data/slots.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/algorithm.h"
#include "link/frame.h"
#include "device/device.h"

enum {
    PART_BYTES = 64 * 1024 // that fit a cache together with what they are made of
};

struct part {
    struct block *block; // the member's input
    bool owed;           // POSTED was sent instead of our input
    bool eager;          // our input was sent before the member was known to have posted
};

// `input` is a copy that direct_begin() takes. It is sent and it is reduced, so a program that writes to its tensor
// while the op is in flight changes nothing: all members reduce the same inputs.
struct direct {
    struct part *parts; // by rank
    struct block *input;
    bool copied; // `input` is the copy
    uint32_t missing;
};

static const void *input_of(const struct op *op) { return ((const struct direct *)op->work)->input->bytes; }

static struct block *block_of(const struct op *op, uint32_t place) {
    const struct direct *direct = op->work;
    return place == op->team->place ? direct->input : direct->parts[place].block;
}

static uint32_t divisor_of(const struct op *op) { return op->args.fingerprint.op == pcclAvg ? op->team->count : 0; }

// Returns how inputs of the op are reduced; the quotient is left to the last reduction. It has no operand yet.
static struct block_sum sum_of(const struct op *op, bool is_last) {
    const struct wire_fingerprint *what = &op->args.fingerprint;
    return (struct block_sum){
        .count = op->count, .divisor = is_last ? divisor_of(op) : 0, .op = what->op, .dtype = what->dtype};
}

static void reduce(const struct block_sum *how, void *to, const struct block *first, const struct block *second) {
    kernels_get()->reduce[how->op][how->dtype](to, block_payload(first), block_payload(second), how->count);
    if (how->divisor > 0) kernels_get()->divide[how->dtype](to, how->count, how->divisor);
}

// Returns the reduction of all inputs but the last, in ring order. It overwrites received blocks only: the own input
// may still be on its way to other members.
static struct block *reduce_all_but_last(const struct op *op) {
    struct block *sum = block_of(op, 0), *room = op->team->place == 0 ? NULL : sum;
    struct block_sum how = sum_of(op, false);
    for (uint32_t i = 1; i + 1 < op->team->count; i++) {
        struct block *input = block_of(op, i);
        if (room == NULL) room = input;
        reduce(&how, room->bytes, sum, input);
        sum = room;
    }
    return sum;
}

// result = the inputs reduced in ring order.
static void reduce_parts(const struct op *op, void *result) {
    struct block_sum how = sum_of(op, true);
    if (op->team->count > 1) {
        reduce(&how, result, reduce_all_but_last(op), block_of(op, op->team->count - 1));
        return;
    }
    memcpy(result, input_of(op), op->bytes);
    if (how.divisor > 0) kernels_get()->divide[how.dtype](result, how.count, how.divisor); // NaN become canonical
}

// Returns whether the result goes straight to the tensor. What is kept for the others is then the two operands of the
// last addition, which are hardly ever added again.
static bool is_written_once(const struct op *op) {
    return op->args.fingerprint.kind == PLAN_ALL_REDUCE && op->bytes > 0 && op->team->count > 1;
}

// Keeps the sum itself: the own input is still on its way, and the other one lies in slots. False: the system refused
// memory.
static bool keep_sum(struct engine *engine, struct op *op, const struct block_sum *how, const struct block *first,
                     const struct block *second) {
    op->result = block_new(engine->pool, op->bytes);
    if (op->result == NULL) return false;
    reduce(how, op->result->bytes, first, second);
    return true;
}

// False: the device has failed.
static bool write_once(struct engine *engine, struct op *op) {
    uint8_t *staging = algorithm_staging(op, 0, op->bytes);
    if (staging == NULL) return false;
    struct block *sum = reduce_all_but_last(op), *last = block_of(op, op->team->count - 1);
    struct block_sum how = sum_of(op, true);
    reduce(&how, staging, sum, last);
    algorithm_unstage(op, 0, staging, op->bytes);
    // The own input may still be on its way, so the other block takes the sum, unless that lies in slots.
    const struct block *own = ((const struct direct *)op->work)->input;
    bool in_slots = sum->in_slots != NULL || last->in_slots != NULL;
    if (in_slots && own->references > 1) return keep_sum(engine, op, &how, sum, last);
    bool in_last = in_slots ? last == own : sum == own;
    op->result = in_last ? last : sum;
    op->result->references++;
    how.operand = in_last ? sum : last;
    how.operand->references++;
    how.operand_first = in_last;
    op->result->sum = how;
    return true;
}

void algorithm_complete_result(struct engine *engine, struct block *result) {
    engine_assert_locked(engine);
    struct block_sum *sum = &result->sum;
    if (sum->operand == NULL) return;
    unsigned mode = kernels_enter();
    if (sum->operand_first)
        reduce(sum, result->bytes, sum->operand, result);
    else
        reduce(sum, result->bytes, result, sum->operand);
    kernels_leave(mode);
    block_put(engine->pool, sum->operand);
    sum->operand = NULL;
}

void algorithm_leave_slots(struct engine *engine) {
    engine_assert_locked(engine);
    for (size_t i = 0; i < TAG_SLOTS; i++)
        for (struct retained *kept = engine->call_table.retained.slots[i]; kept != NULL; kept = kept->next)
            if (kept->result->sum.operand != NULL && kept->result->sum.operand->in_slots != NULL)
                algorithm_complete_result(engine, kept->result);
}

// Bytes that the member of this rank gives to a small op.
static uint64_t part_bytes(const struct op *op, uint32_t rank) {
    const struct plan_collective *collective = op_collective(op);
    if (collective->reduces || op->args.fingerprint.kind == PLAN_ALL_TO_ALL) return op->bytes;
    if (collective->gathers) return op->args.parts->sizes[rank] * op->element;
    return collective->rooted && rank == op->root ? op->bytes : 0;
}

// result = the inputs one after another, by rank; of most collectives that is one input alone.
static void gather_parts(const struct op *op, uint8_t *result) {
    const struct team *now = op->team;
    const struct direct *direct = op->work;
    uint64_t at = 0;
    uint32_t ranks = op->args.subgroup == NULL ? now->epoch->ring.count : op->args.subgroup->count;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint64_t bytes = part_bytes(op, rank);
        if (bytes == 0) continue;
        uint32_t place = 0;
        while (place < now->count && now->ranks[place] != rank) place++;
        if (place < now->count)
            memory_copy(result + at, place == now->place ? input_of(op) : direct->parts[place].block->bytes, bytes);
        at += bytes;
    }
}

static void complete(struct engine *engine, struct op *op) {
    unsigned mode = kernels_enter(); // perhaps on the caller's thread, with the caller's mode
    bool once = is_written_once(op), written = once && write_once(engine, op);
    if (!once && op_collective(op)->reduces && op->bytes > 0)
        reduce_parts(op, op->result->bytes);
    else if (!once)
        gather_parts(op, op->result->bytes);
    kernels_leave(mode);
    if (once ? written : algorithm_write(op, op->result->bytes)) call_table_complete(&engine->call_table, op);
}

static void direct_release(struct engine *engine, struct op *op) {
    struct direct *direct = op->work;
    if (direct->parts != NULL)
        for (uint32_t i = 0; i < op->contributors; i++) block_put(engine->pool, direct->parts[i].block);
    free(direct->parts);
    block_put(engine->pool, direct->input);
    *direct = (struct direct){0};
    block_put(engine->pool, op->result);
    op->result = NULL;
    device_unmap(op->args.queue, op->input);
    op->input = NULL;
}

// ---- inputs ----
static const uint8_t *tensor_of(const struct op *op) { return op->args.queue == NULL ? op->args.send : op->input; }

static void copy_input(struct op *op) {
    struct direct *direct = op->work;
    if (!direct->copied && op->in_bytes > 0) memory_copy(direct->input->bytes, tensor_of(op), op->in_bytes);
    direct->copied = true;
}

// Among more than two, sums overwrite received inputs.
static bool may_use_slots(const struct op *op) { return is_written_once(op) && op->team->count == 2; }

// Copies the input to slots for the other member, and to its block if it is not there yet. NULL: the input has
// to be sent.
static struct frame *input_in_slots(struct engine *engine, struct op *op, struct neighbour *peer,
                                    struct wire_head *head) {
    struct direct *direct = op->work;
    uint8_t *room = NULL, *own = direct->input->bytes;
    struct frame *frame = may_use_slots(op) ? slots_input_frame(engine, peer, op, head, &room) : NULL;
    if (frame == NULL) return NULL;
    for (uint64_t at = 0; at < op->in_bytes; at += PART_BYTES) {
        uint64_t bytes = op->in_bytes - at < PART_BYTES ? op->in_bytes - at : PART_BYTES;
        if (!direct->copied) memory_copy(own + at, tensor_of(op) + at, bytes);
        memory_copy_past_caches(room + at, own + at, bytes);
    }
    direct->copied = true;
    return frame;
}

static void send_input(struct engine *engine, struct op *op, struct neighbour *peer) {
    if (peer->lanes[0] == NULL) return; // redone in the next epoch
    struct wire_head head = {.op = op_on_wire(op)};
    call_table_drop_implied(&op_peer_of(peer)->member, &op->name);
    struct block *input = ((struct direct *)op->work)->input;
    struct frame *in_slots = input_in_slots(engine, op, peer, &head);
    if (in_slots != NULL) {
        neighbour_send(peer, in_slots);
        return;
    }
    struct frame *frame = frame_new(&engine->lanes->frames, WIRE_SMALL, &head, op->in_bytes);
    if (frame == NULL) return;
    copy_input(op);
    input->references++; // the caller may have its buffer back before the kernel has taken all of it
    frame->block = input;
    frame->payload = input->bytes;
    neighbour_send(peer, frame);
}

static void take_part(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                      struct block *block) {
    struct direct *direct = op->work;
    struct part *part = &direct->parts[algorithm_place_of(op, from)];
    if (part->eager) op_peer_of(from)->eager_bytes -= op->in_bytes;
    part->eager = false;
    if (part->owed) {
        part->owed = false;
        send_input(engine, op, from);
    }
    if (type != WIRE_SMALL || part->block != NULL || (block->in_slots != NULL && !may_use_slots(op)) ||
        block->length != part_bytes(op, op->team->ranks[algorithm_place_of(op, from)])) {
        block_put(engine->pool, block);
        return;
    }
    part->block = block;
    direct->missing--;
}

// Returns what the member sent before the operation was posted here: its input, or at least the notice that it has
// posted it. The caller frees it; NULL if nothing came.
static struct unexpected *take_unexpected(struct engine *engine, struct op *op, struct neighbour *from) {
    struct unexpected *posted = algorithm_unexpected(engine, op, from, WIRE_POSTED);
    struct unexpected *input = algorithm_unexpected(engine, op, from, WIRE_SMALL);
    if (input != NULL) free(posted);
    return input != NULL ? input : posted;
}

static void meet(struct engine *engine, struct op *op, struct neighbour *peer) {
    struct direct *direct = op->work;
    struct part *part = &direct->parts[algorithm_place_of(op, peer)];
    struct unexpected *seen = take_unexpected(engine, op, peer);
    if (seen == NULL && op_peer_of(peer)->eager_bytes + op->in_bytes >
                            call_table_unexpected_limit(engine->call_table.now->ring.count)) {
        struct wire_head head = {.op = op_on_wire(op)};
        part->owed = true;
        call_table_drop_implied(&op_peer_of(peer)->member, &op->name);
        lanes_signal(peer, WIRE_POSTED, &head, NULL);
    } else {
        part->eager = seen == NULL;
        if (part->eager) op_peer_of(peer)->eager_bytes += op->in_bytes;
        send_input(engine, op, peer);
    }
    if (seen == NULL) return;
    if (op->mismatch_reported)
        block_put(engine->pool, seen->block);
    else
        take_part(engine, op, peer, seen->type, seen->block);
    free(seen);
}

static bool direct_begin(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    struct direct *direct = op->work;
    direct->missing = now->count - 1;
    op->tx_bytes = (uint64_t)direct->missing * op->in_bytes;
    op->rx_bytes = 0;
    for (uint32_t place = 0; place < now->count; place++)
        if (place != now->place) op->rx_bytes += part_bytes(op, now->ranks[place]);
    direct->parts = calloc(now->count, sizeof *direct->parts);
    if (!is_written_once(op)) op->result = block_new(engine->pool, op->result_bytes);
    direct->input = block_new(engine->pool, op->in_bytes);
    if (direct->parts == NULL || direct->input == NULL || (op->result == NULL && !is_written_once(op))) return false;
    // Each member begins with another receiver, so that nobody is everybody's first.
    for (uint32_t step = 1; step < now->count; step++)
        meet(engine, op, algorithm_peer(op, (now->place + step) % now->count));
    copy_input(op); // a device's input is read as a whole before the op begins
    if (direct->missing == 0 && !op->mismatch_reported) complete(engine, op);
    return true;
}

static bool direct_take_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                               const struct wire_head *head, struct block *block) {
    (void)head;
    struct direct *direct = op->work;
    if (block != NULL && block->in_slots != NULL && !may_use_slots(op)) {
        block_put(engine->pool, block);
        return false;
    }
    take_part(engine, op, from, type, block);
    if (direct->missing == 0 && !op->mismatch_reported) complete(engine, op);
    return true;
}

static bool direct_misses(const struct op *op, uint32_t place) {
    const struct direct *direct = op->work;
    return direct->parts != NULL && direct->parts[place].block == NULL;
}

const struct algorithm direct_algorithm = {
    .name = "direct",
    .work_bytes = sizeof(struct direct),
    .direct = true,
    .begin = direct_begin,
    .signal = direct_take_signal,
    .release = direct_release,
    .misses = direct_misses,
};
