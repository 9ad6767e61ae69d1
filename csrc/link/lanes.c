// All connections of an owner: adding and dropping them, polling them, and the checks for silence.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/log.h"
#include "base/platform.h"
#include "link/connection.h"
#include "link/frame.h"
#include "net/socket.h"

enum {
    LANES_LEAST = 16,
    HEARD_CHECKS = 3, // a lane that was heard is not checked more often after it; a silent one is
};

// ---- all lanes ----
struct lanes *lanes_new(const struct lanes_options *options) {
    struct lanes *all = calloc(1, sizeof *all);
    if (all == NULL) return NULL;
    all->events = options->events;
    all->context = options->context;
    all->lock = options->lock;
    all->frames.pool = options->pool;
    all->neighbour_bytes = options->neighbour_bytes;
    all->epoll = options->epoll;
    all->wake = options->wake;
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
        free(peer);
    }
    free(all->list);
    free(all->ready.list);
    free(all);
}

// ---- adding and dropping ----
static void retire(struct neighbour *peer, uint32_t index) {
    struct lane *lane = peer->lanes[index];
    if (lane == NULL) return;
    peer->lanes[index] = NULL;
    lane->retired = true;
    transport_hang_up(lane->stream); // the thread sees the end of the stream and closes
}

// The secret of a run is told to everybody who registers, so without keys a hello in a member's name proves little. A
// member makes its links from one address, or from those that it announces.
static bool is_from_elsewhere(const struct lane *lane, const struct transport *stream, const struct wire_reach *reach) {
    struct wire_address known, fresh;
    if (lane == NULL || stream->type->proves || !transport_remote_address(stream, &fresh)) return false;
    for (uint32_t i = 0; reach != NULL && i < reach->count; i++)
        if (socket_address_same_host(&reach->addresses[i], &fresh)) return false;
    return transport_remote_address(lane->stream, &known) && !socket_address_same_host(&known, &fresh);
}

uint64_t lanes_add(struct lanes *all, const struct wire_id *id, uint32_t index, struct transport *stream,
                   const struct wire_reach *reach, bool *from_elsewhere) {
    lanes_assert_locked(all);
    *from_elsewhere = false;
    struct neighbour *peer = neighbour_get(all, id);
    if (peer == NULL) return 0;
    *from_elsewhere = is_from_elsewhere(peer->lanes[index], stream, reach);
    if (*from_elsewhere) return 0;
    struct lane *lane = lane_new(peer, index, stream);
    if (lane == NULL) {
        all->events->refused(all->context);
        return 0;
    }
    retire(peer, index);
    peer->lanes[index] = lane;
    peer->lane_count++;
    if (peer->lane_end <= index) peer->lane_end = index + 1;
    lane->next = all->arriving;
    all->arriving = lane;
    all->events->wake(all->context);
    return lane->serial;
}

void lanes_drop(struct lanes *all, const struct wire_id *id) {
    lanes_assert_locked(all);
    struct neighbour *peer = neighbour_find(all, id);
    if (peer == NULL) return;
    for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) retire(peer, i);
    peer->dropped = true;
    all->events->wake(all->context);
}

// Gives the lane to a worker, if it is one of theirs.
static bool adopt(struct lanes *all, struct lane *lane) {
    struct worker *worker = workers_of(all->workers, lane->index);
    if (worker == NULL || !all->events->may_share(all->context, lane)) return true;
    lane->worker = worker;
    return GROW(worker->ready.list, worker->ready.room, all->count, LANES_LEAST);
}

bool lanes_poll_arriving(struct lanes *all) {
    lanes_assert_locked(all);
    while (all->arriving != NULL) {
        lanes_assert_paused(all);
        struct lane *lane = all->arriving;
        if (!GROW(all->list, all->room, all->count, LANES_LEAST) ||
            !GROW(all->ready.list, all->ready.room, all->count, LANES_LEAST) || !adopt(all, lane))
            return false;
        uint32_t events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
        int epoll = lane->worker != NULL ? lane->worker->epoll : all->epoll;
        if (!transport_watch(lane->stream, epoll, events, (epoll_data_t){.ptr = lane})) return false;
        all->arriving = lane->next;
        lane->polled = true;
        neighbour_read_gauge(lane, platform_now_ns());
        all->list[all->count++] = lane;
        lane_schedule(lane);
        all->events->state(all->context, lane->peer, NEIGHBOUR_LINK_UP);
    }
    return true;
}

void lanes_hang_up(struct lanes *all) {
    lanes_assert_paused(all);
    lanes_assert_locked(all);
    for (size_t i = 0; i < all->count; i++) transport_hang_up(all->list[i]->stream);
    for (struct lane *lane = all->arriving; lane != NULL; lane = lane->next) transport_hang_up(lane->stream);
}

void lanes_look_at_buckets(struct lanes *all) {
    for (size_t i = 0; i < all->count; i++) {
        struct neighbour *peer = all->list[i]->peer;
        if (peer->rate.bucket.waits && throttle_has_room(&peer->rate.bucket, platform_now_ns()))
            neighbour_schedule(peer);
    }
}

bool lanes_signal(struct neighbour *peer, uint16_t type, const struct wire_head *head, struct block *payload) {
    struct lanes *all = peer->all;
    lanes_assert_locked(all);
    struct lane *lane = peer->lanes[0];
    if (lane == NULL) return false;
    struct frame *frame = frame_new(&all->frames, type, head, payload == NULL ? 0 : payload->length);
    if (frame == NULL) return false;
    if (payload != NULL) {
        payload->references++;
        frame->block = payload;
        frame->payload = payload->bytes;
    }
    lane_send(lane, frame);
    return true;
}

static bool any_broken(const struct lanes *all) {
    for (size_t i = 0; i < all->count; i++)
        if (all->list[i]->broken) return true;
    return false;
}

void lanes_free_broken(struct lanes *all) {
    lanes_assert_thread(all);
    if (!any_broken(all)) return;
    workers_pause(all);
    if (all->workers != NULL) all->workers->freed++;
    for (size_t i = 0; i < all->count;) {
        struct lane *lane = all->list[i];
        if (!lane->broken) {
            i++;
            continue;
        }
        lanes_lock(all);
        lane->peer->lane_count--;
        lane_free(lane);
        all->list[i] = all->list[--all->count];
        neighbours_free_dropped(all);
        lanes_unlock(all);
    }
    workers_resume(all);
}

void lanes_drop_frames(struct lanes *all, bool service) {
    lanes_assert_locked(all);
    for (size_t i = 0; i < all->count; i++) lane_drop_frames(all->list[i], service);
    lanes_schedule(all);
}

void lanes_schedule(struct lanes *all) {
    for (size_t i = 0; i < all->count; i++) lane_schedule(all->list[i]);
}

void lanes_enter_epoch(struct lanes *all, const struct wire_header *now) {
    lanes_assert_paused(all);
    lanes_assert_locked(all);
    all->frames.now = *now;
    for (size_t i = 0; i < all->count; i++) lane_enter_epoch(all->list[i]);
    neighbours_free_dropped(all);
}

struct incoming *lanes_next_service(struct lanes *all, size_t *at) {
    while (*at < all->count) {
        struct incoming *in = &all->list[(*at)++]->in;
        if (in->service) return in;
    }
    return NULL;
}

// ---- silence ----
void lanes_set_silence(struct lanes *all, int64_t limit_ns) {
    lanes_lock(all);
    all->silence_ns = limit_ns / FAILURE_DETECTOR_CHECKS > 0 ? limit_ns / FAILURE_DETECTOR_CHECKS : 1;
    all->events->wake(all->context);
    lanes_unlock(all);
}

static void say_something(struct lane *lane) {
    lane_assert_guarded(lane);
    bool spoke = lane->detector.spoke;
    lane->detector.spoke = false;
    if (!spoke && lane_is_quiet(lane)) lane_beat(lane);
}

// Returns true if the direct link is heard: the peer lives. With heavy packet loss, one connection alone may be silent
// for long, because its timeout doubles with each retransmission.
static bool is_heard_beside(const struct lane *lane, int64_t limit_ns, int64_t now_ns) {
    const struct lane *direct = lane->peer->lanes[0];
    return lane->pace.far && lane->index > 0 && direct != NULL && !direct->broken &&
           now_ns - direct->detector.arrivals.at_ns < limit_ns;
}

static bool is_same_way(const struct lane *a, const struct lane *b) {
    struct wire_address ends[4];
    return transport_local_address(a->stream, &ends[0]) && transport_local_address(b->stream, &ends[1]) &&
           transport_remote_address(a->stream, &ends[2]) && transport_remote_address(b->stream, &ends[3]) &&
           socket_address_same_host(&ends[0], &ends[1]) && socket_address_same_host(&ends[2], &ends[3]);
}

// Returns true if bytes came since the last check of the lane. Unread bytes count, unless the lane waits for an epoch.
static bool has_news(const struct lane *lane) {
    return lane->detector.heard || (lane->readable && lane->receiving != LANE_AHEAD);
}

// Heartbeats come at every second check: without news that no check has noted, a live lane may look silent for three.
static bool is_heard(const struct lane *lane, int64_t limit_ns, int64_t now_ns) {
    return has_news(lane) || now_ns - lane->detector.arrivals.at_ns < limit_ns * HEARD_CHECKS / FAILURE_DETECTOR_CHECKS;
}

// Breaks a silent lane, and with it those to the same neighbour by the same cards that were not heard either: one
// failure is told at once, not once per lane. If the neighbour is heard by other cards, a card has failed.
static void break_silent(struct lane *lane, const char *why, int64_t limit_ns, int64_t now_ns) {
    struct lanes *all = lane->all;
    enum wire_link_reason reason = WIRE_LINK_SILENT;
    for (size_t i = 0; i < all->count; i++) {
        const struct lane *other = all->list[i];
        bool heard = other->peer == lane->peer && !other->broken && is_heard(other, limit_ns, now_ns);
        if (heard && !is_same_way(lane, other)) reason = WIRE_LINK_CARD;
    }
    for (size_t i = 0; i < all->count; i++) {
        struct lane *other = all->list[i];
        bool silent = other->peer == lane->peer && !other->broken && !is_heard(other, limit_ns, now_ns);
        if (other != lane && silent && is_same_way(lane, other)) lane_break(other, reason, why);
    }
    lane_break(lane, reason, why);
}

// Breaks the lane if it has been silent for longer than about `limit_ns`; else sends a heartbeat if the lane is quiet.
// `excused`: this process was stopped. Lock not held.
static void watch(struct lane *lane, int64_t limit_ns, bool excused) {
    int64_t now_ns = platform_now_ns();
    lanes_lock(lane->all);
    lane->detector.patient = is_heard_beside(lane, limit_ns, now_ns);
    neighbour_read_gauge(lane, now_ns);
    if (excused) failure_detector_excuse(&lane->detector, now_ns);
    bool ahead = lane->receiving == LANE_AHEAD;
    lane->detector.heard = has_news(lane);
    const char *why = failure_detector_check(&lane->detector, ahead, &lane->pace.gauge, now_ns, limit_ns);
    if (why == NULL) say_something(lane);
    lanes_unlock(lane->all);
    if (why == NULL) return;
    LOG(LOG_DEBUG, "link %u: %llu bytes are not acknowledged, %u segments were sent again", lane->index,
        (unsigned long long)lane->pace.gauge.queued, lane->pace.gauge.retransmits);
    if (ahead)
        lane_break(lane, WIRE_LINK_BROKEN, why);
    else
        break_silent(lane, why, limit_ns, now_ns);
}

void lanes_check_silence(struct lanes *all) {
    if (all->silence_ns == 0) return;
    int64_t now = platform_now_ns();
    if (now < all->silence_at) return;
    bool stopped = now > all->silence_at + all->silence_ns;
    all->silence_at = now + all->silence_ns;
    for (size_t i = 0; i < all->count; i++)
        if (!all->list[i]->broken) watch(all->list[i], FAILURE_DETECTOR_CHECKS * all->silence_ns, stopped);
}

int lanes_timeout_ms(const struct lanes *all, int timeout_ms) {
    for (size_t i = 0; i < all->count; i++)
        if (all->list[i]->peer->rate.bucket.waits && timeout_ms != 0) timeout_ms = THROTTLE_TICK_MS;
    if (all->silence_ns == 0) return timeout_ms;
    int64_t left = (all->silence_at - platform_now_ns()) / MS_NS + 1;
    int ms = left < 0 ? 0 : (int)left;
    return timeout_ms < 0 || ms < timeout_ms ? ms : timeout_ms;
}
