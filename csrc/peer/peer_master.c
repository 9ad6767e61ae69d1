// The connection to the master: dialing the masters of the list one after another, joining, reading, and finding a
// master again when it is lost.
#define _GNU_SOURCE
#include "peer/peer_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "net/socket.h"

// ---- leaving ----

static void leave_master(struct peer *p) {
    int fd = peer_output_close(p);
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

void peer_hang_up(struct peer *p) {
    leave_master(p);
    p->seeking = false;
    links_free(p->links);
    p->links = NULL;
}

void peer_leave(struct peer *p) {
    if (p->master_connected) {
        peer_event_begin(p);
        member_leave(p->member, &p->actions);
        peer_event_end(p, platform_now_ns());
        shutdown(p->master_fd, SHUT_WR); // LEAVE goes out before the end of the stream
    }
    peer_hang_up(p);
}

// ---- dialing ----

static void dial_master(struct peer *p, int64_t now);

static void fail_dial(struct peer *p, pcclResult_t code, const char *what, int error, int64_t now) {
    char address[64], text[MEMBER_TEXT];
    snprintf(text, sizeof text, "%s %s: %s", what,
             socket_address_format(address, sizeof address, seek_master(&p->seek)), strerror(error));
    leave_master(p);
    bool more = seek_failed(&p->seek, now);
    if (p->seeking) {
        if (seek_tells(&p->seek, now)) LOG(LOG_ERR, "still looking for a master: %s", text);
    } else if (more) {
        dial_master(p, now);
    } else {
        peer_end_attempt(p, code, NULL, text);
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
    if (epoll_ctl(p->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        fail_dial(p, pcclInternalError, "could not watch the connection to the master at", errno, now);
}

void peer_first_master(struct peer *p, int64_t now) {
    seek_begin(&p->seek, false, now);
    dial_master(p, now);
}

bool peer_next_master(struct peer *p, int64_t now) {
    if (p->seek.again || !seek_failed(&p->seek, now)) return false;
    struct wire_id id = *member_id(p->member);
    struct member *fresh = peer_new_member(p, &id);
    if (fresh == NULL) return false;
    peer_hang_up(p);
    pthread_mutex_lock(&p->lock);
    member_free(p->member);
    p->member = fresh;
    pthread_mutex_unlock(&p->lock);
    dial_master(p, now);
    return true;
}

// The dialled connection becomes the one to the master.
static void use_connection(struct peer *p, struct wire_buffer *first) {
    peer_output_open(p, p->dial_fd, first);
    p->dial_fd = -1;
    p->dial_deadline = INT64_MAX;
    p->master_connected = true;
}

static void join_master(struct peer *p, int64_t now) {
    struct wire_address local;
    p->links = links_new(p->epoll, DATA_LINKS, member_id(p->member), peer_judge, p);
    int error = p->links == NULL ? ENOMEM : 0;
    if (error == 0 && !socket_local_address(p->dial_fd, &local)) error = errno;
    if (error == 0) error = -links_listen(p->links, &local, &p->links_port);
    if (error != 0) {
        links_free(p->links);
        p->links = NULL;
        fail_dial(p, pcclInternalError, "could not listen for other peers on the address that leads to the master at",
                  error, now);
        return;
    }
    peer_output_forget_lost(p);
    use_connection(p, NULL);
    peer_event_begin(p);
    member_join(p->member, p->links_port, now, &p->actions);
    peer_event_end(p, now);
}

// ---- a lost master ----

void peer_seek_master(struct peer *p, int64_t now) {
    if (p->master_connected && !p->seeking) { // silent: should it wake up, it is not to take this for a death
        struct wire_buffer moved = {0};
        wire_encode_empty(&moved, member_header(p->member), WIRE_MOVED);
        peer_send(p, &moved);
        wire_buffer_fini(&moved);
    }
    leave_master(p);
    if (p->seeking) {
        seek_failed(&p->seek, now);
        return;
    }
    LOG(LOG_ERR, "%s: looking for a master for up to %u s, while calls wait", member_lost_why(p->member),
        p->params.recovery_limit_ms / 1000);
    p->seeking = true;
    p->lost_at = now;
    seek_begin(&p->seek, true, now);
}

void peer_found_master(struct peer *p, int64_t now) {
    char address[64];
    LOG(LOG_NOTICE, "the run goes on with the master at %s, after %lld ms",
        socket_address_format(address, sizeof address, seek_master(&p->seek)), (long long)((now - p->lost_at) / MS_NS));
    p->seeking = false;
}

static void resume_master(struct peer *p, int64_t now) {
    struct wire_hash content;
    enum member_tensors tensors = peer_sync_restart(p, &content);
    peer_event_begin(p);
    member_resume(p->member, p->links_port, tensors, &content, now, &p->actions);
    pthread_mutex_unlock(&p->lock);
    use_connection(p, &p->actions.frames); // nothing that the data plane says may come before
}

// At a later master of the list without enough others: they may be at an earlier one by now. Where enough are it has
// promised, and waits longer.
static void look_again(struct peer *p, int64_t now) {
    if (!p->seeking || !p->master_connected || p->seek.at == 0 || now < member_waits_until(p->member)) return;
    peer_event_begin(p);
    member_disconnected(p->member, "no run was taken up there", now, &p->actions);
    peer_event_end(p, now);
    seek_anew(&p->seek, now);
}

// ---- reading ----

static void disconnected(struct peer *p, const char *what, int64_t now) {
    static const char not_a_master[] = " (is it a pccl master, and not the port of a peer?)";
    char address[64], text[240];
    bool joining = member_phase(p->member) == MEMBER_JOINING;
    snprintf(text, sizeof text, "the connection to the master at %s broke: %s%s",
             socket_address_format(address, sizeof address, seek_master(&p->seek)), what, joining ? not_a_master : "");
    peer_event_begin(p);
    member_disconnected(p->member, text, now, &p->actions);
    peer_event_end(p, now);
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
        if (header.type == WIRE_EPOCH || header.type == WIRE_CANDIDATE) peer_lose_links(p, now);
        if (!p->master_connected) return false;
        peer_event_begin(p);
        member_frame(p->member, &header, p->input + at + WIRE_HEADER_BYTES, now, &p->actions);
        peer_event_end(p, now);
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
        now = platform_now_ns(); // this process may have been stopped since it looked last
        if (got == -EAGAIN) return;
        if (got <= 0) {
            disconnected(p, got == 0 ? "the master closed it" : strerror((int)-got), now);
            return;
        }
        p->input_length += (size_t)got;
        if (!take_frames(p, now)) return;
    }
}

// ---- called by the loop ----

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

void peer_master_event(struct peer *p, uint32_t events, int64_t now) {
    if (p->master_connected && (events & ~(uint32_t)EPOLLOUT) != 0)
        read_master(p, now);
    else if (p->dial_fd >= 0)
        master_answers(p, events, now);
}

void peer_watch_master(struct peer *p) {
    bool wanted = peer_output_flush(p);
    if (!p->master_connected || wanted == p->watching_output) return;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? (uint32_t)EPOLLOUT : 0), .data.u64 = DATA_MASTER};
    if (epoll_ctl(p->epoll, EPOLL_CTL_MOD, p->master_fd, &event) == 0) p->watching_output = wanted;
}

static bool seeks_now(const struct peer *p) { return p->seeking && p->dial_fd < 0 && !p->master_connected; }

void peer_master_tick(struct peer *p, int64_t now) {
    if (now >= p->dial_deadline)
        fail_dial(p, pcclMasterConnectionFailed, "no answer from the master (wrong address, or a firewall?) at",
                  ETIMEDOUT, now);
    look_again(p, now);
    if (seeks_now(p) && now >= p->seek.next) dial_master(p, now);
}

int64_t peer_master_deadline(const struct peer *p) {
    return seeks_now(p) && p->seek.next < p->dial_deadline ? p->seek.next : p->dial_deadline;
}
