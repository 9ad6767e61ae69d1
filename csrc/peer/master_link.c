#define _GNU_SOURCE
#include "peer/master_link.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/platform.h"
#include "net/conn.h"
#include "net/socket.h"
#include "peer/member.h"
#include "peer/recovery.h"

enum {
    INPUT_BYTES = 64 * 1024,      // received at once
    MAX_WAITING_BYTES = 64 << 20, // a master that takes this long to read is as good as silent
};

enum link_state { CLOSED, DIALLING, ANSWERS, OPEN };

struct master_link {
    // Guards `out`, and changes of `state` and `stream`, which only the control thread makes.
    pthread_mutex_t lock;
    enum link_state state;
    struct transport *stream; // NULL: closed
    struct transport *silent; // the connection before, while another card dials; NULL: there is none
    struct conn_out out;

    // the control thread's
    struct transport_context *transport;
    struct wire_run run;
    int epoll;
    uint64_t data;
    int64_t dial_deadline;
    struct recovery_seek seek;
    struct log_limit refusal_log;
    const struct cards *cards;      // borrowed
    uint32_t card;                  // that is dialled from
    uint32_t cards_left;            // of a join, to be tried
    uint32_t foreign;               // how often the keys of a master did not fit, in a join
    char answers[MASTER_LINK_TEXT]; // of masters that were of no use to a join, by one card; under `lock`
    char refusal[MASTER_LINK_TEXT]; // of a seek: why the last master that is not of the run is none; "": none was met
    uint32_t refuser;               // its place in the list
    bool seeking;                   // the master is lost
    int64_t lost_at;
    bool readable;
    bool heard;                // a frame, on this connection
    bool unreachable;          // to be told, as
    struct master_event ended; // MASTER_UNREACHABLE
    struct conn_in in;
};

struct master_link *master_link_new(int epoll, uint64_t data, const struct cards *cards) {
    struct master_link *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    pthread_mutex_init(&m->lock, NULL);
    m->refusal_log = (struct log_limit){.lines = 1, .seconds = 10};
    m->epoll = epoll;
    m->data = data;
    m->dial_deadline = INT64_MAX;
    m->cards = cards;
    return m;
}

void master_link_free(struct master_link *m) {
    if (m == NULL) return;
    master_link_close(m);
    wire_buffer_fini(&m->out.bytes);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static bool watch(const struct master_link *m, uint32_t events) {
    return transport_watch(m->stream, m->epoll, events, (epoll_data_t){.u64 = m->data});
}

static void forget_silent(struct master_link *m) {
    transport_free(m->silent);
    m->silent = NULL;
}

// Ends the connection. `keeps`: where there are other cards, it stays open while the master is dialled by another one,
// for its end would be taken for the end of this peer.
static void leave(struct master_link *m, bool keeps) {
    pthread_mutex_lock(&m->lock);
    struct transport *stream = m->stream;
    m->stream = NULL;
    m->state = CLOSED;
    conn_out_clear(&m->out);
    pthread_mutex_unlock(&m->lock);
    if (stream != NULL && !m->seeking && m->cards->count > 1 && keeps) {
        transport_unwatch(stream);
        m->silent = stream;
    } else {
        transport_free(stream);
    }
    m->readable = false;
    m->dial_deadline = INT64_MAX;
    conn_in_clear(&m->in);
}

void master_link_close(struct master_link *m) {
    leave(m, false);
    forget_silent(m);
    m->seeking = false;
}

void master_link_end(struct master_link *m) {
    if (m->state == OPEN) transport_finish(m->stream);
}

// ---- sending ----

static void await_room(struct master_link *m) {
    lock_assert_held(&m->lock);
    watch(m, conn_out_waiting(&m->out) > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

// Sends frames. The control thread reads the end of a connection that broke.
static void send_frames(struct master_link *m, const struct wire_buffer *frames) {
    lock_assert_held(&m->lock);
    int error = frames->failed ? -ENOMEM : conn_out_send(&m->out, m->stream, frames->bytes, frames->length);
    if (error == -ENOMEM || conn_out_waiting(&m->out) > MAX_WAITING_BYTES) {
        LOG(LOG_ERR, "gives up on the master: it does not read, or memory ran out");
        transport_hang_up(m->stream);
        error = -EPIPE;
    }
    if (error != 0) conn_out_clear(&m->out);
    await_room(m);
}

static void flush(struct master_link *m) {
    lock_assert_held(&m->lock);
    if (conn_out_flush(&m->out, m->stream) != 0) conn_out_clear(&m->out);
    await_room(m);
}

void master_link_send(struct master_link *m, const struct wire_buffer *frames) {
    pthread_mutex_lock(&m->lock);
    if (m->state == OPEN && (frames->length > 0 || frames->failed)) send_frames(m, frames);
    pthread_mutex_unlock(&m->lock);
}

// ---- dialling ----

static void dial(struct master_link *m, int64_t now);

// Each round through the list of masters leaves by another card.
static void change_card(struct master_link *m) {
    if (m->cards->count > 0) m->card = (m->card + 1) % m->cards->count;
}

static void forget_answers(struct master_link *m) {
    pthread_mutex_lock(&m->lock);
    m->answers[0] = 0;
    pthread_mutex_unlock(&m->lock);
}

void master_link_answers(struct master_link *m, char out[MASTER_LINK_TEXT]) {
    pthread_mutex_lock(&m->lock);
    memcpy(out, m->answers, sizeof m->answers);
    pthread_mutex_unlock(&m->lock);
}

const char *master_link_note(struct master_link *m, const char *answer) {
    char address[MASTER_LINK_ADDRESS];
    master_link_address(m, address);
    pthread_mutex_lock(&m->lock);
    size_t length = strlen(m->answers);
    bool names = (m->seek.count > 1 || m->run.chars[0] != 0) && strstr(answer, address) == NULL;
    snprintf(m->answers + length, sizeof m->answers - length, "%s%s%s%s%s", length > 0 ? "; " : "", names ? "at " : "",
             names ? address : "", names ? ", " : "", answer);
    pthread_mutex_unlock(&m->lock);
    return m->answers;
}

const char *master_link_note_refusal(struct master_link *m, const char *text) {
    if (!m->seeking || m->refusal[0] == 0) return text;
    // Each of the two gets a half if both are long.
    size_t room = sizeof m->answers - sizeof "; ", half = room / 2;
    size_t said = strlen(text), refused = strlen(m->refusal);
    if (said + refused > room) {
        if (said > half) said = refused < half ? room - refused : half;
        refused = room - said;
    }
    pthread_mutex_lock(&m->lock);
    snprintf(m->answers, sizeof m->answers, "%.*s; %.*s", (int)said, text, (int)refused, m->refusal);
    pthread_mutex_unlock(&m->lock);
    return m->answers;
}

// Forgets the refusal of the master that is dialled: it no longer holds.
static void forget_refusal(struct master_link *m) {
    if (m->refuser == m->seek.at) m->refusal[0] = 0;
}

static void fail_dial(struct master_link *m, bool internal, const char *what, int error, int64_t now) {
    char address[MASTER_LINK_ADDRESS], text[MASTER_LINK_TEXT];
    snprintf(text, sizeof text, "%s %s: %s", what, master_link_address(m, address), transport_why(m->stream, error));
    leave(m, false);
    bool refused = m->seeking && transport_refused(-error) && error != ECONNABORTED; // the latter may be dying
    if (!m->seeking && (error == EKEYREJECTED || error == EPROTOTYPE || error == EBADE)) m->foreign++;
    if (!m->seeking)
        master_link_note(m, text);
    else
        forget_refusal(m);
    if (refused) {
        m->refuser = m->seek.at;
        memcpy(m->refusal, text, sizeof text);
    }
    bool more = recovery_seek_failed(&m->seek, now);
    if (!m->seeking && !more && m->cards_left > 0) {
        m->cards_left--;
        forget_answers(m);
        recovery_seek_begin(&m->seek, false, now);
        more = true;
        change_card(m);
    } else if (m->seeking && m->seek.at == 0) {
        change_card(m);
    }
    if (refused) {
        LOG_LIMITED(&m->refusal_log, LOG_ERR, "still seeks a master: %s", text); // that one will not take the run over
    } else if (m->seeking) {
        if (recovery_seek_tells(&m->seek, now)) LOG(LOG_ERR, "still seeks a master: %s", text);
    } else if (more) {
        dial(m, now);
    } else {
        m->ended = (struct master_event){.kind = MASTER_UNREACHABLE, .internal = internal};
        memcpy(m->ended.text, m->answers, sizeof m->answers);
        m->unreachable = true;
    }
}

static void dial(struct master_link *m, int64_t now) {
    struct transport *stream;
    const struct card *card = m->cards->count > 0 ? &m->cards->list[m->card] : NULL;
    int error = transport_dial_from(m->transport, card, recovery_seek_master(&m->seek), &stream);
    if (error != 0) {
        fail_dial(m, false, "cannot connect to the master at", -error, now);
        return;
    }
    transport_expect(stream, TRANSPORT_MASTER, NULL);
    pthread_mutex_lock(&m->lock);
    m->state = DIALLING;
    m->stream = stream;
    pthread_mutex_unlock(&m->lock);
    m->heard = false;
    m->dial_deadline =
        now + (m->seeking || m->seek.count > 1 || m->cards_left > 0 ? SEEK_DIAL_MS : MEMBER_JOIN_LIMIT_MS) * MS_NS;
    if (!watch(m, EPOLLOUT)) fail_dial(m, true, "cannot watch the connection to the master at", errno, now);
}

void master_link_join(struct master_link *m, struct transport_context *transport, const struct wire_run *run,
                      const struct wire_address *masters, uint32_t count, int64_t now) {
    m->run = *run;
    m->transport = transport;
    m->card = 0;
    m->cards_left = m->cards->count > 0 ? m->cards->count - 1 : 0;
    m->seek.masters = masters;
    m->seek.count = count;
    m->unreachable = false;
    m->foreign = 0;
    forget_answers(m);
    recovery_seek_begin(&m->seek, false, now);
    dial(m, now);
}

bool master_link_join_next(struct master_link *m, int64_t now) {
    if (m->seek.again || !recovery_seek_failed(&m->seek, now)) return false;
    master_link_close(m);
    dial(m, now);
    return true;
}

void master_link_seek(struct master_link *m, bool anew, int64_t now) {
    leave(m, true);
    if (m->seeking) {
        if (anew)
            recovery_seek_anew(&m->seek, now);
        else
            recovery_seek_failed(&m->seek, now);
        return;
    }
    m->seeking = true;
    m->refusal[0] = 0;
    m->lost_at = now;
    change_card(m);
    recovery_seek_begin(&m->seek, true, now);
}

void master_link_found(struct master_link *m, int64_t now) {
    char address[MASTER_LINK_ADDRESS];
    LOG(LOG_NOTICE, "continues with the master at %s, after %lld ms", master_link_address(m, address),
        (long long)((now - m->lost_at) / MS_NS));
    m->seeking = false;
    forget_silent(m);
}

void master_link_use(struct master_link *m, const struct wire_buffer *first) {
    struct wire_buffer named = {0};
    if (m->run.chars[0] != 0) wire_encode_run(&named, (struct wire_header){0}, &m->run);
    pthread_mutex_lock(&m->lock);
    m->state = OPEN;
    if (named.length > 0 || named.failed) send_frames(m, &named);
    if (first != NULL) send_frames(m, first);
    pthread_mutex_unlock(&m->lock);
    wire_buffer_fini(&named);
    m->dial_deadline = INT64_MAX;
}

void master_link_refuse(struct master_link *m, const char *what, int error, int64_t now) {
    fail_dial(m, true, what, error, now);
}

bool master_link_local(const struct master_link *m, struct wire_address *out) {
    return transport_local_address(m->stream, out);
}

static void connect_on(struct master_link *m, int64_t now) {
    int error = transport_step(m->stream);
    if (error == -EAGAIN) return;
    const char *what = !transport_refused(error) ? "cannot connect to the master (is it running?) at"
                       : transport_has_proved(m->stream)
                           ? "cannot trust the master (is it the port of a pccl master, not of a peer?) at"
                           : "cannot trust the master at";
    if (error != 0) {
        fail_dial(m, false, what, -error, now);
    } else if (!watch(m, EPOLLIN)) {
        fail_dial(m, true, "cannot watch the connection to the master at", errno, now);
    } else {
        forget_refusal(m);
        pthread_mutex_lock(&m->lock);
        m->state = ANSWERS;
        pthread_mutex_unlock(&m->lock);
    }
}

// ---- reading ----

static bool broke(struct master_link *m, struct master_event *out, const char *why) {
    m->readable = false;
    out->kind = MASTER_BROKE;
    snprintf(out->text, sizeof out->text, "%s", why);
    return true;
}

// Tells how the stream has ended; `error`: 0 if the other end has closed it.
static bool ended(struct master_link *m, struct master_event *out, int error) {
    if (error == 0 && conn_in_end(&m->in) == -ENOKEY) {
        if (!m->seeking) m->foreign++;
        return broke(m, out, transport_error(-ENOKEY));
    }
    char why[MASTER_LINK_TEXT];
    snprintf(why, sizeof why, "%s%s", error < 0 ? transport_error(error) : "the master closed it",
             m->heard || m->stream->type->proves ? "" : " (is it the port of a pccl master, not of a peer?)");
    return broke(m, out, why);
}

// A whole frame of the input, or bytes that are none. False: more has to be read.
static bool take_frame(struct master_link *m, struct master_event *out) {
    out->kind = MASTER_FRAME;
    switch (conn_in_next(&m->in, conn_carries_control, &out->header, &out->body)) {
    case CONN_MORE: return false;
    case CONN_FRAME:
        m->heard = true;
        if (out->header.type == WIRE_EPOCH) transport_vouch(m->stream);
        return true;
    default: conn_in_clear(&m->in); return broke(m, out, "it sent invalid bytes: is it a pccl master of this version?");
    }
}

bool master_link_next(struct master_link *m, struct master_event *out, int64_t *now) {
    if (m->unreachable) {
        *out = m->ended;
        m->unreachable = false;
        return true;
    }
    out->kind = MASTER_ANSWERS;
    if (m->state == ANSWERS) {
        *now = platform_now_ns(); // as below: the other side's time to answer begins here
        return true;
    }
    while (m->state == OPEN) {
        if (take_frame(m, out)) return true;
        if (!m->readable) return false;
        ptrdiff_t got = conn_in_receive(&m->in, m->stream, INPUT_BYTES);
        *now = platform_now_ns(); // this process may have been stopped since it looked last
        if (got == -EAGAIN)
            m->readable = false;
        else if (got <= 0)
            return ended(m, out, (int)got);
    }
    return false;
}

// ---- called by the loop ----

void master_link_event(struct master_link *m, uint32_t events, int64_t now) {
    if (m->state == DIALLING) connect_on(m, now);
    if (m->state != OPEN) return;
    m->readable |= (events & ~(uint32_t)EPOLLOUT) != 0;
    pthread_mutex_lock(&m->lock);
    if ((events & EPOLLOUT) != 0) flush(m);
    pthread_mutex_unlock(&m->lock);
}

static bool waits_to_dial(const struct master_link *m) { return m->seeking && m->state == CLOSED; }

void master_link_tick(struct master_link *m, int64_t now) {
    if (now >= m->dial_deadline)
        fail_dial(m, false, "no answer from the master (wrong address, or a firewall?) at", ETIMEDOUT, now);
    if (waits_to_dial(m) && now >= m->seek.next) dial(m, now);
}

int64_t master_link_deadline(const struct master_link *m) {
    return waits_to_dial(m) && m->seek.next < m->dial_deadline ? m->seek.next : m->dial_deadline;
}

// ---- state ----

bool master_link_is_open(const struct master_link *m) { return m->state == OPEN; }
bool master_link_is_foreign(const struct master_link *m) {
    uint32_t cards = m->cards->count > 0 ? m->cards->count : 1;
    return m->foreign > 0 && m->foreign >= m->seek.count * (cards - m->cards_left);
}
bool master_link_seeks(const struct master_link *m) { return m->seeking; }
bool master_link_has_earlier(const struct master_link *m) { return m->seek.at > 0; }
int64_t master_link_round_trip_ns(const struct master_link *m) {
    return transport_gauge(m->stream).round_trip_us * US_NS;
}
const char *master_link_address(const struct master_link *m, char out[MASTER_LINK_ADDRESS]) {
    char address[64];
    socket_address_format(address, sizeof address, recovery_seek_master(&m->seek));
    snprintf(out, MASTER_LINK_ADDRESS, "%s%s%s", address, m->run.chars[0] != 0 ? "/" : "", m->run.chars);
    return out;
}
