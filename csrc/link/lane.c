// Framing on one connection: bytes in, frames out, and back.
//
// A frame is received in two parts: its head (header and struct wire_op, fixed size) into the lane's buffer, its
// payload straight to where it belongs: the caller's result, the lane's scratch, or a block. One system call takes the
// rest of a payload and the heads behind it. Frames of older epochs are discarded unseen; a frame of an epoch that this
// member has not entered yet stops the lane until it has.
#define _GNU_SOURCE
#include "link/lane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/platform.h"
#include "data/callbacks.h"
#include "data/core.h"
#include "link/pool.h"
#include "device/device.h"
#include "ops/op.h"

// Stands in for the rest of a frame whose op is over: the frame must be finished, its contents are discarded.
static uint8_t zeros[WIRE_MAX_DATA_BYTES];

struct lane *lane_new(struct engine *engine, struct neighbour *peer, uint32_t index, struct transport *stream) {
    struct lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL) return NULL;
    lane->engine = engine;
    lane->peer = lane->in.from = peer;
    lane->in.lane = lane;
    lane->index = index;
    lane->stream = stream;
    lane->readable = lane->writable = true;
    lane->queue.last = &lane->queue.first;
    return lane;
}

void lane_free(struct lane *lane) {
    struct frame *frame;
    while ((frame = frame_pop(&lane->queue)) != NULL) frame_free(lane->engine, frame);
    if (lane->sending != NULL) frame_free(lane->engine, lane->sending);
    block_put(lane->engine, lane->in.block);
    free(lane->scratch);
    free(lane->stage);
    transport_free(lane->stream);
    free(lane);
}

uint8_t *lane_scratch(struct lane *lane) {
    engine_assert_locked(lane->engine);
    if (lane->scratch == NULL && (lane->scratch = malloc(WIRE_MAX_DATA_BYTES)) == NULL) engine_fail(lane->engine);
    return lane->scratch;
}

uint8_t *lane_stage(struct lane *lane) {
    if (lane->stage == NULL) lane->stage = malloc(WIRE_MAX_DATA_BYTES);
    return lane->stage;
}

bool lane_is_for_bulk(const struct lane *lane) {
    const struct neighbour *peer = lane->peer;
    if (lane->index == 0) return peer->lanes[1] == NULL;
    return peer->pace.in_use == 0 || lane->index <= peer->pace.in_use;
}

void lane_schedule(struct lane *lane) {
    if (lane->ready || lane->broken || !lane->polled) return;
    lane->ready = true;
    struct lane_list *ready = lane->worker != NULL ? &lane->worker->ready : &lane->engine->lanes->ready;
    ready->list[ready->count++] = lane;
    worker_wake(lane->engine, lane->worker);
}

void neighbour_schedule(struct neighbour *peer) {
    // If workers have the lanes, the direct link has no bulk data, and its thread need not wake for each chunk.
    uint32_t first = peer->lanes[1] != NULL && peer->lanes[1]->worker != NULL ? 1 : 0;
    uint32_t turn = peer->turn++, count = peer->lane_end - first;
    for (uint32_t i = 0; i < count; i++) {
        struct lane *lane = peer->lanes[first + (turn + i) % count];
        if (lane != NULL) lane_schedule(lane);
    }
}

void lane_break(struct lane *lane, enum wire_link_reason reason, const char *why) {
    struct engine *engine = lane->engine;
    if (lane->broken) return;
    lane->broken = true;
    transport_unwatch(lane->stream);
    lane->in.service = false;
    lane->in.to = NULL;
    route.changed(engine, lane->peer, NEIGHBOUR_LINK_DOWN);
    struct wire_id id = lane->peer->member.id;
    engine_lock(engine);
    struct peer_label label = neighbour_label(lane->peer);
    bool current = lane->peer->lanes[lane->index] == lane;
    if (current) lane->peer->lanes[lane->index] = NULL;
    // Each of them is told, also those of candidates: the control side keeps the books of what has to be made again.
    bool report = current && !lane->retired && !engine->dead;
    lane->retired = true;
    if (lane->worker != NULL) engine_wake(engine); // it frees the lane
    engine_unlock(engine);
    LOG(LOG_DEBUG, "link %u to %s broke: %s", lane->index, label.chars, why);
    if (report) engine->callbacks.link_down(engine->callbacks.context, &id, lane->index, reason);
}

// ---- receiving ----
enum progress {
    PARSE_ON,
    PARSE_STARVES, // it needs bytes that have not come, or has to wait
    PARSE_YIELDS,  // the rest can wait for the other lanes
    PARSE_FAILS,   // malformed
};

// HEAD -> PAYLOAD, or HEAD -> AHEAD.
static enum progress take_head(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct incoming *in = &lane->in;
    if (lane->buffered - lane->consumed < lane->skip + FRAME_HEAD_BYTES) return PARSE_STARVES;
    lane->consumed += lane->skip;
    lane->skip = 0;
    const uint8_t *at = lane->buffer + lane->consumed;
    if (!wire_header_decode(at, &in->header) || in->header.length < WIRE_OP_BYTES ||
        in->header.length > WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES || !wire_op_decode(at + WIRE_HEADER_BYTES, &in->head) ||
        in->header.length - WIRE_OP_BYTES < (uint32_t)in->head.lead + in->head.padding)
        return PARSE_FAILS;
    if (lane->buffered - lane->consumed < FRAME_HEAD_BYTES + (size_t)in->head.lead) return PARSE_STARVES;
    engine_lock(engine);
    struct wire_header now = engine_header(engine);
    bool has_epoch = frame_has_epoch(in->header.type), ahead = has_epoch && in->header.epoch > now.epoch, good = true;
    if (ahead) {
        lane->receiving = LANE_AHEAD;
    } else if (has_epoch && in->header.run != now.run) {
        good = false;
    } else {
        in->length = in->header.length - WIRE_OP_BYTES - in->head.lead - in->head.padding;
        in->got = 0;
        in->op = NULL;
        in->to = NULL;
        in->service = false;
        good = route.place(engine, in);
        lane->consumed += FRAME_HEAD_BYTES + in->head.lead;
        lane->receiving = LANE_PAYLOAD;
    }
    engine_unlock(engine);
    return !good ? PARSE_FAILS : ahead ? PARSE_STARVES : PARSE_ON;
}

// PAYLOAD -> HEAD.
static enum progress take_payload(struct lane *lane) {
    struct incoming *in = &lane->in;
    size_t unread = lane->buffered - lane->consumed, rest = in->length - in->got, take = rest < unread ? rest : unread;
    if (in->to != NULL) memcpy(in->to + in->got, lane->buffer + lane->consumed, take);
    lane->consumed += take;
    in->got += take;
    if (take < rest) return PARSE_STARVES;
    lane->receiving = LANE_HEAD;
    lane->skip = in->head.padding;
    if (!route.arrived(lane->engine, in)) return PARSE_FAILS;
    // It stands for a whole chunk: the other lanes have their turn, and the neighbour gets what can be forwarded.
    bool another = unread - take >= lane->skip + FRAME_HEAD_BYTES;
    return in->header.type == WIRE_CHUNK_IN && another ? PARSE_YIELDS : PARSE_ON;
}

// AHEAD -> HEAD.
void lane_enter_epoch(struct lane *lane) {
    if (lane->receiving != LANE_AHEAD) return;
    lane->receiving = LANE_HEAD;
    lane->unparsed = true;
}

// Works through the lane's buffer. False: malformed, and the lane is broken.
static bool parse(struct lane *lane) {
    enum progress progress;
    do progress = lane->receiving == LANE_PAYLOAD ? take_payload(lane) : take_head(lane);
    while (progress == PARSE_ON && !lane->broken);
    lane->unparsed = progress == PARSE_YIELDS;
    if (progress == PARSE_FAILS) {
        char why[48];
        snprintf(why, sizeof why, "malformed %s", wire_type_name(lane->in.header.type));
        lane_break(lane, WIRE_LINK_MALFORMED, why);
    }
    if (progress == PARSE_STARVES && lane->consumed > 0) {
        memmove(lane->buffer, lane->buffer + lane->consumed, lane->buffered - lane->consumed);
        lane->buffered -= lane->consumed;
        lane->consumed = 0;
    }
    return progress != PARSE_FAILS;
}

// False: nothing is left to read until an event.
static bool lane_read(struct lane *lane) {
    if (lane->receiving == LANE_AHEAD) return false;
    // A payload is only waited for with an empty buffer: parse() has given it everything that was there.
    struct iovec parts[2];
    int count = 0;
    size_t wanted = 0;
    size_t room = sizeof lane->buffer - lane->buffered;
    if (lane->receiving == LANE_PAYLOAD && lane->in.to != NULL) {
        size_t rest = lane->in.length - lane->in.got;
        parts[count++] = (struct iovec){lane->in.to + lane->in.got, rest};
        wanted += rest;
        // Another large payload usually follows, aligned alike. Read its head only, so that the kernel copies the
        // payload to its destination.
        const struct wire_op *head = &lane->in.head;
        if (lane->in.length > LANE_BUFFER_BYTES) room = FRAME_HEAD_BYTES + (size_t)head->padding + head->lead;
    }
    parts[count++] = (struct iovec){lane->buffer + lane->buffered, room};
    wanted += room;
    // A head comes into the lane's own buffer, and an op stays until its bytes are here.
    bool apart = lane->receiving == LANE_HEAD || (count == 2 && lane->in.op != NULL);
    if (apart) turn_leave(lane->engine);
    ptrdiff_t got = transport_recvv(lane->stream, parts, count);
    if (apart) turn_take(lane->engine);
    if (lane->broken) return false;
    if (got == -EAGAIN) return lane->readable = lane->stream->buffered;
    if (got <= 0) {
        lane_break(lane, WIRE_LINK_BROKEN, got == 0 ? "closed by the other side" : strerror((int)-got));
        return false;
    }
    lane->silence.heard = true;
    // An end that came together with these bytes is told by no further event.
    lane->readable = lane->ending || lane->stream->buffered || (size_t)got == wanted;
    size_t direct = 0;
    if (count == 2) {
        direct = parts[0].iov_len < (size_t)got ? parts[0].iov_len : (size_t)got;
        lane->in.got += direct;
    }
    lane->buffered += (size_t)got - direct;
    return parse(lane) && lane->readable;
}

// ---- pace ----
void lane_look(struct lane *lane, int64_t now_ns) {
    struct gauge gauge = transport_gauge(lane->stream);
    pace_note(&lane->pace, &gauge, now_ns);
    uint32_t unsent = pace_unsent(&lane->pace),
             differs = unsent > lane->unsent ? unsent - lane->unsent : lane->unsent - unsent;
    if (differs <= lane->unsent / 4) return;
    transport_limit_unsent(lane->stream, unsent);
    lane->unsent = unsent;
}

// Sets how fast the lanes of a neighbour may send together. Several members of a site share its lines, and a burst of
// one is lost where those of another fill the queue. Thread.
static void limit(struct neighbour *peer, const struct pace_total *total) {
    bool smooth = pace_is_smooth(&peer->pace, total) || !peer->alone;
    peer->bucket.rate = throttle_limit(&peer->throttle, total, smooth);
    if (!total->models) return;
    // BBR has the kernel pace each lane in any case. Without a limit of its own, each takes what it once sent alone for
    // its rate, and all together overflow the queue.
    for (uint32_t i = 1; i < peer->lane_end; i++) {
        struct lane *lane = peer->lanes[i];
        if (lane == NULL || !lane_is_for_bulk(lane)) continue;
        uint32_t share = throttle_share(&peer->throttle, total, lane->pace.gauge.window);
        uint32_t most = share == 0 ? INT32_MAX : share,
                 differs = most > lane->paced ? most - lane->paced : lane->paced - most;
        if (differs <= lane->paced / 64) continue;
        transport_pace(lane->stream, most);
        lane->paced = most;
    }
}

// Whether the lane has to wait until its neighbour's bucket fills. Frames that are queued already do not wait.
static bool must_wait(const struct lane *lane) {
    struct bucket *bucket = &lane->peer->bucket;
    if (lane->index == 0 || bucket_has_room(bucket, platform_now_ns())) return false;
    if (lane->worker != NULL) worker_wake(lane->engine, NULL); // the engine's thread looks when it has filled
    return true;
}

static bool models(const struct lane *lane) {
    char control[16];
    return transport_congestion(lane->stream, control, sizeof control) && strncmp(control, "bbr", 3) == 0;
}

// Lock not held.
static void tune(struct lane *lane) {
    int64_t now_ns = platform_now_ns();
    struct neighbour *peer = lane->peer;
    if (!pace_is_due(&lane->pace, now_ns)) return;
    engine_lock(lane->engine);
    lane_look(lane, now_ns);
    struct pace_total total = {.models = models(lane),
                               .pauses = lane->engine->running.first == NULL,
                               .coming_us = stats_latest_queue_us(&peer->stats, now_ns)};
    uint32_t available = 0;
    for (uint32_t i = 1; i < peer->lane_end; i++) {
        struct lane *other = peer->lanes[i];
        if (other == NULL || !other->polled) continue;
        available = i;
        if (!lane_is_for_bulk(other)) continue;
        if (pace_is_due(&other->pace, now_ns)) lane_look(other, now_ns);
        pace_total_add(&total, &other->pace);
    }
    // A lane that waits for the bucket has something to send, though the kernel has nothing of it.
    if (peer->bucket.empty_ns != 0 && now_ns - peer->bucket.empty_ns < PACE_TICK_MS * MS_NS) total.waiting++;
    bool tuned = available > 0 && !lane->engine->lanes->fixed;
    bool changed = tuned && pace_lanes_step(&peer->pace, &total, available, now_ns);
    if (tuned) throttle_step(&peer->throttle, &total, peer->alone && pace_is_wide(&peer->pace, &total), now_ns);
    limit(peer, &total);
    if (changed) neighbour_schedule(peer);
    struct peer_label label = neighbour_label(peer);
    engine_unlock(lane->engine);
    if (changed) LOG(LOG_DEBUG, "%u of %u lanes to %s are in use", peer->pace.in_use, available, label.chars);
}

// ---- sending ----
// What a lane has to send: of the direct link it is guarded by the lock, of others it belongs to the thread.
static void assert_guarded(const struct lane *lane) {
    if (lane->index == 0) engine_assert_locked(lane->engine);
}

// Sends what is left of the frame at hand. True when it is finished.
static bool send_frame(struct lane *lane) {
    struct frame *frame = lane->sending;
    // The frame's device wakes the thread.
    if (frame->fence != 0 && device_passed(frame->device, frame->fence) != DEVICE_DONE) return false;
    if (lane->sent == 0) frame_align(frame);
    size_t begin = frame_head_bytes(frame), end = begin + frame->length, total = end + wire_padding(end);
    bool apart = lane->index > 0 && frame->op != NULL; // else the caller needs the lock, or the op may end meanwhile
    while (lane->sent < total) {
        struct iovec parts[3];
        int count = 0;
        if (lane->sent < begin) parts[count++] = (struct iovec){frame->head + lane->sent, begin - lane->sent};
        size_t skip = lane->sent > begin ? lane->sent - begin : 0;
        if (frame->length > skip)
            parts[count++] = (struct iovec){(void *)(frame->payload + skip), frame->length - skip};
        if (end < total) parts[count++] = (struct iovec){zeros, lane->sent < end ? total - end : total - lane->sent};
        if (apart) turn_leave(lane->engine);
        ptrdiff_t sent = transport_sendv(lane->stream, parts, count);
        if (apart) turn_take(lane->engine);
        if (lane->broken) return false;
        if (sent < 0) {
            // A broken connection shows on the receiving side too, where the thread deals with it.
            lane->writable = false;
            return false;
        }
        lane->sent += (size_t)sent;
        lane->silence.sent += (size_t)sent;
        lane->silence.spoke = true;
    }
    lane->sent = 0;
    return true;
}

// Sends what is queued for a direct link, as far as the kernel takes it.
static void flush(struct lane *lane) {
    assert_guarded(lane);
    while (lane->writable) {
        if (lane->sending == NULL) lane->sending = frame_pop(&lane->queue);
        // A frame of a large op or of the service ends with work for the thread, which is at it already.
        if (lane->sending == NULL || lane->sending->op != NULL || lane->sending->service || !send_frame(lane)) return;
        frame_free(lane->engine, lane->sending);
        lane->sending = NULL;
    }
}

void lane_push(struct lane *lane, struct frame *frame) {
    assert_guarded(lane);
    frame_push(&lane->queue, frame);
}

bool neighbour_signal(struct engine *engine, struct neighbour *peer, uint16_t type, const struct wire_op *head,
                      struct block *payload) {
    engine_assert_locked(engine);
    struct lane *lane = peer->lanes[0];
    if (lane == NULL) return false;
    struct frame *frame = frame_new(engine, type, head, payload == NULL ? 0 : payload->length);
    if (frame == NULL) return false;
    if (payload != NULL) {
        payload->references++;
        frame->block = payload;
        frame->payload = payload->bytes;
    }
    lane_push(lane, frame);
    flush(lane);
    return true;
}

// Whether nothing of the frame at hand was sent, because its device has yet to give its bytes.
static bool waits_for_device(const struct lane *lane) {
    const struct frame *frame = lane->sending;
    return frame != NULL && frame->fence != 0 && lane->sent == 0 &&
           device_passed(frame->device, frame->fence) == DEVICE_BUSY;
}

// Resumes with the frame that a heartbeat has overtaken, before the newer frames of the operations.
static void resume(struct lane *lane) {
    if (lane->sending == NULL && lane->queue.first != NULL && lane->queue.first->fence != 0)
        lane->sending = frame_pop(&lane->queue);
}

// Sends at most one frame that the thread has to follow up. The bytes of the finished frame, 0: none, the lane is
// blocked or has no work.
static size_t lane_write(struct lane *lane) {
    struct engine *engine = lane->engine;
    bool direct = lane->index == 0;
    if (direct) engine_lock(engine);
    if (direct) flush(lane);
    resume(lane);
    bool writable = lane->writable, free = lane->sending == NULL, idle = free && lane->queue.first == NULL;
    if (direct) engine_unlock(engine);

    if (!writable || (idle && must_wait(lane))) return 0;
    struct frame *work = free ? route.next(engine, lane, idle) : NULL;
    if (idle && work == NULL) return 0;
    // Before it is sent, or all lanes would begin a frame with the same room.
    if (work != NULL && !direct) bucket_take(&lane->peer->bucket, FRAME_HEAD_BYTES + work->length);

    if (direct) engine_lock(engine);
    if (lane->sending != NULL && work != NULL)
        lane_push(lane, work);
    else if (lane->sending == NULL)
        lane->sending = work != NULL ? work : frame_pop(&lane->queue);
    struct frame *finished = lane->writable && lane->sending != NULL && send_frame(lane) ? lane->sending : NULL;
    if (finished != NULL) lane->sending = NULL;
    if (direct) engine_unlock(engine);
    // A neighbour that has come near needs no limits any more.
    if (lane->pace.far || lane->peer->pace.in_use > 0 || lane->peer->bucket.rate > 0) tune(lane);
    if (finished == NULL) return 0;
    // The kernel would take up to 64 KiB more than it was told to, which is much for a slow connection.
    if (!direct && lane->pace.far && !transport_has_room(lane->stream)) lane->writable = false;

    size_t bytes = FRAME_HEAD_BYTES + finished->length + finished->copied;
    if (finished->fence != 0) device_shut(finished->device, finished->payload);
    if (finished->op != NULL) route.sent(engine, finished);
    engine_lock(engine);
    frame_free(engine, finished);
    engine_unlock(engine);
    return bytes;
}

bool lane_step(struct lane *lane) {
    bool more = false;
    if (lane->broken) return false; // in the midst of a parse, when the thread before this one hung
    if (lane->unparsed) parse(lane);
    if (!lane->broken && lane->readable && !lane->unparsed) more = lane_read(lane);
    // Heads of chunks in memory are small: one that waited for the next step would leave the neighbour without work.
    size_t sent = 0, burst = 0;
    while (!lane->broken && burst < PACE_TURN_BYTES && (sent = lane_write(lane)) > 0) burst += sent;
    if (lane->broken) return false;
    return more || sent > 0 || lane->unparsed;
}

// ---- dropping ----
static void drop_sending(struct lane *lane) {
    struct frame *frame = lane->sending;
    if (lane->sent > 0) { // what was begun must be finished
        frame->op = NULL;
        frame->service = false;
        frame->fence = 0;
        if (frame->payload != frame->place) frame->payload = zeros;
        return;
    }
    frame_free(lane->engine, frame);
    lane->sending = NULL;
}

// Frames of the service outlive epochs, all others outlive the service.
void lane_drop_frames(struct lane *lane, bool service) {
    engine_assert_locked(lane->engine);
    struct incoming *in = &lane->in;
    if (service ? in->service : in->op != NULL) {
        in->op = NULL;
        in->service = false;
        in->to = NULL;
        block_put(lane->engine, in->block);
        in->block = NULL;
    }
    struct frame_queue all = lane->queue;
    lane->queue = (struct frame_queue){.last = &lane->queue.first};
    for (struct frame *frame; (frame = frame_pop(&all)) != NULL;) {
        if (frame_is_of(frame, service))
            frame_free(lane->engine, frame);
        else
            frame_push(&lane->queue, frame);
    }
    struct frame *sending = lane->sending;
    if (sending != NULL && frame_is_of(sending, service) && (service || sending->op != NULL)) drop_sending(lane);
}

void lane_note_events(struct lane *lane, uint32_t events) {
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->readable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->ending = true;
    if (events & EPOLLOUT) {
        engine_lock(lane->engine);
        lane->writable = true;
        engine_unlock(lane->engine);
    }
    lane_schedule(lane);
}

// ---- neighbours ----
struct peer_label neighbour_label(const struct neighbour *peer) { return peer_label(&peer->member.id, &peer->name); }

void neighbour_send(struct neighbour *peer, struct frame *frame) {
    struct lane *lane = peer->lanes[0];
    lane_push(lane, frame);
    flush(lane);
}

void neighbour_push(struct neighbour *peer, struct frame *frame) {
    lane_push(peer->lanes[0], frame);
    lane_schedule(peer->lanes[0]);
}

uint32_t neighbour_lanes_in_use(const struct neighbour *peer) {
    uint32_t count = 0;
    for (uint32_t i = 1; i < peer->lane_end; i++) {
        const struct lane *lane = peer->lanes[i];
        count += lane != NULL && lane_is_for_bulk(lane);
    }
    return count;
}

enum pace_reason neighbour_lanes_reason(const struct engine *engine, const struct neighbour *peer) {
    if (peer->lanes[1] == NULL) return PACE_DIRECT;
    if (engine->lanes->fixed) return PACE_FIXED;
    if (peer->throttle.rate > 0) return PACE_FULL;
    bool far = peer->lanes[0] != NULL && peer->lanes[0]->pace.far;
    return far && peer->pace.in_use == 0 ? PACE_BEGINS : peer->pace.reason; // no bulk has gone there
}

double neighbour_speed(struct neighbour *peer) {
    int64_t now_ns = platform_now_ns();
    if (now_ns - peer->speed_ns < PACE_TICK_MS * MS_NS) return peer->speed;
    double sum = 0;
    for (uint32_t i = 0; i < peer->lane_end; i++) {
        struct lane *lane = peer->lanes[i];
        if (lane == NULL) continue;
        if (pace_is_due(&lane->pace, now_ns)) lane_look(lane, now_ns);
        sum += lane->pace.speed;
    }
    peer->speed = pace_mean(peer->speed, sum);
    peer->speed_ns = now_ns;
    return peer->speed;
}

struct lane *neighbour_lane(struct neighbour *peer, uint32_t index) {
    if (index <= WIRE_MAX_LANES && peer->lanes[index] != NULL) return peer->lanes[index];
    uint32_t lanes = 0;
    while (lanes < WIRE_MAX_LANES && peer->lanes[lanes + 1] != NULL) lanes++;
    return lanes == 0 ? peer->lanes[0] : peer->lanes[1 + (index - 1) % lanes];
}

// ---- silence ----
bool lane_is_quiet(const struct lane *lane) {
    assert_guarded(lane);
    return lane->sending == NULL ? lane->queue.first == NULL : waits_for_device(lane);
}

void lane_beat(struct lane *lane) {
    assert_guarded(lane);
    struct engine *engine = lane->engine;
    struct wire_op head = {.offset = (uint64_t)(platform_now_ns() / US_NS), .extra = engine->running.first != NULL};
    struct frame *beat = frame_new(engine, WIRE_LINK_HEARTBEAT, &head, 0);
    if (beat == NULL) return;
    if (waits_for_device(lane)) {
        frame_put_back(&lane->queue, lane->sending);
        lane->sending = beat;
    } else {
        lane_push(lane, beat);
    }
    lane_schedule(lane);
}

static void say_something(struct lane *lane) {
    assert_guarded(lane);
    bool spoke = lane->silence.spoke;
    lane->silence.spoke = false;
    if (!spoke && lane_is_quiet(lane)) lane_beat(lane);
}

// Returns true if the direct link is heard: the peer lives. With heavy packet loss, one connection alone may be silent
// for long, because its timeout doubles with each retransmission.
static bool is_heard_beside(const struct lane *lane, int64_t limit_ns, int64_t now_ns) {
    const struct lane *direct = lane->peer->lanes[0];
    return lane->pace.far && lane->index > 0 && direct != NULL && !direct->broken &&
           now_ns - direct->silence.arrivals.at_ns < limit_ns;
}

void lane_check_silence(struct lane *lane, int64_t limit_ns, bool excused) {
    int64_t now_ns = platform_now_ns();
    engine_lock(lane->engine);
    lane->silence.patient = is_heard_beside(lane, limit_ns, now_ns);
    lane_look(lane, now_ns);
    if (excused) silence_excuse(&lane->silence, now_ns);
    bool ahead = lane->receiving == LANE_AHEAD;
    lane->silence.heard |= lane->readable && !ahead; // what is there and unread has been said
    const char *why = silence_check(&lane->silence, ahead, &lane->pace.gauge, now_ns, limit_ns);
    if (why == NULL) say_something(lane);
    engine_unlock(lane->engine);
    if (why == NULL) return;
    LOG(LOG_DEBUG, "link %u: %llu bytes are not acknowledged, %u segments were sent again", lane->index,
        (unsigned long long)lane->pace.gauge.queued, lane->pace.gauge.retransmits);
    lane_break(lane, ahead ? WIRE_LINK_BROKEN : WIRE_LINK_SILENT, why);
}
