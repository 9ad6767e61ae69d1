#include "data/mover.h"

#include "data/backup.h"
#include "data/core_private.h"
#include "data/lane.h"
#include "device/device.h"

static const struct mover *const movers[] = {[PLAN_SMALL] = &direct_mover,
                                             [PLAN_RING] = &ring_mover,
                                             [PLAN_SHARDED] = &sharded_mover,
                                             [PLAN_CHAIN] = &broadcast_mover};

const struct mover *mover_of(const struct op *op) { return movers[op->path]; }

size_t mover_work_bytes(void) {
    size_t most = 0;
    for (size_t i = 0; i < sizeof movers / sizeof movers[0]; i++)
        if (movers[i]->work_bytes > most) most = movers[i]->work_bytes;
    return most;
}

struct mover_shared *mover_shared(struct engine *engine) { return engine->shared; }

const struct book_epoch *mover_epoch(const struct engine *engine) { return &engine->book.now; }

struct neighbour *mover_peer(const struct engine *engine, uint32_t rank) {
    return neighbour_of(engine->book.now.members[rank]);
}

struct neighbour *mover_successor(const struct engine *engine) {
    const struct book_epoch *now = mover_epoch(engine);
    return mover_peer(engine, (now->rank + 1) % now->count);
}

struct neighbour *mover_predecessor(const struct engine *engine) {
    const struct book_epoch *now = mover_epoch(engine);
    return mover_peer(engine, (now->rank + now->count - 1) % now->count);
}

struct early *mover_early(struct engine *engine, const struct op *op, struct neighbour *from, uint16_t type) {
    return book_early(&engine->book, op, neighbour_op_member(from), type);
}

bool mover_take(struct engine *engine, struct ranges *ranges, uint64_t begin, uint64_t end) {
    bool taken = ranges_take(ranges, begin, end);
    if (!taken && ranges->refused) engine_fail(engine);
    return taken;
}

bool mover_save(struct op *op, uint64_t offset, uint64_t length) {
    return backup_save(&op->backup, op->args.send, offset, length);
}

bool mover_show(struct engine *engine, struct op *op, struct frame *frame, const void *tensor) {
    frame->payload = device_window(op->args.queue, tensor, frame->length, &frame->fence);
    if (frame->payload != NULL || frame->length == 0) return true;
    frame_free(engine, frame);
    return false;
}

const void *mover_input(struct op *op, uint64_t offset, size_t length) {
    uint64_t fence;
    const void *input = device_window(op->args.queue, (const uint8_t *)op->args.send + offset, length, &fence);
    return device_await(op->args.queue) ? input : NULL;
}

uint8_t *mover_landing(struct op *op, uint64_t offset, size_t length) {
    return device_landing(op->args.queue, (uint8_t *)op->args.recv + offset, length);
}

void mover_land(struct op *op, uint64_t offset, uint8_t *landing, size_t length) {
    device_land(op->args.queue, (uint8_t *)op->args.recv + offset, landing, length);
}

void mover_complete(struct engine *engine, struct op *op) {
    if (!op->moved) op->fence = device_mark(op->args.queue);
    op->moved = device_passed(op->args.queue, op->fence) != DEVICE_DONE;
    if (op->moved) return; // again when the device wakes the thread
    struct wire_op_done done = {.name = op->name};
    op_list_remove(&engine->running, op);
    engine_lock(engine);
    bool told = book_complete(&engine->book, op);
    if (told) wire_encode_op_done(&engine->for_master, engine_header(engine), &done);
    engine_unlock(engine);
    if (told) engine_tell(engine);
}

void mover_complete_direct(struct engine *engine, struct op *op) { book_complete(&engine->book, op); }

struct op *mover_first(const struct engine *engine) { return engine->running.first; }
