// Quantised ops: every member owns one shard. It takes everybody's quantised block, sums in wide precision in rank
// order, quantises the sum once and sends it to all, itself included: what it keeps is what the others decode. So each
// input and each result is quantised exactly once, however many members there are.
//
// The order of the sum is fixed, so a block waits until all inputs of it are there; what may wait is bounded by a
// window of blocks that the owner grants. Stopping to read a link instead would let two ops wait for each other behind
// it.
//
// Nothing here waits for the device of the tensors: it is asked for a few blocks ahead, and each goes on when what it
// takes is there, which the device wakes the thread for.
#include <stdlib.h>
#include <string.h>

#include <pccl.h>

#include "compute/codec.h"
#include "compute/kernels.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/algorithm.h"
#include "link/frame.h"
#include "device/device.h"

enum {
    WINDOW_BYTES = 4 * 1024 * 1024,
    WINDOW_MIN = 4,
    WINDOW_MAX = 64,
    CODINGS = 4,       // that the device is asked for at most: of the inputs for each owner, and of sums
    CODINGS_MOST = 16, // of all inputs, unless there are more owners
};

// The input of a block, or the sum of one, which this member writes in codes.
struct coding {
    const void *codes;            // a mapped view, if the device writes them
    const void *input, *residual; // else mapped views of what the host makes them of
    uint64_t fence, residual_fence;
};

// A block of the shard that this member owns.
struct slot {
    uint32_t arrived;
    uint32_t unsent;      // RESULT frames not yet written
    struct block *result; // owned, until all of them are
};

// Bytes to and from the owner of a shard.
struct target {
    uint64_t next, asked, granted, blocks; // of its shard; asked: of the device
    struct coding codings[CODINGS];        // of [next, asked)
    struct ranges codes, results;          // that have come from it, or are on their way: blocks
    uint64_t results_sent;                 // to it, in the order of `whole`
};

struct sharded {
    struct moving moving;
    uint64_t window;         // blocks in work at the owner
    uint64_t freed, granted; // own blocks that are over; that the others may send
    struct slot *slots;      // [window]
    uint64_t *whole;         // [window]: blocks of which all inputs are here, in the order in which that was so
    uint64_t whole_count, asked_count, ready_count; // all; with a sum that was asked for; with a result
    struct coding sums[CODINGS];                    // of [ready_count, asked_count)
    struct block **inputs;                          // of each slot by rank: [window * members]
    const uint8_t **terms;                          // by rank: codes of the block at hand
    struct target *targets;                         // by rank
};

static const struct codec *codec_of(const struct op *op) { return codec_find(op->args.fingerprint.codec); }

static uint64_t blocks_in(struct plan_range shard) { return (shard.end - shard.begin + CODEC_PIECE - 1) / CODEC_PIECE; }

static struct plan_range block_range(const struct op *op, uint32_t shard, uint64_t block) {
    const struct team *now = op->team;
    struct plan_range range = plan_weights_shard(now->weights, op->count, now->count, shard);
    range.begin += block * CODEC_PIECE;
    if (range.end - range.begin > CODEC_PIECE) range.end = range.begin + CODEC_PIECE;
    return range;
}

static size_t encoded_bytes(const struct op *op, struct plan_range range) {
    return codec_bytes(codec_of(op), op->args.fingerprint.dtype, range.end - range.begin);
}

// A result has other rounding than the input of the same member and the same seed.
static struct codec_rounding rounding_of(const struct op *op, struct plan_range range, bool is_result) {
    const struct codec_rounding *rounding = &op->args.rounding;
    return (struct codec_rounding){is_result ? ~rounding->seed : rounding->seed, rounding->index + range.begin};
}

// Writes this range of the tensor.
static void encode(const struct op *op, struct plan_range range, uint8_t *out, const void *wide, bool is_result) {
    const struct call_args *args = &op->args;
    struct codec_rounding rounding = rounding_of(op, range, is_result);
    codec_encode(codec_of(op), args->fingerprint.dtype, out, wide, range.end - range.begin,
                 args->stochastic ? &rounding : NULL);
}

// ---- the device of the tensors ----
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

static void coding_end(const struct op *op, struct coding *coding) {
    device_unmap(op->args.queue, coding->codes);
    device_unmap(op->args.queue, coding->input);
    device_unmap(op->args.queue, coding->residual);
    *coding = (struct coding){0};
}

// False: the device has failed.
static bool coding_ask(const struct op *op, const struct device_codes *what, struct coding *coding) {
    struct device_queue *queue = op->args.queue;
    enum device_coding where = device_code(queue, what, &coding->codes, &coding->fence);
    if (where != DEVICE_CODING_ELSEWHERE) return where == DEVICE_CODING_ASKED;
    coding->input = device_map(queue, what->input, what->count * op->element, &coding->fence);
    if (what->residual_in != NULL)
        coding->residual = device_map(queue, what->residual_in, what->count * sizeof(float), &coding->residual_fence);
    if (!device_has_failed(queue)) return true;
    coding_end(op, coding);
    return false;
}

// Returns whether what was asked for is there. Of a device that fails it never is, and the engine ends.
static bool coding_is_there(const struct op *op, const struct coding *coding) {
    return device_passed(op->args.queue, coding->fence) == DEVICE_DONE &&
           (coding->residual == NULL || device_passed(op->args.queue, coding->residual_fence) == DEVICE_DONE);
}

static bool ask_input(const struct op *op, struct plan_range range, struct coding *coding) {
    struct device_codes codes = codes_of(op, range, NULL, 1);
    struct codec_rounding rounding = rounding_of(op, range, false);
    if (op->args.stochastic) codes.rounding = &rounding;
    add_own(op, range, &codes, 0);
    return coding_ask(op, &codes, coding);
}

// The sum of the own shard: its codes, and what this member stores of it.
static bool ask_sum(struct op *op, struct plan_range range, const uint8_t *const *terms, struct coding *coding) {
    const struct team *now = op->team;
    struct device_codes what = codes_of(op, range, terms, now->count);
    struct codec_rounding rounding = rounding_of(op, range, true);
    if (op->args.stochastic) what.rounding = &rounding;
    add_own(op, range, &what, now->place);
    if (op->args.fingerprint.op == pcclAvg) what.sum.divisor = what.times = now->count;
    what.result = (uint8_t *)op->args.recv + range.begin * op->element;
    return algorithm_save(op, range.begin * op->element, what.count * op->element) && coding_ask(op, &what, coding);
}

// wide = this member's input, with what was taken away from it before.
static void widen_input(const struct op *op, const struct coding *coding, size_t count, void *wide) {
    codec_widen(op->args.fingerprint.dtype, wide, coding->input, count);
    if (coding->residual != NULL) kernels_get()->reduce[pcclSum][pcclFloat](wide, wide, coding->residual, count);
}

// Notes what was taken away from this range: wanted - got, in units of an input. Both are wide. False: the device has
// failed.
static bool note_residual(struct op *op, struct plan_range range, const void *wanted, const void *got, uint32_t times) {
    size_t count = range.end - range.begin, bytes = count * sizeof(float);
    float *residual = op->args.residual_out + range.begin;
    void *staging = device_staging(op->args.queue, residual, bytes);
    if (staging == NULL) return false;
    codec_residual(staging, wanted, got, times, count);
    device_unstage(op->args.queue, residual, staging, bytes);
    return true;
}

static void sharded_release(struct engine *engine, struct op *op) {
    struct sharded *s = op->work;
    for (uint64_t i = 0; s->inputs != NULL && i < s->window * op->contributors; i++)
        block_put(engine->pool, s->inputs[i]);
    for (uint64_t i = 0; s->slots != NULL && i < s->window; i++) block_put(engine->pool, s->slots[i].result);
    free(s->inputs);
    free(s->terms);
    free(s->slots);
    free(s->whole);
    for (size_t i = 0; i < CODINGS; i++) coding_end(op, &s->sums[i]);
    for (uint32_t rank = 0; s->targets != NULL && rank < op->contributors; rank++) {
        for (size_t i = 0; i < CODINGS; i++) coding_end(op, &s->targets[rank].codings[i]);
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
    struct algorithm_shared *shared = engine->shared;
    size_t block_bytes = encoded_bytes(op, (struct plan_range){0, CODEC_PIECE});
    s->window = WINDOW_BYTES / (block_bytes * (now->count - 1));
    if (s->window < WINDOW_MIN) s->window = WINDOW_MIN;
    if (s->window > WINDOW_MAX) s->window = WINDOW_MAX;
    s->granted = s->window;
    s->targets = calloc(now->count, sizeof *s->targets);
    s->slots = calloc(s->window, sizeof *s->slots);
    s->inputs = calloc(s->window * now->count, sizeof(struct block *));
    s->terms = calloc(now->count, sizeof *s->terms);
    s->whole = calloc(s->window, sizeof *s->whole);
    if (s->targets == NULL || s->slots == NULL || s->inputs == NULL || s->terms == NULL || s->whole == NULL)
        return false;
    if (shared->wide == NULL) shared->wide = malloc(CODEC_PIECE * sizeof(double));
    if (shared->wide_input == NULL) shared->wide_input = malloc(CODEC_PIECE * sizeof(double));
    return shared->wide != NULL && shared->wide_input != NULL;
}

// READY, GRANT.
static bool sharded_take_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                                const struct wire_head *head, struct block *block) {
    struct sharded *s = op->work;
    (void)engine, (void)block;
    if (s->targets == NULL || (type != WIRE_READY && type != WIRE_GRANT)) return true;
    struct target *target = &s->targets[algorithm_place_of(op, from)];
    uint64_t granted = type == WIRE_GRANT                ? head->grant.blocks
                       : head->ready.granted < s->window ? head->ready.granted
                                                         : s->window;
    // A block is over at its owner after it has gone there.
    if (type == WIRE_GRANT &&
        (target->granted == 0 || granted <= target->granted || granted > target->next + s->window))
        return false;
    if (granted > target->granted) target->granted = granted;
    return true;
}

static bool sharded_begin(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    if (!allocate(engine, op)) return false;
    struct sharded *s = op->work;
    uint64_t bytes = 0; // inputs of the others' shards and results of the own one go out, and as many come in
    engine_lock(engine);
    for (uint32_t rank = 0; rank < now->count; rank++) {
        struct plan_range shard = plan_weights_shard(now->weights, op->count, now->count, rank);
        bytes += encoded_bytes(op, shard) * (rank == now->place ? now->count - 1 : 1);
        s->targets[rank].blocks = blocks_in(shard);
        if (rank != now->place)
            algorithm_offer(engine, op, algorithm_peer(op, rank), (struct wire_ready){.granted = (uint32_t)s->window});
    }
    engine_unlock(engine);
    s->moving.send_left = s->moving.receive_left = bytes;
    return true;
}

// ---- inputs on their way to the owners, and results from there ----
// False: the device has failed.
static bool encode_input(struct engine *engine, struct op *op, struct plan_range range, const struct coding *coding,
                         uint8_t *out) {
    struct algorithm_shared *shared = engine->shared;
    widen_input(op, coding, range.end - range.begin, shared->wide);
    encode(op, range, out, shared->wide, false);
    if (op->args.residual_out == NULL) return true;
    codec_decode(codec_of(op), op->args.fingerprint.dtype, shared->wide_input, out, range.end - range.begin);
    return note_residual(op, range, shared->wide, shared->wide_input, 1);
}

static struct frame *next_result(struct engine *engine, struct op *op, struct target *target) {
    struct sharded *s = op->work;
    uint64_t index = s->whole[target->results_sent % s->window];
    struct block *result = s->slots[index % s->window].result;
    struct wire_head head = {.op = op_on_wire(op), .block = {.shard = (uint16_t)op->team->place, .index = index}};
    engine_lock(engine);
    struct frame *frame = algorithm_frame(engine, op, WIRE_RESULT, &head, result->length);
    if (frame != NULL) {
        result->references++;
        frame->block = result;
        frame->payload = result->bytes;
        target->results_sent++;
    }
    engine_unlock(engine);
    return frame;
}

// Asks for what this owner lets come. False: the device has failed.
static bool ask_inputs(const struct op *op, uint32_t rank, struct target *target) {
    uint64_t end = target->granted < target->blocks ? target->granted : target->blocks;
    uint64_t ahead = CODINGS_MOST / (op->team->count - 1);
    ahead = ahead < 1 ? 1 : ahead > CODINGS ? CODINGS : ahead;
    for (; target->asked < end && target->asked < target->next + ahead; target->asked++)
        if (!ask_input(op, block_range(op, rank, target->asked), &target->codings[target->asked % CODINGS]))
            return false;
    return true;
}

static struct frame *next_input(struct engine *engine, struct op *op, struct lane *lane, uint32_t rank) {
    struct sharded *s = op->work;
    struct target *target = &s->targets[rank];
    struct coding *coding = &target->codings[target->next % CODINGS];
    if (!ask_inputs(op, rank, target) || target->next == target->asked || !coding_is_there(op, coding)) return NULL;
    struct plan_range range = block_range(op, rank, target->next);
    uint8_t *stage = coding->codes == NULL ? lane_stage(lane) : NULL;
    if (coding->codes == NULL && stage == NULL) {
        engine_lock(engine);
        engine_fail(engine);
        engine_unlock(engine);
        return NULL;
    }
    if (stage != NULL && !encode_input(engine, op, range, coding, stage)) return NULL;

    struct wire_head head = {.op = op_on_wire(op), .block = {.shard = (uint16_t)rank, .index = target->next}};
    engine_lock(engine);
    struct frame *frame = algorithm_frame(engine, op, WIRE_CODES, &head, encoded_bytes(op, range));
    engine_unlock(engine);
    if (frame == NULL) return NULL;
    frame->payload = stage != NULL ? stage : coding->codes;
    frame->device = op->args.queue;
    frame->fence = stage != NULL ? 0 : coding->fence; // whoever has sent it unmaps the view
    coding->codes = NULL;
    coding_end(op, coding);
    target->next++;
    return frame;
}

// ---- the owner ----
// The input of this range is saved already. `wide` is room; with `look` it gets the values that the result has now.
static bool store(struct op *op, struct plan_range range, const uint8_t *codes, void *wide, bool look) {
    int dtype = op->args.fingerprint.dtype;
    size_t count = range.end - range.begin;
    if (!codec_decode(codec_of(op), dtype, wide, codes, count)) return false;
    uint64_t at = range.begin * op->element;
    uint8_t *staging = algorithm_staging(op, at, count * op->element);
    if (staging == NULL) return false;
    codec_narrow(dtype, staging, wide, count);
    if (look) codec_widen(dtype, wide, staging, count);
    algorithm_unstage(op, at, staging, count * op->element);
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
    s->ready_count++;
    engine_lock(engine);
    for (uint32_t step = 1; step < now->count; step++)
        neighbour_schedule(algorithm_peer(op, (now->place + step) % now->count));
    engine_unlock(engine);
}

// Into `out`, and what this member stores of it into the result. False: malformed, or the device has failed.
static bool sum_block(struct engine *engine, struct op *op, struct plan_range range, struct block *const *inputs,
                      const struct coding *coding, uint8_t *out) {
    const struct team *now = op->team;
    const struct wire_fingerprint *what = &op->args.fingerprint;
    const struct kernels *kernels = kernels_get();
    int wide = codec_wide(what->dtype);
    void *sum = engine->shared->wide, *input = engine->shared->wide_input;
    size_t count = range.end - range.begin;
    for (uint32_t rank = 0; rank < now->count; rank++) {
        void *to = rank == 0 ? sum : input;
        if (rank == now->place)
            widen_input(op, coding, count, to);
        else if (!codec_decode(codec_of(op), what->dtype, to, inputs[rank]->bytes, count))
            return false;
        if (rank > 0) kernels->reduce[what->op][wide](sum, sum, input, count);
    }
    if (what->op == pcclAvg) kernels->divide[wide](sum, count, now->count);
    encode(op, range, out, sum, true);
    return store_own(op, range, out, sum, input);
}

static bool ask_block(struct op *op, uint64_t index, struct coding *coding) {
    const struct team *now = op->team;
    struct sharded *s = op->work;
    struct block **inputs = inputs_of(op, s, index);
    for (uint32_t rank = 0; rank < now->count; rank++) s->terms[rank] = rank == now->place ? NULL : inputs[rank]->bytes;
    return ask_sum(op, block_range(op, now->place, index), s->terms, coding);
}

static bool reduce_block(struct engine *engine, struct op *op, uint64_t index, struct coding *coding) {
    const struct team *now = op->team;
    struct sharded *s = op->work;
    struct block **inputs = inputs_of(op, s, index);
    struct plan_range range = block_range(op, now->place, index);
    engine_lock(engine);
    struct block *result = block_new(engine->pool, encoded_bytes(op, range));
    engine_unlock(engine);
    if (result == NULL) return false;
    bool good = true;
    if (coding->codes != NULL)
        memcpy(result->bytes, coding->codes, result->length);
    else
        good = sum_block(engine, op, range, inputs, coding, result->bytes);
    engine_lock(engine);
    for (uint32_t rank = 0; good && rank < now->count; rank++) {
        block_put(engine->pool, inputs[rank]);
        inputs[rank] = NULL;
    }
    if (!good) block_put(engine->pool, result);
    engine_unlock(engine);
    if (!good) return false;
    coding_end(op, coding);
    offer_result(engine, op, index, result);
    return true;
}

// Reduces the blocks whose inputs have arrived, within the device's limits. Returns false if a frame is malformed,
// memory was refused, or the device has failed.
static bool reduce_blocks(struct engine *engine, struct op *op) {
    struct sharded *s = op->work;
    for (;;) {
        for (; s->asked_count < s->whole_count && s->asked_count < s->ready_count + CODINGS; s->asked_count++)
            if (!ask_block(op, s->whole[s->asked_count % s->window], &s->sums[s->asked_count % CODINGS])) return false;
        struct coding *coding = &s->sums[s->ready_count % CODINGS];
        if (s->ready_count == s->asked_count || !coding_is_there(op, coding)) return true;
        if (!reduce_block(engine, op, s->whole[s->ready_count % s->window], coding)) return false;
    }
}

static bool sharded_locate(struct engine *engine, struct op *op, struct incoming *in) {
    const struct team *now = op->team;
    struct sharded *s = op->work;
    uint32_t from = algorithm_place_of(op, in->from), shard = in->head.block.shard;
    uint64_t index = in->head.block.index;
    if (s->targets == NULL || from == UINT32_MAX || shard >= now->count) return false;
    if (index >= s->targets[shard].blocks) return false;
    if (in->length != encoded_bytes(op, block_range(op, shard, index))) return false;
    if (in->header.type == WIRE_RESULT) {
        // each comes once, as in ring.c
        if (shard != from || !algorithm_take(engine, &s->targets[from].results, index, index + 1)) return false;
        in->to = lane_scratch(in->lane);
        return in->to != NULL;
    }
    if (shard != now->place || index >= s->granted ||
        !algorithm_take(engine, &s->targets[from].codes, index, index + 1))
        return false;
    in->block = block_new(engine->pool, in->length);
    if (in->block != NULL) in->to = in->block->bytes;
    return in->block != NULL;
}

static bool store_result(struct engine *engine, struct op *op, struct plan_range range, const uint8_t *codes) {
    struct device_codes what = codes_of(op, range, &codes, 1);
    what.result = (uint8_t *)op->args.recv + range.begin * op->element;
    if (!algorithm_save(op, range.begin * op->element, what.count * op->element)) return false;
    enum device_coding coding = device_code(op->args.queue, &what, NULL, NULL);
    if (coding != DEVICE_CODING_ELSEWHERE) return coding == DEVICE_CODING_ASKED;
    return store(op, range, codes, engine->shared->wide_input, false);
}

static bool sharded_arrived(struct engine *engine, struct op *op, struct incoming *in) {
    const struct team *now = op->team;
    struct sharded *s = op->work;
    uint64_t index = in->head.block.index;
    struct plan_range range = block_range(op, in->head.block.shard, index);
    // now, while it is known who has sent it
    if (!codec_valid(codec_of(op), op->args.fingerprint.dtype, in->to, range.end - range.begin)) return false;
    if (in->header.type == WIRE_RESULT) {
        if (!store_result(engine, op, range, in->to)) return false;
    } else {
        struct slot *slot = &s->slots[index % s->window];
        inputs_of(op, s, index)[algorithm_place_of(op, in->from)] = in->block;
        in->block = NULL;
        if (++slot->arrived == now->count - 1) {
            slot->unsent = now->count - 1;
            s->whole[s->whole_count++ % s->window] = index;
            if (!reduce_blocks(engine, op)) return false;
        }
    }
    s->moving.receive_left -= in->length; // last: what does not decode is not here
    return true;
}

// ---- frames ----
static struct frame *sharded_next(struct engine *engine, struct op *op, struct lane *lane, bool idle) {
    struct sharded *s = op->work;
    uint32_t rank = algorithm_place_of(op, lane->peer);
    if (s->targets == NULL || !reduce_blocks(engine, op)) return NULL; // perhaps the device has woken the thread
    if (!idle || rank == UINT32_MAX || !algorithm_may_use(engine, lane)) return NULL;
    struct target *target = &s->targets[rank];
    return target->results_sent < s->ready_count ? next_result(engine, op, target) : next_input(engine, op, lane, rank);
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
    struct wire_head head = {.op = op_on_wire(op), .grant = {grant}};
    engine_lock(engine);
    for (uint32_t rank = 0; rank < now->count; rank++)
        if (algorithm_peer(op, rank) != NULL) lanes_signal(algorithm_peer(op, rank), WIRE_GRANT, &head, NULL);
    engine_unlock(engine);
}

static void sharded_sent(struct engine *engine, struct op *op, const struct frame *frame) {
    struct sharded *s = op->work;
    if (frame->header.type != WIRE_RESULT) return;
    struct slot *slot = &s->slots[frame->head.block.index % s->window];
    if (--slot->unsent == 0) {
        engine_lock(engine);
        block_put(engine->pool, slot->result);
        engine_unlock(engine);
        slot->result = NULL;
    }
    advance(engine, op);
}

const struct algorithm sharded_algorithm = {
    .name = "sharded",
    .work_bytes = sizeof(struct sharded),
    .types = {WIRE_CODES, WIRE_RESULT},
    .begin = sharded_begin,
    .signal = sharded_take_signal,
    .release = sharded_release,
    .locate = sharded_locate,
    .arrived = sharded_arrived,
    .next = sharded_next,
    .sent = sharded_sent,
};
