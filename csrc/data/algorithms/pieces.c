// Pieces: each member sends to each other what its tensor has for that one, straight to where it belongs there. What is
// gathered, scattered, exchanged by all with all, or sent to one goes this way; which piece is whose is told by the
// parts of the call.
//
// A neighbour on the same host gets its piece through shared-memory slots (data/slots), any other one on the link.
//
// A member sends to those alone that have posted the op: their READY says how much they expect, so that parts that do
// not fit together are seen before the first byte.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/slots.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/algorithm.h"
#include "link/pace.h"
#include "device/device.h"

enum { CACHED_MAX = 1 << 20 }; // bytes of an own piece that is found in a cache afterwards

// Bytes to and from another member.
struct link {
    uint64_t next;       // to be sent, elements of the piece
    bool ready;          // it has posted the op
    bool in_slots;       // it gets its piece through slots
    struct ranges taken; // of its piece: what is here, or on its way
};

struct pieces {
    struct moving moving;
    struct link *links; // by place
};

static const struct call_part *part_to(const struct op *op, uint32_t place) {
    return &op->args.parts->to[op->team->ranks[place]];
}

static const struct call_part *part_from(const struct op *op, uint32_t place) {
    return &op->args.parts->from[op->team->ranks[place]];
}

static void copy_own(struct op *op) {
    const struct call_part *to = part_to(op, op->team->place), *from = part_from(op, op->team->place);
    uint64_t bytes = from->count * op->element, at = from->at * op->element;
    const uint8_t *own = (const uint8_t *)op->args.send + to->at * op->element;
    uint8_t *result = (uint8_t *)op->args.recv + at;
    if (bytes == 0 || own == result) return;
    if (op->args.queue != NULL || bytes < CACHED_MAX)
        device_copy(op->args.queue, result, own, bytes);
    else
        memory_copy_past_caches(result, own, bytes);
}

// Returns the piece for this member. An all-gather sends one piece to all, from the copy in its own result: all get the
// same bytes, also if the program writes to its input meanwhile.
static const uint8_t *piece_to(const struct op *op, uint32_t place) {
    const struct call_part *own = part_from(op, op->team->place);
    if (op->args.fingerprint.kind == PLAN_ALL_GATHER) return (const uint8_t *)op->args.recv + own->at * op->element;
    return (const uint8_t *)op->args.send + part_to(op, place)->at * op->element;
}

static bool pieces_begin(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    struct pieces *p = op->work;
    p->links = calloc(now->count, sizeof *p->links);
    if (p->links == NULL) return false;
    engine_lock(engine);
    for (uint32_t place = 0; place < now->count; place++) {
        if (place == now->place) continue;
        p->moving.send_left += part_to(op, place)->count * op->element;
        p->moving.receive_left += part_from(op, place)->count * op->element;
        struct wire_ready ready = slots_offer(algorithm_peer(op, place), op);
        ready.expected = part_from(op, place)->count;
        algorithm_offer(engine, op, algorithm_peer(op, place), ready);
    }
    engine_unlock(engine);
    copy_own(op);
    return true;
}

// READY.
static bool pieces_take_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                               const struct wire_head *head, struct block *block) {
    struct pieces *p = op->work;
    uint32_t place = algorithm_place_of(op, from);
    (void)block;
    if (p->links == NULL || type != WIRE_READY) return true;
    uint64_t given = part_to(op, place)->count;
    p->links[place].ready = head->ready.expected == given;
    p->links[place].in_slots = given > 0 && slots_serve(from, op, &head->ready);
    if (p->links[place].ready) return true;
    struct wire_fingerprint theirs = op->args.fingerprint;
    theirs.count = head->ready.expected;
    theirs.layout ^= 1;
    call_table_report_mismatch(&engine->call_table, op, &op_peer_of(from)->member, &theirs);
    return true;
}

static void pieces_release(struct engine *engine, struct op *op) {
    struct pieces *p = op->work;
    (void)engine;
    for (uint32_t place = 0; p->links != NULL && place < op->contributors; place++) ranges_fini(&p->links[place].taken);
    free(p->links);
    *p = (struct pieces){0};
}

static bool pieces_locate(struct engine *engine, struct op *op, struct incoming *in) {
    struct pieces *p = op->work;
    uint32_t from = algorithm_place_of(op, in->from);
    bool in_slots = in->header.type == WIRE_CHUNK_IN;
    size_t bytes = algorithm_chunk_bytes(in);
    if (p->links == NULL || from == SUBGROUP_NOBODY || bytes == 0 || bytes % op->element != 0) return false;
    if (in->header.type != WIRE_CHUNK && (!in_slots || op->args.queue != NULL)) return false;
    const struct call_part *part = part_from(op, from);
    uint64_t offset = in->head.chunk.offset, elements = bytes / op->element;
    if (offset > part->count || elements > part->count - offset) return false;
    return algorithm_take(engine, &p->links[from].taken, offset, offset + elements) &&
           (in_slots || algorithm_locate(engine, op, in, (part->at + offset) * op->element));
}

static bool pieces_arrived(struct engine *engine, struct op *op, struct incoming *in) {
    (void)engine;
    struct pieces *p = op->work;
    uint64_t at = (part_from(op, algorithm_place_of(op, in->from))->at + in->head.chunk.offset) * op->element;
    size_t bytes = algorithm_chunk_bytes(in);
    if (in->header.type == WIRE_CHUNK_IN)
        memory_copy_past_caches((uint8_t *)op->args.recv + at, in->slot, bytes);
    else
        algorithm_unstage(op, at, in->to, bytes);
    p->moving.receive_left -= bytes;
    return true;
}

static struct frame *pieces_next(struct engine *engine, struct op *op, struct lane *lane, bool idle) {
    struct pieces *p = op->work;
    uint32_t place = algorithm_place_of(op, lane->peer);
    if (!idle || p->links == NULL || place == SUBGROUP_NOBODY || !algorithm_may_use(engine, lane)) return NULL;
    struct link *link = &p->links[place];
    const struct call_part *part = part_to(op, place);
    if (!link->ready || link->next == part->count) return NULL;
    uint64_t elements =
        pace_chunk(part->count, op->element, link->in_slots ? SLOTS_CHUNK_MAX : pace_frame(&lane->pace), false);
    if (elements > part->count - link->next) elements = part->count - link->next;
    struct wire_head head = {.op = op_on_wire(op), .chunk = {.offset = link->next}};
    const uint8_t *from = piece_to(op, place) + link->next * op->element;
    struct frame *frame = link->in_slots ? slots_chunk(engine, op, lane->peer, &head, from, elements * op->element)
                                         : algorithm_chunk(engine, op, &head, from, elements * op->element);
    if (frame != NULL) link->next += elements;
    return frame;
}

const struct algorithm pieces_algorithm = {
    .name = "pieces",
    .work_bytes = sizeof(struct pieces),
    .types = {WIRE_CHUNK, WIRE_CHUNK_IN},
    .begin = pieces_begin,
    .signal = pieces_take_signal,
    .release = pieces_release,
    .locate = pieces_locate,
    .arrived = pieces_arrived,
    .next = pieces_next,
};
