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

#include "compute/codec.h"
#include "compute/kernels.h"
#include "data/core.h"
#include "data/lane.h"
#include "data/mover.h"
#include "data/pool.h"
#include "device/device.h"

enum { WINDOW_BYTES = 4 * 1024 * 1024, WINDOW_MIN = 4, WINDOW_MAX = 64 };

// One block of the shard that this member owns.
struct slot {
    uint32_t arrived;
    uint32_t unsent;      // RESULT frames not yet written
    struct block *result; // owned, until all of them are
};

// What goes to the owner of a shard, and comes from it.
struct target {
    uint64_t next, granted, blocks; // of its shard
    struct ranges codes, results;   // that have come from it, or are on their way: blocks
    uint64_t results_sent;          // to it, in the order of `ready`
};

struct sharded {
    struct moving moving;
    uint64_t window;         // blocks in work at the owner
    uint64_t freed, granted; // own blocks that are over; that the others may send
    struct slot *slots;      // [window]
    uint64_t *ready;         // [window]: blocks whose result is there, in the order in which they were reduced
    uint64_t ready_count;
    struct block **inputs;  // of each slot by rank: [window * members]
    const uint8_t **terms;  // by rank: codes of the block at hand
    struct target *targets; // by rank
};

static const struct codec *codec_of(const struct op *op) { return codec_find(op->args.fingerprint.codec); }

static uint64_t blocks_in(struct plan_range shard) { return (shard.end - shard.begin + CODEC_PIECE - 1) / CODEC_PIECE; }

static struct plan_range block_range(const struct op *op, uint32_t shard, uint64_t block) {
    const struct team *now = op->team;
    struct plan_range range = spread_shard(now->spread, op->count, now->count, shard);
    range.begin += block * CODEC_PIECE;
    if (range.end - range.begin > CODEC_PIECE) range.end = range.begin + CODEC_PIECE;
    return range;
}

static size_t encoded_bytes(const struct op *op, struct plan_range range) {
    return codec_bytes(codec_of(op), op->args.fingerprint.dtype, range.end - range.begin);
}

// A result has other dice than the input of the same member and the same seed.
static struct codec_dice dice_of(const struct op *op, struct plan_range range, bool is_result) {
    const struct codec_dice *dice = &op->args.dice;
    return (struct codec_dice){is_result ? ~dice->seed : dice->seed, dice->index + range.begin};
}

// Writes this range of the tensor.
static void encode(const struct op *op, struct plan_range range, uint8_t *out, const void *wide, bool is_result) {
    const struct call_args *args = &op->args;
    struct codec_dice dice = dice_of(op, range, is_result);
    codec_encode(codec_of(op), args->fingerprint.dtype, out, wide, range.end - range.begin,
                 args->stochastic ? &dice : NULL);
}

// ---- at the device of the tensors, if that can ----
static struct device_codes codes_of(const struct op *op, struct plan_range range, const uint8_t *const *terms,
                                    uint32_t count) {
    const struct wire_fingerprint *what = &op->args.fingerprint;
    return (struct device_codes){.codec = what->codec,
                                 .sum = {.op = what->op, .dtype = what->dtype},
                                 .count = range.end - range.begin,
                                 .terms = terms,
                                 .term_count = count,
                                 .own = count};
}

static void add_own(const struct op *op, struct plan_range range, struct device_codes *codes, uint32_t place) {
    const struct call_args *args = &op->args;
    codes->own = place;
    codes->input = (const uint8_t *)args->send + range.begin * op->element;
    if (args->residual_in != NULL) codes->residual_in = args->residual_in + range.begin;
    if (args->residual_out != NULL) codes->residual_out = args->residual_out + range.begin;
    codes->times = 1;
}

static enum device_coding encode_at_device(const struct op *op, struct plan_range range, uint8_t *out) {
    struct device_codes codes = codes_of(op, range, NULL, 1);
    struct codec_dice dice = dice_of(op, range, false);
    if (op->args.stochastic) codes.dice = &dice;
    add_own(op, range, &codes, 0);
    codes.codes = out;
    return device_code(op->args.queue, &codes);
}

static enum device_coding store_at_device(struct op *op, struct plan_range range, const uint8_t *codes) {
    if (op->args.queue == NULL) return DEVICE_CODING_ELSEWHERE;
    struct device_codes what = codes_of(op, range, &codes, 1);
    what.result = (uint8_t *)op->args.recv + range.begin * op->element;
    if (!mover_save(op, range.begin * op->element, what.count * op->element)) return DEVICE_CODING_FAILED;
    return device_code(op->args.queue, &what);
}

// The sum of the own shard: its codes, and what this member stores of it.
static enum device_coding sum_at_device(struct op *op, struct plan_range range, const uint8_t *const *terms,
                                        uint8_t *out) {
    const struct team *now = op->team;
    if (op->args.queue == NULL) return DEVICE_CODING_ELSEWHERE;
    struct device_codes what = codes_of(op, range, terms, now->count);
    struct codec_dice dice = dice_of(op, range, true);
    if (op->args.stochastic) what.dice = &dice;
    add_own(op, range, &what, now->place);
    if (op->args.fingerprint.op == pcclAvg) what.sum.divisor = what.times = now->count;
    what.codes = out;
    what.result = (uint8_t *)op->args.recv + range.begin * op->element;
    if (!mover_save(op, range.begin * op->element, what.count * op->element)) return DEVICE_CODING_FAILED;
    return device_code(op->args.queue, &what);
}

// wide = this member's input, with what was taken away from it before. False: its device has failed.
static bool widen_input(struct op *op, struct plan_range range, void *wide) {
    size_t count = range.end - range.begin;
    const struct call_args *args = &op->args;
    const void *input = mover_input(op, range.begin * op->element, count * op->element);
    if (input == NULL) return false;
    codec_widen(args->fingerprint.dtype, wide, input, count);
    device_shut(args->queue, input);
    if (args->residual_in == NULL) return true;
    const void *residual = mover_read(op, args->residual_in + range.begin, count * sizeof *args->residual_in);
    if (residual == NULL) return false;
    kernels_get()->reduce[pcclSum][pcclFloat](wide, wide, residual, count);
    device_shut(args->queue, residual);
    return true;
}

// Notes what was taken away from this range: wanted - got, in units of an input. Both are wide. False: the device has
// failed.
static bool note_residual(struct op *op, struct plan_range range, const void *wanted, const void *got, uint32_t times) {
    size_t count = range.end - range.begin, bytes = count * sizeof(float);
    float *residual = op->args.residual_out + range.begin;
    void *landing = device_landing(op->args.queue, residual, bytes);
    if (landing == NULL) return false;
    codec_residual(landing, wanted, got, times, count);
    device_land(op->args.queue, residual, landing, bytes);
    return true;
}

static void release(struct engine *engine, struct op *op) {
    struct sharded *s = op->work;
    for (uint64_t i = 0; s->inputs != NULL && i < s->window * op->contributors; i++) block_put(engine, s->inputs[i]);
    for (uint64_t i = 0; s->slots != NULL && i < s->window; i++) block_put(engine, s->slots[i].result);
    free(s->inputs);
    free(s->terms);
    free(s->slots);
    free(s->ready);
    for (uint32_t rank = 0; s->targets != NULL && rank < op->contributors; rank++) {
        ranges_fini(&s->targets[rank].codes);
        ranges_fini(&s->targets[rank].results);
    }
    free(s->targets);
    *s = (struct sharded){0};
}

static struct block **inputs_of(const struct op *op, const struct sharded *s, uint64_t index) {
    return &s->inputs[index % s->window * op->team->count];
}

static bool allocate(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    struct sharded *s = op->work;
    struct mover_shared *shared = mover_shared(engine);
    size_t block_bytes = encoded_bytes(op, (struct plan_range){0, CODEC_PIECE});
    s->window = WINDOW_BYTES / (block_bytes * (now->count - 1));
    if (s->window < WINDOW_MIN) s->window = WINDOW_MIN;
    if (s->window > WINDOW_MAX) s->window = WINDOW_MAX;
    s->granted = s->window;
    s->targets = calloc(now->count, sizeof *s->targets);
    s->slots = calloc(s->window, sizeof *s->slots);
    s->inputs = calloc(s->window * now->count, sizeof(struct block *));
    s->terms = calloc(now->count, sizeof *s->terms);
    s->ready = calloc(s->window, sizeof *s->ready);
    if (s->targets == NULL || s->slots == NULL || s->inputs == NULL || s->terms == NULL || s->ready == NULL)
        return false;
    if (shared->wide == NULL) shared->wide = malloc(CODEC_PIECE * sizeof(double));
    if (shared->wide_input == NULL) shared->wide_input = malloc(CODEC_PIECE * sizeof(double));
    return shared->wide != NULL && shared->wide_input != NULL;
}

// READY, GRANT.
static bool take_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                        const struct wire_op *head, struct block *block) {
    struct sharded *s = op->work;
    (void)engine, (void)block;
    if (s->targets == NULL || (type != WIRE_READY && type != WIRE_GRANT)) return true;
    struct target *target = &s->targets[mover_place_of(op, from)];
    uint64_t granted = type == WIRE_GRANT ? head->offset : head->extra < s->window ? head->extra : s->window;
    // A block is over at its owner after it has gone there.
    if (type == WIRE_GRANT &&
        (target->granted == 0 || granted <= target->granted || granted > target->next + s->window))
        return false;
    if (granted > target->granted) target->granted = granted;
    return true;
}

static bool begin(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    if (!allocate(engine, op)) return false;
    struct sharded *s = op->work;
    uint64_t bytes = 0; // inputs of the others' shards and results of the own one go out, and as many come in
    engine_lock(engine);
    for (uint32_t rank = 0; rank < now->count; rank++) {
        struct plan_range shard = spread_shard(now->spread, op->count, now->count, rank);
        bytes += encoded_bytes(op, shard) * (rank == now->place ? now->count - 1 : 1);
        s->targets[rank].blocks = blocks_in(shard);
        if (rank != now->place) mover_offer(engine, op, mover_peer(op, rank), (uint32_t)s->window);
    }
    engine_unlock(engine);
    s->moving.send_left = s->moving.receive_left = bytes;
    return true;
}

// ---- inputs on their way to the owners, and results from there ----
// False: the device has failed.
static bool encode_input(struct engine *engine, struct op *op, struct plan_range range, uint8_t *out) {
    enum device_coding coding = encode_at_device(op, range, out);
    if (coding != DEVICE_CODING_ELSEWHERE) return coding == DEVICE_CODING_DONE;
    struct mover_shared *shared = mover_shared(engine);
    if (!widen_input(op, range, shared->wide)) return false;
    encode(op, range, out, shared->wide, false);
    if (op->args.residual_out == NULL) return true;
    codec_decode(codec_of(op), op->args.fingerprint.dtype, shared->wide_input, out, range.end - range.begin);
    return note_residual(op, range, shared->wide, shared->wide_input, 1);
}

static struct frame *next_result(struct engine *engine, struct op *op, struct target *target) {
    struct sharded *s = op->work;
    uint64_t index = s->ready[target->results_sent % s->window];
    struct block *result = s->slots[index % s->window].result;
    struct wire_op head;
    op_head(op, &head);
    head.shard = (uint16_t)op->team->place;
    head.offset = index;
    engine_lock(engine);
    struct frame *frame = mover_frame(engine, op, WIRE_RESULT, &head, result->length);
    if (frame != NULL) {
        result->references++;
        frame->block = result;
        frame->payload = result->bytes;
        target->results_sent++;
    }
    engine_unlock(engine);
    return frame;
}

static struct frame *next(struct engine *engine, struct op *op, struct lane *lane, bool idle) {
    struct sharded *s = op->work;
    uint32_t rank = mover_place_of(op, lane->peer);
    if (!idle || s->targets == NULL || rank == UINT32_MAX || !mover_may_use(engine, lane)) return NULL;
    struct target *target = &s->targets[rank];
    if (target->results_sent < s->ready_count) return next_result(engine, op, target);
    if (target->next >= target->blocks || target->next >= target->granted) return NULL;
    struct plan_range range = block_range(op, rank, target->next);
    size_t bytes = encoded_bytes(op, range);
    uint8_t *stage = lane_stage(lane);
    if (stage == NULL) {
        engine_lock(engine);
        engine_fail(engine);
        engine_unlock(engine);
        return NULL;
    }
    if (!encode_input(engine, op, range, stage)) return NULL;

    struct wire_op head;
    op_head(op, &head);
    head.shard = (uint16_t)rank;
    head.offset = target->next;
    engine_lock(engine);
    struct frame *frame = mover_frame(engine, op, WIRE_CODES, &head, bytes);
    engine_unlock(engine);
    if (frame == NULL) return NULL;
    frame->payload = stage;
    target->next++;
    return frame;
}

// ---- the owner ----
// `wide` is room; with `look` it gets the values that the result has now.
static bool store(struct op *op, struct plan_range range, const uint8_t *codes, void *wide, bool look) {
    int dtype = op->args.fingerprint.dtype;
    size_t count = range.end - range.begin;
    if (!codec_decode(codec_of(op), dtype, wide, codes, count)) return false;
    uint64_t at = range.begin * op->element;
    if (!mover_save(op, at, count * op->element)) return false;
    uint8_t *landing = mover_landing(op, at, count * op->element);
    if (landing == NULL) return false;
    codec_narrow(dtype, landing, wide, count);
    if (look) codec_widen(dtype, wide, landing, count);
    mover_land(op, at, landing, count * op->element);
    return true;
}

// Stores what this member has made of a sum, or of an average.
static bool store_own(struct op *op, struct plan_range range, const uint8_t *codes, const void *sum, void *stored) {
    bool average = op->args.fingerprint.op == pcclAvg, feedback = op->args.residual_out != NULL;
    if (!store(op, range, codes, stored, feedback)) return false;
    return !feedback || note_residual(op, range, sum, stored, average ? op->team->count : 1);
}

static void offer_result(struct engine *engine, struct op *op, uint64_t index, struct block *result) {
    struct sharded *s = op->work;
    const struct team *now = op->team;
    struct slot *slot = &s->slots[index % s->window];
    slot->result = result;
    slot->unsent = now->count - 1;
    s->ready[s->ready_count++ % s->window] = index;
    engine_lock(engine);
    for (uint32_t step = 1; step < now->count; step++)
        neighbour_schedule(mover_peer(op, (now->place + step) % now->count));
    engine_unlock(engine);
}

// Into `out`, and what this member stores of it into the result. False: malformed, or the device has failed.
static bool sum_block(struct engine *engine, struct op *op, struct plan_range range, struct block *const *inputs,
                      uint8_t *out) {
    const struct team *now = op->team;
    const struct wire_fingerprint *what = &op->args.fingerprint;
    const struct kernels *kernels = kernels_get();
    int wide = codec_wide(what->dtype);
    void *sum = mover_shared(engine)->wide, *input = mover_shared(engine)->wide_input;
    size_t count = range.end - range.begin;
    for (uint32_t rank = 0; rank < now->count; rank++) {
        void *to = rank == 0 ? sum : input;
        bool got = rank == now->place ? widen_input(op, range, to)
                                      : codec_decode(codec_of(op), what->dtype, to, inputs[rank]->bytes, count);
        if (!got) return false;
        if (rank > 0) kernels->reduce[what->op][wide](sum, sum, input, count);
    }
    if (what->op == pcclAvg) kernels->divide[wide](sum, count, now->count);
    encode(op, range, out, sum, true);
    return store_own(op, range, out, sum, input);
}

static bool reduce_block(struct engine *engine, struct op *op, uint64_t index) {
    const struct team *now = op->team;
    struct sharded *s = op->work;
    struct block **inputs = inputs_of(op, s, index);
    struct plan_range range = block_range(op, now->place, index);
    engine_lock(engine);
    struct block *result = block_new(engine, encoded_bytes(op, range));
    engine_unlock(engine);
    if (result == NULL) return false;
    for (uint32_t rank = 0; rank < now->count; rank++) s->terms[rank] = rank == now->place ? NULL : inputs[rank]->bytes;
    enum device_coding coding = sum_at_device(op, range, s->terms, result->bytes);
    bool good = coding == DEVICE_CODING_ELSEWHERE ? sum_block(engine, op, range, inputs, result->bytes)
                                                  : coding == DEVICE_CODING_DONE;
    engine_lock(engine);
    for (uint32_t rank = 0; good && rank < now->count; rank++) {
        block_put(engine, inputs[rank]);
        inputs[rank] = NULL;
    }
    if (!good) block_put(engine, result);
    engine_unlock(engine);
    if (!good) return false;
    offer_result(engine, op, index, result);
    return true;
}

static bool place(struct engine *engine, struct op *op, struct incoming *in) {
    const struct team *now = op->team;
    struct sharded *s = op->work;
    uint32_t from = mover_place_of(op, in->from), shard = in->head.shard;
    uint64_t index = in->head.offset;
    if (s->targets == NULL || from == UINT32_MAX || shard >= now->count) return false;
    if (index >= s->targets[shard].blocks) return false;
    if (in->length != encoded_bytes(op, block_range(op, shard, index))) return false;
    if (in->header.type == WIRE_RESULT) {
        // each comes once, as in ring.c
        if (shard != from || !mover_take(engine, &s->targets[from].results, index, index + 1)) return false;
        in->to = lane_scratch(in->lane);
        return in->to != NULL;
    }
    if (shard != now->place || index >= s->granted || !mover_take(engine, &s->targets[from].codes, index, index + 1))
        return false;
    in->block = block_new(engine, in->length);
    if (in->block != NULL) in->to = in->block->bytes;
    return in->block != NULL;
}

static bool arrived(struct engine *engine, struct op *op, struct incoming *in) {
    const struct team *now = op->team;
    struct sharded *s = op->work;
    uint64_t index = in->head.offset;
    if (in->header.type == WIRE_RESULT) {
        struct plan_range range = block_range(op, in->head.shard, index);
        enum device_coding coding = store_at_device(op, range, in->to);
        if (coding == DEVICE_CODING_FAILED) return false;
        if (coding == DEVICE_CODING_ELSEWHERE && !store(op, range, in->to, mover_shared(engine)->wide_input, false))
            return false;
    } else {
        inputs_of(op, s, index)[mover_place_of(op, in->from)] = in->block;
        in->block = NULL;
        bool all = ++s->slots[index % s->window].arrived == now->count - 1;
        if (all && !reduce_block(engine, op, index)) return false;
    }
    s->moving.receive_left -= in->length; // last: what does not decode is not here
    return true;
}

// Blocks that everybody has been sent make room for new ones.
static void advance(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    struct sharded *s = op->work;
    uint64_t blocks = s->targets[now->place].blocks;
    for (; s->freed < blocks; s->freed++) {
        struct slot *slot = &s->slots[s->freed % s->window];
        if (slot->arrived < now->count - 1 || slot->unsent > 0) break;
        slot->arrived = 0;
    }
    uint64_t grant = s->freed + s->window;
    if (s->granted >= blocks || grant < s->granted + s->window / 4) return;
    s->granted = grant;
    struct wire_op head;
    op_head(op, &head);
    head.offset = grant;
    engine_lock(engine);
    for (uint32_t rank = 0; rank < now->count; rank++)
        if (mover_peer(op, rank) != NULL) neighbour_signal(engine, mover_peer(op, rank), WIRE_GRANT, &head, NULL);
    engine_unlock(engine);
}

static void sent(struct engine *engine, struct op *op, const struct frame *frame) {
    struct sharded *s = op->work;
    struct wire_op head;
    if (frame->block == NULL || !wire_op_decode(frame->head + WIRE_HEADER_BYTES, &head)) return;
    struct slot *slot = &s->slots[head.offset % s->window];
    if (--slot->unsent == 0) {
        engine_lock(engine);
        block_put(engine, slot->result);
        engine_unlock(engine);
        slot->result = NULL;
    }
    advance(engine, op);
}

const struct mover sharded_mover = {
    .name = "sharded",
    .work_bytes = sizeof(struct sharded),
    .types = {WIRE_CODES, WIRE_RESULT},
    .begin = begin,
    .signal = take_signal,
    .release = release,
    .place = place,
    .arrived = arrived,
    .next = next,
    .sent = sent,
};
