// Framing on one connection: bytes in, frames out, and back.
//
// A frame is received in two parts: its head (header and struct wire_op, fixed size) into the lane's buffer, its
// payload straight to where it belongs: the caller's result, the lane's scratch, or a block. One system call takes the
// rest of a payload and the heads behind it. Frames of older epochs are discarded unseen; a frame of an epoch that this
// member has not entered yet stops the lane until it has.
#define _GNU_SOURCE
#include "data/lane_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/platform.h"
#include "data/callbacks.h"
#include "data/pool.h"
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
    if (lane->scratch == NULL && (lane->scratch = malloc(WIRE_MAX_DATA_BYTES)) == NULL) engine_fail(lane->engine);
    return lane->scratch;
}

uint8_t *lane_stage(struct lane *lane) {
    if (lane->stage == NULL) lane->stage = malloc(WIRE_MAX_DATA_BYTES);
    return lane->stage;
}

struct neighbour *lane_peer(const struct lane *lane) { return lane->peer; }

uint32_t lane_index(const struct lane *lane) { return lane->index; }

bool lane_is_for_bulk(const struct lane *lane) { return lane->index != 0 || lane->peer->lanes[1] == NULL; }

void lane_heat(struct lane *lane) {
    struct lanes *all = engine_lanes(lane->engine);
    if (lane->hot || lane->broken || !lane->polled) return;
    lane->hot = true;
    all->hot[all->hot_count++] = lane;
}

void neighbour_heat(struct neighbour *peer) {
    for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) {
        if (peer->lanes[i] != NULL)
            lane_heat(peer->lanes[i]);
        else if (i > 0)
            break;
    }
}

void lane_break(struct lane *lane, const char *why, bool silent) {
    struct engine *engine = lane->engine;
    if (lane->broken) return;
    lane->broken = true;
    transport_unwatch(lane->stream);
    lane->in.service = false;
    lane->in.to = NULL;
    engine_lanes(engine)->route->changed(engine, lane->peer, NEIGHBOUR_LINK_DOWN);
    struct wire_id id = lane->peer->member.id;
    engine_lock(engine);
    bool current = lane->peer->lanes[lane->index] == lane;
    if (current) lane->peer->lanes[lane->index] = NULL;
    // Each of them is told, also those of candidates: the control side keeps the books of what has to be made again.
    bool report = current && !lane->retired && !engine_is_dead(engine);
    lane->retired = true;
    engine_unlock(engine);
    LOG(LOG_DEBUG, "link %u to peer %02x%02x%02x%02x broke: %s", lane->index, id.bytes[0], id.bytes[1], id.bytes[2],
        id.bytes[3], why);
    if (report) engine_owner(engine)->link_down(engine_owner(engine)->context, &id, lane->index, silent);
}

// ---- receiving ----
static bool read_head(struct lane *lane) {
    struct engine *engine = lane->engine;
    const uint8_t *at = lane->buffer + lane->consumed;
    if (!wire_header_decode(at, &lane->in.header) || lane->in.header.length < WIRE_OP_BYTES ||
        lane->in.header.length > WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES ||
        !wire_op_decode(at + WIRE_HEADER_BYTES, &lane->in.head) ||
        lane->in.header.length - WIRE_OP_BYTES < lane->in.head.padding)
        return false;
    lane->in.length = lane->in.header.length - WIRE_OP_BYTES - lane->in.head.padding;
    engine_lock(engine);
    struct wire_header now = engine_header(engine);
    bool good = true, ageless = frame_is_ageless(lane->in.header.type);
    if (!ageless && lane->in.header.epoch > now.epoch) {
        lane->receiving = LANE_PARKED;
    } else if (!ageless && lane->in.header.run != now.run) {
        good = false;
    } else {
        lane->in.op = NULL;
        lane->in.to = NULL;
        lane->in.service = false;
        good = engine_lanes(engine)->route->place(engine, &lane->in);
        lane->consumed += FRAME_HEAD_BYTES;
        lane->receiving = LANE_PAYLOAD;
        lane->in.got = 0;
    }
    engine_unlock(engine);
    return good;
}

// Works through the lane's buffer. False: malformed.
static bool parse(struct lane *lane) {
    for (;;) {
        size_t unread = lane->buffered - lane->consumed;
        if (lane->receiving == LANE_HEAD) {
            if (unread < lane->skip + FRAME_HEAD_BYTES) break;
            lane->consumed += lane->skip;
            lane->skip = 0;
            if (!read_head(lane)) return false;
        } else if (lane->receiving == LANE_PAYLOAD) {
            size_t rest = lane->in.length - lane->in.got, take = rest < unread ? rest : unread;
            if (lane->in.to != NULL) memcpy(lane->in.to + lane->in.got, lane->buffer + lane->consumed, take);
            lane->consumed += take;
            lane->in.got += take;
            if (lane->in.got < lane->in.length) break;
            lane->receiving = LANE_HEAD;
            lane->skip = lane->in.head.padding;
            if (!engine_lanes(lane->engine)->route->arrived(lane->engine, &lane->in)) return false;
            if (lane->in.header.type == WIRE_CHUNK_AT &&
                lane->buffered - lane->consumed >= lane->skip + FRAME_HEAD_BYTES) {
                // Such a head stands for a whole chunk: let the other lanes have their turn, and the neighbour what can
                // be forwarded.
                lane->resume = true;
                return true;
            }
        } else {
            return true;
        }
    }
    memmove(lane->buffer, lane->buffer + lane->consumed, lane->buffered - lane->consumed);
    lane->buffered -= lane->consumed;
    lane->consumed = 0;
    return true;
}

static bool lane_read(struct lane *lane) {
    if (lane->receiving == LANE_PARKED) return false;
    // A payload is only waited for with an empty buffer: parse() has given it everything that was there.
    struct iovec parts[2];
    int count = 0;
    size_t wanted = 0;
    size_t room = sizeof lane->buffer - lane->buffered;
    if (lane->receiving == LANE_PAYLOAD && lane->in.to != NULL) {
        size_t rest = lane->in.length - lane->in.got;
        parts[count++] = (struct iovec){lane->in.to + lane->in.got, rest};
        wanted += rest;
        // Behind a large payload comes another: its head alone, so that its payload too goes where it belongs without a
        // copy.
        if (lane->in.length > LANE_BUFFER_BYTES) room = lane->in.head.padding + FRAME_HEAD_BYTES;
    }
    parts[count++] = (struct iovec){lane->buffer + lane->buffered, room};
    wanted += room;
    ptrdiff_t got = transport_recvv(lane->stream, parts, count);
    if (got == -EAGAIN) return lane->readable = lane->stream->buffered;
    if (got <= 0) {
        lane_break(lane, got == 0 ? "closed by the other side" : strerror((int)-got), false);
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
    if (!parse(lane)) {
        lane_break(lane, "malformed frame", false);
        return false;
    }
    return lane->readable;
}

// ---- sending ----
// Sends what is left of the frame at hand. True when it is finished.
static bool send_frame(struct lane *lane) {
    struct frame *frame = lane->sending;
    // Its device wakes the thread.
    if (frame->fence != 0 && device_passed(frame->op->args.queue, frame->fence) != DEVICE_DONE) return false;
    size_t end = FRAME_HEAD_BYTES + frame->length, total = end + wire_padding(frame->length);
    while (lane->sent < total) {
        struct iovec parts[3];
        int count = 0;
        if (lane->sent < FRAME_HEAD_BYTES)
            parts[count++] = (struct iovec){frame->head + lane->sent, FRAME_HEAD_BYTES - lane->sent};
        size_t skip = lane->sent > FRAME_HEAD_BYTES ? lane->sent - FRAME_HEAD_BYTES : 0;
        if (frame->length > skip)
            parts[count++] = (struct iovec){(void *)(frame->payload + skip), frame->length - skip};
        if (end < total) parts[count++] = (struct iovec){zeros, lane->sent < end ? total - end : total - lane->sent};
        ptrdiff_t sent = transport_sendv(lane->stream, parts, count);
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

void lane_flush(struct lane *lane) {
    while (lane->writable) {
        if (lane->sending == NULL) lane->sending = frame_pop(&lane->queue);
        // A frame of a large op or of the service ends with work for the thread, which is at it already.
        if (lane->sending == NULL || lane->sending->op != NULL || lane->sending->service || !send_frame(lane)) return;
        frame_free(lane->engine, lane->sending);
        lane->sending = NULL;
    }
}

void lane_push(struct lane *lane, struct frame *frame) { frame_push(&lane->queue, frame); }

bool neighbour_signal(struct engine *engine, struct neighbour *peer, uint16_t type, const struct wire_op *head,
                      struct block *payload) {
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
    lane_flush(lane);
    return true;
}

// Sends at most one frame that the thread has to follow up. The bytes of the finished frame, 0: none, the lane is
// blocked or has no work.
static size_t lane_write(struct lane *lane) {
    struct engine *engine = lane->engine;
    bool direct = lane->index == 0;
    if (direct) engine_lock(engine);
    if (direct) lane_flush(lane);
    bool writable = lane->writable, free = lane->sending == NULL, idle = free && lane->queue.first == NULL;
    if (direct) engine_unlock(engine);

    if (!writable) return 0;
    struct frame *work = free ? engine_lanes(engine)->route->next(engine, lane, idle) : NULL;
    if (idle && work == NULL) return 0;

    if (direct) engine_lock(engine);
    if (lane->sending != NULL && work != NULL)
        lane_push(lane, work);
    else if (lane->sending == NULL)
        lane->sending = work != NULL ? work : frame_pop(&lane->queue);
    struct frame *finished = lane->writable && lane->sending != NULL && send_frame(lane) ? lane->sending : NULL;
    if (finished != NULL) lane->sending = NULL;
    if (direct) engine_unlock(engine);
    if (finished == NULL) return 0;

    size_t bytes = FRAME_HEAD_BYTES + finished->length;
    if (finished->op != NULL) engine_lanes(engine)->route->sent(engine, finished);
    engine_lock(engine);
    frame_free(engine, finished);
    engine_unlock(engine);
    return bytes;
}

bool lane_step(struct lane *lane) {
    bool more = false;
    if (lane->resume) {
        lane->resume = false;
        if (!parse(lane)) lane_break(lane, "malformed frame", false);
    }
    if (!lane->broken && lane->readable && !lane->resume) more |= lane_read(lane);
    // Heads of chunks in memory are small: one that waited for the next step would leave the neighbour without work.
    size_t sent = 0, burst = 0;
    while (!lane->broken && burst < PACE_TURN_BYTES && (sent = lane_write(lane)) > 0) burst += sent;
    if (lane->broken) return false;
    return more || sent > 0 || lane->resume;
}

// Frames of the service outlive epochs, all others outlive the service.
static void drop_frames(struct lane *lane, bool service) {
    struct frame_queue all = lane->queue;
    if (all.first == NULL) return;
    lane->queue = (struct frame_queue){.last = &lane->queue.first};
    for (struct frame *frame; (frame = frame_pop(&all)) != NULL;) {
        if (frame->service == service)
            frame_free(lane->engine, frame);
        else
            frame_push(&lane->queue, frame);
    }
}

static void drop_sending(struct lane *lane) {
    struct frame *frame = lane->sending;
    if (lane->sent > 0) { // what was begun must be finished
        frame->op = NULL;
        frame->service = false;
        frame->fence = 0;
        frame->payload = zeros;
        return;
    }
    frame_free(lane->engine, frame);
    lane->sending = NULL;
}

void lane_let_go(struct lane *lane) {
    struct engine *engine = lane->engine;
    if (lane->in.op != NULL) {
        lane->in.op = NULL;
        lane->in.to = NULL;
        block_put(engine, lane->in.block);
        lane->in.block = NULL;
    }
    if (lane->receiving == LANE_PARKED) {
        lane->receiving = LANE_HEAD;
        lane->resume = true;
    }
    drop_frames(lane, false);
    if (lane->sending != NULL && lane->sending->op != NULL) drop_sending(lane);
}

void lane_let_go_service(struct lane *lane) {
    if (lane->in.service) {
        lane->in.service = false;
        lane->in.to = NULL;
    }
    drop_frames(lane, true);
    if (lane->sending != NULL && lane->sending->service) drop_sending(lane);
}

void lane_note_events(struct lane *lane, uint32_t events) {
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->readable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->ending = true;
    if (events & EPOLLOUT) {
        engine_lock(lane->engine);
        lane->writable = true;
        engine_unlock(lane->engine);
    }
    lane_heat(lane);
}

// ---- neighbours ----
struct neighbour *neighbour_of(struct op_member *member) { return (struct neighbour *)(void *)member; }

const char *neighbour_name(char out[NEIGHBOUR_NAME_BYTES], const struct neighbour *peer) {
    const uint8_t *id = peer->member.id.bytes;
    snprintf(out, NEIGHBOUR_NAME_BYTES, "peer %02x%02x%02x%02x", id[0], id[1], id[2], id[3]);
    return out;
}

uint32_t neighbour_rank(const struct neighbour *peer) { return peer->member.rank; }

struct op_member *neighbour_op_member(struct neighbour *peer) { return &peer->member; }

uint64_t *neighbour_eager_bytes(struct neighbour *peer) { return &peer->eager_bytes; }

bool neighbour_send(struct neighbour *peer, struct frame *frame) {
    struct lane *lane = peer->lanes[0];
    lane_push(lane, frame);
    lane_flush(lane);
    return lane->sending != frame && lane->queue.last != &frame->next;
}

void neighbour_hang_up(struct neighbour *peer) { transport_hang_up(peer->lanes[0]->stream); }

bool neighbour_has_link(const struct neighbour *peer) { return peer->lanes[0] != NULL; }

void neighbour_push(struct neighbour *peer, struct frame *frame) {
    lane_push(peer->lanes[0], frame);
    lane_heat(peer->lanes[0]);
}

static void look(struct lane *lane, int64_t now_ns) {
    struct gauge gauge = gauge_read(lane->stream->fd);
    pace_note(&lane->pace, &gauge, now_ns);
}

double neighbour_speed(struct neighbour *peer) {
    int64_t now_ns = platform_now_ns();
    if (now_ns - peer->speed_ns < PACE_TICK_MS * MS_NS) return peer->speed;
    double sum = 0;
    for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) {
        struct lane *lane = peer->lanes[i];
        if (lane == NULL) continue;
        if (pace_is_due(&lane->pace, now_ns)) look(lane, now_ns);
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
// Direct links: lock held.
static void say_something(struct lane *lane) {
    bool spoke = lane->silence.spoke;
    lane->silence.spoke = false;
    if (spoke || lane->sending != NULL || lane->queue.first != NULL) return;
    struct wire_op nothing = {0};
    struct frame *frame = frame_new(lane->engine, WIRE_LINK_HEARTBEAT, &nothing, 0);
    if (frame == NULL) return;
    lane_push(lane, frame);
    lane_heat(lane);
}

void lane_check_silence(struct lane *lane, int64_t limit_ns, bool excused) {
    int64_t now_ns = platform_now_ns();
    engine_lock(lane->engine);
    look(lane, now_ns);
    if (excused) silence_excuse(&lane->silence, now_ns);
    bool parked = lane->receiving == LANE_PARKED;
    const char *why = silence_check(&lane->silence, parked, &lane->pace.gauge, now_ns, limit_ns);
    if (why == NULL) say_something(lane);
    engine_unlock(lane->engine);
    if (why == NULL) return;
    LOG(LOG_DEBUG, "link %u: %llu bytes are not acknowledged, %u segments were sent again", lane->index,
        (unsigned long long)lane->pace.gauge.queued, lane->pace.gauge.retransmits);
    lane_break(lane, why, !parked);
}
