// Weighted all-reduce (ops/plan): block by block, the inputs go up a tree
// to the owner of the shard, and the result comes down. A member that owns nothing sends and receives the tensor once.
//
// A block is added up where all that come from below are there: the own input first, then the others' in the order of
// their places from here on, so that every bit is fixed by weights and sites. A sum lies where the result will be. The
// result of a block comes after its input has been read, there and everywhere, so it may take the input's place.
//
// Inputs that wait for others are in memory besides the tensors. The owner of a shard bounds it for the whole tree: it
// lets all members send the blocks before `granted`, which is never more than a window beyond the first block that it
// has not added up, and less where its other ops have much granted. What it has granted can always be received, and
// goes on as soon as the inputs below are there, without another's leave; results have a place anyway. So the first
// block of a shard that is not added up never waits for anything but links, and rings of waiting members cannot be.
#include <stdlib.h>

#include <pccl.h>

#include "data/core.h"
#include "link/connection.h"
#include "data/algorithm.h"
#include "link/pace.h"
#include "link/frame.h"
#include "device/device.h"

enum { WINDOW_LEAST = 4 }; // blocks

enum direction { UP, DOWN }; // `down` of CHUNK

// A block of the tensor.
struct part {
    void **inputs;    // by place: from below; NULL: nothing has come, or it is added up
    uint64_t arrived; // bytes of them
    uint64_t result;  // bytes of the result that have come
};

struct shard {
    struct plan_range range;
    uint64_t size, blocks, first; // elements of a block; how many; and before this shard
    uint64_t next;                // of the own input to go up: elements
    uint64_t granted;             // blocks that may go up
    uint64_t open;                // the first block that this member adds up, and has not: all below are done
    uint64_t window;              // blocks
};

// A sum that goes up, or a result that goes down.
struct ready {
    uint32_t shard;
    enum direction direction;
    uint64_t block;
};

struct other {
    bool begun;           // it has posted the op
    struct ranges inputs; // that have come from it, or are on their way: elements
    uint64_t sent, at;    // entries of `ready` that it needs no more; elements of the next one that it has
    uint32_t turn;        // the shard that it is looked for next
};

struct weighted_work {
    struct moving moving;
    struct part *parts;    // of all shards
    struct shard *shards;  // by place
    struct other *others;  // by place
    struct ready *ready;   // in the order in which they were
    uint64_t ready_count;  // of them
    struct ranges results; // that have come, or are on their way: elements
};

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

// ---- blocks ----
static struct plan_range block_range(const struct shard *shard, uint64_t block) {
    uint64_t begin = shard->range.begin + block * shard->size, left = shard->range.end - begin;
    return (struct plan_range){begin, begin + (left < shard->size ? left : shard->size)};
}

static uint64_t bytes_of(const struct op *op, const struct shard *shard, uint64_t block) {
    struct plan_range range = block_range(shard, block);
    return (range.end - range.begin) * op->element;
}

static struct part *part_of(const struct weighted_work *s, uint32_t shard, uint64_t block) {
    return &s->parts[s->shards[shard].first + block];
}

static uint32_t children(const struct op *op, uint32_t shard, uint64_t block) {
    return plan_weights_children(op->team->weights, shard, block, op->team->place);
}

static uint32_t parent(const struct op *op, uint32_t shard, uint64_t block, uint32_t member) {
    return plan_weights_parent(op->team->weights, shard, block, member);
}

// ---- begin and end ----
// Each on one line of its own, since all members have to cut alike: what they know of the op alone.
static bool divide(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    const struct epoch *epoch = engine->call_table.now;
    struct weighted_work *s = op->work;
    uint64_t granted = pace_granted(now->count, epoch->latency_us, epoch->megabytes_per_s), first = 0;
    struct other *others = calloc(now->count, sizeof *others);
    engine_lock(engine); // whoever awaits the op may ask what it waits for
    s->others = others;
    engine_unlock(engine);
    s->shards = calloc(now->count, sizeof *s->shards);
    if (s->shards == NULL || others == NULL) return false;
    for (uint32_t i = 0; i < now->count; i++) {
        struct plan_range range = plan_weights_shard(now->weights, op->count, now->count, i);
        uint64_t elements = range.end - range.begin, size = pace_block(elements, op->element, epoch->latency_us);
        uint64_t window = granted / (size * op->element);
        s->shards[i] = (struct shard){.range = range,
                                      .size = size,
                                      .blocks = elements / size + (elements % size != 0),
                                      .first = first,
                                      .next = range.begin,
                                      .window = window < WINDOW_LEAST ? WINDOW_LEAST : window};
        first += s->shards[i].blocks;
        others[i].turn = i;
    }
    s->parts = calloc(first + 1, sizeof *s->parts);
    s->ready = calloc(2 * first + 1, sizeof *s->ready); // of an agent a sum and a result
    return s->parts != NULL && s->ready != NULL;
}

// Bytes that go out, and as many come in: what goes up from here comes down, and what comes up goes down.
static uint64_t bytes_each_way(const struct op *op) {
    const struct weighted_work *s = op->work;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < op->team->count; i++)
        for (uint64_t block = 0; block < s->shards[i].blocks; block++)
            bytes += bytes_of(op, &s->shards[i], block) * (children(op, i, block) + (i != op->team->place));
    return bytes;
}

// Past the blocks that are added up, or are not to be here.
static void move_open(const struct op *op, uint32_t place) {
    struct weighted_work *s = op->work;
    struct shard *shard = &s->shards[place];
    for (; shard->open < shard->blocks; shard->open++) {
        uint64_t below = children(op, place, shard->open) * bytes_of(op, shard, shard->open);
        if (part_of(s, place, shard->open)->arrived < below) return;
    }
}

// Returns the bytes that a block of the own shard takes until it is added up.
static uint64_t stored_bytes(const struct op *op, const struct shard *own) {
    return own->size * op->element * (op->team->count - 1);
}

// Until which block of the own shard the others may send. Of all ops together so much as PACE_GRANTED_MOST may come,
// but WINDOW_LEAST blocks of each, so that it always goes on.
static uint64_t grantable(struct engine *engine, const struct op *op, const struct shard *own) {
    uint64_t granted = engine->shared->granted;
    uint64_t left = granted < PACE_GRANTED_MOST ? PACE_GRANTED_MOST - granted : 0;
    uint64_t blocks = own->granted - smaller(own->granted, own->open) + left / stored_bytes(op, own);
    if (blocks < WINDOW_LEAST) blocks = WINDOW_LEAST;
    return smaller(own->open + smaller(blocks, own->window), own->blocks);
}

static void note_granted(struct engine *engine, const struct op *op, struct shard *own, uint64_t granted) {
    engine->shared->granted += (granted - own->granted) * stored_bytes(op, own);
    own->granted = granted;
}

static void note_added(struct engine *engine, const struct op *op) {
    const struct weighted_work *s = op->work;
    engine->shared->granted -= stored_bytes(op, &s->shards[op->team->place]);
}

static bool weighted_begin(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    struct weighted_work *s = op->work;
    if (!divide(engine, op)) return false;
    s->moving.send_left = s->moving.receive_left = bytes_each_way(op);
    for (uint32_t i = 0; i < now->count; i++) move_open(op, i);
    struct shard *own = &s->shards[now->place];
    if (own->blocks > 0) note_granted(engine, op, own, grantable(engine, op, own));
    engine_lock(engine);
    for (uint32_t i = 0; i < now->count; i++)
        if (i != now->place)
            algorithm_offer(engine, op, algorithm_peer(op, i), (struct wire_ready){.granted = (uint32_t)own->granted});
    engine_unlock(engine);
    return true;
}

static void drop_inputs(struct engine *engine, const struct op *op, struct part *part) {
    for (uint32_t i = 0; part->inputs != NULL && i < op->contributors; i++) {
        if (op->args.queue == NULL)
            block_put(engine->pool, part->inputs[i]);
        else
            device_unmap(op->args.queue, part->inputs[i]);
    }
    free(part->inputs);
    part->inputs = NULL;
}

static void weighted_release(struct engine *engine, struct op *op) {
    struct weighted_work *s = op->work;
    const struct shard *last = s->shards == NULL ? NULL : &s->shards[op->contributors - 1];
    for (uint64_t i = 0; s->parts != NULL && i < last->first + last->blocks; i++) drop_inputs(engine, op, &s->parts[i]);
    for (uint32_t i = 0; s->others != NULL && i < op->contributors; i++) ranges_fini(&s->others[i].inputs);
    ranges_fini(&s->results);
    free(s->parts);
    free(s->shards);
    free(s->others);
    free(s->ready);
    *s = (struct weighted_work){0};
}

// ---- signals ----
// Returns the member that takes the next block of the own input of this shard; SUBGROUP_NOBODY: nobody does, for now or
// at all. Lock held, or thread.
static uint32_t taker(const struct op *op, uint32_t at) {
    struct weighted_work *s = op->work;
    struct shard *shard = &s->shards[at];
    for (uint64_t block; shard->next < shard->range.end; shard->next = block_range(shard, block).end) {
        block = (shard->next - shard->range.begin) / shard->size;
        if (children(op, at, block) > 0) continue; // it goes with the sum
        return block < shard->granted ? parent(op, at, block, op->team->place) : (uint32_t)SUBGROUP_NOBODY;
    }
    return SUBGROUP_NOBODY;
}

// Returns whether the owner may let so many blocks come: it has added up none that this member's part has not gone to,
// and goes a window beyond that.
static bool may_be_granted(const struct op *op, uint32_t at, uint64_t granted) {
    const struct weighted_work *s = op->work;
    const struct shard *shard = &s->shards[at];
    (void)taker(op, at); // past what goes with sums
    uint64_t gone = smaller((shard->next - shard->range.begin) / shard->size, shard->open);
    return s->others[at].begun && granted > shard->granted && granted <= smaller(gone + shard->window, shard->blocks);
}

// READY, GRANT.
static bool weighted_take_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                                 const struct wire_head *head, struct block *block) {
    struct weighted_work *s = op->work;
    uint32_t place = algorithm_place_of(op, from);
    (void)engine, (void)block;
    if (s->ready == NULL || (type != WIRE_READY && type != WIRE_GRANT)) return true;
    if (type == WIRE_GRANT && !may_be_granted(op, place, head->grant.blocks)) return false;
    struct shard *shard = &s->shards[place];
    uint64_t granted = type == WIRE_READY ? smaller(head->ready.granted, shard->window) : head->grant.blocks;
    s->others[place].begun |= type == WIRE_READY;
    if (granted <= shard->granted) return true;
    shard->granted = granted;
    uint32_t to = taker(op, place); // an agent, perhaps
    if (to != SUBGROUP_NOBODY) neighbour_schedule(algorithm_peer(op, to));
    return true;
}

static bool weighted_misses(const struct op *op, uint32_t place) {
    const struct weighted_work *s = op->work;
    return s->others != NULL && !s->others[place].begun;
}

// ---- what comes ----
static uint8_t *input_bytes(const struct op *op, const struct part *part, uint32_t from) {
    struct block *block = part->inputs[from];
    return op->args.queue == NULL ? block->bytes : part->inputs[from];
}

// Returns where to receive the input of that member; NULL if memory was refused or the device has failed. Lock held.
static uint8_t *input_room(struct engine *engine, struct op *op, struct part *part, uint32_t from,
                           struct plan_range range) {
    size_t bytes = (range.end - range.begin) * op->element;
    if (part->inputs == NULL && (part->inputs = calloc(op->team->count, sizeof *part->inputs)) == NULL) {
        engine_fail(engine);
        return NULL;
    }
    if (part->inputs[from] == NULL)
        part->inputs[from] = op->args.queue == NULL ? (void *)block_new(engine->pool, bytes)
                                                    : (void *)algorithm_staging(op, range.begin * op->element, bytes);
    return part->inputs[from] == NULL ? NULL : input_bytes(op, part, from);
}

static bool weighted_locate(struct engine *engine, struct op *op, struct incoming *in) {
    struct weighted_work *s = op->work;
    const struct team *now = op->team;
    uint32_t from = algorithm_place_of(op, in->from), at = in->head.chunk.shard;
    uint64_t offset = in->head.chunk.offset, elements = in->length / op->element;
    if (s->ready == NULL || from == SUBGROUP_NOBODY || at >= now->count || in->header.type != WIRE_CHUNK) return false;
    struct shard *shard = &s->shards[at];
    if (in->length == 0 || in->length % op->element != 0 || offset < shard->range.begin || offset >= shard->range.end)
        return false;
    uint64_t block = (offset - shard->range.begin) / shard->size;
    struct plan_range range = block_range(shard, block);
    if (elements > range.end - offset) return false;
    // Everything comes once, as in ring.c.
    if (in->head.chunk.down == DOWN)
        return at != now->place && parent(op, at, block, now->place) == from &&
               algorithm_take(engine, &s->results, offset, offset + elements) &&
               algorithm_locate(engine, op, in, offset * op->element);
    if (from == at || parent(op, at, block, from) != now->place || block >= shard->open + shard->window ||
        !algorithm_take(engine, &s->others[from].inputs, offset, offset + elements))
        return false;
    uint8_t *room = input_room(engine, op, part_of(s, at, block), from, range);
    if (room != NULL) in->to = room + (offset - range.begin) * op->element;
    return room != NULL;
}

static bool is_for(const struct op *op, const struct ready *ready, uint32_t place) {
    if (ready->direction == UP) return place == ready->shard;
    return place != ready->shard && parent(op, ready->shard, ready->block, place) == op->team->place;
}

static void offer(struct engine *engine, struct op *op, uint32_t shard, uint64_t block, enum direction direction) {
    struct weighted_work *s = op->work;
    s->ready[s->ready_count++] = (struct ready){shard, direction, block};
    const struct ready *ready = &s->ready[s->ready_count - 1];
    engine_lock(engine);
    for (uint32_t i = 0; i < op->team->count; i++)
        if (i != op->team->place && is_for(op, ready, i)) neighbour_schedule(algorithm_peer(op, i));
    engine_unlock(engine);
}

// The owner lets more come.
static void grant(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    struct weighted_work *s = op->work;
    struct shard *own = &s->shards[now->place];
    uint64_t granted = grantable(engine, op, own);
    // not for each block, but for the last ones
    if (granted <= own->granted || (granted < own->blocks && granted < own->granted + (granted - own->open) / 4))
        return;
    note_granted(engine, op, own, granted);
    struct wire_head head = {.op = op_on_wire(op), .grant = {granted}};
    engine_lock(engine);
    for (uint32_t i = 0; i < now->count; i++)
        if (i != now->place) lanes_signal(algorithm_peer(op, i), WIRE_GRANT, &head, NULL);
    engine_unlock(engine);
}

// Adds all inputs of a block to the own one. False: memory was refused.
static bool add_up(struct engine *engine, struct op *op, uint32_t shard, uint64_t block) {
    const struct team *now = op->team;
    const struct wire_fingerprint *what = &op->args.fingerprint;
    struct weighted_work *s = op->work;
    struct part *part = part_of(s, shard, block);
    struct plan_range range = block_range(&s->shards[shard], block);
    uint64_t at = range.begin * op->element, count = range.end - range.begin;
    if (!algorithm_save(op, at, count * op->element)) return false;
    uint8_t *result = (uint8_t *)op->args.recv + at;
    const uint8_t *other = (const uint8_t *)op->args.send + at;
    uint32_t left = children(op, shard, block);
    for (uint32_t step = 1; step < now->count; step++) {
        uint32_t from = (now->place + step) % now->count;
        if (part->inputs[from] == NULL) continue;
        struct device_sum sum = {.op = what->op, .dtype = what->dtype};
        if (--left == 0 && what->op == pcclAvg && shard == now->place) sum.divisor = now->count;
        device_reduce(op->args.queue, result, input_bytes(op, part, from), other, count, &sum);
        if (op->args.queue != NULL) part->inputs[from] = NULL;
        other = result;
    }
    engine_lock(engine);
    drop_inputs(engine, op, part);
    engine_unlock(engine);
    return true;
}

static bool arrived_up(struct engine *engine, struct op *op, uint32_t at, uint64_t block, size_t bytes) {
    struct weighted_work *s = op->work;
    struct part *part = part_of(s, at, block);
    part->arrived += bytes;
    if (part->arrived < children(op, at, block) * bytes_of(op, &s->shards[at], block)) return true;
    if (!add_up(engine, op, at, block)) return false;
    move_open(op, at);
    offer(engine, op, at, block, at == op->team->place ? DOWN : UP);
    if (at == op->team->place) {
        note_added(engine, op);
        grant(engine, op);
    }
    return true;
}

static void arrived_down(struct engine *engine, struct op *op, uint32_t at, uint64_t block, size_t bytes) {
    struct weighted_work *s = op->work;
    struct part *part = part_of(s, at, block);
    part->result += bytes;
    if (part->result == bytes_of(op, &s->shards[at], block) && children(op, at, block) > 0)
        offer(engine, op, at, block, DOWN);
}

static bool weighted_arrived(struct engine *engine, struct op *op, struct incoming *in) {
    struct weighted_work *s = op->work;
    const struct wire_chunk *chunk = &in->head.chunk;
    const struct shard *shard = &s->shards[chunk->shard];
    uint64_t block = (chunk->offset - shard->range.begin) / shard->size;
    if (chunk->down == DOWN) {
        algorithm_unstage(op, chunk->offset * op->element, in->to, in->length);
        arrived_down(engine, op, chunk->shard, block, in->length);
    } else if (!arrived_up(engine, op, chunk->shard, block, in->length)) {
        return false;
    }
    s->moving.receive_left -= in->length;
    return true;
}

// ---- what goes ----
// As much from `offset` on as this lane takes, but not beyond `end`.
static struct frame *piece(struct engine *engine, struct op *op, const struct lane *lane, const void *tensor,
                           struct wire_head *head, uint64_t end) {
    uint64_t elements = pace_frame(&lane->pace) / op->element;
    if (elements > end - head->chunk.offset) elements = end - head->chunk.offset;
    return algorithm_chunk(engine, op, head, (const uint8_t *)tensor + head->chunk.offset * op->element,
                           elements * op->element);
}

// A sum or a result.
static struct frame *next_ready(struct engine *engine, struct op *op, const struct lane *lane, uint32_t place) {
    struct weighted_work *s = op->work;
    struct other *other = &s->others[place];
    while (other->sent < s->ready_count && !is_for(op, &s->ready[other->sent], place)) other->sent++;
    if (other->sent == s->ready_count) return NULL;
    const struct ready *ready = &s->ready[other->sent];
    struct plan_range range = block_range(&s->shards[ready->shard], ready->block);
    struct wire_head head = {.op = op_on_wire(op),
                             .chunk = {.shard = (uint16_t)ready->shard,
                                       .down = ready->direction == DOWN,
                                       .offset = range.begin + other->at}};
    struct frame *frame = piece(engine, op, lane, op->args.recv, &head, range.end);
    if (frame == NULL) return NULL;
    other->at += frame->bytes / op->element;
    if (other->at < range.end - range.begin) return frame;
    other->at = 0;
    other->sent++;
    return frame;
}

// The own input of this shard, if that is where it goes now.
static struct frame *next_input(struct engine *engine, struct op *op, const struct lane *lane, uint32_t place,
                                uint32_t at) {
    struct weighted_work *s = op->work;
    struct shard *shard = &s->shards[at];
    if (taker(op, at) != place) return NULL;
    uint64_t block = (shard->next - shard->range.begin) / shard->size;
    struct wire_head head = {.op = op_on_wire(op), .chunk = {.shard = (uint16_t)at, .down = UP, .offset = shard->next}};
    struct frame *frame = piece(engine, op, lane, op->args.send, &head, block_range(shard, block).end);
    if (frame == NULL) return NULL;
    shard->next += frame->bytes / op->element;
    // The next block may go to another one, whose lanes have found nothing to do.
    uint32_t to = taker(op, at);
    if (to == place || to == SUBGROUP_NOBODY) return frame;
    engine_lock(engine);
    neighbour_schedule(algorithm_peer(op, to));
    engine_unlock(engine);
    return frame;
}

static struct frame *weighted_next(struct engine *engine, struct op *op, struct lane *lane, bool idle) {
    const struct team *now = op->team;
    struct weighted_work *s = op->work;
    uint32_t place = algorithm_place_of(op, lane->peer);
    if (!idle || s->ready == NULL || place == SUBGROUP_NOBODY || !s->others[place].begun ||
        !algorithm_may_use(engine, lane))
        return NULL;
    struct frame *frame = next_ready(engine, op, lane, place);
    if (frame != NULL || now->weights->sites == now->count)
        return frame != NULL ? frame : next_input(engine, op, lane, place, place);
    struct other *other = &s->others[place];
    for (uint32_t step = 0; step < now->count && frame == NULL; step++) {
        uint32_t at = (other->turn + step) % now->count;
        if (at != now->place) frame = next_input(engine, op, lane, place, at);
        if (frame != NULL) other->turn = (at + 1) % now->count;
    }
    return frame;
}

const struct algorithm weighted_algorithm = {
    .name = "weighted",
    .work_bytes = sizeof(struct weighted_work),
    .types = {WIRE_CHUNK},
    .begin = weighted_begin,
    .signal = weighted_take_signal,
    .release = weighted_release,
    .misses = weighted_misses,
    .locate = weighted_locate,
    .arrived = weighted_arrived,
    .next = weighted_next,
};
