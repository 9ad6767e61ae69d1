// Quantised ops: every member owns one shard. It takes everybody's quantised block, sums in wide precision in rank
// order, quantises the sum once and sends it to all, itself included: what it keeps is what the others decode. So each
// input and each result is quantised exactly once, however many members there are.
//
// The order of the sum is fixed, so a block waits until all inputs of it are there; what may wait is bounded by a
// window of blocks that the owner grants. Stopping to read a link instead would let two ops wait for each other behind
// it.
#include <stdlib.h>
#include <string.h>

#include <pccl.h>

#include "compute/quant.h"
#include "data/op.h"

enum { WINDOW_BYTES = 4 * 1024 * 1024, WINDOW_MIN = 4, WINDOW_MAX = 64 };

static uint64_t blocks_in(struct plan_range shard) { return (shard.end - shard.begin + QUANT_BLOCK - 1) / QUANT_BLOCK; }

static struct plan_range block_range(const struct engine *engine, const struct op *op, uint32_t shard, uint64_t block) {
    struct plan_range range = plan_shard(op->count, engine->count, shard);
    range.begin += block * QUANT_BLOCK;
    if (range.end - range.begin > QUANT_BLOCK) range.end = range.begin + QUANT_BLOCK;
    return range;
}

static size_t encoded_bytes(const struct op *op, struct plan_range range) {
    return quant_encoded_bytes(op->reduce.fingerprint.quantised_dtype, range.end - range.begin);
}

static const uint8_t *input_at(const struct op *op, struct plan_range range) {
    return (const uint8_t *)op->reduce.send + range.begin * op->element;
}

static void check_complete(struct engine *engine, struct op *op) {
    const struct sharded *s = op->sharded;
    if (s->codes_left == 0 && s->results_left == 0 && s->frames_left == 0) engine_complete(engine, op);
}

void sharded_release(struct engine *engine, struct op *op) {
    struct sharded *s = op->sharded;
    if (s == NULL) return;
    for (uint64_t i = 0; s->slots != NULL && i < s->window; i++) {
        for (uint32_t rank = 0; s->slots[i].inputs != NULL && rank < op->contributors; rank++)
            block_put(engine, s->slots[i].inputs[rank]);
        free(s->slots[i].inputs);
    }
    free(s->slots);
    for (uint32_t rank = 0; s->targets != NULL && rank < op->contributors; rank++) {
        ranges_fini(&s->targets[rank].codes);
        ranges_fini(&s->targets[rank].results);
    }
    free(s->targets);
    free(s);
    op->sharded = NULL;
}

static bool allocate(struct engine *engine, struct op *op) {
    struct sharded *s = op->sharded = calloc(1, sizeof *s);
    if (s == NULL) return false;
    struct plan_range own = plan_shard(op->count, engine->count, engine->rank);
    size_t block_bytes = quant_encoded_bytes(op->reduce.fingerprint.quantised_dtype, QUANT_BLOCK);
    s->window = WINDOW_BYTES / (block_bytes * (engine->count - 1));
    if (s->window < WINDOW_MIN) s->window = WINDOW_MIN;
    if (s->window > WINDOW_MAX) s->window = WINDOW_MAX;
    s->blocks = blocks_in(own);
    s->granted = s->window;
    s->targets = calloc(engine->count, sizeof *s->targets);
    s->slots = calloc(s->window, sizeof *s->slots);
    if (s->targets == NULL || s->slots == NULL) return false;
    for (uint64_t i = 0; i < s->window; i++)
        if ((s->slots[i].inputs = calloc(engine->count, sizeof(struct block *))) == NULL) return false;
    if (engine->wide == NULL) engine->wide = malloc(QUANT_BLOCK * sizeof(double));
    if (engine->wide_input == NULL) engine->wide_input = malloc(QUANT_BLOCK * sizeof(double));
    return engine->wide != NULL && engine->wide_input != NULL;
}

bool sharded_begin(struct engine *engine, struct op *op) {
    op->tx_bytes = op->rx_bytes = 0;
    if (!allocate(engine, op)) return false;
    struct sharded *s = op->sharded;
    struct wire_op head;
    op_head(op, &head);
    head.extra = (uint32_t)s->window;
    s->frames_left = s->blocks * (engine->count - 1);
    pthread_mutex_lock(&engine->lock);
    for (uint32_t rank = 0; rank < engine->count; rank++) {
        struct peer *peer = peer_at(engine, rank);
        if (peer == NULL) continue;
        s->targets[rank].blocks = blocks_in(plan_shard(op->count, engine->count, rank));
        s->codes_left += s->targets[rank].blocks;
        s->results_left += s->targets[rank].blocks;
        struct early *early = book_early(&engine->book, op, &peer->member, WIRE_READY);
        if (early != NULL) sharded_signal(engine, op, peer, WIRE_READY, &early->head);
        free(early);
        peer_signal(engine, peer, WIRE_READY, &head, NULL);
        peer_heat(peer);
    }
    pthread_mutex_unlock(&engine->lock);
    check_complete(engine, op);
    return true;
}

void sharded_signal(struct engine *engine, struct op *op, struct peer *from, uint16_t type,
                    const struct wire_op *head) {
    (void)engine;
    if (op->sharded == NULL) return;
    struct sharded_target *target = &op->sharded->targets[from->member.rank];
    uint64_t granted = type == WIRE_READY ? head->extra : head->offset;
    if (type == WIRE_READY) target->ready = true;
    if (granted > target->granted) target->granted = granted;
}

// ---- inputs on their way to the owners ----
struct frame *sharded_next(struct engine *engine, struct op *op, struct lane *lane) {
    uint32_t rank = lane_peer(lane)->member.rank;
    if (op->sharded == NULL || rank == UINT32_MAX) return NULL;
    if (lane_index(lane) == 0) {
        engine_lock(engine);
        bool bulk = lane_is_for_bulk(lane);
        engine_unlock(engine);
        if (!bulk) return NULL;
    }
    struct sharded_target *target = &op->sharded->targets[rank];
    if (!target->ready || target->next >= target->blocks || target->next >= target->granted) return NULL;
    const struct wire_fingerprint *what = &op->reduce.fingerprint;
    struct plan_range range = block_range(engine, op, rank, target->next);
    size_t count = range.end - range.begin, bytes = encoded_bytes(op, range);
    uint8_t *stage = lane_stage(lane);
    if (stage == NULL) {
        pthread_mutex_lock(&engine->lock);
        engine_fail(engine);
        pthread_mutex_unlock(&engine->lock);
        return NULL;
    }
    quant_widen(what->dtype, engine->wide, input_at(op, range), count);
    quant_encode(what->dtype, what->quantised_dtype, what->algorithm, stage, engine->wide, count);

    struct wire_op head;
    op_head(op, &head);
    head.shard = (uint16_t)rank;
    head.offset = target->next;
    pthread_mutex_lock(&engine->lock);
    struct frame *frame = frame_new(engine, WIRE_CODES, &head, bytes);
    pthread_mutex_unlock(&engine->lock);
    if (frame == NULL) return NULL;
    frame->op = op;
    frame->payload = stage;
    target->next++;
    return frame;
}

// ---- the owner ----
static bool store(struct engine *engine, struct op *op, struct plan_range range, const uint8_t *codes) {
    const struct wire_fingerprint *what = &op->reduce.fingerprint;
    size_t count = range.end - range.begin;
    if (!quant_decode(what->dtype, what->quantised_dtype, what->algorithm, engine->wide_input, codes, count))
        return false;
    if (!backup_save(&op->backup, op->reduce.send, range.begin * op->element, count * op->element)) return false;
    quant_narrow(what->dtype, (uint8_t *)op->reduce.recv + range.begin * op->element, engine->wide_input, count);
    return true;
}

static void send_result(struct engine *engine, struct op *op, uint64_t index, struct block *result) {
    struct wire_op head;
    op_head(op, &head);
    head.shard = (uint16_t)engine->rank;
    head.offset = index;
    pthread_mutex_lock(&engine->lock);
    for (uint32_t step = 1; step < engine->count; step++) {
        struct peer *peer = peer_at(engine, (engine->rank + step) % engine->count);
        struct lane *lane = peer_lane(peer, 1 + (uint32_t)(index % WIRE_MAX_LANES));
        struct frame *frame = lane == NULL ? NULL : frame_new(engine, WIRE_RESULT, &head, result->length);
        if (frame == NULL) continue; // the link broke: the op is redone in the next epoch
        result->references++;
        frame->op = op;
        frame->block = result;
        frame->payload = result->bytes;
        lane_push(lane, frame);
        lane_heat(lane);
    }
    block_put(engine, result);
    pthread_mutex_unlock(&engine->lock);
}

static bool reduce_block(struct engine *engine, struct op *op, uint64_t index) {
    const struct wire_fingerprint *what = &op->reduce.fingerprint;
    struct sharded_slot *slot = &op->sharded->slots[index % op->sharded->window];
    struct plan_range range = block_range(engine, op, engine->rank, index);
    size_t count = range.end - range.begin;
    for (uint32_t rank = 0; rank < engine->count; rank++) {
        void *to = rank == 0 ? engine->wide : engine->wide_input;
        if (rank == engine->rank)
            quant_widen(what->dtype, to, input_at(op, range), count);
        else if (!quant_decode(what->dtype, what->quantised_dtype, what->algorithm, to, slot->inputs[rank]->bytes,
                               count))
            return false;
        if (rank > 0) quant_reduce(what->dtype, what->op, engine->wide, engine->wide_input, count);
    }
    if (what->op == pcclAvg) quant_divide(what->dtype, engine->wide, count, engine->count);

    pthread_mutex_lock(&engine->lock);
    for (uint32_t rank = 0; rank < engine->count; rank++) {
        block_put(engine, slot->inputs[rank]);
        slot->inputs[rank] = NULL;
    }
    struct block *result = block_new(engine, encoded_bytes(op, range));
    pthread_mutex_unlock(&engine->lock);
    if (result == NULL) return false;
    quant_encode(what->dtype, what->quantised_dtype, what->algorithm, result->bytes, engine->wide, count);
    if (!store(engine, op, range, result->bytes)) {
        pthread_mutex_lock(&engine->lock);
        block_put(engine, result);
        pthread_mutex_unlock(&engine->lock);
        return false;
    }
    slot->unsent = engine->count - 1;
    send_result(engine, op, index, result);
    return true;
}

bool sharded_place(struct engine *engine, struct op *op, struct incoming *in) {
    struct sharded *s = op->sharded;
    uint32_t from = in->from->member.rank, shard = in->head.shard;
    uint64_t index = in->head.offset;
    if (s == NULL || from == UINT32_MAX || shard >= engine->count) return false;
    if (index >= blocks_in(plan_shard(op->count, engine->count, shard))) return false;
    if (in->length != encoded_bytes(op, block_range(engine, op, shard, index))) return false;
    if (in->header.type == WIRE_RESULT) {
        // each comes once, as in ring.c
        if (shard != from || !op_take(engine, &s->targets[from].results, index, index + 1)) return false;
        in->to = lane_scratch(in->lane);
        return in->to != NULL;
    }
    if (shard != engine->rank || index >= s->granted || !op_take(engine, &s->targets[from].codes, index, index + 1))
        return false;
    in->block = block_new(engine, in->length);
    if (in->block != NULL) in->to = in->block->bytes;
    return in->block != NULL;
}

bool sharded_arrived(struct engine *engine, struct op *op, struct incoming *in) {
    struct sharded *s = op->sharded;
    uint64_t index = in->head.offset;
    op->rx_bytes += in->length;
    if (in->header.type == WIRE_RESULT) {
        if (!store(engine, op, block_range(engine, op, in->head.shard, index), in->to)) return false;
        s->results_left--;
        check_complete(engine, op);
        return true;
    }
    struct sharded_slot *slot = &s->slots[index % s->window];
    slot->inputs[in->from->member.rank] = in->block;
    in->block = NULL;
    return ++slot->arrived < engine->count - 1 || reduce_block(engine, op, index);
}

// Blocks that everybody has been sent make room for new ones.
static void advance(struct engine *engine, struct op *op) {
    struct sharded *s = op->sharded;
    for (; s->freed < s->blocks; s->freed++) {
        struct sharded_slot *slot = &s->slots[s->freed % s->window];
        if (slot->arrived < engine->count - 1 || slot->unsent > 0) break;
        slot->arrived = 0;
    }
    uint64_t grant = s->freed + s->window;
    if (s->granted >= s->blocks || grant < s->granted + s->window / 4) return;
    s->granted = grant;
    struct wire_op head;
    op_head(op, &head);
    head.offset = grant;
    pthread_mutex_lock(&engine->lock);
    for (uint32_t rank = 0; rank < engine->count; rank++)
        if (peer_at(engine, rank) != NULL) peer_signal(engine, peer_at(engine, rank), WIRE_GRANT, &head, NULL);
    pthread_mutex_unlock(&engine->lock);
}

void sharded_sent(struct engine *engine, struct op *op, const struct frame *frame) {
    struct sharded *s = op->sharded;
    op->tx_bytes += frame->length;
    if (frame->block == NULL) {
        s->codes_left--;
    } else {
        struct wire_op head;
        if (!wire_op_decode(frame->head + WIRE_HEADER_BYTES, &head)) return;
        s->frames_left--;
        s->slots[head.offset % s->window].unsent--;
        advance(engine, op);
    }
    check_complete(engine, op);
}
