// The life of a round, and what the engine's thread does for it.
#define _GNU_SOURCE
#include "state/sync_private.h"

#include <stdlib.h>
#include <string.h>

// ---- callers, and the control side ----
static void sync_free(struct sync *sync) {
    crew_free(sync->crew);
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
    free(sync);
}

bool sync_begin(struct engine *engine, struct content *content, int64_t stall_ns) {
    struct sync *sync = calloc(1, sizeof *sync);
    if (sync == NULL) return false;
    sync->content = content;
    sync->stall_ns = stall_ns;
    sync->packs = coding_available();
    pthread_mutex_lock(&engine->lock);
    bool open = !engine->dead && !engine->stopping && engine->sync == NULL;
    if (open) engine->sync = sync;
    pthread_mutex_unlock(&engine->lock);
    if (!open) free(sync);
    return open;
}

void sync_plan(struct engine *engine, const struct wire_sync_plan *plan) {
    struct wire_sync_plan *copy = malloc(sizeof *copy);
    if (copy != NULL) *copy = *plan;
    pthread_mutex_lock(&engine->lock);
    if (copy == NULL) {
        engine_fail(engine);
    } else if (engine->sync != NULL && engine->sync->plan == NULL) {
        engine->sync->plan = copy;
        copy = NULL;
        engine_wake(engine);
    }
    pthread_mutex_unlock(&engine->lock);
    free(copy);
}

// NULL: there was no round.
static struct sync *take_back(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    if (engine->sync != NULL) engine->sync->ending = true;
    engine_wake(engine);
    while (engine->sync != NULL) pthread_cond_wait(&engine->sync_let_go, &engine->lock);
    struct sync *sync = engine->sync_over;
    engine->sync_over = NULL;
    pthread_mutex_unlock(&engine->lock);
    return sync;
}

bool sync_restart(struct engine *engine, struct sync_report *out, bool *torn) {
    struct sync *sync = take_back(engine);
    if (sync == NULL) return false;
    crew_free(sync->crew); // it writes no more
    sync->crew = NULL;
    *out = sync->report;
    *torn = sync->report.wrote && sync_note_leaves(sync);
    struct content *content = sync->content;
    int64_t stall_ns = sync->stall_ns;
    sync_free(sync);
    return sync_begin(engine, content, stall_ns);
}

void sync_end(struct engine *engine, struct sync_report *out) {
    struct sync *sync = take_back(engine);
    if (out != NULL) *out = sync == NULL ? (struct sync_report){0} : sync->report;
    if (sync != NULL) sync_free(sync);
}

void sync_look(struct engine *engine, struct sync_report *out) {
    pthread_mutex_lock(&engine->lock);
    const struct sync *sync = engine->sync != NULL ? engine->sync : engine->sync_over;
    *out = sync == NULL ? (struct sync_report){0} : sync->report;
    pthread_mutex_unlock(&engine->lock);
}

// ---- frames ----
// Belongs to its round, not to an epoch.
void sync_write_head(const struct engine *engine, struct frame *frame, uint16_t type, const struct wire_op *head) {
    uint8_t padding = wire_padding(frame->length);
    struct wire_header header = {.length = WIRE_OP_BYTES + frame->length + padding,
                                 .type = type,
                                 .run = engine->run,
                                 .generation = engine->generation};
    wire_header_encode(frame->head, &header);
    struct wire_op padded = *head;
    padded.padding = padding;
    wire_op_encode(frame->head + WIRE_HEADER_BYTES, &padded);
}

// Lock held.
struct frame *sync_frame(struct engine *engine, uint16_t type, const struct wire_op *head, size_t payload) {
    struct frame *frame = frame_new(engine, type, head, payload);
    if (frame == NULL) return NULL;
    sync_write_head(engine, frame, type, head);
    frame->sync = true;
    return frame;
}

bool sync_is_frame(uint16_t type) { return type >= WIRE_SYNC_ASK_HASHES && type <= WIRE_SYNC_LEAF; }

bool sync_place(struct lane *lane) {
    switch (lane->header.type) {
    case WIRE_SYNC_HASHES: return sync_place_hashes(lane);
    case WIRE_SYNC_LEAF: return sync_place_leaf(lane);
    default: return lane->length == 0;
    }
}

bool sync_deliver(struct lane *lane) {
    lane->sync = false;
    bool good;
    switch (lane->header.type) {
    case WIRE_SYNC_HASHES: good = sync_take_hashes(lane); break;
    case WIRE_SYNC_LEAF: good = sync_take_leaf(lane); break;
    default:
        pthread_mutex_lock(&lane->engine->lock);
        good = sync_take_ask(lane);
        pthread_mutex_unlock(&lane->engine->lock);
        break;
    }
    lane->to = NULL;
    return good;
}

// ---- the thread ----
static bool is_receiver(const struct engine *engine, const struct wire_sync_plan *plan) {
    for (uint32_t i = 0; i < plan->receiver_count; i++)
        if (wire_id_equal(&plan->receivers[i], &engine->self)) return true;
    return false;
}

// Lock held, and the thread is here or has ended: no lane touches a tensor any more. The crew ends what it has begun
// before the caller of sync_end returns.
static void let_go(struct engine *engine) {
    if (engine->sync->crew != NULL) crew_stop(engine->sync->crew);
    for (size_t i = 0; i < engine->lane_count; i++) lane_let_go_sync(engine->lanes[i]);
    engine->sync_over = engine->sync;
    engine->sync = NULL;
    pthread_cond_broadcast(&engine->sync_let_go);
}

void sync_stop(struct engine *engine) {
    if (engine->sync != NULL) let_go(engine);
}

void sync_obey(struct engine *engine) {
    struct sync *sync = engine->sync;
    if (sync == NULL) return;
    if (sync->ending) {
        let_go(engine);
        return;
    }
    if (sync->plan == NULL || sync->begun) return;
    sync->begun = true;
    sync->phase = PHASE_GIVING;
    if (!is_receiver(engine, sync->plan)) {
        for (struct requester *requester = sync->requesters; requester != NULL; requester = requester->next)
            peer_heat(requester->peer);
        return;
    }
    if (sync_begin_receiving(engine, sync)) {
        sync->phase = PHASE_HASHES;
    } else {
        engine_fail(engine);
    }
}

static bool receives(const struct sync *sync) {
    return sync != NULL && (sync->phase == PHASE_HASHES || sync->phase == PHASE_LEAVES);
}

void sync_step(struct engine *engine) {
    if (receives(engine->sync)) sync_receive(engine);
}

int sync_timeout_ms(const struct engine *engine) { return receives(engine->sync) ? SYNC_TICK_MS : -1; }

void sync_forget(struct engine *engine, const struct peer *peer) {
    if (engine->sync == NULL) return;
    sync_forget_requester(engine->sync, peer);
    sync_forget_donor(engine->sync, peer);
}

void sync_members_changed(struct engine *engine) {
    for (struct peer *peer = engine->peers; peer != NULL; peer = peer->next)
        if (peer->rank == UINT32_MAX) sync_forget(engine, peer);
}
