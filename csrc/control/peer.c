// Two locks, never held together. `lock` guards the mind and what callers wait for: events are decided under it, the actions
// they give are carried out without it. `out_lock` guards the way to the master, which the engine's thread uses directly,
// so that an op that is done is one system call away from the master.
//
// Nobody but the control thread changes the mind's membership, so this thread may read it without the lock.
#define _GNU_SOURCE
#include "peer.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../base/detail.h"
#include "../base/log.h"
#include "../base/platform.h"
#include "../net/socket.h"
#include "../state/content.h"
#include "../state/sync.h"
#include "../state/unfinished.h"
#include "link.h"
#include "seek.h"

enum {
    DATA_WAKE = 0, // epoll data
    DATA_MASTER = 1,
    DATA_LINKS = 2,
    EVENTS_PER_TURN = 64,
    INPUT_BYTES = WIRE_HEADER_BYTES + WIRE_MAX_CONTROL_BYTES,
    SETTLE_MS = 500, // what a leaving peer waits at most for others to complete what it has
    MAX_OUTPUT_BYTES = 64 << 20, // a master that takes this long to read is as good as silent
};

enum phase { PHASE_IDLE,
             PHASE_CONNECTING,
             PHASE_CONNECTED,
             PHASE_DEAD };

struct lost_link {
    struct wire_id id;
    uint32_t index;
    bool silent;
};

struct peer {
    struct peer_params params;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    // guarded by lock
    enum phase phase;
    bool closing, renewing, dial_wanted;
    uint32_t users, launches, holds; // calls inside; posts under way; peer_hold
    struct member *member;           // of this connect attempt; membership changed by the control thread only
    char reason[MEMBER_TEXT];        // why the attempt failed, or the communicator died
    struct {
        bool done, waiter;
        int code;
        struct member_view view;
    } attempt;
    struct {
        uint8_t kind; // enum wire_vote_kind or WIRE_VOTE_SYNC, 0 = none
        bool done, waiter;
        int code;
        uint64_t value;
        struct member_view view;
    } vote;
    struct {
        struct content *content; // of the open round; belongs to the caller inside, or to nobody
        bool voted;              // the state is hashed, the engine takes part
        int strategy;
        uint64_t revision, tx_bytes;
        int64_t began_at, hashed_at, planned_at; // 0 = not yet
        bool restarting;                         // the control thread is at it; nobody ends the round meanwhile
        struct sync_report before;               // what moved before it began again
        char text[WIRE_MAX_TEXT + 1];            // of SYNC_END
        struct peer_sync_report report;          // when it is over
    } sync;
    struct told {
        uint64_t tag;
        struct engine_contributors *contributors; // NULL: a free place
    } *told;        // [PEER_TOLD_MAX], made at first use; the oldest is overwritten
    size_t told_at; // that is the one
    struct engine *engine; // replaced by connect only, in PHASE_CONNECTING before dial_wanted

    pthread_mutex_t out_lock;
    // guarded by out_lock
    int master_fd;              // opened and closed by the control thread; -1: what is sent is dropped
    struct wire_header op_head; // run and generation of the frames that the engine causes
    struct wire_buffer out;
    size_t out_sent;
    struct lost_link *lost; // links that the engine saw break, for the control thread
    size_t lost_count, lost_capacity;
    bool lost_overflow;

    // the control thread's own
    pthread_t thread;
    bool thread_runs; // set under `renewing`
    int epoll, wake;
    bool master_connected, watching_output;
    int dial_fd; // the connection to a master that is being made, or -1
    int64_t dial_deadline;
    struct seek seek;
    bool seeking; // the master is lost
    int64_t lost_at, warned_at;
    uint16_t links_port;
    struct links *links;
    struct member_output actions;
    uint8_t *input;
    size_t input_length;
};

__attribute__((format(printf, 2, 3))) static pcclResult_t fail(pcclResult_t code, const char *format, ...) {
    char text[DETAIL_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    detail_set("%s", text);
    return code;
}

// ---- to the master, any thread ----

// Must hold out_lock. Sends what the kernel takes; the rest waits for the control thread.
static void flush_output(struct peer *p) {
    while (p->master_fd >= 0 && p->out_sent < p->out.length) {
        ptrdiff_t sent = socket_send(p->master_fd, p->out.bytes + p->out_sent, p->out.length - p->out_sent);
        if (sent == -EAGAIN) return;
        if (sent < 0) break; // the control thread reads the end of this connection
        p->out_sent += (size_t)sent;
    }
    p->out.length = p->out_sent = 0;
}

// Must hold out_lock. Sends what was just encoded into `out`.
static void send_output(struct peer *p) {
    if (p->out.failed || p->out.length > MAX_OUTPUT_BYTES) {
        LOG(LOG_ERR, "the master does not take what is sent to it, or memory ran out: giving up on it");
        if (p->master_fd >= 0) shutdown(p->master_fd, SHUT_RDWR);
        p->out.failed = false;
        p->out.length = p->out_sent = 0;
        return;
    }
    flush_output(p);
    if (p->out.length != 0) wake_signal(p->wake);
}

static void send_frames(struct peer *p, const struct wire_buffer *frames) {
    if (frames->length == 0) return;
    pthread_mutex_lock(&p->out_lock);
    struct wire_buffer *out = &p->out;
    if (out->length + frames->length > out->capacity) {
        size_t capacity = 2 * (out->length + frames->length);
        uint8_t *grown = realloc(out->bytes, capacity);
        if (grown == NULL) {
            out->failed = true;
        } else {
            out->bytes = grown;
            out->capacity = capacity;
        }
    }
    if (!out->failed) {
        memcpy(out->bytes + out->length, frames->bytes, frames->length);
        out->length += frames->length;
    }
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

static struct wire_header op_header(const struct peer *p, uint64_t group_epoch) {
    struct wire_header header = p->op_head;
    header.epoch = group_epoch;
    return header;
}

static void on_done(void *context, const struct wire_op_name *name) {
    struct peer *p = context;
    struct wire_op_done done = {.name = *name};
    pthread_mutex_lock(&p->out_lock);
    wire_encode_op_done(&p->out, op_header(p, name->epoch), &done);
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

static void on_mismatch(void *context, const struct wire_mismatch *mismatch) {
    struct peer *p = context;
    pthread_mutex_lock(&p->out_lock);
    wire_encode_mismatch(&p->out, op_header(p, mismatch->name.epoch), mismatch);
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

static void on_frozen(void *context, uint64_t group_epoch, const struct wire_report *report) {
    struct peer *p = context;
    pthread_mutex_lock(&p->out_lock);
    wire_encode_report(&p->out, op_header(p, group_epoch), report);
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

static void on_link_down(void *context, const struct wire_id *id, uint32_t index, bool silent) {
    struct peer *p = context;
    pthread_mutex_lock(&p->out_lock);
    if (p->lost_count == p->lost_capacity) {
        size_t capacity = p->lost_capacity ? 2 * p->lost_capacity : 16;
        struct lost_link *grown = realloc(p->lost, capacity * sizeof *grown);
        if (grown != NULL) {
            p->lost = grown;
            p->lost_capacity = capacity;
        }
    }
    if (p->lost_count < p->lost_capacity)
        p->lost[p->lost_count++] = (struct lost_link){.id = *id, .index = index, .silent = silent};
    else
        p->lost_overflow = true;
    pthread_mutex_unlock(&p->out_lock);
    wake_signal(p->wake);
}

static void on_synced(void *context, const struct wire_sync_done *done) {
    struct peer *p = context;
    pthread_mutex_lock(&p->lock);
    struct wire_header header = member_header(p->member);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_lock(&p->out_lock);
    wire_encode_sync_done(&p->out, header, done);
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
}

// ---- control thread: carrying out what the mind decides ----

static struct member *new_member(const struct peer *p, const struct wire_id *id) {
    struct member *member = member_new(id, p->params.group, p->params.lanes);
    if (member != NULL) member_set_recovery(member, p->params.recovery_limit_ms, p->params.master_count);
    return member;
}

static void leave_master(struct peer *p) {
    pthread_mutex_lock(&p->out_lock);
    int fd = p->master_fd;
    p->master_fd = -1;
    p->out.length = p->out_sent = 0;
    pthread_mutex_unlock(&p->out_lock);
    if (fd < 0) fd = p->dial_fd;
    p->dial_fd = -1;
    if (fd >= 0) {
        epoll_ctl(p->epoll, EPOLL_CTL_DEL, fd, NULL);
        socket_close(fd);
    }
    p->master_connected = p->watching_output = false;
    p->dial_deadline = INT64_MAX;
    p->input_length = 0;
}

static void hang_up(struct peer *p) {
    leave_master(p);
    p->seeking = false;
    links_free(p->links);
    p->links = NULL;
}

// The links and the ops on them go on; the master is looked for by the timer.
static void seek_master_again(struct peer *p, int64_t now) {
    if (p->master_connected && !p->seeking) { // silent: should it wake up, it is not to take this for a death
        struct wire_buffer moved = {0};
        wire_encode_empty(&moved, member_header(p->member), WIRE_MOVED);
        send_frames(p, &moved);
        wire_buffer_fini(&moved);
    }
    leave_master(p);
    if (p->seeking) {
        seek_failed(&p->seek, now);
        return;
    }
    LOG(LOG_WARN, "%s: looking for a master for up to %u s", member_lost_why(p->member), p->params.recovery_limit_ms / 1000);
    p->seeking = true;
    p->lost_at = now;
    seek_begin(&p->seek, true, now);
}

static void found_master(struct peer *p, int64_t now) {
    char address[64];
    LOG(LOG_WARN, "the run goes on with the master at %s, after %lld ms", socket_address_format(address, sizeof address, seek_master(&p->seek)),
        (long long)((now - p->lost_at) / MS_NS));
    p->seeking = false;
}

static void dial_master(struct peer *p, int64_t now);

// A master of the list has refused this newcomer: perhaps the next one serves the run. False: there is none, or memory was refused.
static bool try_next_master(struct peer *p, int64_t now) {
    if (p->seek.again || !seek_failed(&p->seek, now)) return false;
    struct wire_id id = *member_id(p->member);
    struct member *fresh = new_member(p, &id);
    if (fresh == NULL) return false;
    hang_up(p);
    pthread_mutex_lock(&p->lock);
    member_free(p->member);
    p->member = fresh;
    pthread_mutex_unlock(&p->lock);
    dial_master(p, now);
    return true;
}

static void end_attempt(struct peer *p, int code, const struct member_view *view, const char *text) {
    if (code != pcclSuccess) {
        LOG(LOG_WARN, "connect failed: %s", text);
        hang_up(p);
    }
    pthread_mutex_lock(&p->lock);
    p->attempt.done = true;
    p->attempt.code = code;
    if (view != NULL) p->attempt.view = *view;
    if (code != pcclSuccess) snprintf(p->reason, sizeof p->reason, "%s", text);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void end_vote(struct peer *p, const struct member_action *action) {
    pthread_mutex_lock(&p->lock);
    p->vote.done = true;
    p->vote.code = action->code;
    p->vote.value = action->value;
    p->vote.view = action->view;
    if (action->end != NULL) {
        p->sync.tx_bytes = action->end->tx_bytes;
        snprintf(p->sync.text, sizeof p->sync.text, "%.*s", (int)action->end->text.length, action->end->text.chars);
    }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void die(struct peer *p, const char *text) {
    LOG(LOG_ERR, "the communicator is dead: %s", text);
    hang_up(p);
    pthread_mutex_lock(&p->lock);
    p->phase = PHASE_DEAD;
    snprintf(p->reason, sizeof p->reason, "%s", text);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    engine_kill(p->engine);
}

static bool enter_epoch(struct peer *p, const struct member_action *action) {
    struct wire_header header = member_header(p->member);
    struct engine_epoch epoch = {
        .run = header.run,
        .generation = header.generation,
        .group_epoch = action->group_epoch,
        .lost = action->lost,
        .latency_us = action->latency_us,
        .megabytes_per_s = action->megabytes_per_s,
    };
    const struct wire_member *ring = member_ring(p->member, &epoch.count, &epoch.rank);
    struct engine_member *members = calloc(epoch.count, sizeof *members);
    if (members == NULL) return false;
    for (uint32_t i = 0; i < epoch.count; i++) {
        members[i].id = ring[i].id;
        members[i].lanes = ring[i].lanes < p->params.lanes ? ring[i].lanes : p->params.lanes;
    }
    epoch.members = members;
    engine_enter_epoch(p->engine, &epoch);
    free(members);
    return true;
}

// Registration tells the secret and the run.
static void introduce(struct peer *p) {
    const struct wire_welcome *welcome = member_welcome(p->member);
    struct wire_header header = member_header(p->member);
    struct link_identity identity = {.self = *member_id(p->member), .run = header.run, .generation = header.generation};
    memcpy(identity.secret, welcome->secret, sizeof identity.secret);
    links_identify(p->links, &identity);
    links_set_park_limit(p->links, member_link_limit_ns(p->member));
    engine_set_silence(p->engine, (int64_t)welcome->heartbeat_limit_ms * MS_NS / 2); // so that a link is found out twice within a limit
    pthread_mutex_lock(&p->out_lock);
    p->op_head = header;
    pthread_mutex_unlock(&p->out_lock);
}

// False: memory was refused.
static bool perform(struct peer *p, const struct member_action *action, int64_t now) {
    bool needs_links = action->kind == MEMBER_DIAL || action->kind == MEMBER_DROP_PEER || action->kind == MEMBER_PROBE || action->kind == MEMBER_RECHECK;
    if (needs_links && p->links == NULL) return true; // the connection has ended
    switch (action->kind) {
    case MEMBER_DIAL: links_dial(p->links, &action->id, action->index, &action->address, now + member_link_limit_ns(p->member)); break;
    case MEMBER_DROP_PEER:
        links_cancel(p->links, &action->id);
        engine_drop_peer(p->engine, &action->id);
        break;
    case MEMBER_MISSED_LOSS: engine_missed_loss(p->engine, action->group_epoch); break;
    case MEMBER_ENTER_EPOCH: return enter_epoch(p, action);
    case MEMBER_LINKS_READY: engine_links_ready(p->engine, action->group_epoch); break;
    case MEMBER_VERDICT: engine_verdict(p->engine, action->verdict); break;
    case MEMBER_PROBE: links_probe(p->links, &action->id, &action->address, action->duration_ms, now + member_link_limit_ns(p->member)); break;
    case MEMBER_CONNECT_END:
        if (action->code != pcclMasterConnectionFailed || !try_next_master(p, now)) end_attempt(p, action->code, &action->view, member_text(p->member));
        break;
    case MEMBER_VOTE_END: end_vote(p, action); break;
    case MEMBER_SYNC_PLAN:
        pthread_mutex_lock(&p->lock);
        p->sync.planned_at = now;
        pthread_mutex_unlock(&p->lock);
        sync_plan(p->engine, action->plan);
        break;
    case MEMBER_RECHECK:
        introduce(p);
        links_recheck(p->links);
        break;
    case MEMBER_SEEK: seek_master_again(p, now); break;
    case MEMBER_FOUND: found_master(p, now); break;
    case MEMBER_DIE: die(p, member_text(p->member)); break;
    }
    return true;
}

// Memory ran out in the middle of an event: nothing is known for sure any more.
static void die_of_memory(struct peer *p) {
    die(p, "out of memory");
    end_vote(p, &(struct member_action){.code = pcclMasterConnectionFailed});
    end_attempt(p, pcclInternalError, NULL, "out of memory");
}

static void begin_event(struct peer *p) {
    member_output_clear(&p->actions);
    pthread_mutex_lock(&p->lock);
}

static void end_event(struct peer *p, int64_t now) {
    pthread_mutex_unlock(&p->lock);
    bool fits = !p->actions.failed && !p->actions.frames.failed;
    for (size_t i = 0; i < p->actions.count && fits; i++) fits = perform(p, &p->actions.actions[i], now);
    if (fits)
        send_frames(p, &p->actions.frames);
    else
        die_of_memory(p);
}

static enum member_judgement judge(void *context, const struct wire_link_hello *hello) {
    struct peer *p = context;
    return member_judge_hello(p->member, hello);
}

// ---- control thread: events ----

static void take_link_events(struct peer *p, int64_t now) {
    struct link_event event;
    while (p->links != NULL && links_next(p->links, &event)) {
        if (event.kind == LINK_EVENT_UP) {
            LOG(LOG_DEBUG, "link %u to peer %02x%02x%02x%02x is up", event.index, event.id.bytes[0], event.id.bytes[1], event.id.bytes[2], event.id.bytes[3]);
            engine_add_link(p->engine, &event.id, event.index, event.fd);
        }
        begin_event(p);
        if (event.kind == LINK_EVENT_UP)
            member_link_up(p->member, &event.id, event.index, event.latency_us, now, &p->actions);
        else if (event.kind == LINK_EVENT_FAILED)
            member_link_failed(p->member, &event.id, event.index, &p->actions);
        else if (event.outgoing)
            member_measured(p->member, member_id(p->member), &event.id, event.bytes_per_s, &p->actions);
        else
            member_measured(p->member, &event.id, member_id(p->member), event.bytes_per_s, &p->actions);
        end_event(p, now);
    }
}

static void lose_links(struct peer *p, int64_t now) {
    for (;;) {
        struct lost_link lost;
        pthread_mutex_lock(&p->out_lock);
        bool any = p->lost_count > 0, overflow = p->lost_overflow;
        p->lost_overflow = false;
        if (any) {
            lost = p->lost[0];
            memmove(p->lost, p->lost + 1, --p->lost_count * sizeof *p->lost);
        }
        pthread_mutex_unlock(&p->out_lock);
        if (overflow) die_of_memory(p);
        if (!any || p->links == NULL) return;
        // Made again meanwhile: then the news is old.
        if (!wire_id_equal(&lost.id, member_id(p->member)) && engine_has_link(p->engine, &lost.id, lost.index)) continue;
        begin_event(p);
        member_link_lost(p->member, &lost.id, lost.index, lost.silent, now, &p->actions);
        end_event(p, now);
    }
}

static void disconnected(struct peer *p, const char *what, int64_t now) {
    char address[64], text[160];
    snprintf(text, sizeof text, "the connection to the master at %s broke: %s", socket_address_format(address, sizeof address, seek_master(&p->seek)), what);
    begin_event(p);
    member_disconnected(p->member, text, now, &p->actions);
    end_event(p, now);
}

// Feeds the complete frames of the input. False: the connection is gone.
static bool take_frames(struct peer *p, int64_t now) {
    size_t at = 0;
    while (p->input_length - at >= WIRE_HEADER_BYTES) {
        struct wire_header header;
        if (!wire_header_decode(p->input + at, &header) || header.length > WIRE_MAX_CONTROL_BYTES) {
            disconnected(p, "it sent bytes that make no sense: is it a pccl master of this version?", now);
            return false;
        }
        if (p->input_length - at - WIRE_HEADER_BYTES < header.length) break;
        // Links that broke before an epoch are made again in it only if the mind knows of them.
        if (header.type == WIRE_EPOCH || header.type == WIRE_CANDIDATE) lose_links(p, now);
        if (!p->master_connected) return false;
        begin_event(p);
        member_frame(p->member, &header, p->input + at + WIRE_HEADER_BYTES, now, &p->actions);
        end_event(p, now);
        if (!p->master_connected) return false;
        at += WIRE_HEADER_BYTES + header.length;
    }
    p->input_length -= at;
    memmove(p->input, p->input + at, p->input_length);
    return true;
}

static void read_master(struct peer *p, int64_t now) {
    for (;;) {
        ptrdiff_t got = socket_receive(p->master_fd, p->input + p->input_length, INPUT_BYTES - p->input_length);
        if (got == -EAGAIN) return;
        if (got <= 0) {
            disconnected(p, got == 0 ? "the master closed it" : strerror((int)-got), now);
            return;
        }
        p->input_length += (size_t)got;
        if (!take_frames(p, now)) return;
    }
}

static void fail_dial(struct peer *p, pcclResult_t code, const char *what, int error, int64_t now) {
    char address[64], text[MEMBER_TEXT];
    snprintf(text, sizeof text, "%s %s: %s", what, socket_address_format(address, sizeof address, seek_master(&p->seek)), strerror(error));
    leave_master(p);
    bool more = seek_failed(&p->seek, now);
    if (p->seeking) {
        if (seek_tells(&p->seek, now)) LOG(LOG_WARN, "still looking for a master: %s", text);
    } else if (more) {
        dial_master(p, now);
    } else {
        end_attempt(p, code, NULL, text);
    }
}

static void dial_master(struct peer *p, int64_t now) {
    int fd = socket_dial(seek_master(&p->seek));
    if (fd < 0) {
        fail_dial(p, pcclMasterConnectionFailed, "could not connect to the master at", -fd, now);
        return;
    }
    p->dial_fd = fd;
    p->dial_deadline = now + (p->seeking || p->seek.count > 1 ? SEEK_DIAL_MS : MEMBER_JOIN_LIMIT_MS) * MS_NS;
    struct epoll_event event = {.events = EPOLLOUT, .data.u64 = DATA_MASTER};
    if (epoll_ctl(p->epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail_dial(p, pcclInternalError, "could not watch the connection to the master at", errno, now);
}

// The dialled connection becomes the one to the master; what the mind has just said is the first on it.
static void open_output(struct peer *p) {
    pthread_mutex_lock(&p->out_lock);
    p->master_fd = p->dial_fd;
    p->dial_fd = -1;
    p->out.length = p->out_sent = 0;
    pthread_mutex_unlock(&p->out_lock);
    p->dial_deadline = INT64_MAX;
    p->master_connected = true;
}

static void join_master(struct peer *p, int64_t now) {
    struct wire_address local;
    p->links = links_new(p->epoll, DATA_LINKS, member_id(p->member), judge, p);
    int error = p->links == NULL ? ENOMEM : 0;
    if (error == 0 && !socket_local_address(p->dial_fd, &local)) error = errno;
    if (error == 0) error = -links_listen(p->links, &local, &p->links_port);
    if (error != 0) {
        links_free(p->links);
        p->links = NULL;
        fail_dial(p, pcclInternalError, "could not listen for other peers on the address that leads to the master at", error, now);
        return;
    }
    pthread_mutex_lock(&p->out_lock);
    p->lost_count = 0;
    pthread_mutex_unlock(&p->out_lock);
    open_output(p);
    begin_event(p);
    member_join(p->member, p->links_port, now, &p->actions);
    end_event(p, now);
}

// A round of shared state is open: its transfers end here, for the next plan may be another one. What the tensors hold then, and its hash.
static enum member_tensors restart_sync(struct peer *p, struct wire_hash *content) {
    pthread_mutex_lock(&p->lock);
    bool open = p->vote.kind == WIRE_VOTE_SYNC && p->sync.voted && !p->vote.done && !p->closing;
    p->sync.restarting = open;
    pthread_mutex_unlock(&p->lock);
    if (!open) return MEMBER_TENSORS_AS_VOTED;
    struct sync_report report = {0};
    bool torn = false, goes_on = sync_restart(p->engine, &report, &torn);
    pthread_mutex_lock(&p->lock);
    p->sync.restarting = false;
    p->sync.planned_at = 0;
    p->sync.before.wrote |= report.wrote;
    p->sync.before.rx_bytes += report.rx_bytes;
    p->sync.before.rx_leaves += report.rx_leaves;
    p->sync.before.wire_bytes += report.wire_bytes;
    p->sync.before.donors += report.donors;
    *content = p->sync.content->hash;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (!goes_on) engine_kill(p->engine); // memory was refused: the others go on without this peer
    return !report.wrote ? MEMBER_TENSORS_AS_VOTED : torn ? MEMBER_TENSORS_TORN
                                                          : MEMBER_TENSORS_RECEIVED;
}

static void resume_master(struct peer *p, int64_t now) {
    struct wire_hash content;
    enum member_tensors tensors = restart_sync(p, &content);
    begin_event(p);
    member_resume(p->member, p->links_port, tensors, &content, now, &p->actions);
    pthread_mutex_unlock(&p->lock);
    // Nothing that the data plane says may come before this.
    pthread_mutex_lock(&p->out_lock);
    struct wire_buffer said = p->actions.frames;
    p->actions.frames = p->out;
    p->out = said;
    p->out_sent = 0;
    p->master_fd = p->dial_fd;
    p->dial_fd = -1;
    send_output(p);
    pthread_mutex_unlock(&p->out_lock);
    p->dial_deadline = INT64_MAX;
    p->master_connected = true;
    p->warned_at = now;
}

// At a later master of the list without enough others: they may be at an earlier one by now.
static void look_again(struct peer *p, int64_t now) {
    if (!p->seeking || !p->master_connected || p->seek.at == 0 || now < p->warned_at + (int64_t)member_welcome(p->member)->heartbeat_limit_ms * MS_NS) return;
    begin_event(p);
    member_disconnected(p->member, "no run was taken up there", now, &p->actions);
    end_event(p, now);
    seek_anew(&p->seek, now);
}

static void master_answers(struct peer *p, uint32_t events, int64_t now) {
    int error = -socket_connect_result(p->dial_fd);
    if (error == EINPROGRESS && (events & EPOLLHUP) == 0) return;
    if (error != 0) {
        fail_dial(p, pcclMasterConnectionFailed, "could not connect to the master (is it running?) at", error, now);
        return;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = DATA_MASTER};
    if (epoll_ctl(p->epoll, EPOLL_CTL_MOD, p->dial_fd, &event) != 0)
        fail_dial(p, pcclInternalError, "could not watch the connection to the master at", errno, now);
    else if (p->seeking)
        resume_master(p, now);
    else
        join_master(p, now);
}

static void watch_output(struct peer *p) {
    pthread_mutex_lock(&p->out_lock);
    flush_output(p);
    bool wanted = p->out.length != 0;
    pthread_mutex_unlock(&p->out_lock);
    if (!p->master_connected || wanted == p->watching_output) return;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? (uint32_t)EPOLLOUT : 0), .data.u64 = DATA_MASTER};
    if (epoll_ctl(p->epoll, EPOLL_CTL_MOD, p->master_fd, &event) == 0) p->watching_output = wanted;
}

static bool seeks_now(const struct peer *p) { return p->seeking && p->dial_fd < 0 && !p->master_connected; }

static void tick(struct peer *p, int64_t now) {
    if (now >= p->dial_deadline) fail_dial(p, pcclMasterConnectionFailed, "no answer from the master (wrong address, or a firewall?) at", ETIMEDOUT, now);
    look_again(p, now);
    if (seeks_now(p) && now >= p->seek.next) dial_master(p, now);
    if (p->links == NULL) return;
    links_tick(p->links, now);
    if (now < member_deadline(p->member)) return;
    begin_event(p);
    if (p->master_connected) member_round_trip(p->member, socket_round_trip_us(p->master_fd) * US_NS);
    member_tick(p->member, now, &p->actions);
    end_event(p, now);
}

static int until_deadline(const struct peer *p) {
    int64_t at = p->dial_deadline;
    if (seeks_now(p) && p->seek.next < at) at = p->seek.next;
    if (p->links != NULL) {
        int64_t mind = member_deadline(p->member), links = links_deadline(p->links);
        if (mind < at) at = mind;
        if (links < at) at = links;
    }
    if (at == INT64_MAX) return -1;
    int64_t wait = (at - platform_now_ns() + MS_NS - 1) / MS_NS;
    return wait < 0 ? 0 : wait > 1000 * 3600 ? 1000 * 3600
                                             : (int)wait;
}

// What callers want. False: the communicator is destroyed.
static bool take_wishes(struct peer *p, int64_t now) {
    pthread_mutex_lock(&p->lock);
    bool dial = p->dial_wanted, closing = p->closing;
    p->dial_wanted = false;
    pthread_mutex_unlock(&p->lock);
    if (dial && !closing) {
        seek_begin(&p->seek, false, now);
        dial_master(p, now);
    }
    return !closing;
}

static void leave(struct peer *p) {
    if (p->master_connected) {
        begin_event(p);
        member_leave(p->member, &p->actions);
        end_event(p, platform_now_ns());
        shutdown(p->master_fd, SHUT_WR); // LEAVE goes out before the end of the stream
    }
    hang_up(p);
}

static void handle(struct peer *p, const struct epoll_event *event, int64_t now) {
    if (event->data.u64 == DATA_WAKE) {
        wake_clear(p->wake);
    } else if (event->data.u64 == DATA_MASTER) {
        if (p->master_connected && (event->events & ~(uint32_t)EPOLLOUT) != 0)
            read_master(p, now);
        else if (p->dial_fd >= 0)
            master_answers(p, event->events, now);
    } else if (p->links != NULL) {
        links_event(p->links, event->data.u64, event->events, now);
        take_link_events(p, now);
    }
}

static void *control_main(void *context) {
    struct peer *p = context;
    struct epoll_event events[EVENTS_PER_TURN];
    int64_t now = platform_now_ns();
    while (take_wishes(p, now)) {
        lose_links(p, now);
        take_link_events(p, now);
        watch_output(p);
        int count = epoll_wait(p->epoll, events, EVENTS_PER_TURN, until_deadline(p));
        now = platform_now_ns();
        for (int i = 0; i < count; i++) handle(p, &events[i], now);
        // After the events: a process that was stopped for a while first hears what the master said meanwhile.
        tick(p, now);
    }
    leave(p);
    return NULL;
}

// ---- callers ----

// Begins a call: takes the lock. Ended by `finish`.
static void begin(struct peer *p) {
    pthread_mutex_lock(&p->lock);
    p->users++;
}

static pcclResult_t finish(struct peer *p, pcclResult_t code) {
    p->users--;
    if (p->closing) pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return code;
}

// The mind knows of its death a moment before the phase does.
static bool is_dead(const struct peer *p) { return p->phase == PHASE_DEAD || (p->phase == PHASE_CONNECTED && member_phase(p->member) == MEMBER_DEAD); }

static const char *why_dead(const struct peer *p) { return p->phase == PHASE_DEAD ? p->reason : member_text(p->member); }

static pcclResult_t usable(const struct peer *p) {
    if (is_dead(p)) return fail(pcclMasterConnectionFailed, "the communicator is dead (%s): destroy it and create a new one", why_dead(p));
    if (p->phase != PHASE_CONNECTED) return fail(pcclInvalidUsage, "the communicator is not connected: call connect first");
    if (p->closing) return fail(pcclMasterConnectionFailed, "the communicator is being destroyed");
    return pcclSuccess;
}

// Waits until `*done`; false when the deadline passed first. Must hold the lock.
static bool wait_for(struct peer *p, const bool *done, int64_t deadline) {
    while (!*done && !p->closing)
        if (!platform_cond_wait(&p->changed, &p->lock, deadline) && !*done && !p->closing) return false;
    return true;
}

// A fresh id, mind and engine; those of the attempt before end here. Called without the lock, under `renewing`, while the
// control thread has no connection.
static bool renew(struct peer *p) {
    struct wire_id id;
    engine_free(p->engine);
    p->engine = NULL;
    member_free(p->member);
    p->member = NULL;
    if (!platform_random(id.bytes, sizeof id.bytes)) return false;
    struct engine_callbacks callbacks = {.context = p, .done = on_done, .mismatch = on_mismatch, .frozen = on_frozen, .link_down = on_link_down, .synced = on_synced};
    p->member = new_member(p, &id);
    p->engine = p->member == NULL ? NULL : engine_new(&id, &callbacks);
    if (p->engine == NULL) return false;
    if (!p->thread_runs) p->thread_runs = platform_thread_start(&p->thread, "pccl:control", control_main, p);
    return p->thread_runs;
}

static pcclResult_t begin_attempt(struct peer *p) {
    if (p->closing) return fail(pcclMasterConnectionFailed, "the communicator is being destroyed");
    p->phase = PHASE_CONNECTING;
    memset(&p->attempt, 0, sizeof p->attempt);
    p->attempt.waiter = p->renewing = true;
    pthread_mutex_unlock(&p->lock);
    bool renewed = renew(p);
    pthread_mutex_lock(&p->lock);
    p->renewing = false;
    if (p->closing) pthread_cond_broadcast(&p->changed);
    if (!renewed) {
        p->phase = PHASE_IDLE;
        return fail(pcclInternalError, "the system refused memory or a thread for a connection");
    }
    p->dial_wanted = true;
    wake_signal(p->wake);
    return pcclSuccess;
}

static pcclResult_t end_connect(struct peer *p) {
    if (!p->attempt.done) return fail(pcclMasterConnectionFailed, "the communicator was destroyed while it connected");
    if (p->attempt.code != pcclSuccess) {
        p->phase = PHASE_IDLE;
        return fail((pcclResult_t)p->attempt.code, "%s", p->reason);
    }
    if (p->phase == PHASE_DEAD) return usable(p);
    p->phase = PHASE_CONNECTED;
    member_adopt(p->member, &p->attempt.view);
    return pcclSuccess;
}

static pcclResult_t connect_locked(struct peer *p, int64_t deadline) {
    if (is_dead(p)) return fail(pcclInvalidUsage, "the communicator is dead (%s): destroy it and create a new one", why_dead(p));
    if (p->phase == PHASE_CONNECTED) return fail(pcclInvalidUsage, "the communicator is connected already");
    if (p->phase == PHASE_CONNECTING && p->attempt.waiter) return fail(pcclInvalidUsage, "another thread is connecting this communicator");
    if (p->phase == PHASE_IDLE) {
        pcclResult_t code = begin_attempt(p);
        if (code != pcclSuccess) return code;
    }
    p->attempt.waiter = true;
    bool ended = wait_for(p, &p->attempt.done, deadline);
    p->attempt.waiter = false;
    return ended ? end_connect(p) : pcclTimedOut;
}

pcclResult_t peer_connect(struct peer *p, int64_t deadline) {
    begin(p);
    return finish(p, connect_locked(p, deadline));
}

static const char *vote_name(uint8_t kind) {
    switch (kind) {
    case WIRE_VOTE_UPDATE: return "update_topology";
    case WIRE_VOTE_PENDING: return "are_peers_pending";
    case WIRE_VOTE_SYNC: return "sync_shared_state";
    default: return "optimize_topology";
    }
}

static pcclResult_t no_live_ops(struct peer *p) {
    size_t live = engine_live_ops(p->engine);
    if (live == 0 && p->launches == 0 && p->holds == 0) return pcclSuccess;
    return fail(pcclPendingAsyncOps, "%zu un-awaited ops: await them first", live > 0 ? live : (size_t)1);
}

static pcclResult_t no_vote(const struct peer *p) {
    if (p->vote.kind == 0) return pcclSuccess;
    return fail(pcclInvalidUsage, "%s of this communicator has not ended: wait for it, or call it again if its wait was cut short", vote_name(p->vote.kind));
}

static pcclResult_t begin_vote(struct peer *p, enum wire_vote_kind kind) {
    pcclResult_t code = no_vote(p);
    if (code == pcclSuccess && kind == WIRE_VOTE_OPTIMIZE && member_adopted(p->member)->global_world < 2)
        code = fail(pcclInvalidUsage, "optimize_topology needs at least two accepted peers in the run");
    if (code == pcclSuccess && kind != WIRE_VOTE_PENDING) code = no_live_ops(p);
    if (code != pcclSuccess) return code;
    memset(&p->vote, 0, sizeof p->vote);
    p->vote.kind = (uint8_t)kind;
    p->vote.waiter = true;
    struct member_output out = {0};
    member_vote(p->member, kind, &out);
    pthread_mutex_unlock(&p->lock);
    send_frames(p, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&p->lock);
    return pcclSuccess;
}

static pcclResult_t collect_vote(struct peer *p, bool *value) {
    uint8_t kind = p->vote.kind;
    p->vote.kind = 0;
    if (!p->vote.done) return fail(pcclMasterConnectionFailed, "the communicator was destroyed while it waited in %s", vote_name(kind));
    if (p->vote.code == pcclSuccess) {
        if (value != NULL) *value = p->vote.value != 0;
        if (kind != WIRE_VOTE_PENDING) member_adopt(p->member, &p->vote.view);
        return pcclSuccess;
    }
    if (is_dead(p)) return fail((pcclResult_t)p->vote.code, "the communicator died in %s: %s", vote_name(kind), why_dead(p));
    return fail((pcclResult_t)p->vote.code, "%s passed, but no new epoch came of it: the old one stands, call it again", vote_name(kind));
}

static pcclResult_t vote_locked(struct peer *p, enum wire_vote_kind kind, int64_t deadline, bool *value) {
    pcclResult_t code = usable(p);
    if (code != pcclSuccess) return code;
    bool resumed = p->vote.kind == kind && !p->vote.waiter;
    if (!resumed) code = begin_vote(p, kind);
    if (code != pcclSuccess) return code;
    p->vote.waiter = true;
    bool ended = wait_for(p, &p->vote.done, deadline);
    p->vote.waiter = false;
    return ended ? collect_vote(p, value) : pcclTimedOut;
}

pcclResult_t peer_vote(struct peer *p, enum wire_vote_kind kind, int64_t deadline, bool *value) {
    begin(p);
    return finish(p, vote_locked(p, kind, deadline, value));
}

pcclResult_t peer_usable(struct peer *p) {
    begin(p);
    return finish(p, usable(p));
}

// ---- shared state ----

// `end` is when the round is over, or now.
static void fill_sync_report(const struct peer *p, const struct sync_report *from, int64_t end, struct peer_sync_report *out) {
    int64_t hashed = p->sync.hashed_at != 0 ? p->sync.hashed_at : end;
    *out = (struct peer_sync_report){
        .rx_bytes = from->rx_bytes,
        .rx_leaves = from->rx_leaves,
        .wire_bytes = from->wire_bytes,
        .missing_bytes = from->missing_bytes,
        .donors = from->donors,
        .tx_bytes = p->sync.tx_bytes,
        .seconds = (double)(end - p->sync.began_at) * 1e-9,
        .hash_seconds = (double)(hashed - p->sync.began_at) * 1e-9,
        .transfer_seconds = p->sync.planned_at == 0 ? 0 : (double)(end - p->sync.planned_at) * 1e-9,
        .hashing = p->sync.hashed_at == 0,
    };
}

void peer_sync_look(struct peer *p, struct peer_sync_report *out) {
    begin(p);
    *out = p->sync.report;
    if (p->vote.kind == WIRE_VOTE_SYNC && p->sync.content != NULL) {
        struct sync_report live;
        sync_look(p->engine, &live);
        fill_sync_report(p, &live, platform_now_ns(), out);
    }
    finish(p, pcclSuccess);
}

bool peer_sync_waits(struct peer *p) {
    begin(p);
    bool waits = p->vote.kind == WIRE_VOTE_SYNC && !p->vote.waiter;
    finish(p, pcclSuccess);
    return waits;
}

// The caller's own round is over without an answer of the master.
static pcclResult_t drop_sync(struct peer *p, pcclResult_t code) {
    content_free(p->sync.content);
    p->sync.content = NULL;
    p->vote.kind = 0;
    return code;
}

static pcclResult_t begin_sync(struct peer *p, const pcclSharedState_t *state, int strategy) {
    pcclResult_t code = usable(p);
    if (code == pcclSuccess) code = no_vote(p);
    if (code == pcclSuccess) code = no_live_ops(p);
    if (code != pcclSuccess) return code;
    memset(&p->vote, 0, sizeof p->vote);
    p->vote.kind = WIRE_VOTE_SYNC;
    p->vote.waiter = true;
    memset(&p->sync, 0, sizeof p->sync);
    p->sync.strategy = strategy;
    p->sync.revision = state->revision;
    p->sync.began_at = platform_now_ns();
    pthread_mutex_unlock(&p->lock);
    struct content *content = content_new(state);
    pthread_mutex_lock(&p->lock);
    p->sync.content = content;
    if (content == NULL) return drop_sync(p, fail(pcclInternalError, "the system refused memory for the hashes of %zu entries", state->count));
    return pcclSuccess;
}

static pcclResult_t resume_sync(struct peer *p, const pcclSharedState_t *state, int strategy) {
    bool same = p->sync.content != NULL && p->sync.strategy == strategy && p->sync.revision == state->revision && content_is_of(p->sync.content, state);
    if (!same) return fail(pcclInvalidUsage, "sync_shared_state of another state or revision has not ended: call it again as before");
    p->vote.waiter = true;
    return pcclSuccess;
}

// The state is hashed: tells the engine and the master.
static pcclResult_t vote_sync(struct peer *p) {
    // The mind may know of its death already, and the phase not yet.
    if (p->phase == PHASE_DEAD || p->closing) return drop_sync(p, usable(p));
    if (member_phase(p->member) != MEMBER_ACCEPTED)
        return drop_sync(p, fail(pcclMasterConnectionFailed, "the communicator is dead (%s): destroy it and create a new one", member_text(p->member)));
    const struct content *content = p->sync.content;
    struct wire_sync_vote vote = {
        .strategy = (uint8_t)p->sync.strategy,
        .incomplete = unfinished_has(&content->layout),
        .revision = p->sync.revision,
        .mask = content->mask,
        .content = content->hash,
    };
    if (vote.incomplete) LOG(LOG_WARN, "shared state: a transfer into this memory was cut short: it can only receive until a sync has succeeded");
    // Before the vote is sent: the plan may be here at once.
    if (!sync_begin(p->engine, p->sync.content, (int64_t)member_welcome(p->member)->heartbeat_limit_ms * MS_NS))
        return drop_sync(p, fail(pcclInternalError, "the system refused memory for a round of shared state"));
    p->sync.voted = true;
    p->sync.hashed_at = platform_now_ns();
    struct member_output out = {0};
    member_sync(p->member, &vote, &out);
    pthread_mutex_unlock(&p->lock);
    send_frames(p, &out.frames);
    member_output_fini(&out);
    pthread_mutex_lock(&p->lock);
    return pcclSuccess;
}

static pcclResult_t hash_sync(struct peer *p, int64_t deadline) {
    struct content *content = p->sync.content;
    pthread_mutex_unlock(&p->lock);
    bool hashed = content_hash(content, deadline);
    pthread_mutex_lock(&p->lock);
    return hashed ? vote_sync(p) : pcclTimedOut;
}

// Not locked. No tensor is touched any more, and the process knows what they hold.
static void end_sync(struct peer *p, bool success, struct sync_report *report) {
    sync_end(p->engine, report);
    report->wrote |= p->sync.before.wrote;
    report->rx_bytes += p->sync.before.rx_bytes;
    report->rx_leaves += p->sync.before.rx_leaves;
    report->wire_bytes += p->sync.before.wire_bytes;
    report->donors += p->sync.before.donors;
    if (success)
        unfinished_remove(&p->sync.content->layout);
    else if (report->wrote)
        unfinished_add(&p->sync.content->layout);
}

static pcclResult_t collect_sync(struct peer *p, pcclSharedState_t *state, pcclSharedStateSyncInfo_t *info) {
    struct sync_report report;
    while (p->sync.restarting) platform_cond_wait(&p->changed, &p->lock, INT64_MAX);
    pthread_mutex_unlock(&p->lock);
    end_sync(p, p->vote.done && p->vote.code == pcclSuccess, &report);
    pthread_mutex_lock(&p->lock);
    fill_sync_report(p, &report, platform_now_ns(), &p->sync.report);
    bool success = p->vote.done && p->vote.code == pcclSuccess;
    drop_sync(p, pcclSuccess);
    if (success) {
        state->revision = p->vote.value;
        if (info != NULL) *info = (pcclSharedStateSyncInfo_t){.tx_bytes = p->sync.tx_bytes, .rx_bytes = report.rx_bytes};
        return pcclSuccess;
    }
    if (!p->vote.done) return fail(pcclMasterConnectionFailed, "the communicator was destroyed while it waited in sync_shared_state");
    bool ended = p->vote.code == pcclNoSharedStateAvailable; // the round, for all; this peer may have died after it
    if (p->phase == PHASE_DEAD && !ended) return fail((pcclResult_t)p->vote.code, "the communicator died in sync_shared_state: %s", p->reason);
    return fail((pcclResult_t)p->vote.code, "no shared state is available: %s", p->sync.text);
}

static pcclResult_t sync_locked(struct peer *p, pcclSharedState_t *state, int strategy, int64_t deadline, pcclSharedStateSyncInfo_t *info) {
    bool resumed = p->vote.kind == WIRE_VOTE_SYNC && !p->vote.waiter;
    pcclResult_t code = resumed ? resume_sync(p, state, strategy) : begin_sync(p, state, strategy);
    if (code != pcclSuccess) return code;
    if (!p->sync.voted) code = hash_sync(p, deadline);
    if (code == pcclSuccess) code = wait_for(p, &p->vote.done, deadline) ? collect_sync(p, state, info) : pcclTimedOut;
    p->vote.waiter = false;
    return code;
}

pcclResult_t peer_sync(struct peer *p, pcclSharedState_t *state, int strategy, int64_t deadline, pcclSharedStateSyncInfo_t *out) {
    begin(p);
    return finish(p, sync_locked(p, state, strategy, deadline, out));
}

pcclResult_t peer_view(struct peer *p, struct member_view *out) {
    begin(p);
    static const struct member_view alone = {.global_world = 1, .group_world = 1, .groups = 1, .largest_group = 1};
    bool dead = is_dead(p);
    pcclResult_t code = dead ? pcclSuccess : usable(p);
    if (code == pcclSuccess) *out = dead ? alone : *member_adopted(p->member);
    return finish(p, code);
}

static pcclResult_t posted(enum engine_result result, uint64_t tag) {
    switch (result) {
    case ENGINE_OK: return pcclSuccess;
    case ENGINE_TAG_LIVE: return fail(pcclInvalidArgument, "tag %llu is live: await its op first, or use another tag", (unsigned long long)tag);
    case ENGINE_TOO_MANY: return fail(pcclInternalError, "%d ops are live, the most there can be: await some", WIRE_MAX_LIVE_OPS);
    case ENGINE_DEAD: return fail(pcclMasterConnectionFailed, "the communicator has just died: destroy it and create a new one");
    default: return fail(pcclInternalError, "the system refused memory for an op");
    }
}

static pcclResult_t launch_locked(struct peer *p, const struct engine_reduce *reduce) {
    pcclResult_t code = usable(p);
    if (code == pcclSuccess && p->vote.kind != WIRE_VOTE_PENDING) code = no_vote(p);
    if (code != pcclSuccess) return code;
    if (member_adopted(p->member)->group_world < 2) return fail(pcclTooFewPeers, "this peer is alone in its group: admit newcomers with update_topology");
    uint64_t adopted = member_adopted(p->member)->group_epoch;
    p->launches++; // keeps a topology call from beginning between the check and the post
    pthread_mutex_unlock(&p->lock);
    enum engine_result result = engine_post(p->engine, reduce, adopted);
    pthread_mutex_lock(&p->lock);
    p->launches--;
    return posted(result, reduce->tag);
}

pcclResult_t peer_launch(struct peer *p, const struct engine_reduce *reduce) {
    begin(p);
    return finish(p, launch_locked(p, reduce));
}

static struct told *find_told(const struct peer *p, uint64_t tag) {
    for (size_t i = 0; p->told != NULL && i < PEER_TOLD_MAX; i++)
        if (p->told[i].contributors != NULL && p->told[i].tag == tag) return &p->told[i];
    return NULL;
}

// Keeps what an outcome tells. Without the memory for it nothing is told: the op has ended all the same.
static void keep_told(struct peer *p, uint64_t tag, struct engine_contributors *contributors) {
    if (p->told == NULL) p->told = calloc(PEER_TOLD_MAX, sizeof *p->told);
    if (p->told == NULL) {
        free(contributors);
        return;
    }
    struct told *told = find_told(p, tag);
    if (told == NULL) {
        told = &p->told[p->told_at];
        p->told_at = (p->told_at + 1) % PEER_TOLD_MAX;
    }
    free(told->contributors);
    *told = (struct told){tag, contributors};
}

bool peer_contributors(struct peer *p, uint64_t tag, size_t index, struct engine_range *range_out, struct wire_id *ids_out, size_t capacity, size_t *ranges_out) {
    begin(p);
    const struct told *told = find_told(p, tag);
    bool found = told != NULL && index < told->contributors->count;
    if (found) {
        const struct engine_range *range = &told->contributors->ranges[index];
        *range_out = (struct engine_range){.begin = range->begin, .end = range->end, .count = range->count};
        *ranges_out = told->contributors->count;
        if (capacity > range->count) capacity = range->count;
        if (capacity > 0) memcpy(ids_out, range->ids, capacity * sizeof *ids_out);
    }
    finish(p, pcclSuccess);
    return found;
}

struct wire_id peer_id(struct peer *p) {
    struct wire_id id = {{0}};
    begin(p);
    if (p->member != NULL) id = *member_id(p->member);
    finish(p, pcclSuccess);
    return id;
}

static pcclResult_t awaited(struct peer *p, uint64_t tag, const struct engine_outcome *outcome, struct engine_info *out) {
    // In retry mode every end names an epoch, and all members the same.
    if (outcome->epoch != 0) member_adopt_loss(p->member, outcome->epoch);
    if (outcome->contributors != NULL) keep_told(p, tag, outcome->contributors);
    switch (outcome->result) {
    case ENGINE_OK: *out = outcome->info; return pcclSuccess;
    case ENGINE_IN_PROGRESS: return pcclTimedOut;
    case ENGINE_LOST:
        if (outcome->retry) return fail(pcclTooFewPeers, "no other member of the group is left: admit newcomers with update_topology");
        return fail(pcclRankConnectionLost, "a member of the group was lost: the input is unchanged, launch the op again");
    case ENGINE_MISMATCH: return fail(pcclInvalidArgument, "%s", outcome->text);
    case ENGINE_DEAD:
        return fail(outcome->retry ? pcclMasterConnectionFailed : pcclRankConnectionLost, "the communicator is dead (%s): destroy it and create a new one", p->closing ? "destroyed" : why_dead(p));
    case ENGINE_UNKNOWN: {
        pcclResult_t code = usable(p);
        return code != pcclSuccess ? code : fail(pcclInvalidArgument, "no un-awaited op has tag %llu", (unsigned long long)tag);
    }
    default: return fail(pcclInternalError, "the system refused memory for an op");
    }
}

pcclResult_t peer_await(struct peer *p, uint64_t tag, int64_t deadline, struct engine_info *out) {
    begin(p);
    bool never = p->phase != PHASE_CONNECTED && p->phase != PHASE_DEAD;
    if (never || p->closing) return finish(p, usable(p));
    struct engine_outcome outcome;
    pthread_mutex_unlock(&p->lock);
    engine_wait(p->engine, tag, deadline, &outcome);
    pthread_mutex_lock(&p->lock);
    return finish(p, awaited(p, tag, &outcome, out));
}

void peer_hold(struct peer *p) {
    begin(p);
    p->holds++;
    finish(p, pcclSuccess);
}

void peer_release(struct peer *p) {
    begin(p);
    p->holds--;
    finish(p, pcclSuccess);
}

void peer_state(struct peer *p, char *out, size_t capacity) {
    begin(p);
    // The mind knows of its death a moment before the thread has ended everything else.
    if (is_dead(p))
        snprintf(out, capacity, "dead: %s", why_dead(p));
    else if (p->phase == PHASE_CONNECTED && member_is_seeking(p->member))
        snprintf(out, capacity, "looking for a master: %s", member_lost_why(p->member));
    else if (p->phase == PHASE_CONNECTED)
        snprintf(out, capacity, "accepted epoch %llu", (unsigned long long)member_adopted(p->member)->number);
    else
        snprintf(out, capacity, "%s", p->phase == PHASE_CONNECTING ? "connecting" : "idle");
    finish(p, pcclSuccess);
}

// ---- life ----

struct peer *peer_new(const struct peer_params *params) {
    struct peer *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->params = *params;
    p->master_fd = p->dial_fd = -1;
    p->dial_deadline = INT64_MAX;
    p->seek.masters = p->params.masters;
    p->seek.count = params->master_count;
    p->wake = wake_open();
    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    p->input = malloc(INPUT_BYTES);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = DATA_WAKE};
    bool opened = p->wake >= 0 && p->epoll >= 0 && p->input != NULL && epoll_ctl(p->epoll, EPOLL_CTL_ADD, p->wake, &event) == 0;
    if (!opened || !platform_cond_init(&p->changed)) {
        socket_close(p->wake);
        socket_close(p->epoll);
        free(p->input);
        free(p);
        return NULL;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->out_lock, NULL);
    return p;
}

bool peer_set_masters(struct peer *p, const struct wire_address *masters, uint32_t count) {
    begin(p);
    bool may = p->phase == PHASE_IDLE && count >= 1 && count <= WIRE_MAX_MASTERS;
    if (may) {
        memcpy(p->params.masters, masters, count * sizeof *masters);
        p->params.master_count = p->seek.count = count;
    }
    finish(p, pcclSuccess);
    return may;
}

bool peer_set_recovery(struct peer *p, uint32_t limit_ms) {
    begin(p);
    bool may = p->phase == PHASE_IDLE;
    if (may) p->params.recovery_limit_ms = limit_ms;
    finish(p, pcclSuccess);
    return may;
}

void peer_free(struct peer *p) {
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    struct engine *engine = p->phase == PHASE_CONNECTED ? p->engine : NULL; // stays while connected
    pthread_mutex_unlock(&p->lock);
    if (engine != NULL) engine_settle(engine, platform_now_ns() + SETTLE_MS * MS_NS);
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->changed);
    while (p->renewing) platform_cond_wait(&p->changed, &p->lock, INT64_MAX);
    pthread_mutex_unlock(&p->lock);
    wake_signal(p->wake);
    // LEAVE first, links after it: then nobody wonders why they broke.
    if (p->thread_runs) pthread_join(p->thread, NULL);
    if (p->engine != NULL) engine_stop(p->engine);
    pthread_mutex_lock(&p->lock);
    while (p->users > 0) platform_cond_wait(&p->changed, &p->lock, INT64_MAX);
    pthread_mutex_unlock(&p->lock);
    // No call is inside, both threads have ended: nobody else can hold this peer.
    struct sync_report report;
    if (p->engine != NULL && p->sync.content != NULL) end_sync(p, false, &report);
    content_free(p->sync.content);
    engine_free(p->engine);
    member_free(p->member);
    member_output_fini(&p->actions);
    wire_buffer_fini(&p->out);
    for (size_t i = 0; p->told != NULL && i < PEER_TOLD_MAX; i++) free(p->told[i].contributors);
    free(p->told);
    free(p->lost);
    free(p->input);
    socket_close(p->wake);
    socket_close(p->epoll);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->out_lock);
    free(p);
}
