// Framing on one connection: bytes in, frames out, and back.
//
// A frame is received in two parts: its head (header and struct wire_head, fixed size) into the lane's buffer, its
// payload straight to where it belongs: the caller's result, the lane's scratch, or a block. One system call takes the
// rest of a payload and the heads behind it. Frames of older epochs are discarded unseen; a frame of an epoch that this
// member has not entered yet stops the lane until it has.
#define _GNU_SOURCE

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/platform.h"
#include "device/device.h"
#include "link/connection.h"
#include "link/frame.h"

// Stands in for the rest of a frame whose op is over: the frame must be finished, its contents are discarded.
static uint8_t zeros[WIRE_MAX_DATA_BYTES];

// ---- the queue ----
static void push(struct frame_queue *queue, struct frame *frame) {
    frame->next = NULL;
    *queue->last = frame;
    queue->last = &frame->next;
}

// NULL: the queue is empty.
static struct frame *pop(struct frame_queue *queue) {
    struct frame *frame = queue->first;
    if (frame == NULL) return NULL;
    queue->first = frame->next;
    if (queue->first == NULL) queue->last = &queue->first;
    return frame;
}

// Puts the frame back as the next one to be popped.
static void put_back(struct frame_queue *queue, struct frame *frame) {
    frame->next = queue->first;
    if (queue->first == NULL) queue->last = &frame->next;
    queue->first = frame;
}

// ---- life ----
struct lane *lane_new(struct neighbour *peer, uint32_t index, struct transport *stream) {
    struct lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL) return NULL;
    lane->all = peer->all;
    lane->serial = ++peer->all->serial;
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
    while ((frame = pop(&lane->queue)) != NULL) frame_free(&lane->all->frames, frame);
    if (lane->sending != NULL) frame_free(&lane->all->frames, lane->sending);
    block_put(lane->all->frames.pool, lane->in.block);
    free(lane->scratch);
    free(lane->stage);
    transport_free(lane->stream);
    free(lane);
}

uint8_t *lane_scratch(struct lane *lane) {
    struct lanes *all = lane->all;
    lanes_assert_thread(all);
    lanes_assert_locked(all);
    if (lane->scratch == NULL && (lane->scratch = malloc(WIRE_MAX_DATA_BYTES)) == NULL)
        all->events->refused(all->context);
    return lane->scratch;
}

uint8_t *lane_stage(struct lane *lane) {
    lanes_assert_thread(lane->all);
    if (lane->stage == NULL) lane->stage = malloc(WIRE_MAX_DATA_BYTES);
    return lane->stage;
}

void lane_break(struct lane *lane, enum wire_link_reason reason, const char *why) {
    struct lanes *all = lane->all;
    lanes_assert_thread(all);
    if (lane->broken) return;
    lanes_lock(all); // a caller may be about to send
    lane->broken = true;
    lanes_unlock(all);
    transport_unwatch(lane->stream);
    lane->in.service = false;
    lane->in.to = NULL;
    all->events->state(all->context, lane->peer, NEIGHBOUR_LINK_DOWN);
    struct wire_id id = lane->peer->id;
    lanes_lock(all);
    struct peer_label label = neighbour_label(lane->peer);
    bool current = lane->peer->lanes[lane->index] == lane;
    if (current) lane->peer->lanes[lane->index] = NULL;
    // Each of them is reported, also those of candidates: the control side keeps track of what has to be made again.
    bool report = current && !lane->retired;
    lane->retired = true;
    if (lane->worker != NULL) all->events->wake(all->context); // it frees the lane
    lanes_unlock(all);
    LOG(LOG_DEBUG, "link %u to %s broke: %s", lane->index, label.chars, why);
    if (report) all->events->lost(all->context, &id, lane->index, lane->serial, reason);
}

// ---- receiving ----
enum progress {
    PARSE_ON,
    PARSE_STARVES, // it needs bytes that have not come, or has to wait
    PARSE_YIELDS,  // the rest can wait for the other lanes
    PARSE_FAILS,   // malformed
};

// Returns whether the frame belongs to an epoch that is over. The owner does not see such a frame, even if its head
// came before the epoch ended. The turn: no epoch begins meanwhile.
static bool is_stale(const struct incoming *in) {
    return frame_has_epoch(in->header.type) && in->header.epoch < in->lane->all->frames.now.epoch;
}

// HEAD -> PAYLOAD, or HEAD -> AHEAD.
static enum progress take_head(struct lane *lane) {
    struct lanes *all = lane->all;
    struct incoming *in = &lane->in;
    if (lane->buffered - lane->consumed < lane->skip + FRAME_HEAD_BYTES) return PARSE_STARVES;
    lane->consumed += lane->skip;
    lane->skip = 0;
    const uint8_t *at = lane->buffer + lane->consumed;
    if (!wire_header_decode(at, &in->header) || in->header.length < WIRE_HEAD_BYTES ||
        in->header.length > WIRE_HEAD_BYTES + WIRE_MAX_DATA_BYTES ||
        !wire_head_decode(at + WIRE_HEADER_BYTES, in->header.type, &in->head) ||
        in->header.length - WIRE_HEAD_BYTES < (uint32_t)in->head.lead + in->head.padding)
        return PARSE_FAILS;
    if (lane->buffered - lane->consumed < FRAME_HEAD_BYTES + (size_t)in->head.lead) return PARSE_STARVES;
    lanes_lock(all);
    struct wire_header now = all->frames.now;
    bool has_epoch = frame_has_epoch(in->header.type), ahead = has_epoch && in->header.epoch > now.epoch, good = true;
    bool stale = is_stale(in);
    if (ahead) {
        lane->receiving = LANE_AHEAD;
    } else if (has_epoch && in->header.run != now.run) {
        good = false;
    } else {
        in->length = in->header.length - WIRE_HEAD_BYTES - in->head.lead - in->head.padding;
        in->got = 0;
        in->op = NULL;
        in->to = NULL;
        in->service = in->stands_for_chunk = false;
        good = in->header.type == WIRE_LINK_HEARTBEAT ? in->length == 0 : stale || all->events->head(all->context, in);
        lane->consumed += FRAME_HEAD_BYTES + in->head.lead;
        lane->receiving = LANE_PAYLOAD;
    }
    lanes_unlock(all);
    return !good ? PARSE_FAILS : ahead ? PARSE_STARVES : PARSE_ON;
}

static void take_heartbeat(const struct incoming *in) {
    const struct wire_link_heartbeat *beat = &in->head.link_heartbeat;
    // On the other lanes it may have waited behind bulk.
    bool loaded = beat->loaded == 1 && in->lane->index == 0;
    stats_beat(&in->from->stats, beat->clock_us, loaded, platform_now_ns());
}

// Forgets where the payload of the frame at hand was to go.
static void discard(struct lane *lane) {
    struct incoming *in = &lane->in;
    lanes_assert_locked(lane->all);
    in->op = NULL;
    in->service = false;
    in->to = NULL;
    block_put(lane->all->frames.pool, in->block);
    in->block = NULL;
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
    if (in->header.type == WIRE_LINK_HEARTBEAT)
        take_heartbeat(in);
    else if (!is_stale(in) && !lane->all->events->frame(lane->all->context, in))
        return PARSE_FAILS;
    // The frame stands for a whole chunk: the other lanes have their turn, and the neighbour gets what can be
    // forwarded.
    bool another = unread - take >= lane->skip + FRAME_HEAD_BYTES;
    return in->stands_for_chunk && another ? PARSE_YIELDS : PARSE_ON;
}

// AHEAD -> HEAD; a frame of the epoch before, whose payload is coming, is discarded.
void lane_enter_epoch(struct lane *lane) {
    if (lane->receiving == LANE_PAYLOAD && is_stale(&lane->in)) discard(lane);
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
        const struct wire_head *head = &lane->in.head;
        if (lane->in.length > LANE_BUFFER_BYTES) room = FRAME_HEAD_BYTES + (size_t)head->padding + head->lead;
    }
    parts[count++] = (struct iovec){lane->buffer + lane->buffered, room};
    wanted += room;
    // A head comes into the lane's own buffer, and an op stays until its bytes are here.
    bool apart = lane->receiving == LANE_HEAD || (count == 2 && lane->in.op != NULL);
    if (apart) turn_leave(lane->all->workers);
    ptrdiff_t got = transport_recvv(lane->stream, parts, count);
    if (apart) turn_take(lane->all->workers);
    if (lane->broken) return false;
    if (got == -EAGAIN) return lane->readable = lane->stream->buffered;
    if (got <= 0) {
        lane_break(lane, WIRE_LINK_BROKEN, got == 0 ? "closed by the other side" : transport_error((int)got));
        return false;
    }
    lane->detector.heard = true;
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

// ---- sending ----
// Sends what is left of the frame at hand. True when it is finished.
static bool send_frame(struct lane *lane) {
    struct frame *frame = lane->sending;
    // The frame's device wakes the thread.
    if (frame->fence != 0 && device_passed(frame->device, frame->fence) != DEVICE_DONE) return false;
    if (lane->sent == 0) frame_encode(frame, lane->head);
    size_t begin = frame_head_bytes(frame), end = begin + frame->length, total = end + wire_padding(end);
    bool apart = lane->index > 0 && frame->op != NULL; // else the caller needs the lock, or the op may end meanwhile
    while (lane->sent < total) {
        struct iovec parts[3];
        int count = 0;
        if (lane->sent < begin) parts[count++] = (struct iovec){lane->head + lane->sent, begin - lane->sent};
        size_t skip = lane->sent > begin ? lane->sent - begin : 0;
        if (frame->length > skip)
            parts[count++] = (struct iovec){(void *)(frame->payload + skip), frame->length - skip};
        if (end < total) parts[count++] = (struct iovec){zeros, lane->sent < end ? total - end : total - lane->sent};
        if (apart) turn_leave(lane->all->workers);
        ptrdiff_t sent = transport_sendv(lane->stream, parts, count);
        if (apart) turn_take(lane->all->workers);
        if (lane->broken) return false;
        if (sent < 0) {
            // A broken connection shows on the receiving side too, where the thread deals with it.
            lane->writable = false;
            return false;
        }
        lane->sent += (size_t)sent;
        lane->detector.sent += (size_t)sent;
        lane->detector.spoke = true;
    }
    lane->sent = 0;
    return true;
}

// Sends what is queued for a direct link, as far as the kernel takes it.
static void flush(struct lane *lane) {
    lane_assert_guarded(lane);
    while (lane->writable) {
        if (lane->sending == NULL) lane->sending = pop(&lane->queue);
        // A frame of a large op or of the service ends with work for the thread, which is at it already.
        if (lane->sending == NULL || lane->sending->op != NULL || lane->sending->service || !send_frame(lane)) return;
        frame_free(&lane->all->frames, lane->sending);
        lane->sending = NULL;
    }
}

void lane_push(struct lane *lane, struct frame *frame) {
    lane_assert_guarded(lane);
    push(&lane->queue, frame);
}

void lane_send(struct lane *lane, struct frame *frame) {
    lane_push(lane, frame);
    flush(lane);
}

// Resumes with the frame that a heartbeat has overtaken, before the newer frames of the operations.
static void resume(struct lane *lane) {
    if (lane->sending == NULL && lane->queue.first != NULL && lane->queue.first->fence != 0)
        lane->sending = pop(&lane->queue);
}

// Returns true if the lane has to wait until its neighbour's bucket fills. Frames that are queued already do not wait.
static bool must_wait(const struct lane *lane) {
    struct throttle_bucket *bucket = &lane->peer->rate.bucket;
    if (lane->index == 0 || throttle_has_room(bucket, platform_now_ns())) return false;
    if (lane->worker != NULL) worker_wake(lane->all->workers, NULL); // the owner's thread looks when it has filled
    return true;
}

// Sends at most one frame that the thread has to follow up. The bytes of the finished frame, 0: none, the lane is
// blocked or has no work.
static size_t lane_write(struct lane *lane) {
    struct lanes *all = lane->all;
    bool direct = lane->index == 0;
    if (direct) lanes_lock(all);
    if (direct) flush(lane);
    resume(lane);
    bool writable = lane->writable, free = lane->sending == NULL, idle = free && lane->queue.first == NULL;
    if (direct) lanes_unlock(all);

    if (!writable || (idle && must_wait(lane))) return 0;
    struct frame *work = free ? all->events->want(all->context, lane, idle) : NULL;
    if (idle && work == NULL) return 0;
    // Before it is sent, or all lanes would begin a frame with the same room.
    if (work != NULL && !direct) throttle_take(&lane->peer->rate.bucket, FRAME_HEAD_BYTES + work->length);

    if (direct) lanes_lock(all);
    if (lane->sending != NULL && work != NULL)
        lane_push(lane, work);
    else if (lane->sending == NULL)
        lane->sending = work != NULL ? work : pop(&lane->queue);
    lane->carried |= lane->sending != NULL && (lane->sending->op != NULL || lane->sending->service);
    struct frame *finished = lane->writable && lane->sending != NULL && send_frame(lane) ? lane->sending : NULL;
    if (finished != NULL) lane->sending = NULL;
    if (direct) lanes_unlock(all);
    // A neighbour that has come near needs no limits any more.
    if (lane->pace.far || neighbour_is_limited(lane->peer)) neighbour_tune(lane);
    if (finished == NULL) return 0;
    // The kernel would take up to 64 KiB more than it was told to, which is much for a slow connection.
    if (!direct && lane->pace.far && !transport_has_room(lane->stream)) lane->writable = false;

    size_t bytes = FRAME_HEAD_BYTES + finished->length + finished->copied;
    if (finished->fence != 0) device_unmap(finished->device, finished->payload);
    if (finished->op != NULL) all->events->sent(all->context, finished);
    lanes_lock(all);
    frame_free(&all->frames, finished);
    lanes_unlock(all);
    return bytes;
}

// Does what can be done now. False: nothing is left to do until an event.
static bool step(struct lane *lane) {
    lanes_assert_thread(lane->all);
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

bool lane_step_all(struct lane_list *ready) {
    for (size_t i = 0; i < ready->count;) {
        struct lane *lane = ready->list[i];
        if (step(lane)) {
            i++;
        } else {
            lane->ready = false;
            ready->list[i] = ready->list[--ready->count];
        }
    }
    return ready->count > 0;
}

// ---- heartbeats ----
// Returns whether nothing of the frame at hand was sent, because its device has yet to give its bytes.
static bool waits_for_device(const struct lane *lane) {
    const struct frame *frame = lane->sending;
    return frame != NULL && frame->fence != 0 && lane->sent == 0 &&
           device_passed(frame->device, frame->fence) == DEVICE_BUSY;
}

bool lane_is_quiet(const struct lane *lane) {
    lane_assert_guarded(lane);
    return lane->sending == NULL ? lane->queue.first == NULL : waits_for_device(lane);
}

void lane_beat(struct lane *lane) {
    lane_assert_guarded(lane);
    struct lanes *all = lane->all;
    struct wire_head head = {
        .link_heartbeat = {.clock_us = (uint64_t)(platform_now_ns() / US_NS), .loaded = all->busy}};
    struct frame *beat = frame_new(&all->frames, WIRE_LINK_HEARTBEAT, &head, 0);
    if (beat == NULL) return;
    if (waits_for_device(lane)) {
        put_back(&lane->queue, lane->sending);
        lane->sending = beat;
    } else {
        lane_push(lane, beat);
    }
    lane_schedule(lane);
}

// ---- dropping ----
static void drop_sending(struct lane *lane) {
    struct frame *frame = lane->sending;
    if (lane->sent > 0) { // what was begun must be finished
        frame->op = NULL;
        frame->service = false;
        frame->fence = 0;
        if (frame->payload != frame->note) frame->payload = zeros;
        return;
    }
    frame_free(&lane->all->frames, frame);
    lane->sending = NULL;
}

// Frames of the service outlive epochs, all others outlive the service.
void lane_drop_frames(struct lane *lane, bool service) {
    lanes_assert_locked(lane->all);
    const struct incoming *in = &lane->in;
    if (service ? in->service : in->op != NULL) discard(lane);
    struct frame_queue all = lane->queue;
    lane->queue = (struct frame_queue){.last = &lane->queue.first};
    for (struct frame *frame; (frame = pop(&all)) != NULL;) {
        if (frame_is_of(frame, service))
            frame_free(&lane->all->frames, frame);
        else
            push(&lane->queue, frame);
    }
    struct frame *sending = lane->sending;
    if (sending != NULL && frame_is_of(sending, service) && (service || sending->op != NULL)) drop_sending(lane);
}

void lane_note_events(struct lane *lane, uint32_t events) {
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->readable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) lane->ending = true;
    if (events & EPOLLOUT) {
        lanes_lock(lane->all);
        lane->writable = true;
        lanes_unlock(lane->all);
    }
    lane_schedule(lane);
}
