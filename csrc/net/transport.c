#define _GNU_SOURCE
#include "net/transport.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "net/relay.h"
#include "net/rendezvous.h"
#include "net/socket.h"

// ---- plain TCP ----

static int transport_plain_step(struct transport *stream) {
    if (stream->role == TRANSPORT_ACCEPTS) return 0;
    stream->awaits = EPOLLOUT;
    int error = socket_connect_result(stream->fd);
    if (error != -EINPROGRESS) return error;
    return socket_has_ended(stream->fd) ? -ECONNRESET : -EAGAIN;
}

static struct msghdr message_of(const struct iovec *parts, int count) {
    return (struct msghdr){.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
}

static ptrdiff_t transport_plain_sendv(struct transport *stream, const struct iovec *parts, int count) {
    struct msghdr message = message_of(parts, count);
    ptrdiff_t sent;
    do sent = sendmsg(stream->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}

static ptrdiff_t transport_plain_recvv(struct transport *stream, const struct iovec *parts, int count) {
    struct msghdr message = message_of(parts, count);
    ptrdiff_t got;
    do got = recvmsg(stream->fd, &message, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

static void transport_plain_finish(struct transport *stream) { shutdown(stream->fd, SHUT_WR); }

const struct transport_type transport_plain = {
    .bytes = sizeof(struct transport),
    .step = transport_plain_step,
    .sendv = transport_plain_sendv,
    .recvv = transport_plain_recvv,
    .finish = transport_plain_finish,
};

// ---- errors ----

const char *transport_error(int error) {
    switch (error < 0 ? -error : error) {
    case EKEYREJECTED: return "its keys or certificate and those of this process are not of one run";
    case EPROTOTYPE: return "it does not encrypt, and this process does";
    case ECONNABORTED: return "it ended the handshake: it does not encrypt, or it is busy";
    case ENOKEY: return "it encrypts, and this process has no keys (PCCL_KEYS, or PCCL_CERT)";
    case EBADE: return "it has keys or a certificate of this run, but it is not who it should be";
    case ENOMSG: return "it sends TLS records without data";
    case EBADMSG: return "bytes were changed on their way";
    case ENONET: return "it is " TRANSPORT_LOOPBACK_ONLY;
    default: return strerror(error < 0 ? -error : error);
    }
}

const char *transport_why(const struct transport *stream, int error) {
    const char *why = NULL;
    if (stream != NULL && stream->relay != NULL) why = relay_why(stream->relay, error);
    if (why == NULL && stream != NULL && stream->type->why != NULL) why = stream->type->why(stream);
    return why != NULL ? why : transport_error(error);
}

bool transport_refused(int error) {
    return error == -EKEYREJECTED || error == -EPROTOTYPE || error == -ECONNABORTED || error == -ENOKEY ||
           error == -EBADE || error == -EBADMSG;
}

void transport_log_refusal(const struct transport *stream, int error, struct log_limit *limit) {
    struct wire_address other;
    char address[64] = "a process that is gone";
    const struct relay_hello *relay = stream->relay;
    bool useless = relay != NULL && !relay->at_member && relay_why(relay, error) != NULL;
    if (!useless && !transport_refused(error)) return;
    if (useless || transport_remote_address(stream, &other))
        socket_address_format(address, sizeof address, useless ? &relay->at : &other);
    LOG_LIMITED(limit, LOG_WARN, "%s %s: %s", useless ? "cannot use the relay at" : "refuses a link with", address,
                transport_why(stream, error));
}

// ---- contexts ----

bool transport_permits(const struct transport_options *options, const struct wire_address *address,
                       enum transport_role role) {
    if (options->keys != NULL || options->insecure || socket_address_is_loopback(address)) return true;
    return role == TRANSPORT_DIALS && socket_address_is_any(address); // the kernel takes loopback
}

void transport_context_init(struct transport_context *context, const struct transport_type *type,
                            const struct transport_options *options) {
    context->type = type;
    if (options != NULL) context->options = *options;
    context->references = 1;
}

struct transport_context *transport_context_new(const struct transport_options *options) {
    struct transport_context *context = calloc(1, sizeof *context);
    if (context == NULL) return NULL;
    transport_context_init(context, &transport_plain, options);
    return context;
}

struct transport_context *transport_context_hold(struct transport_context *context) {
    atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
    return context;
}

void transport_context_release(struct transport_context *context) {
    if (context == NULL || atomic_fetch_sub_explicit(&context->references, 1, memory_order_acq_rel) > 1) return;
    if (context->type->context_fini != NULL) context->type->context_fini(context);
    free(context);
}

// ---- life of a stream ----

static struct transport *stream_new(struct transport_context *context, const struct transport_type *type, int fd,
                                    enum transport_role role) {
    struct transport *stream = calloc(1, type->bytes);
    if (stream == NULL) {
        descriptor_close(fd);
        return NULL;
    }
    stream->type = type;
    stream->context = transport_context_hold(context);
    stream->references = 1;
    stream->role = role;
    stream->fd = fd;
    stream->poller = -1;
    return stream;
}

struct transport *transport_new(struct transport_context *context, int fd, enum transport_role role) {
    return stream_new(context, context->type, fd, role);
}

// A local socket (net/rendezvous) stays plain: the kernel tells whose process is at its other end.
static struct transport *new_local(struct transport_context *context, int fd, enum transport_role role) {
    return stream_new(context, context->type->proves ? &transport_plain : context->type, fd, role);
}

int transport_dial_from(struct transport_context *context, const struct card *card, const struct wire_address *address,
                        struct transport **out) {
    if (!transport_permits(&context->options, address, TRANSPORT_DIALS)) return -ENONET;
    int fd = socket_dial_from(card, address);
    if (fd < 0) return fd;
    *out = transport_new(context, fd, TRANSPORT_DIALS);
    if (*out == NULL) return -ENOMEM;
    (*out)->card = card;
    return 0;
}

int transport_dial_relay(struct transport_context *context, const struct wire_address *relay,
                         const struct relay_hello *hello, enum transport_role role, struct transport **out) {
    int error = transport_dial(context, relay, out);
    if (error != 0) return error;
    struct transport *stream = *out;
    stream->role = role;
    stream->relay = malloc(sizeof *stream->relay);
    if (stream->relay == NULL) {
        transport_free(stream);
        return -ENOMEM;
    }
    *stream->relay = *hello;
    stream->relay->keys = context->options.keys;
    stream->relay->at = *relay;
    return 0;
}

int transport_dial_local(struct transport_context *context, const struct wire_address *address,
                         struct transport **out) {
    int fd = rendezvous_dial_master(address);
    if (fd < 0) return fd;
    *out = new_local(context, fd, TRANSPORT_DIALS);
    return *out != NULL ? 0 : -ENOMEM;
}

int transport_accept(struct transport_context *context, int listener, struct transport **out,
                     struct wire_address *from) {
    int fd = socket_accept(listener, from);
    if (fd < 0) return fd;
    *out = (from->family == 0 ? new_local : transport_new)(context, fd, TRANSPORT_ACCEPTS);
    return *out != NULL ? 0 : -ENOMEM;
}

// The only place that judges who may be who. `id` NULL: with any.
static bool may_be(const struct transport *stream, enum transport_party party, const struct wire_id *id) {
    if (!stream->type->proves) return true;
    return stream->peer.party == party && (id == NULL || wire_id_equal(&stream->peer.id, id));
}

static bool is_expected(const struct transport *stream) {
    if (stream->expected.party == TRANSPORT_STRANGER) return true;
    return may_be(stream, stream->expected.party, stream->expected.one ? &stream->expected.id : NULL);
}

bool transport_is_peer(const struct transport *stream, const struct wire_id *id) {
    return may_be(stream, TRANSPORT_PEER, id);
}

// The steps of the relay come before those of the transport.
static int step(struct transport *stream) {
    if (stream->relay != NULL && stream->relay->state != RELAY_JOINED) { // later, both threads of a stream only ask
        int error = relay_step(stream->relay, stream->fd, &stream->awaits);
        if (error != 0) return error;
    }
    int error = stream->type->step(stream);
    return error != 0 || is_expected(stream) ? error : -EBADE;
}

int transport_step(struct transport *stream) {
    int error = step(stream);
    if (error != -EAGAIN || stream->poller < 0) return error;
    return transport_watch(stream, stream->poller, stream->awaits, stream->data) ? -EAGAIN : -errno;
}

void transport_free(struct transport *stream) {
    if (stream == NULL) return;
    transport_unwatch(stream);
    transport_release(stream);
}

struct transport *transport_hold(struct transport *stream) {
    atomic_fetch_add_explicit(&stream->references, 1, memory_order_relaxed);
    return stream;
}

void transport_release(struct transport *stream) {
    if (atomic_fetch_sub_explicit(&stream->references, 1, memory_order_acq_rel) > 1) return;
    if (stream->type->fini != NULL) stream->type->fini(stream);
    descriptor_close(stream->fd);
    transport_context_release(stream->context);
    free(stream->relay);
    free(stream);
}

int transport_asks_relay(const struct transport *stream) {
    char first = 0; // at its end the next step tells
    if (recv(stream->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR)) return -EAGAIN;
    return first == RELAY_QUESTION[0];
}

void transport_hang_up(struct transport *stream) { shutdown(stream->fd, SHUT_RDWR); }

void transport_reset(struct transport *stream) {
    struct linger reset = {.l_onoff = 1};
    setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

// ---- what is known of the connection ----

bool transport_has_room(const struct transport *stream) {
    struct pollfd polled = {.fd = stream->fd, .events = POLLOUT};
    return poll(&polled, 1, 0) != 0;
}

// ---- how fast it sends ----

void transport_apply_congestion(struct transport *stream) {
    const char *name = stream->context->options.congestion;
    if (name[0] != 0) socket_apply_congestion(stream->fd, name);
}

void transport_limit_unsent(struct transport *stream, uint32_t bytes) {
    int most = bytes > INT32_MAX ? INT32_MAX : (int)bytes;
    setsockopt(stream->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most, sizeof most);
}

void transport_pace(struct transport *stream, uint32_t bytes_per_s) {
    setsockopt(stream->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, sizeof bytes_per_s);
}

// ---- events and bytes ----

bool transport_watch(struct transport *stream, int poller, uint32_t events, epoll_data_t data) {
    bool known = stream->poller == poller;
    if (known && stream->watched == events && stream->data.u64 == data.u64) return true;
    int operation = known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    struct epoll_event event = {.events = events, .data = data};
    if (epoll_ctl(poller, operation, stream->fd, &event) != 0) return false;
    stream->poller = poller;
    stream->watched = events;
    stream->data = data;
    return true;
}

void transport_unwatch(struct transport *stream) {
    if (stream->poller >= 0) epoll_ctl(stream->poller, EPOLL_CTL_DEL, stream->fd, NULL);
    stream->poller = -1;
}

bool transport_wait(const struct transport *stream, uint32_t events, int timeout_ms) {
    struct pollfd awaited = {.fd = stream->fd, .events = (short)events};
    return poll(&awaited, 1, timeout_ms) > 0;
}

ptrdiff_t transport_send(struct transport *stream, const void *bytes, size_t length) {
    return transport_sendv(stream, &(struct iovec){(void *)bytes, length}, 1);
}

ptrdiff_t transport_receive(struct transport *stream, void *bytes, size_t capacity) {
    ptrdiff_t got;
    do got = transport_recvv(stream, &(struct iovec){bytes, capacity}, 1);
    while (got == -EAGAIN && stream->buffered);
    return got;
}
