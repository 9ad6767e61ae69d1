#include "data/service.h"

#include <pthread.h>
#include <stdlib.h>

#include "data/core.h"
#include "data/link.h"

struct service_slot {
    struct service *_Atomic open; // by a caller, and stopped by the thread, which reads it without the lock
    struct service *over;         // that the thread has stopped
    pthread_cond_t stopped;
};

struct service_slot *service_slot_new(void) {
    struct service_slot *slot = calloc(1, sizeof *slot);
    if (slot != NULL) pthread_cond_init(&slot->stopped, NULL);
    return slot;
}

void service_slot_free(struct service_slot *slot) {
    if (slot != NULL) pthread_cond_destroy(&slot->stopped);
    free(slot);
}

bool service_is_open(const struct engine *engine) { return engine_service(engine)->open != NULL; }

// ---- for the service ----
bool service_open(struct engine *engine, struct service *service) {
    service->engine = engine;
    engine_lock(engine);
    bool open = engine_is_open(engine) && engine_service(engine)->open == NULL;
    if (open) engine_service(engine)->open = service;
    engine_unlock(engine);
    return open;
}

// Lock held.
static void end(struct engine *engine) {
    struct service *service = engine_service(engine)->open;
    if (service == NULL || service->ending) return;
    service->ending = true;
    engine_wake(engine);
}

void service_end(struct engine *engine) {
    engine_lock(engine);
    end(engine);
    engine_unlock(engine);
}

struct service *service_close(struct engine *engine) {
    engine_lock(engine);
    end(engine);
    while (engine_service(engine)->open != NULL) engine_await(engine, &engine_service(engine)->stopped);
    struct service *service = engine_service(engine)->over;
    engine_service(engine)->over = NULL;
    engine_unlock(engine);
    return service;
}

struct service *service_of(struct engine *engine) {
    return engine_service(engine)->open != NULL ? engine_service(engine)->open : engine_service(engine)->over;
}

struct frame *service_frame(struct engine *engine, uint16_t type, const struct wire_op *head, size_t payload) {
    struct frame *frame = frame_new_in(engine, 0, type, head, payload);
    if (frame != NULL) frame->service = true;
    return frame;
}

void service_report(struct engine *engine, const struct wire_sync_done *done) {
    engine_lock(engine);
    wire_encode_sync_done(engine_for_master(engine), engine_header(engine), done);
    engine_unlock(engine);
    engine_tell(engine);
}

// ---- for the engine's thread ----
bool service_place(struct engine *engine, struct incoming *in) {
    struct service *service = engine_service(engine)->open;
    if (in->header.epoch != 0 || in->header.run != engine_header(engine).run) return false;
    return service == NULL || service->type->place(service, in);
}

bool service_arrived(struct engine *engine, struct incoming *in) {
    struct service *service = engine_service(engine)->open;
    in->service = false;
    bool good = service == NULL || service->type->arrived(service, in);
    in->to = NULL;
    return good;
}

struct frame *service_next(struct engine *engine, struct lane *lane) {
    struct service *service = engine_service(engine)->open;
    return service == NULL ? NULL : service->type->next(service, lane);
}

// The thread is here or has ended: no lane touches memory of the service any more.
void service_stop(struct engine *engine) {
    struct service *service = engine_service(engine)->open;
    if (service == NULL) return;
    service->type->stop(service);
    lanes_let_go_service(engine);
    engine_service(engine)->over = service;
    engine_service(engine)->open = NULL;
    pthread_cond_broadcast(&engine_service(engine)->stopped);
}

void service_woken(struct engine *engine) {
    struct service *service = engine_service(engine)->open;
    if (service == NULL) return;
    if (service->ending)
        service_stop(engine);
    else
        service->type->woken(service);
}

int service_step(struct engine *engine) {
    struct service *service = engine_service(engine)->open;
    return service == NULL ? -1 : service->type->step(service);
}

void service_changed(struct engine *engine, const struct neighbour *peer, enum neighbour_change change) {
    struct service *service = engine_service(engine)->open;
    if (service != NULL) service->type->changed(service, peer, change);
}
