#include "data/service.h"

#include "data/core.h"
#include "data/core_private.h"
#include "data/lane.h"

// ---- for the service ----
bool service_open(struct engine *engine, struct service *service) {
    service->engine = engine;
    engine_lock(engine);
    bool open = !engine->dead && !engine->stopping && engine->service == NULL;
    if (open) engine->service = service;
    engine_unlock(engine);
    return open;
}

struct service *service_close(struct engine *engine) {
    engine_lock(engine);
    if (engine->service != NULL) engine->service->ending = true;
    engine_wake(engine);
    while (engine->service != NULL) pthread_cond_wait(&engine->service_let_go, &engine->lock);
    struct service *service = engine->service_over;
    engine->service_over = NULL;
    engine_unlock(engine);
    return service;
}

struct service *service_of(struct engine *engine) {
    return engine->service != NULL ? engine->service : engine->service_over;
}

struct frame *service_frame(struct engine *engine, uint16_t type, const struct wire_op *head, size_t payload) {
    struct frame *frame = frame_new_in(engine, 0, type, head, payload);
    if (frame != NULL) frame->service = true;
    return frame;
}

void service_report(struct engine *engine, const struct wire_sync_done *done) {
    engine->callbacks.synced(engine->callbacks.context, done);
}

// ---- for the engine's thread ----
bool service_place(struct engine *engine, struct incoming *in) {
    struct service *service = engine->service;
    if (in->header.epoch != 0 || in->header.run != engine->run) return false;
    return service == NULL || service->type->place(service, in);
}

bool service_arrived(struct engine *engine, struct incoming *in) {
    struct service *service = engine->service;
    in->service = false;
    bool good = service == NULL || service->type->arrived(service, in);
    in->to = NULL;
    return good;
}

struct frame *service_next(struct engine *engine, struct lane *lane) {
    struct service *service = engine->service;
    return service == NULL ? NULL : service->type->next(service, lane);
}

// The thread is here or has ended: no lane touches memory of the service any more.
void service_stop(struct engine *engine) {
    struct service *service = engine->service;
    if (service == NULL) return;
    service->type->let_go(service);
    for (size_t i = 0; i < engine->lane_count; i++) lane_let_go_service(engine->lanes[i]);
    engine->service_over = service;
    engine->service = NULL;
    pthread_cond_broadcast(&engine->service_let_go);
}

void service_obey(struct engine *engine) {
    struct service *service = engine->service;
    if (service == NULL) return;
    if (service->ending)
        service_stop(engine);
    else
        service->type->obey(service);
}

void service_step(struct engine *engine) {
    struct service *service = engine->service;
    if (service != NULL) service->type->step(service);
}

int service_timeout_ms(struct engine *engine) {
    struct service *service = engine->service;
    return service == NULL ? -1 : service->type->timeout_ms(service);
}

void service_link_came(struct engine *engine, const struct neighbour *peer) {
    struct service *service = engine->service;
    if (service != NULL) service->type->link_came(service, peer);
}

void service_link_gone(struct engine *engine, const struct neighbour *peer) {
    struct service *service = engine->service;
    if (service != NULL) service->type->link_gone(service, peer);
}

void service_peer_gone(struct engine *engine, const struct neighbour *peer) {
    struct service *service = engine->service;
    if (service != NULL) service->type->neighbour_gone(service, peer);
}

void service_memory_hangs(struct engine *engine, const struct neighbour *peer) {
    struct service *service = engine->service;
    if (service != NULL) service->type->memory_hangs(service, peer);
}
