#include "data/service.h"

#include "data/core.h"
#include "link/connection.h"

// ---- for the service ----
bool service_open(struct engine *engine, struct service *service) {
    service->engine = engine;
    engine_lock(engine);
    bool open = engine_is_open(engine) && engine->service == NULL;
    if (open) engine->service = service;
    engine_unlock(engine);
    return open;
}

void service_end(struct engine *engine) {
    engine_lock(engine);
    if (engine->service != NULL && !engine->service->ending) {
        engine->service->ending = true;
        engine_wake(engine);
    }
    engine_unlock(engine);
}

struct service *service_close(struct engine *engine) {
    service_end(engine);
    engine_lock(engine);
    while (engine->service != NULL) pthread_cond_wait(&engine->service_stopped, &engine->lock);
    struct service *service = engine->stopped_service;
    engine->stopped_service = NULL;
    engine_unlock(engine);
    return service;
}

struct service *service_of(struct engine *engine) {
    engine_assert_locked(engine);
    return engine->service != NULL ? engine->service : engine->stopped_service;
}

struct frame *service_frame(struct engine *engine, uint16_t type, const struct wire_head *head, size_t payload) {
    engine_assert_locked(engine);
    struct frame *frame = frame_new(&engine->lanes->frames, type, head, payload);
    if (frame == NULL) return NULL;
    frame->header.epoch = 0; // it outlives epochs
    frame->service = true;
    return frame;
}

void service_report(struct engine *engine, const struct wire_sync_done *done) {
    engine_lock(engine);
    wire_encode_sync_done(&engine->for_master, engine_header(engine), done);
    engine_unlock(engine);
    engine_tell(engine);
}

// ---- for the engine's thread ----
// The thread is here or has ended: no lane touches memory of the service any more.
void service_stop(struct engine *engine) {
    engine_assert_thread(engine);
    engine_assert_locked(engine);
    struct service *service = engine->service;
    if (service == NULL) return;
    service->type->stop(service);
    lanes_drop_frames(engine->lanes, true);
    engine->stopped_service = service;
    engine->service = NULL;
    pthread_cond_broadcast(&engine->service_stopped);
}

void service_woken(struct engine *engine) {
    engine_assert_locked(engine);
    struct service *service = engine->service;
    if (service == NULL) return;
    if (service->ending)
        service_stop(engine);
    else
        service->type->woken(service);
}

void service_changed(struct engine *engine, const struct neighbour *peer, enum service_change change) {
    struct service *service = engine->service;
    if (service != NULL) service->type->changed(service, peer, change);
}
