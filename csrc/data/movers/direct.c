// Small ops: every member sends its whole input to every other, all reduce in rank order. One one-way delay, no master.
//
// A member that has all inputs has the result and returns. What makes that safe when a member dies half-way through its
// sends: whoever completed the op keeps the result until all others are known to have completed it (an ACK, or a signal
// for the next op of the same tag, which implies one). After a loss the master asks who stands where; if anyone kept
// the result, it is supplied to those that lack an input, else the op is over for all alike. Between entering an epoch
// and the verdict no member completes an op, so what was reported stays true.
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

static struct kept **kept_slot(struct engine *engine, uint64_t tag) { return &engine->kept[table_slot(tag)]; }

static void kept_free(struct engine *engine, struct kept *kept) {
    block_put(engine, kept->result);
    free(kept);
}

static void kept_drop(struct engine *engine, struct kept **at) {
    struct kept *kept = *at;
    *at = kept->next;
    kept_free(engine, kept);
    if (--engine->kept_count == 0) pthread_cond_broadcast(&engine->settled);
}

void kept_clear(struct engine *engine) {
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        while (engine->kept[i] != NULL) kept_drop(engine, &engine->kept[i]);
}

// ---- acknowledgements ----
static void acks_send(struct engine *engine, struct peer *peer) {
    struct wire_op head = {0};
    struct block *block = peer->ack_count == 0 ? NULL : block_new(engine, peer->ack_count * ACK_NAME_BYTES);
    if (block == NULL) {
        // the engine is dead, and there is no room for more of them
        if (peer->ack_count == ACKS_MAX) peer->ack_count = 0;
        return;
    }
    for (uint32_t i = 0; i < peer->ack_count; i++) {
        uint8_t *at = block->bytes + i * ACK_NAME_BYTES;
        memcpy(at, &peer->acks[i].epoch, 8);
        memcpy(at + 8, &peer->acks[i].tag, 8);
        memcpy(at + 16, &peer->acks[i].sequence, 4);
        memset(at + 20, 0, 4);
    }
    peer_signal(engine, peer, WIRE_ACK, &head, block);
    block_put(engine, block);
    peer->ack_count = 0;
    peer->ack_bytes = 0;
}

static void ack_later(struct engine *engine, struct peer *peer, const struct op *op) {
    peer->acks[peer->ack_count++] = op->name;
    peer->ack_bytes += op->bytes;
    if (peer->ack_count == ACKS_MAX || peer->ack_bytes >= ACK_BYTES || peer->settling) acks_send(engine, peer);
}

void small_settle(struct engine *engine) {
    struct wire_op ask = {.extra = 1};
    for (uint32_t i = 0; i < engine->count; i++) {
        struct peer *peer = engine->members[i];
        if (peer == NULL) continue;
        acks_send(engine, peer);
        peer_signal(engine, peer, WIRE_ACK, &ask, NULL);
    }
}

void small_asked(struct engine *engine, struct peer *from) {
    from->settling = true;
    acks_send(engine, from);
}

// Any signal of an op tells that the one before it, of the same tag, is complete: its own ack need not travel.
static void ack_implied(struct peer *peer, const struct wire_op_name *name) {
    for (uint32_t i = 0; i < peer->ack_count; i++) {
        const struct wire_op_name *ack = &peer->acks[i];
        if (ack->tag == name->tag && ack->epoch == name->epoch && ack->sequence + 1 == name->sequence) {
            peer->acks[i] = peer->acks[--peer->ack_count];
            return;
        }
    }
}

void small_acked(struct engine *engine, struct peer *from, const struct wire_op_name *name) {
    struct kept **at = kept_slot(engine, name->tag);
    while (*at != NULL && !wire_op_name_equal(&(*at)->name, name)) at = &(*at)->next;
    struct kept *kept = *at;
    if (kept == NULL) return;
    for (uint32_t i = 0; i < kept->unacked_count; i++)
        if (kept->unacked[i] == from) kept->unacked[i--] = kept->unacked[--kept->unacked_count];
    if (kept->unacked_count == 0) kept_drop(engine, at);
}

void small_implied_ack(struct engine *engine, struct peer *from, const struct wire_op *head) {
    struct wire_op_name name = {engine->epoch, head->tag, head->sequence - 1, 0}; // small ops are never divided
    if (head->sequence > 1) small_acked(engine, from, &name);
}

// ---- completion ----
static struct kept *kept_new(struct engine *engine, const struct op *op) {
    struct kept *kept = calloc(1, sizeof *kept + engine->count * sizeof kept->unacked[0]);
    if (kept == NULL) return NULL;
    kept->result = block_new(engine, op->bytes);
    if (kept->result == NULL) {
        free(kept);
        return NULL;
    }
    return kept;
}

// Puts a result into the table, for all other members to acknowledge.
static void kept_add(struct engine *engine, struct kept *kept, const struct wire_op_name *name) {
    struct kept **slot = kept_slot(engine, name->tag);
    for (uint32_t i = 0; i < engine->count; i++)
        if (i != engine->rank) kept->unacked[kept->unacked_count++] = engine->members[i];
    kept->name = *name;
    kept->next = *slot;
    *slot = kept;
    engine->kept_count++;
}

static void keep(struct engine *engine, struct op *op) {
    struct kept *kept = op->kept;
    op->kept = NULL;
    if (op->bytes > 0) memcpy(kept->result->bytes, op->reduce.recv, op->bytes);
    kept_add(engine, kept, &op->name);
}

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
    keep(engine, op);
    for (uint32_t i = 0; i < engine->count; i++)
        if (i != engine->rank) ack_later(engine, engine->members[i], op);
    op_end(engine, op, ENGINE_OK);
}

void small_release(struct engine *engine, struct op *op) {
    if (op->parts != NULL)
        for (uint32_t i = 0; i < op->contributors; i++) block_put(engine, op->parts[i].block);
    free(op->parts);
    op->parts = NULL;
    if (op->kept != NULL) kept_free(engine, op->kept);
    op->kept = NULL;
}

// ---- inputs ----
static void send_input(struct engine *engine, struct op *op, struct peer *peer, struct block **copy) {
    struct lane *lane = peer->lanes[0];
    if (lane == NULL) return; // broken: redone in the next epoch
    struct wire_op head;
    op_head(op, &head);
    ack_implied(peer, &op->name);
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
    struct small_part *part = &op->parts[from->rank];
    learn_posted(from, op, part);
    if (part->owed) {
        part->owed = false;
        send_input(engine, op, from, copy);
    }
    if (type != WIRE_SMALL) return;
    if (part->block != NULL || block->length != op->bytes) {
        block_put(engine, block);
        return;
    }
    part->block = block;
    op->missing--;
}

void small_begin(struct engine *engine, struct op *op) {
    op->missing = engine->count - 1;
    op->tx_bytes = op->rx_bytes = (uint64_t)op->missing * op->bytes;
    op->parts = calloc(engine->count, sizeof *op->parts);
    op->kept = kept_new(engine, op);
    if (op->parts == NULL || op->kept == NULL) {
        op_end_refused(engine, op);
        return;
    }
    struct block *copy = NULL;
    struct wire_op head;
    op_head(op, &head);
    for (uint32_t step = 1; step < engine->count; step++) {
        // Each member begins with another receiver, so that nobody is everybody's first.
        struct peer *peer = engine->members[(engine->rank + step) % engine->count];
        struct small_part *part = &op->parts[peer->rank];
        struct early *posted = early_take(engine, peer, &head, WIRE_POSTED);
        struct early *input = early_take(engine, peer, &head, WIRE_SMALL);
        struct early *seen = input != NULL ? input : posted;
        if (seen != NULL && !wire_fingerprint_equal(&seen->head.fingerprint, &head.fingerprint))
            engine_accuse(engine, op, peer, &seen->head.fingerprint);
        if (seen == NULL && peer->eager_bytes + op->bytes > early_limit(engine)) {
            part->owed = true;
            ack_implied(peer, &op->name);
            peer_signal(engine, peer, WIRE_POSTED, &head, NULL);
        } else {
            part->eager = seen == NULL;
            if (part->eager) peer->eager_bytes += op->bytes;
            send_input(engine, op, peer, &copy);
        }
        if (input != NULL && !op->accused) {
            take_signal(engine, op, peer, WIRE_SMALL, input->block, &copy);
            input->block = NULL;
        }
        if (posted != NULL) early_free(engine, posted);
        if (input != NULL) early_free(engine, input);
    }
    block_put(engine, copy);
    if (op->missing == 0 && !op->accused) complete(engine, op);
}

bool small_arrived(struct engine *engine, struct peer *from, uint16_t type, const struct wire_op *head,
                   struct block *block) {
    small_implied_ack(engine, from, head);
    struct op *op = op_find_running(engine, head);
    if (op == NULL || op->phase == OP_WAITING) return early_add(engine, from, type, head, block);
    if (!wire_fingerprint_equal(&op->reduce.fingerprint, &head->fingerprint)) {
        engine_accuse(engine, op, from, &head->fingerprint);
        block_put(engine, block);
        return true;
    }
    if (op->parts == NULL) {
        block_put(engine, block);
        return true;
    }
    struct block *copy = NULL;
    take_signal(engine, op, from, type, block, &copy);
    block_put(engine, copy);
    if (op->missing == 0 && !op->accused) complete(engine, op);
    return true;
}

// ---- after a loss ----
static void send_supply(struct engine *engine, struct kept *kept) {
    struct wire_op head = {.tag = kept->name.tag, .sequence = kept->name.sequence, .offset = kept->name.epoch};
    for (uint32_t i = 0; i < kept->unacked_count; i++)
        peer_signal(engine, kept->unacked[i], WIRE_SUPPLY, &head, kept->result);
}

void small_supply(struct engine *engine, const struct wire_verdict *verdict) {
    struct kept **at = kept_slot(engine, verdict->name.tag);
    while (*at != NULL && !wire_op_name_equal(&(*at)->name, &verdict->name)) at = &(*at)->next;
    struct kept *kept = *at;
    if (kept == NULL) return;
    uint32_t room = kept->unacked_count > verdict->count ? kept->unacked_count : verdict->count;
    struct kept *grown = realloc(kept, sizeof *kept + room * sizeof kept->unacked[0]);
    if (grown == NULL) {
        engine_fail(engine);
        return;
    }
    *at = kept = grown;
    kept->unacked_count = 0;
    for (struct peer *peer = engine->peers; peer != NULL; peer = peer->next)
        for (uint32_t i = 0; i < verdict->count; i++)
            if (wire_id_equal(&peer->id, &verdict->needy[i]) && peer->rank != UINT32_MAX)
                kept->unacked[kept->unacked_count++] = peer;
    if (kept->unacked_count == 0) {
        kept_drop(engine, at);
        return;
    }
    kept->supplier = wire_id_equal(&verdict->supplier, &engine->self);
    if (kept->supplier && engine->ready) send_supply(engine, kept);
}

void small_send_supplies(struct engine *engine) {
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct kept *kept = engine->kept[i]; kept != NULL; kept = kept->next)
            if (kept->supplier) send_supply(engine, kept);
}

void small_forget(struct engine *engine, struct peer *peer) {
    for (size_t i = 0; i < TABLE_SLOTS; i++)
        for (struct kept **at = &engine->kept[i]; *at != NULL;) {
            struct kept *kept = *at;
            for (uint32_t k = 0; k < kept->unacked_count; k++)
                if (kept->unacked[k] == peer) kept->unacked[k--] = kept->unacked[--kept->unacked_count];
            if (kept->unacked_count == 0)
                kept_drop(engine, at);
            else
                at = &kept->next;
        }
}

// A supplied member holds the result for the others as if it had completed the op itself: the supplier may die before
// it has reached them.
static bool keep_supplied(struct engine *engine, const struct wire_op_name *name, struct block *result) {
    struct kept *kept = calloc(1, sizeof *kept + engine->count * sizeof kept->unacked[0]);
    if (kept == NULL) {
        engine_fail(engine);
        return false;
    }
    result->references++;
    kept->result = result;
    kept_add(engine, kept, name);
    return true;
}

void small_supplied(struct engine *engine, const struct wire_op *head, uint64_t epoch, struct block *block) {
    struct op *op = op_find(engine, head->tag);
    struct wire_op_name name = {epoch, head->tag, head->sequence, 0};
    if (op != NULL && op->frozen && op->phase != OP_ENDED && op->path == PLAN_SMALL &&
        wire_op_name_equal(&op->name, &name) && block->length == op->bytes && keep_supplied(engine, &name, block)) {
        if (op->bytes > 0) memcpy(op->reduce.recv, block->bytes, op->bytes);
        for (uint32_t i = 0; i < engine->count; i++)
            if (i != engine->rank) {
                engine->members[i]->acks[engine->members[i]->ack_count++] = op->name;
                acks_send(engine, engine->members[i]);
            }
        op_end(engine, op, ENGINE_OK);
    }
    block_put(engine, block);
}
