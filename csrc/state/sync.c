// The life of a round, and what the engine's thread does for it.
#define _GNU_SOURCE
#include "state/sync_private.h"
#include "link/lanes.h"
#include "link/neighbour.h"

#include <stdlib.h>
#include <string.h>

static const struct service_type sync_type;

// ---- callers, and the control side ----
static void sync_free(struct sync *sync) {
    worker_pool_free(sync->pool);
    while (sync->requesters != NULL) {
        struct requester *requester = sync->requesters;
        sync->requesters = requester->next;
        free(requester);
    }
    free(sync->plan);
    free(sync->donors);
    free(sync->theirs);
    free(sync->hashes_bad);
    free(sync->done);
    delta_free(sync->delta);
    content_set_wake(sync->content, -1);
    free(sync);
}

bool sync_begin(struct engine *engine, struct content *content, int64_t stall_ns) {
    struct sync *sync = calloc(1, sizeof *sync);
    if (sync == NULL) return false;
    sync->service.type = &sync_type;
    sync->engine = engine;
    sync->content = content;
    sync->stall_ns = stall_ns;
    sync->packs = coding_available();
    bool open = service_open(engine, &sync->service);
    if (open)
        content_set_wake(content, engine->wake);
    else
        free(sync);
    return open;
}

void sync_plan(struct engine *engine, const struct wire_sync_plan *plan) {
    struct wire_sync_plan *copy = malloc(sizeof *copy);
    if (copy != NULL) *copy = *plan;
    engine_lock(engine);
    struct sync *sync = sync_of(service_of(engine));
    if (copy == NULL) {
        engine_fail(engine);
    } else if (sync != NULL && sync->plan == NULL) {
        sync->plan = copy;
        copy = NULL;
        engine_wake(engine);
    }
    engine_unlock(engine);
    free(copy);
}

bool sync_restart(struct engine *engine, struct sync_report *out, bool *torn) {
    struct sync *sync = sync_of(service_close(engine));
    if (sync == NULL) return false;
    worker_pool_free(sync->pool); // it writes no more
    sync->pool = NULL;
    *out = sync->report;
    *torn = sync->report.wrote && sync_note_leaves(sync);
    struct content *content = sync->content;
    int64_t stall_ns = sync->stall_ns;
    sync_free(sync);
    return sync_begin(engine, content, stall_ns);
}

void sync_over(struct engine *engine) { service_end(engine); }

void sync_end(struct engine *engine, struct sync_report *out) {
    struct sync *sync = sync_of(service_close(engine));
    if (out != NULL) *out = sync == NULL ? (struct sync_report){0} : sync->report;
    if (sync != NULL) sync_free(sync);
}

void sync_look(struct engine *engine, struct sync_report *out) {
    engine_lock(engine);
    const struct sync *sync = sync_of(service_of(engine));
    *out = sync == NULL ? (struct sync_report){0} : sync->report;
    engine_unlock(engine);
}

// ---- the thread ----
static bool place(struct service *service, struct incoming *in) {
    switch (in->header.type) {
    case WIRE_SYNC_HASHES: return sync_place_hashes(sync_of(service), in);
    case WIRE_SYNC_LEAF: return sync_place_leaf(sync_of(service), in);
    default: return in->length == 0;
    }
}

static bool take_ask(struct sync *sync, const struct incoming *in) {
    engine_lock(sync->engine);
    bool good = sync_take_ask(sync, in);
    engine_unlock(sync->engine);
    return good;
}

static bool arrived(struct service *service, struct incoming *in) {
    switch (in->header.type) {
    case WIRE_SYNC_HASHES: return sync_take_hashes(sync_of(service), in);
    case WIRE_SYNC_LEAF: return sync_take_leaf(sync_of(service), in);
    default: return take_ask(sync_of(service), in);
    }
}

static struct frame *next(struct service *service, struct lane *lane) {
    struct sync *sync = sync_of(service);
    return sync->phase == PHASE_GIVING ? sync_next_answer(sync, lane) : NULL;
}

static bool is_receiver(const struct sync *sync) {
    for (uint32_t i = 0; i < sync->plan->receiver_count; i++)
        if (wire_id_equal(&sync->plan->receivers[i], engine_self(sync->engine))) return true;
    return false;
}

static void woken(struct service *service) {
    struct sync *sync = sync_of(service);
    if (sync->content->queue_count > 0)
        lanes_schedule(sync->engine->lanes); // a device may have given what a lane waits for
    if (sync->plan == NULL || sync->begun) return;
    sync->begun = true;
    sync->phase = PHASE_GIVING;
    if (!is_receiver(sync)) {
        for (struct requester *requester = sync->requesters; requester != NULL; requester = requester->next)
            neighbour_schedule(requester->peer);
    } else if (sync_begin_receiving(sync)) {
        sync->phase = PHASE_HASHES;
    } else {
        engine_fail(sync->engine);
    }
}

static bool receives(const struct sync *sync) { return sync->phase == PHASE_HASHES || sync->phase == PHASE_LEAVES; }

static int step(struct service *service) {
    struct sync *sync = sync_of(service);
    if (receives(sync)) sync_take_worker_results(sync);
    struct device_queue *failed = content_failed_device(sync->content);
    if (failed != NULL) sync_fail(sync, failed);
    if (receives(sync)) sync_receive(sync);
    return receives(sync) ? SYNC_TICK_MS : -1;
}

// The pool ends what it has begun before the caller of sync_end returns.
static void stop(struct service *service) {
    struct sync *sync = sync_of(service);
    if (sync->pool != NULL) worker_pool_stop(sync->pool);
}

static void changed(struct service *service, const struct neighbour *peer, enum service_change change) {
    struct sync *sync = sync_of(service);
    switch (change) {
    case SERVICE_LINK_UP: sync_link_up(sync, peer); break;
    case SERVICE_LINK_DOWN: sync_link_down(sync, peer); break;
    case SERVICE_PEER_LEFT:
    case SERVICE_PEER_FREED:
        sync_forget_requester(sync, peer);
        sync_forget_donor(sync, peer);
        break;
    }
}

static const struct service_type sync_type = {
    .place = place,
    .arrived = arrived,
    .next = next,
    .woken = woken,
    .step = step,
    .stop = stop,
    .changed = changed,
};
