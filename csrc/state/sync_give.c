// Giving: what other members of the round ask for is queued, and answered as their lanes take it.
#define _GNU_SOURCE
#include "state/sync_private.h"

#include <stdlib.h>
#include <string.h>

enum { METER_MS = 20 }; // between two looks at the speed of a link

// ---- asks ----
static struct requester *find_requester(struct sync *sync, const struct peer *peer) {
    struct requester *requester = sync->requesters;
    while (requester != NULL && requester->peer != peer) requester = requester->next;
    return requester;
}

static struct requester *requester_of(struct engine *engine, struct sync *sync, struct peer *peer) {
    struct requester *requester = find_requester(sync, peer);
    if (requester != NULL) return requester;
    requester = calloc(1, sizeof *requester);
    if (requester == NULL) {
        engine_fail(engine);
        return NULL;
    }
    requester->peer = peer;
    requester->next = sync->requesters;
    sync->requesters = requester;
    return requester;
}

bool sync_take_ask(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    const struct wire_op *head = &lane->head;
    uint32_t most = lane->header.type == WIRE_SYNC_ASK ? WIRE_SYNC_MAX_LEAVES : WIRE_SYNC_MAX_HASHES;
    if (head->extra == 0 || head->extra > most) return false;
    if (sync == NULL || sync->ending || (sync->begun && head->tag != sync->plan->round)) return true;
    uint64_t leaves = sync->content->layout.leaf_count;
    if (head->offset >= leaves || head->extra > leaves - head->offset) return false;
    struct requester *requester = requester_of(engine, sync, lane->peer);
    if (requester == NULL || requester->count == ASKS_MAX) return false;
    requester->asks[(requester->first + requester->count++) % ASKS_MAX] = (struct ask){.type = lane->header.type,
                                                                                       .round = head->tag,
                                                                                       .first = head->offset,
                                                                                       .count = head->extra,
                                                                                       .sequence = head->sequence,
                                                                                       .codings = head->shard};
    peer_heat(lane->peer);
    return true;
}

void sync_forget_requester(struct sync *sync, const struct peer *peer) {
    struct requester **at = &sync->requesters;
    while (*at != NULL && (*at)->peer != peer) at = &(*at)->next;
    struct requester *requester = *at;
    if (requester == NULL) return;
    *at = requester->next;
    free(requester);
}

// ---- answers ----
// Lock held.
static struct frame *answer_hashes(struct engine *engine, struct sync *sync, struct ask *ask) {
    struct wire_op head = {.tag = ask->round, .offset = ask->first, .extra = ask->count, .sequence = ask->sequence};
    struct frame *frame = sync_frame(engine, WIRE_SYNC_HASHES, &head, ask->count * sizeof(uint64_t));
    if (frame != NULL) frame->payload = (const uint8_t *)(sync->content->leaves + ask->first);
    ask->count = 0;
    return frame;
}

// Lock held. `places`: an asker in this host; it is told where as many of the leaves lie as lie one after another.
static struct frame *answer_leaves(struct engine *engine, struct sync *sync, struct ask *ask, bool places) {
    struct delta_piece piece = delta_layout_find(&sync->content->layout, ask->first);
    const struct delta_entry *entry = &sync->content->layout.entries[piece.entry];
    const uint8_t *leaf = (const uint8_t *)entry->data + piece.offset;
    uint64_t rest = entry->first_leaf + entry->leaf_count - ask->first, bytes = entry->bytes - piece.offset;
    uint32_t count = rest < ask->count ? (uint32_t)rest : ask->count;
    if (bytes > (uint64_t)count * HASH_LEAF_BYTES) bytes = (uint64_t)count * HASH_LEAF_BYTES;
    places = places && memory_can_be_read(leaf, bytes);
    if (!places) count = 1;
    struct wire_op head = {
        .tag = ask->round, .offset = ask->first, .sequence = ask->sequence, .extra = WIRE_SYNC_PLAIN};
    if (places) {
        head.extra = WIRE_SYNC_PLACED;
        head.shard = (uint16_t)count;
    }
    struct frame *frame = sync_frame(engine, WIRE_SYNC_LEAF, &head, places ? PLACE_BYTES : piece.length);
    ask->first += count;
    ask->count -= count;
    if (frame == NULL) return NULL;
    uint64_t address = (uint64_t)(uintptr_t)leaf;
    memcpy(frame->place, &address, sizeof address);
    frame->payload = places ? frame->place : leaf;
    return frame;
}

// Lock held.
static struct frame *answer(struct engine *engine, struct sync *sync, struct ask *ask) {
    if (ask->type == WIRE_SYNC_ASK_HASHES) return answer_hashes(engine, sync, ask);
    return answer_leaves(engine, sync, ask, (ask->codings & 1 << WIRE_SYNC_PLACED) != 0);
}

// Lock held. `codings`: those that may be chosen for the answer instead of plain.
static struct frame *next_answer(struct engine *engine, struct sync *sync, struct requester *requester,
                                 uint16_t *codings) {
    while (requester->count > 0) {
        struct ask *ask = &requester->asks[requester->first];
        *codings = ask->type == WIRE_SYNC_ASK ? ask->codings : 0;
        struct frame *frame = ask->round == sync->plan->round ? answer(engine, sync, ask) : NULL;
        if (frame == NULL || ask->count == 0) {
            requester->first = (requester->first + 1) % ASKS_MAX;
            requester->count--;
        }
        if (frame != NULL) return frame;
    }
    return NULL;
}

// ---- packing ----
static void meter(struct engine *engine, struct requester *requester) {
    int64_t now = platform_now_ns();
    if (now - requester->metered_at < METER_MS * MS_NS) return;
    requester->metered_at = now;
    double rate = 0;
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i <= WIRE_MAX_LANES && (i == 0 || requester->peer->lanes[i] != NULL); i++)
        if (requester->peer->lanes[i] != NULL)
            rate += coding_look(&requester->peer->lanes[i]->meter, requester->peer->lanes[i]->fd);
    pthread_mutex_unlock(&engine->lock);
    coding_measured(&requester->choice, rate);
}

// Makes the frame of a plain leaf shorter, if that pays on the way to this peer.
static void pack(struct lane *lane, struct requester *requester, struct frame *frame) {
    if (frame->length < CODING_LEAST_BYTES || frame->payload == frame->place) return;
    meter(lane->engine, requester);
    if (!coding_tries(&requester->choice)) return;
    if (lane->stage == NULL && (lane->stage = malloc(WIRE_MAX_DATA_BYTES)) == NULL) return;
    // Not the time on the clock: one turn of another process would turn packing off for long.
    int64_t began = platform_thread_ns();
    uint32_t packed = coding_pack(lane->stage, frame->payload, frame->length);
    coding_tried(&requester->choice, frame->length, packed, platform_thread_ns() - began);
    struct wire_op head;
    if (packed == 0 || !coding_pays(&requester->choice) || !wire_op_decode(frame->head + WIRE_HEADER_BYTES, &head))
        return;
    head.extra = WIRE_SYNC_LZ4;
    frame->payload = lane->stage;
    frame->length = packed;
    sync_write_head(lane->engine, frame, WIRE_SYNC_LEAF, &head);
}

struct frame *sync_next(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    if (sync == NULL || sync->phase != PHASE_GIVING) return NULL;
    pthread_mutex_lock(&engine->lock);
    // The direct link carries the questions; it stands in for lanes where there are none.
    bool gives = lane->index != 0 || lane->peer->lanes[1] == NULL;
    struct requester *requester = gives ? find_requester(sync, lane->peer) : NULL;
    uint16_t codings = 0;
    struct frame *frame = requester == NULL ? NULL : next_answer(engine, sync, requester, &codings);
    pthread_mutex_unlock(&engine->lock);
    if (frame != NULL && sync->packs && (codings & 1 << WIRE_SYNC_LZ4) != 0) pack(lane, requester, frame);
    return frame;
}
