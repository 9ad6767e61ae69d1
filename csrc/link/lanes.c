#define _GNU_SOURCE
#include "link/lanes.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/log.h"
#include "base/platform.h"
#include "data/slots.h"
#include "data/core.h"
#include "link/lane.h"
#include "net/socket.h"

enum { LANES_LEAST = 16 };

struct neighbour *neighbour_find(struct engine *engine, const struct wire_id *id) {
    engine_assert_locked(engine);
    struct neighbour *peer = engine->lanes->neighbours;
    while (peer != NULL && !wire_id_equal(&peer->member.id, id)) peer = peer->next;
    return peer;
}

struct neighbour *neighbour_get(struct engine *engine, const struct wire_id *id) {
    engine_assert_locked(engine);
    struct neighbour *peer = neighbour_find(engine, id);
    if (peer != NULL) {
        peer->dropped = false;
        return peer;
    }
    peer = calloc(1, sizeof *peer);
    if (peer == NULL) {
        engine_fail(engine);
        return NULL;
    }
    peer->member.id = *id;
    peer->member.rank = UINT32_MAX;
    peer->next = engine->lanes->neighbours;
    engine->lanes->neighbours = peer;
    return peer;
}

struct neighbour *neighbour_member(struct engine *engine, const struct wire_id *id) {
    engine_assert_locked(engine);
    struct neighbour *peer = neighbour_find(engine, id);
    return peer != NULL && peer->member.rank != UINT32_MAX && !peer->dropped ? peer : NULL;
}

void neighbours_free_dropped(struct engine *engine) {
    engine_assert_locked(engine);
    for (struct neighbour **at = &engine->lanes->neighbours; *at != NULL;) {
        struct neighbour *peer = *at;
        if (peer->dropped && peer->member.rank == UINT32_MAX && peer->lane_count == 0 &&
            !engine_awaits(engine, &peer->member)) {
            *at = peer->next;
            route.changed(engine, peer, NEIGHBOUR_FREED);
            free(peer);
        } else {
            at = &peer->next;
        }
    }
}

static void retire(struct neighbour *peer, uint32_t index) {
    struct lane *lane = peer->lanes[index];
    if (lane == NULL) return;
    peer->lanes[index] = NULL;
    lane->retired = true;
    transport_hang_up(lane->stream); // the thread sees the end of the stream and closes
}

// The secret of a run is told to everybody who registers, so a hello in a member's name proves little. A member makes
// its links from one address.
static bool is_from_elsewhere(const struct lane *lane, const struct transport *stream) {
    struct wire_address known, fresh;
    return lane != NULL && transport_remote_address(lane->stream, &known) && transport_remote_address(stream, &fresh) &&
           !socket_address_same_host(&known, &fresh);
}

void engine_add_link(struct engine *engine, const struct wire_id *id, uint32_t index, struct transport *stream) {
    if (stream != NULL) transport_apply_congestion(stream);
    engine_lock(engine);
    struct neighbour *peer = index <= WIRE_MAX_LANES && engine_is_open(engine) ? neighbour_get(engine, id) : NULL;
    if (peer != NULL && is_from_elsewhere(peer->lanes[index], stream)) {
        struct peer_label label = neighbour_label(peer);
        engine_unlock(engine);
        LOG(LOG_WARN, "refused a connection in the name of %s, whose link lives and has another address", label.chars);
        transport_free(stream);
        return;
    }
    struct lane *lane = peer == NULL ? NULL : lane_new(engine, peer, index, stream);
    if (lane == NULL) {
        if (peer != NULL) engine_fail(engine);
        transport_free(stream);
    } else {
        retire(peer, index);
        peer->lanes[index] = lane;
        peer->lane_count++;
        if (peer->lane_end <= index) peer->lane_end = index + 1;
        lane->next = engine->lanes->arriving;
        engine->lanes->arriving = lane;
        engine_wake(engine);
    }
    engine_unlock(engine);
}

bool engine_has_link(struct engine *engine, const struct wire_id *id, uint32_t index) {
    engine_lock(engine);
    struct neighbour *peer = neighbour_find(engine, id);
    bool has = peer != NULL && index <= WIRE_MAX_LANES && peer->lanes[index] != NULL;
    engine_unlock(engine);
    return has;
}

void engine_drop_peer(struct engine *engine, const struct wire_id *id) {
    engine_lock(engine);
    struct neighbour *peer = neighbour_find(engine, id);
    if (peer != NULL) {
        for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) retire(peer, i);
        peer->dropped = true;
        engine_wake(engine);
    }
    engine_unlock(engine);
}

// ---- all lanes ----
struct lanes *lanes_new(struct engine *engine, int epoll) {
    struct lanes *all = calloc(1, sizeof *all);
    if (all == NULL) return NULL;
    all->engine = engine;
    all->epoll = epoll;
    return all;
}

void lanes_close(struct lanes *all) {
    if (all == NULL) return;
    for (struct neighbour *peer = all->neighbours; peer != NULL; peer = peer->next)
        memset(peer->lanes, 0, sizeof peer->lanes);
    for (size_t i = 0; i < all->count; i++) lane_free(all->list[i]);
    all->count = all->ready.count = 0;
    while (all->arriving != NULL) {
        struct lane *lane = all->arriving;
        all->arriving = lane->next;
        lane_free(lane);
    }
}

void lanes_free(struct lanes *all) {
    if (all == NULL) return;
    while (all->neighbours != NULL) {
        struct neighbour *peer = all->neighbours;
        all->neighbours = peer->next;
        slots_end(&peer->slots);
        free(peer);
    }
    free(all->list);
    free(all->ready.list);
    free(all);
}

// Gives the lane to a worker, if it is one of theirs. The engine's thread alone uses shared memory.
static bool adopt(struct lanes *all, struct lane *lane) {
    struct worker *worker = workers_of(all->engine, lane->index);
    if (worker == NULL || route.may_share_memory(lane)) return true;
    lane->worker = worker;
    return worker_has_room(worker, all->count);
}

bool lanes_poll_arriving(struct engine *engine) {
    engine_assert_locked(engine);
    struct lanes *all = engine->lanes;
    while (all->arriving != NULL) {
        struct lane *lane = all->arriving;
        if (!GROW(all->list, all->room, all->count, LANES_LEAST) ||
            !GROW(all->ready.list, all->ready.room, all->count, LANES_LEAST) || !adopt(all, lane))
            return false;
        uint32_t events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
        int epoll = lane->worker != NULL ? lane->worker->epoll : all->epoll;
        if (!transport_watch(lane->stream, epoll, events, (epoll_data_t){.ptr = lane})) return false;
        all->arriving = lane->next;
        lane->polled = true;
        lane_look(lane, platform_now_ns());
        all->list[all->count++] = lane;
        lane_schedule(lane);
        route.changed(engine, lane->peer, NEIGHBOUR_LINK_UP);
    }
    return true;
}

void lanes_hang_up(struct engine *engine) {
    engine_assert_locked(engine);
    struct lanes *all = engine->lanes;
    for (size_t i = 0; i < all->count; i++) transport_hang_up(all->list[i]->stream);
    for (struct lane *lane = all->arriving; lane != NULL; lane = lane->next) transport_hang_up(lane->stream);
}

void lanes_look_at_buckets(struct engine *engine) {
    struct lanes *all = engine->lanes; // the list of neighbours needs the lock, that of lanes does not
    for (size_t i = 0; i < all->count; i++) {
        struct neighbour *peer = all->list[i]->peer;
        if (peer->bucket.waits && bucket_has_room(&peer->bucket, platform_now_ns())) neighbour_schedule(peer);
    }
}

bool lanes_step(struct lane_list *ready) {
    for (size_t i = 0; i < ready->count;) {
        struct lane *lane = ready->list[i];
        if (lane_step(lane)) {
            i++;
        } else {
            lane->ready = false;
            ready->list[i] = ready->list[--ready->count];
        }
    }
    return ready->count > 0;
}

static bool any_broken(const struct lanes *all) {
    for (size_t i = 0; i < all->count; i++)
        if (all->list[i]->broken) return true;
    return false;
}

void lanes_free_broken(struct engine *engine) {
    struct lanes *all = engine->lanes;
    if (!any_broken(all)) return;
    workers_pause(engine);
    workers_forget_events(engine);
    for (size_t i = 0; i < all->count;) {
        struct lane *lane = all->list[i];
        if (!lane->broken) {
            i++;
            continue;
        }
        engine_lock(engine);
        lane->peer->lane_count--;
        lane_free(lane);
        all->list[i] = all->list[--all->count];
        neighbours_free_dropped(engine);
        engine_unlock(engine);
    }
    workers_resume(engine);
}

void lanes_drop_frames(struct engine *engine, bool service) {
    engine_assert_locked(engine);
    struct lanes *all = engine->lanes;
    for (size_t i = 0; i < all->count; i++) lane_drop_frames(all->list[i], service);
    lanes_schedule(engine);
}

void lanes_schedule(struct engine *engine) {
    struct lanes *all = engine->lanes;
    for (size_t i = 0; i < all->count; i++) lane_schedule(all->list[i]);
}

void lanes_enter_epoch(struct engine *engine) {
    engine_assert_locked(engine);
    struct lanes *all = engine->lanes;
    for (struct neighbour *peer = all->neighbours; peer != NULL; peer = peer->next) {
        peer->eager_bytes = 0;
        peer->offered = false;
        slots_end(&peer->slots);
        if (peer->member.rank == UINT32_MAX) route.changed(engine, peer, NEIGHBOUR_LEFT);
    }
    for (size_t i = 0; i < all->count; i++) lane_enter_epoch(all->list[i]);
    neighbours_free_dropped(engine);
}

struct incoming *lanes_next_service(struct engine *engine, size_t *at) {
    struct lanes *all = engine->lanes;
    while (*at < all->count) {
        struct incoming *in = &all->list[(*at)++]->in;
        if (in->service) return in;
    }
    return NULL;
}

void engine_fix_lanes(struct engine *engine) { engine->lanes->fixed = true; }

// ---- silence ----
void engine_set_silence(struct engine *engine, int64_t limit_ns) {
    struct lanes *all = engine->lanes;
    engine_lock(engine);
    all->silence_ns = limit_ns / SILENCE_CHECKS > 0 ? limit_ns / SILENCE_CHECKS : 1;
    engine_wake(engine);
    engine_unlock(engine);
}

int64_t lanes_silence_limit_ns(const struct engine *engine) { return SILENCE_CHECKS * engine->lanes->silence_ns; }

void lanes_check_silence(struct engine *engine) {
    struct lanes *all = engine->lanes;
    if (all->silence_ns == 0) return;
    int64_t now = platform_now_ns();
    if (now < all->silence_at) return;
    bool stopped = now > all->silence_at + all->silence_ns;
    all->silence_at = now + all->silence_ns;
    for (size_t i = 0; i < all->count; i++)
        if (!all->list[i]->broken) lane_check_silence(all->list[i], SILENCE_CHECKS * all->silence_ns, stopped);
}

int lanes_timeout_ms(const struct engine *engine, int timeout_ms) {
    const struct lanes *all = engine->lanes;
    for (size_t i = 0; i < all->count; i++)
        if (all->list[i]->peer->bucket.waits && timeout_ms != 0) timeout_ms = BUCKET_TICK_MS;
    if (all->silence_ns == 0) return timeout_ms;
    int64_t left = (all->silence_at - platform_now_ns()) / MS_NS + 1;
    int ms = left < 0 ? 0 : (int)left;
    return timeout_ms < 0 || ms < timeout_ms ? ms : timeout_ms;
}
