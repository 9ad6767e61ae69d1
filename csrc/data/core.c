#include "data/core.h"

#include <stdio.h>

#include "base/platform.h"
#include "device/device.h"
#include "link/connection.h"

void engine_wake(struct engine *engine) {
    engine_assert_locked(engine);
    if (engine->wake_pending) return;
    engine->wake_pending = true;
    wake_signal(engine->wake);
}

void engine_fail(struct engine *engine) {
    engine_assert_locked(engine);
    if (engine->dead) return;
    engine->dead = engine->killing = engine->failed = true;
    engine_wake(engine);
}

void engine_fail_of(struct engine *engine, const struct device_queue *queue) {
    if (!engine->dead && device_has_failed(queue)) snprintf(engine->why, sizeof engine->why, "%s", device_error(queue));
    engine_fail(engine);
}

bool engine_awaits(const struct engine *engine, const struct op_member *member) {
    engine_assert_locked(engine);
    return engine->pending != NULL && epoch_ring_has(&engine->pending->ring, &member->id);
}

struct neighbour *engine_member(struct engine *engine, const struct wire_id *id) {
    engine_assert_locked(engine);
    struct neighbour *peer = neighbour_find(engine->lanes, id);
    return peer != NULL && op_peer_of(peer)->member.rank != UINT32_MAX && !peer->dropped ? peer : NULL;
}

void engine_tell(struct engine *engine) {
    engine_assert_thread(engine);
    engine_lock(engine);
    struct wire_buffer frames = engine->for_master;
    engine->for_master = (struct wire_buffer){0};
    if (frames.failed) engine_fail(engine);
    engine_unlock(engine);
    if (frames.length > 0 && !frames.failed) engine->callbacks.to_master(engine->callbacks.context, &frames);
    wire_buffer_fini(&frames);
}
