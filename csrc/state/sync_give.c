// Giving: what other members of the round ask for is queued, and answered as their lanes take it.
#define _GNU_SOURCE
#include "state/sync_private.h"
#include "link/rate.h"
#include "link/neighbour.h"

#include <stdlib.h>
#include <string.h>

#include "base/stream.h"
#include "data/slots.h"

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

bool sync_take_ask(struct sync *sync, const struct incoming *in) {
    engine_assert_locked(sync->engine);
    const struct wire_op *head = &in->head;
    uint32_t most = in->header.type == WIRE_SYNC_ASK ? WIRE_SYNC_MAX_LEAVES : WIRE_SYNC_MAX_HASHES;
    if (head->extra == 0 || head->extra > most) return false;
    if (sync->service.ending || (sync->begun && head->tag != sync->plan->round)) return true;
    uint64_t leaves = sync->content->layout.leaf_count;
    if (head->offset >= leaves || head->extra > leaves - head->offset) return false;
    struct requester *requester = requester_of(sync, in->from);
    if (requester == NULL || requester->count == ASKS_MAX) return false;
    requester->asks[(requester->first + requester->count++) % ASKS_MAX] = (struct ask){.type = in->header.type,
                                                                                       .round = head->tag,
                                                                                       .first = head->offset,
                                                                                       .count = head->extra,
                                                                                       .sequence = head->sequence,
                                                                                       .codings = head->shard};
    neighbour_schedule(in->from);
    return true;
}

void sync_forget_requester(struct sync *sync, const struct neighbour *peer) {
    struct requester **at = &sync->requesters;
    while (*at != NULL && (*at)->peer != peer) at = &(*at)->next;
    struct requester *requester = *at;
    if (requester == NULL) return;
    *at = requester->next;
    free(requester);
}

// ---- answers ----
static struct frame *answer_hashes(struct sync *sync, struct ask *ask) {
    engine_assert_locked(sync->engine);
    struct wire_op head = {.tag = ask->round, .offset = ask->first, .extra = ask->count, .sequence = ask->sequence};
    struct frame *frame = service_frame(sync->engine, WIRE_SYNC_HASHES, &head, ask->count * sizeof(uint64_t));
    if (frame != NULL) frame->payload = (const uint8_t *)(sync->content->leaves + ask->first);
    ask->count = 0;
    return frame;
}

static struct frame *answer_leaf(struct sync *sync, struct ask *ask) {
    engine_assert_locked(sync->engine);
    struct delta_piece piece = delta_layout_find(&sync->content->layout, ask->first);
    const struct delta_entry *entry = &sync->content->layout.entries[piece.entry];
    struct wire_op head = {
        .tag = ask->round, .offset = ask->first, .sequence = ask->sequence, .extra = WIRE_SYNC_PLAIN};
    struct frame *frame = service_frame(sync->engine, WIRE_SYNC_LEAF, &head, piece.length);
    ask->first++;
    ask->count--;
    if (frame != NULL) frame->payload = (const uint8_t *)entry->data + piece.offset;
    return frame;
}

static struct frame *answer(struct sync *sync, struct ask *ask) {
    engine_assert_locked(sync->engine);
    return ask->type == WIRE_SYNC_ASK_HASHES ? answer_hashes(sync, ask) : answer_leaf(sync, ask);
}

// Slots for a leaf that is to be copied there.
struct leaf_slots {
    uint32_t first;
    uint8_t *room; // NULL: the leaf is sent
};

// Reserves slots for the next leaf if it may pass through them. Returns false if the leaf has to wait for free slots.
static bool reserve(struct sync *sync, struct neighbour *to, const struct ask *ask, struct leaf_slots *out) {
    engine_assert_locked(sync->engine);
    if (ask->type != WIRE_SYNC_ASK || (ask->codings & 1 << WIRE_SYNC_SLOT) == 0) return true;
    struct delta_piece piece = delta_layout_find(&sync->content->layout, ask->first);
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
        *codings = ask->type == WIRE_SYNC_ASK ? ask->codings | 1 << WIRE_SYNC_PLAIN : 0;
        bool current = ask->round == sync->plan->round;
        if (current && !reserve(sync, requester->peer, ask, slots)) return NULL;
        struct frame *frame = current ? answer(sync, ask) : NULL;
        if (frame == NULL || ask->count == 0) {
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
static bool pack(struct sync *sync, struct lane *lane, struct requester *requester, struct frame *frame,
                 struct wire_op *head) {
    if (frame->length < CODING_LEAST_BYTES) return true;
    engine_lock(sync->engine);
    double speed = rate_speed(requester->peer);
    engine_unlock(sync->engine);
    uint8_t *stage = coding_tries(&requester->choice, speed) ? lane_stage(lane) : NULL;
    if (stage == NULL) return true;
    if (frame->fence != 0 && !device_await_fence(frame->device, frame->fence)) return false;
    // Not the time on the clock: one turn of another process would turn packing off for long.
    int64_t began = platform_thread_ns();
    uint32_t packed = coding_pack(stage, frame->payload, frame->length);
    coding_tried(&requester->choice, speed, frame->length, packed, platform_thread_ns() - began);
    if (packed == 0 || !coding_pays(&requester->choice, speed)) return true;
    if (frame->fence != 0) device_shut(frame->device, frame->payload);
    frame->fence = 0;
    frame->payload = stage;
    frame->length = packed;
    head->extra = WIRE_SYNC_LZ4;
    frame_write_head(&sync->engine->lanes->frames, frame, 0, WIRE_SYNC_LEAF, head);
    return true;
}

// Makes the leaf that a frame names its payload; the lane waits for what a device has yet to give. False: the device
// has failed.
static bool load(struct sync *sync, struct lane *lane, struct requester *requester, bool packs, struct frame *frame) {
    struct wire_op head;
    if (!wire_op_decode(frame->head + WIRE_HEADER_BYTES, &head)) return false;
    struct delta_piece piece = delta_layout_find(&sync->content->layout, head.offset);
    frame->device = sync->content->layout.entries[piece.entry].queue;
    frame->payload = device_window(frame->device, frame->payload, frame->length, &frame->fence);
    return frame->payload != NULL && (!packs || pack(sync, lane, requester, frame, &head));
}

// Copies the leaf, which is the payload of the frame, to slots, and names those in its place.
static struct frame *copy_to_slots(struct sync *sync, struct frame *frame, const struct leaf_slots *slots) {
    struct wire_op head;
    wire_op_decode(frame->head + WIRE_HEADER_BYTES, &head);
    frame->copied = frame->length;
    stream_copy(slots->room, frame->payload, frame->length);
    head.extra = WIRE_SYNC_SLOT;
    engine_lock(sync->engine);
    slots_write(sync->engine, frame, slots->first);
    frame_write_head(&sync->engine->lanes->frames, frame, 0, WIRE_SYNC_LEAF, &head);
    engine_unlock(sync->engine);
    return frame;
}

struct frame *sync_next_answer(struct sync *sync, struct lane *lane) {
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
