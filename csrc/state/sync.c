// The life of a round, and what the engine's thread does for it.
#define _GNU_SOURCE
#include "state/sync_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/slots.h"
#include "link/connection.h"

static const struct service_type sync_type;

// Data that other members of the round ask for is queued, and sent as their lanes take it.

enum { SYNC_SLOT_LEAST = 16 * 1024 }; // bytes of a leaf; a smaller one is sent

// ---- asks ----
static struct requester *find_requester(struct sync *sync, const struct neighbour *peer) {
    struct requester *requester = sync->requesters;
    while (requester != NULL && requester->peer != peer) requester = requester->next;
    return requester;
}

static struct requester *requester_of(struct sync *sync, struct neighbour *peer) {
    struct requester *requester = find_requester(sync, peer);
    if (requester != NULL) return requester;
    requester = calloc(1, sizeof *requester);
    if (requester == NULL) {
        engine_fail(sync->engine);
        return NULL;
    }
    requester->peer = peer;
    requester->next = sync->requesters;
    sync->requesters = requester;
    return requester;
}

static bool queue_ask(struct sync *sync, const struct incoming *in) {
    engine_assert_locked(sync->engine);
    const struct wire_sync_ask *ask = &in->head.sync_ask;
    if (sync->service.ending || (sync->begun && ask->round != sync->plan->round)) return true;
    uint64_t leaves = sync->content->layout.leaf_count;
    // Before the plan it may be of the round before, whose state had more leaves.
    if (ask->first >= leaves || ask->count > leaves - ask->first) return !sync->begun;
    struct requester *requester = requester_of(sync, in->from);
    if (requester == NULL || requester->count == ASKS_MAX) return false;
    requester->asks[(requester->first + requester->count++) % ASKS_MAX] = (struct ask){in->header.type, *ask};
    neighbour_schedule(in->from);
    return true;
}

static void forget_requester(struct sync *sync, const struct neighbour *peer) {
    struct requester **at = &sync->requesters;
    while (*at != NULL && (*at)->peer != peer) at = &(*at)->next;
    struct requester *requester = *at;
    if (requester == NULL) return;
    *at = requester->next;
    free(requester);
}

// ---- answers ----
static struct frame *answer_hashes(struct sync *sync, struct wire_sync_ask *ask) {
    engine_assert_locked(sync->engine);
    struct wire_head head = {.sync_hashes = {ask->round, ask->first, ask->sequence, ask->count}};
    struct frame *frame = service_frame(sync->engine, WIRE_SYNC_HASHES, &head, ask->count * sizeof(uint64_t));
    if (frame != NULL) frame->payload = (const uint8_t *)(sync->content->leaves + ask->first);
    ask->count = 0;
    return frame;
}

static struct frame *answer_leaf(struct sync *sync, struct wire_sync_ask *ask) {
    engine_assert_locked(sync->engine);
    struct delta_piece piece = delta_layout_find(&sync->content->layout, ask->first);
    const struct delta_entry *entry = &sync->content->layout.entries[piece.entry];
    struct wire_head head = {.sync_leaf = {ask->round, ask->first, ask->sequence, WIRE_SYNC_PLAIN}};
    struct frame *frame = service_frame(sync->engine, WIRE_SYNC_LEAF, &head, piece.length);
    ask->first++;
    ask->count--;
    if (frame != NULL) frame->payload = (const uint8_t *)entry->data + piece.offset;
    return frame;
}

static struct frame *answer(struct sync *sync, struct ask *ask) {
    engine_assert_locked(sync->engine);
    return ask->type == WIRE_SYNC_ASK_HASHES ? answer_hashes(sync, &ask->what) : answer_leaf(sync, &ask->what);
}

// Slots for a leaf that is to be copied there.
struct leaf_slots {
    uint32_t first;
    uint8_t *room; // NULL: the leaf is sent
};

// Reserves slots for the next leaf if it may pass through them. Returns false if the leaf has to wait for free slots.
static bool reserve(struct sync *sync, struct neighbour *to, const struct ask *ask, struct leaf_slots *out) {
    engine_assert_locked(sync->engine);
    if (ask->type != WIRE_SYNC_ASK || (ask->what.codings & 1 << WIRE_SYNC_SLOT) == 0) return true;
    struct delta_piece piece = delta_layout_find(&sync->content->layout, ask->what.first);
    if (sync->content->layout.entries[piece.entry].queue != NULL || piece.length < SYNC_SLOT_LEAST) return true;
    return slots_reserve_leaf(to, piece.length, &out->first, &out->room) != SLOTS_LEAF_LATER;
}

// Returns NULL if there is none, or a leaf has to wait for free slots. `codings`: those that may be chosen for the leaf
// that the frame brings; 0: it brings none. `slots`: those that the leaf is to be copied to.
static struct frame *next_answer(struct sync *sync, struct requester *requester, uint16_t *codings,
                                 struct leaf_slots *slots) {
    engine_assert_locked(sync->engine);
    while (requester->count > 0) {
        struct ask *ask = &requester->asks[requester->first];
        *codings = ask->type == WIRE_SYNC_ASK ? ask->what.codings | 1 << WIRE_SYNC_PLAIN : 0;
        bool current = ask->what.round == sync->plan->round;
        if (current && !reserve(sync, requester->peer, ask, slots)) return NULL;
        struct frame *frame = current ? answer(sync, ask) : NULL;
        if (frame == NULL || ask->what.count == 0) {
            requester->first = (requester->first + 1) % ASKS_MAX;
            requester->count--;
        }
        if (frame != NULL) return frame;
    }
    return NULL;
}

// ---- leaves ----
// Packs the leaf, which is the payload of the frame, if its bytes then take less time on the way to this peer. False:
// the device has failed.
static bool pack(struct sync *sync, struct lane *lane, struct requester *requester, struct frame *frame) {
    if (frame->length < LEAF_PACKED_LEAST) return true;
    engine_lock(sync->engine);
    double speed = neighbour_speed(requester->peer);
    engine_unlock(sync->engine);
    uint8_t *stage = leaf_packing_tries(&requester->choice, speed) ? lane_stage(lane) : NULL;
    if (stage == NULL) return true;
    if (frame->fence != 0 && !device_await_fence(frame->device, frame->fence)) return false;
    // Not the time on the clock: one turn of another process would turn packing off for long.
    int64_t began = platform_thread_ns();
    uint32_t packed = leaf_pack(stage, frame->payload, frame->length);
    int64_t took = platform_thread_ns() - began;
    if (!leaf_packing_tried(&requester->choice, speed, frame->length, packed, took) || packed == 0) return true;
    if (frame->fence != 0) device_unmap(frame->device, frame->payload);
    frame->fence = 0;
    frame->payload = stage;
    frame->length = packed;
    frame->head.sync_leaf.coding = WIRE_SYNC_LZ4;
    return true;
}

// Makes the leaf that a frame names its payload; the lane waits for what a device has yet to give. False: the device
// has failed.
static bool load(struct sync *sync, struct lane *lane, struct requester *requester, bool packs, struct frame *frame) {
    struct delta_piece piece = delta_layout_find(&sync->content->layout, frame->head.sync_leaf.leaf);
    frame->device = sync->content->layout.entries[piece.entry].queue;
    frame->payload = device_map(frame->device, frame->payload, frame->length, &frame->fence);
    return frame->payload != NULL && (!packs || pack(sync, lane, requester, frame));
}

// Copies the leaf, which is the payload of the frame, to slots, and names those in its place.
static struct frame *copy_to_slots(struct sync *sync, struct frame *frame, const struct leaf_slots *slots) {
    frame->copied = frame->length;
    memory_copy_past_caches(slots->room, frame->payload, frame->length);
    frame->head.sync_leaf.coding = WIRE_SYNC_SLOT;
    engine_lock(sync->engine);
    slots_write(sync->engine, frame, slots->first);
    engine_unlock(sync->engine);
    return frame;
}

static struct frame *next_frame(struct sync *sync, struct lane *lane) {
    uint16_t codings = 0;
    engine_lock(sync->engine);
    struct requester *requester = lane_is_for_bulk(lane) ? find_requester(sync, lane->peer) : NULL;
    struct leaf_slots slots = {0};
    struct frame *frame = requester == NULL ? NULL : next_answer(sync, requester, &codings, &slots);
    engine_unlock(sync->engine);
    if (frame == NULL || codings == 0) return frame; // without memory the engine is dead
    if (slots.room != NULL) return copy_to_slots(sync, frame, &slots);
    bool packs = sync->packs && (codings & 1 << WIRE_SYNC_LZ4) != 0;
    if (load(sync, lane, requester, packs, frame)) return frame;
    engine_lock(sync->engine);
    engine_fail_of(sync->engine, frame->device);
    frame_free(&sync->engine->lanes->frames, frame);
    engine_unlock(sync->engine);
    return NULL;
}

// ---- callers, and the control side ----
static void sync_free(struct sync *sync) {
    leaf_pool_free(sync->pool);
    while (sync->requesters != NULL) forget_requester(sync, sync->requesters->peer);
    free(sync->plan);
    free(sync->donors);
    free(sync->theirs);
    free(sync->hashes_bad);
    free(sync->by_place);
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
    sync->log = (struct log_limit){.lines = 8, .seconds = 10};
    sync->packs = leaf_packing_available();
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
    leaf_pool_free(sync->pool); // it writes no more
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
static bool is_ask(const struct incoming *in) {
    return in->header.type == WIRE_SYNC_ASK || in->header.type == WIRE_SYNC_ASK_HASHES;
}

static bool sync_locate(struct service *service, struct incoming *in) {
    return is_ask(in) ? in->length == 0 : sync_receive_locate(sync_of(service), in);
}

static bool take_ask(struct sync *sync, const struct incoming *in) {
    engine_lock(sync->engine);
    bool good = queue_ask(sync, in);
    engine_unlock(sync->engine);
    return good;
}

static bool sync_arrived(struct service *service, struct incoming *in) {
    return is_ask(in) ? take_ask(sync_of(service), in) : sync_receive_take(sync_of(service), in);
}

static struct frame *sync_next(struct service *service, struct lane *lane) {
    struct sync *sync = sync_of(service);
    return sync->phase == PHASE_GIVING ? next_frame(sync, lane) : NULL;
}

static bool is_receiver(const struct sync *sync) {
    for (uint32_t i = 0; i < sync->plan->receiver_count; i++)
        if (wire_id_equal(&sync->plan->receivers[i], &sync->engine->self)) return true;
    return false;
}

static void sync_woken(struct service *service) {
    struct sync *sync = sync_of(service);
    if (sync->content->queue_count > 0)
        lanes_schedule(sync->engine->lanes); // a device may have given what a lane waits for
    if (sync->plan == NULL || sync->begun) return;
    sync->begun = true;
    sync->phase = PHASE_GIVING;
    if (!is_receiver(sync)) {
        for (struct requester *requester = sync->requesters; requester != NULL; requester = requester->next)
            neighbour_schedule(requester->peer);
    } else if (sync_receive_begin(sync)) {
        sync->phase = PHASE_HASHES;
    } else {
        engine_fail(sync->engine);
    }
}

static bool receives(const struct sync *sync) { return sync->phase == PHASE_HASHES || sync->phase == PHASE_LEAVES; }

static int sync_step(struct service *service) {
    struct sync *sync = sync_of(service);
    if (receives(sync)) sync_receive_results(sync);
    struct device_queue *failed = content_failed_device(sync->content);
    if (failed != NULL) sync_fail(sync, failed);
    if (receives(sync)) sync_receive_step(sync);
    return receives(sync) ? SYNC_TICK_MS : -1;
}

// The pool ends what it has begun before the caller of sync_end returns.
static void sync_stop(struct service *service) {
    struct sync *sync = sync_of(service);
    if (sync->pool != NULL) leaf_pool_stop(sync->pool);
}

static void sync_changed(struct service *service, const struct neighbour *peer, enum service_change change) {
    struct sync *sync = sync_of(service);
    if (change == SERVICE_PEER_LEFT || change == SERVICE_PEER_FREED) forget_requester(sync, peer);
    sync_receive_changed(sync, peer, change);
}

static const struct service_type sync_type = {
    .locate = sync_locate,
    .arrived = sync_arrived,
    .next = sync_next,
    .woken = sync_woken,
    .step = sync_step,
    .stop = sync_stop,
    .changed = sync_changed,
};
