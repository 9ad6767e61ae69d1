// Framing on one connection: bytes in, frames out, and back.
//
// A frame is received in two parts: its head (header and struct wire_op, fixed size) into the lane's buffer, its
// payload straight to where it belongs: the caller's result, the lane's scratch, or a block. One system call takes the
// rest of a payload and the heads behind it. Frames of older epochs are discarded unseen; a frame of an epoch that this
// member has not entered yet stops the lane until it has.
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/log.h"
#include "net/socket.h"
#include "data/engine_private.h"

// Stands in for the rest of a frame whose op is over: the frame must be finished, its contents are discarded.
static uint8_t zeros[WIRE_MAX_DATA_BYTES];

struct lane *lane_new(struct engine *engine, struct peer *peer, uint32_t index, int fd) {
    struct lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL) return NULL;
    lane->engine = engine;
    lane->peer = peer;
    lane->index = index;
    lane->fd = fd;
    lane->readable = lane->writable = true;
    lane->queue.last = &lane->queue.first;
    return lane;
}

void lane_free(struct lane *lane) {
    struct frame *frame;
    while ((frame = frame_pop(&lane->queue)) != NULL) frame_free(lane->engine, frame);
    if (lane->sending != NULL) frame_free(lane->engine, lane->sending);
    block_put(lane->engine, lane->block);
    free(lane->scratch);
    free(lane->stage);
    socket_close(lane->fd);
    free(lane);
}

uint8_t *lane_scratch(struct lane *lane) {
    if (lane->scratch == NULL && (lane->scratch = malloc(WIRE_MAX_DATA_BYTES)) == NULL) engine_fail(lane->engine);
    return lane->scratch;
}

void lane_heat(struct lane *lane) {
    struct engine *engine = lane->engine;
    if (lane->hot || lane->broken || !lane->polled) return;
    lane->hot = true;
    engine->hot[engine->hot_count++] = lane;
}

void peer_heat(struct peer *peer) {
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
    epoll_ctl(engine->epoll, EPOLL_CTL_DEL, lane->fd, NULL);
    sync_lane_gone(lane);
    struct wire_id id = lane->peer->id;
    pthread_mutex_lock(&engine->lock);
    bool current = lane->peer->lanes[lane->index] == lane;
    if (current) lane->peer->lanes[lane->index] = NULL;
    // Each of them is told, also those of candidates: the control side keeps the books of what has to be made again.
    bool report = current && !lane->retired && !engine->dead;
    lane->retired = true;
    pthread_mutex_unlock(&engine->lock);
    LOG(LOG_DEBUG, "link %u to peer %02x%02x%02x%02x broke: %s", lane->index, id.bytes[0], id.bytes[1], id.bytes[2],
        id.bytes[3], why);
    if (report) engine->callbacks.link_down(engine->callbacks.context, &id, lane->index, silent);
}

// ---- receiving ----
static bool is_signal(uint16_t type) { return type == WIRE_READY || type == WIRE_POSTED || type == WIRE_GRANT; }

// Decides where the payload of the frame at hand goes. False: the frame is malformed.
static bool place_payload(struct lane *lane) {
    struct engine *engine = lane->engine;
    lane->op = NULL;
    lane->to = NULL;
    lane->sync = false;
    uint16_t type = lane->header.type;
    if (sync_is_frame(type)) return sync_place(lane);
    if (type == WIRE_LINK_HEARTBEAT) return lane->length == 0;
    if (lane->header.epoch < engine->epoch) return true;
    if (is_signal(type)) return lane->length == 0;
    if (type == WIRE_MEMORY) {
        lane->to = lane->place;
        return lane->length == MEMORY_OFFER_BYTES;
    }
    if (type == WIRE_SMALL || type == WIRE_SUPPLY || type == WIRE_ACK) {
        size_t limit = type == WIRE_ACK ? ACKS_MAX * ACK_NAME_BYTES : PLAN_SMALL_MAX;
        if (lane->length > limit) return false;
        lane->block = block_new(engine, lane->length);
        if (lane->block == NULL) return false;
        lane->to = lane->block->bytes;
        return true;
    }
    struct op *op = op_find_running(engine, &lane->head);
    if (op == NULL || op->phase != OP_RUNNING ||
        !wire_fingerprint_equal(&op->reduce.fingerprint, &lane->head.fingerprint))
        return true;
    if (type == WIRE_CHUNK) {
        if (op->path != PLAN_RING || !ring_receive(lane, op, lane->length)) return false;
        lane->to = lane->target;
    } else if (type == WIRE_CHUNK_AT) {
        if (op->path != PLAN_RING || lane->length != PLACE_BYTES || !lane->vouched ||
            !ring_receive(lane, op, lane->head.extra))
            return false;
        lane->to = lane->place;
    } else if (type == WIRE_CODES || type == WIRE_RESULT) {
        if (op->path != PLAN_SHARDED || !sharded_receive(lane, op, lane->length)) return false;
    } else {
        return false;
    }
    lane->op = op;
    return true;
}

// A whole frame is here. False: malformed.
static bool deliver(struct lane *lane) {
    struct engine *engine = lane->engine;
    uint16_t type = lane->header.type;
    if (lane->op != NULL) {
        struct op *op = lane->op;
        lane->op = NULL;
        bool good = op->path == PLAN_RING ? ring_received(lane, op) : sharded_received(lane, op);
        if (!good && op->backup.saved.refused) {
            pthread_mutex_lock(&engine->lock);
            engine_fail(engine);
            pthread_mutex_unlock(&engine->lock);
        }
        return good;
    }
    if (type == WIRE_CHUNK || type == WIRE_CHUNK_AT || type == WIRE_CODES || type == WIRE_RESULT ||
        type == WIRE_LINK_HEARTBEAT)
        return true;
    if (type == WIRE_MEMORY) {
        if (lane->header.epoch == engine->epoch) engine_memory_offered(lane);
        return true;
    }
    if (sync_is_frame(type)) return sync_deliver(lane);

    bool good = true;
    pthread_mutex_lock(&engine->lock);
    struct block *block = lane->block;
    lane->block = NULL;
    if (lane->header.epoch != engine->epoch || lane->peer->rank == UINT32_MAX) {
        block_put(engine, block);
    } else if (type == WIRE_SMALL || type == WIRE_POSTED) {
        good = small_arrived(engine, lane->peer, type, &lane->head, block);
    } else if (type == WIRE_SUPPLY) {
        small_supplied(engine, &lane->head, lane->head.offset, block);
    } else if (type == WIRE_ACK) {
        for (size_t at = 0; at + ACK_NAME_BYTES <= block->length; at += ACK_NAME_BYTES) {
            struct wire_op_name name = {0};
            memcpy(&name.epoch, block->bytes + at, 8);
            memcpy(&name.tag, block->bytes + at + 8, 8);
            memcpy(&name.sequence, block->bytes + at + 16, 4);
            small_acked(engine, lane->peer, &name);
        }
        if (lane->head.extra == 1) small_asked(engine, lane->peer);
        block_put(engine, block);
    } else { // READY, GRANT
        small_implied_ack(engine, lane->peer, &lane->head);
        struct op *op = op_find_running(engine, &lane->head);
        if (op == NULL) {
            good = type == WIRE_GRANT || early_add(engine, lane->peer, type, &lane->head, NULL);
        } else if (!wire_fingerprint_equal(&op->reduce.fingerprint, &lane->head.fingerprint)) {
            engine_accuse(engine, op, lane->peer, &lane->head.fingerprint);
        } else if (op->phase == OP_QUEUED || op->path == PLAN_SMALL) {
            good = early_add(engine, lane->peer, type, &lane->head, NULL);
        } else if (op->path == PLAN_RING) {
            ring_next_ready(engine, op, lane->head.extra == 1);
        } else {
            sharded_signal(engine, op, lane->peer, type, &lane->head);
        }
        peer_heat(lane->peer);
    }
    pthread_mutex_unlock(&engine->lock);
    return good;
}

static bool read_head(struct lane *lane) {
    struct engine *engine = lane->engine;
    const uint8_t *at = lane->buffer + lane->consumed;
    if (!wire_header_decode(at, &lane->header) || lane->header.length < WIRE_OP_BYTES ||
        lane->header.length > WIRE_OP_BYTES + WIRE_MAX_DATA_BYTES ||
        !wire_op_decode(at + WIRE_HEADER_BYTES, &lane->head) ||
        lane->header.length - WIRE_OP_BYTES < lane->head.padding)
        return false;
    lane->length = lane->header.length - WIRE_OP_BYTES - lane->head.padding;
    pthread_mutex_lock(&engine->lock);
    bool good = true;
    bool heartbeat = lane->header.type == WIRE_LINK_HEARTBEAT; // of any epoch: candidates are heard too
    if (sync_is_frame(lane->header.type) && lane->header.epoch != 0) {
        good = false; // no epoch ever comes that it could wait for
    } else if (!heartbeat && lane->header.epoch > engine->epoch) {
        lane->receiving = LANE_PARKED;
    } else if (!heartbeat && lane->header.run != engine->run) {
        good = false;
    } else {
        good = place_payload(lane);
        lane->consumed += FRAME_HEAD_BYTES;
        lane->receiving = LANE_PAYLOAD;
        lane->got = 0;
    }
    pthread_mutex_unlock(&engine->lock);
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
            size_t rest = lane->length - lane->got, take = rest < unread ? rest : unread;
            if (lane->to != NULL) memcpy(lane->to + lane->got, lane->buffer + lane->consumed, take);
            lane->consumed += take;
            lane->got += take;
            if (lane->got < lane->length) break;
            lane->receiving = LANE_HEAD;
            lane->skip = lane->head.padding;
            if (!deliver(lane)) return false;
            if (lane->header.type == WIRE_CHUNK_AT &&
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
    if (lane->receiving == LANE_PAYLOAD && lane->to != NULL) {
        size_t rest = lane->length - lane->got;
        parts[count++] = (struct iovec){lane->to + lane->got, rest};
        wanted += rest;
        // Behind a large payload comes another: its head alone, so that its payload too goes where it belongs without a
        // copy.
        if (lane->length > LANE_BUFFER_BYTES) room = lane->head.padding + FRAME_HEAD_BYTES;
    }
    parts[count++] = (struct iovec){lane->buffer + lane->buffered, room};
    wanted += room;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    ssize_t got = recvmsg(lane->fd, &message, MSG_DONTWAIT);
    if (got < 0) {
        if (errno == EINTR) return true;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            lane->readable = false;
        else
            lane_break(lane, strerror(errno), false);
        return false;
    }
    if (got == 0) {
        lane_break(lane, "closed by the other side", false);
        return false;
    }
    lane->silence.heard = true;
    // An end that came together with these bytes is told by no further event.
    lane->readable = lane->ending || (size_t)got == wanted;
    size_t direct = 0;
    if (count == 2) {
        direct = parts[0].iov_len < (size_t)got ? parts[0].iov_len : (size_t)got;
        lane->got += direct;
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
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t sent = sendmsg(lane->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR) continue;
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
        // A frame of a large op or of shared state ends with work for the thread, which is at it already.
        if (lane->sending == NULL || lane->sending->op != NULL || lane->sending->sync || !send_frame(lane)) return;
        frame_free(lane->engine, lane->sending);
        lane->sending = NULL;
    }
}

void lane_push(struct lane *lane, struct frame *frame) { frame_push(&lane->queue, frame); }

bool signal_send(struct engine *engine, struct peer *peer, uint16_t type, const struct wire_op *head,
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

// A frame made on demand: the next chunk or block of a running op. With frames queued (not `idle`) only what keeps the
// ring full.
static struct frame *next_work(struct lane *lane, bool idle) {
    for (struct op *op = lane->engine->running.first; op != NULL; op = op->next) {
        struct frame *frame = op->path == PLAN_RING ? ring_next(lane, op) : idle ? sharded_next(lane, op) : NULL;
        if (frame != NULL) return frame;
    }
    return sync_next(lane);
}

// Sends at most one frame that the thread has to follow up. The bytes of the finished frame, 0: none, the lane is
// blocked or has no work.
static size_t lane_write(struct lane *lane) {
    struct engine *engine = lane->engine;
    bool direct = lane->index == 0;
    if (direct) pthread_mutex_lock(&engine->lock);
    if (direct) lane_flush(lane);
    bool writable = lane->writable, free = lane->sending == NULL, idle = free && lane->queue.first == NULL;
    if (direct) pthread_mutex_unlock(&engine->lock);

    if (!writable) return 0;
    struct frame *work = free ? next_work(lane, idle) : NULL;
    if (idle && work == NULL) return 0;

    if (direct) pthread_mutex_lock(&engine->lock);
    if (lane->sending != NULL && work != NULL)
        lane_push(lane, work);
    else if (lane->sending == NULL)
        lane->sending = work != NULL ? work : frame_pop(&lane->queue);
    struct frame *finished = lane->writable && lane->sending != NULL && send_frame(lane) ? lane->sending : NULL;
    if (finished != NULL) lane->sending = NULL;
    if (direct) pthread_mutex_unlock(&engine->lock);
    if (finished == NULL) return 0;

    size_t bytes = FRAME_HEAD_BYTES + finished->length;
    struct op *op = finished->op;
    if (op != NULL && op->path == PLAN_RING)
        ring_sent(engine, op, finished);
    else if (op != NULL && op->path == PLAN_SHARDED)
        sharded_sent(engine, op, finished); // not after ring_sent: that may have completed the op
    pthread_mutex_lock(&engine->lock);
    frame_free(engine, finished);
    pthread_mutex_unlock(&engine->lock);
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
    while (!lane->broken && burst < LANE_BUFFER_BYTES && (sent = lane_write(lane)) > 0) burst += sent;
    if (lane->broken) return false;
    return more || sent > 0 || lane->resume;
}

// Frames of shared state outlive epochs, all others outlive the round of shared state.
static void drop_frames(struct lane *lane, bool sync) {
    struct frame_queue all = lane->queue;
    if (all.first == NULL) return;
    lane->queue = (struct frame_queue){.last = &lane->queue.first};
    for (struct frame *frame; (frame = frame_pop(&all)) != NULL;) {
        if (frame->sync == sync)
            frame_free(lane->engine, frame);
        else
            frame_push(&lane->queue, frame);
    }
}

static void drop_sending(struct lane *lane) {
    struct frame *frame = lane->sending;
    if (lane->sent > 0) { // what was begun must be finished
        frame->op = NULL;
        frame->sync = false;
        frame->payload = zeros;
        return;
    }
    frame_free(lane->engine, frame);
    lane->sending = NULL;
}

void lane_let_go(struct lane *lane) {
    struct engine *engine = lane->engine;
    if (lane->op != NULL) {
        lane->op = NULL;
        lane->to = NULL;
        block_put(engine, lane->block);
        lane->block = NULL;
    }
    if (lane->receiving == LANE_PARKED) {
        lane->receiving = LANE_HEAD;
        lane->resume = true;
    }
    drop_frames(lane, false);
    if (lane->sending != NULL && lane->sending->op != NULL) drop_sending(lane);
}

void lane_let_go_sync(struct lane *lane) {
    if (lane->sync) {
        lane->sync = false;
        lane->to = NULL;
    }
    drop_frames(lane, true);
    if (lane->sending != NULL && lane->sending->sync) drop_sending(lane);
}
