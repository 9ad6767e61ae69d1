// Small ops: every member sends its whole input to every other, all reduce in rank order. One one-way delay, no master:
// a member that has all inputs has the result and returns (ops/kept.h says what makes that safe).
//
// Inputs are sent before the others have posted the op, as long as no neighbour has to hold more than early_limit() of
// ours. Beyond that a POSTED notice goes instead, and the input once the neighbour's own notice or input shows that it
// has posted the op.
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <pccl.h>

#include "compute/kernels.h"
#include "data/op.h"

// recv = the inputs reduced in rank order. Intermediate sums go into received blocks, so that an in-place input is read
// before it is written.
static void reduce_parts(struct engine *engine, struct op *op) {
    const struct wire_fingerprint *what = &op->reduce.fingerprint;
    const struct kernels *kernels = kernels_get();
    kernel_reduce_fn *reduce = kernels->reduce[what->op][what->dtype];
    const void *sum = NULL;
    void *room = NULL;
    for (uint32_t i = 0; i < engine->count; i++) {
        void *block = i == engine->rank ? NULL : op->parts[i].block->bytes;
        const void *input = block == NULL ? op->reduce.send : block;
        if (sum == NULL) {
            sum = input;
            room = block;
            continue;
        }
        if (room == NULL) room = block;
        void *to = i + 1 == engine->count ? op->reduce.recv : room;
        reduce(to, sum, input, what->count);
        sum = to;
    }
    if (what->op == pcclAvg) kernels->divide[what->dtype](op->reduce.recv, what->count, engine->count);
}

static void complete(struct engine *engine, struct op *op) {
    unsigned mode = kernels_enter(); // perhaps on the caller's thread, with the caller's mode
    if (op->bytes > 0) reduce_parts(engine, op);
    kernels_leave(mode);
    if (op->bytes > 0) memcpy(op->result->bytes, op->reduce.recv, op->bytes);
    book_complete(&engine->book, op);
}

void small_release(struct engine *engine, struct op *op) {
    if (op->parts != NULL)
        for (uint32_t i = 0; i < op->contributors; i++) block_put(engine, op->parts[i].block);
    free(op->parts);
    op->parts = NULL;
    block_put(engine, op->result);
    op->result = NULL;
}

// ---- inputs ----
static void send_input(struct engine *engine, struct op *op, struct peer *peer, struct block **copy) {
    struct lane *lane = peer->lanes[0];
    if (lane == NULL) return; // broken: redone in the next epoch
    struct wire_op head;
    op_head(op, &head);
    acks_drop_implied(&peer->member, &op->name);
    struct frame *frame = frame_new(engine, WIRE_SMALL, &head, op->bytes);
    if (frame == NULL) return;
    frame->payload = op->reduce.send;
    lane_push(lane, frame);
    lane_flush(lane);
    if (lane->sending != frame && lane->queue.last != &frame->next) return; // gone already
    // What the kernel did not take now is sent when the caller may have his buffer back.
    if (*copy == NULL && (*copy = block_new(engine, op->bytes)) != NULL)
        memcpy((*copy)->bytes, op->reduce.send, op->bytes);
    if (*copy == NULL) {
        shutdown(lane->fd, SHUT_RDWR); // the engine is dead, and the caller's buffer must not be read later
        return;
    }
    (*copy)->references++;
    frame->block = *copy;
    frame->payload = (*copy)->bytes;
}

static void learn_posted(struct peer *peer, struct op *op, struct small_part *part) {
    if (part->eager) peer->eager_bytes -= op->bytes;
    part->eager = false;
}

static void take_signal(struct engine *engine, struct op *op, struct peer *from, uint16_t type, struct block *block,
                        struct block **copy) {
    struct small_part *part = &op->parts[from->member.rank];
    learn_posted(from, op, part);
    if (part->owed) {
        part->owed = false;
        send_input(engine, op, from, copy);
    }
    if (type != WIRE_SMALL || part->block != NULL || block->length != op->bytes) {
        block_put(engine, block);
        return;
    }
    part->block = block;
    op->missing--;
}

// What came from the member before the op was posted here: its input, or at least that it has posted the op. The
// caller's to free; NULL: nothing.
static struct early *take_early(struct engine *engine, struct op *op, struct peer *from) {
    struct early *posted = book_early(&engine->book, op, &from->member, WIRE_POSTED);
    struct early *input = book_early(&engine->book, op, &from->member, WIRE_SMALL);
    if (input != NULL) free(posted);
    return input != NULL ? input : posted;
}

static void meet(struct engine *engine, struct op *op, struct peer *peer, struct block **copy) {
    struct small_part *part = &op->parts[peer->member.rank];
    struct early *seen = take_early(engine, op, peer);
    if (seen == NULL && peer->eager_bytes + op->bytes > early_limit(engine->count)) {
        struct wire_op head;
        op_head(op, &head);
        part->owed = true;
        acks_drop_implied(&peer->member, &op->name);
        peer_signal(engine, peer, WIRE_POSTED, &head, NULL);
    } else {
        part->eager = seen == NULL;
        if (part->eager) peer->eager_bytes += op->bytes;
        send_input(engine, op, peer, copy);
    }
    if (seen == NULL) return;
    if (op->accused)
        block_put(engine, seen->block);
    else
        take_signal(engine, op, peer, seen->type, seen->block, copy);
    free(seen);
}

bool small_begin(struct engine *engine, struct op *op) {
    op->missing = engine->count - 1;
    op->tx_bytes = op->rx_bytes = (uint64_t)op->missing * op->bytes;
    op->parts = calloc(engine->count, sizeof *op->parts);
    op->result = block_new(engine, op->bytes);
    if (op->parts == NULL || op->result == NULL) return false;
    struct block *copy = NULL;
    // Each member begins with another receiver, so that nobody is everybody's first.
    for (uint32_t step = 1; step < engine->count; step++)
        meet(engine, op, peer_at(engine, (engine->rank + step) % engine->count), &copy);
    block_put(engine, copy);
    if (op->missing == 0 && !op->accused) complete(engine, op);
    return true;
}

void small_signal(struct engine *engine, struct op *op, struct peer *from, uint16_t type, struct block *block) {
    struct block *copy = NULL;
    take_signal(engine, op, from, type, block, &copy);
    block_put(engine, copy);
    if (op->missing == 0 && !op->accused) complete(engine, op);
}
