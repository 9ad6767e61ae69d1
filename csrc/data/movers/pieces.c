// Pieces: each member sends to each other what its tensor has for that one, straight to where it belongs there. What is
// gathered, scattered, exchanged by all with all, or sent to one goes this way; which piece is whose is told by the
// parts of the call.
//
// A member sends to those alone that have posted the op: their READY says how much they expect, so that parts that do
// not fit together are seen before the first byte.
#include <stdlib.h>
#include <string.h>

#include "data/core.h"
#include "data/lane.h"
#include "data/mover.h"
#include "data/pace.h"
#include "device/device.h"

// What goes to another member, and comes from it.
struct link {
    uint64_t next;       // to be sent, elements of the piece
    bool ready;          // it has posted the op
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

static bool copy_own(struct op *op) {
    const struct call_part *to = part_to(op, op->team->place), *from = part_from(op, op->team->place);
    uint64_t bytes = from->count * op->element, at = from->at * op->element;
    const uint8_t *own = (const uint8_t *)op->args.send + to->at * op->element;
    if (bytes == 0 || own == (const uint8_t *)op->args.recv + at) return true;
    const void *input = mover_input(op, to->at * op->element, bytes);
    uint8_t *landing = input == NULL ? NULL : mover_landing(op, at, bytes);
    if (landing == NULL) return false;
    memcpy(landing, input, bytes);
    device_shut(op->args.queue, input);
    mover_land(op, at, landing, bytes);
    return true;
}

static bool begin(struct engine *engine, struct op *op) {
    const struct team *now = op->team;
    struct pieces *p = op->work;
    p->links = calloc(now->count, sizeof *p->links);
    if (p->links == NULL || !copy_own(op)) return false;
    engine_lock(engine);
    for (uint32_t place = 0; place < now->count; place++) {
        if (place == now->place) continue;
        p->moving.send_left += part_to(op, place)->count * op->element;
        p->moving.receive_left += part_from(op, place)->count * op->element;
        struct wire_op head;
        op_head(op, &head);
        head.offset = part_from(op, place)->count;
        neighbour_signal(engine, mover_peer(op, place), WIRE_READY, &head, NULL);
    }
    engine_unlock(engine);
    return true;
}

// READY.
static void take_signal(struct engine *engine, struct op *op, struct neighbour *from, uint16_t type,
                        const struct wire_op *head, struct block *block) {
    struct pieces *p = op->work;
    uint32_t place = mover_place_of(op, from);
    (void)block;
    if (p->links == NULL || type != WIRE_READY) return;
    uint64_t given = part_to(op, place)->count;
    p->links[place].ready = head->offset == given;
    if (p->links[place].ready) return;
    struct wire_fingerprint theirs = op->args.fingerprint;
    theirs.count = head->offset;
    theirs.layout ^= 1;
    book_accuse(&engine->book, op, &from->member, &theirs);
}

static void release(struct engine *engine, struct op *op) {
    struct pieces *p = op->work;
    (void)engine;
    for (uint32_t place = 0; p->links != NULL && place < op->contributors; place++) ranges_fini(&p->links[place].taken);
    free(p->links);
    *p = (struct pieces){0};
}

static bool place(struct engine *engine, struct op *op, struct incoming *in) {
    struct pieces *p = op->work;
    uint32_t from = mover_place_of(op, in->from);
    if (p->links == NULL || from == GROUP_NOBODY || in->length == 0 || in->length % op->element != 0) return false;
    const struct call_part *part = part_from(op, from);
    uint64_t offset = in->head.offset, elements = in->length / op->element;
    if (offset > part->count || elements > part->count - offset) return false;
    return mover_take(engine, &p->links[from].taken, offset, offset + elements) &&
           mover_place(engine, op, in, (part->at + offset) * op->element);
}

static bool arrived(struct engine *engine, struct op *op, struct incoming *in) {
    struct pieces *p = op->work;
    (void)engine;
    mover_land(op, (part_from(op, mover_place_of(op, in->from))->at + in->head.offset) * op->element, in->to,
               in->length);
    p->moving.receive_left -= in->length;
    return true;
}

static struct frame *next(struct engine *engine, struct op *op, struct lane *lane, bool idle) {
    struct pieces *p = op->work;
    uint32_t place = mover_place_of(op, lane->peer);
    if (!idle || p->links == NULL || place == GROUP_NOBODY || !mover_may_use(engine, lane)) return NULL;
    struct link *link = &p->links[place];
    const struct call_part *part = part_to(op, place);
    if (!link->ready || link->next == part->count) return NULL;
    uint64_t elements = pace_chunk(part->count, op->element, PACE_CHUNK_MAX, false);
    if (elements > part->count - link->next) elements = part->count - link->next;
    struct wire_op head;
    op_head(op, &head);
    head.offset = link->next;
    const uint8_t *from = (const uint8_t *)op->args.send + (part->at + link->next) * op->element;
    engine_lock(engine);
    struct frame *frame = mover_frame(engine, op, WIRE_CHUNK, &head, elements * op->element);
    if (frame != NULL && !mover_show(engine, op, frame, from)) frame = NULL;
    engine_unlock(engine);
    if (frame != NULL) link->next += elements;
    return frame;
}

const struct mover pieces_mover = {
    .name = "pieces",
    .work_bytes = sizeof(struct pieces),
    .types = {WIRE_CHUNK},
    .begin = begin,
    .signal = take_signal,
    .release = release,
    .place = place,
    .arrived = arrived,
    .next = next,
};
