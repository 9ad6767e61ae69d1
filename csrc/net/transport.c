#define _GNU_SOURCE
#include "net/transport.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/descriptor.h"
#include "net/socket.h"

// ---- plain TCP ----

static int plain_step(struct transport *stream, uint32_t *events) {
    *events = EPOLLOUT;
    int error = socket_connect_result(stream->fd);
    if (error != -EINPROGRESS) return error;
    return socket_has_ended(stream->fd) ? -ECONNRESET : -EAGAIN;
}

static struct msghdr message_of(const struct iovec *parts, int count) {
    return (struct msghdr){.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
}

static ptrdiff_t plain_sendv(struct transport *stream, const struct iovec *parts, int count) {
    struct msghdr message = message_of(parts, count);
    ptrdiff_t sent;
    do sent = sendmsg(stream->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}

static ptrdiff_t plain_recvv(struct transport *stream, const struct iovec *parts, int count) {
    struct msghdr message = message_of(parts, count);
    ptrdiff_t got;
    do got = recvmsg(stream->fd, &message, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

static void plain_finish(struct transport *stream) { shutdown(stream->fd, SHUT_WR); }

const struct transport_type transport_plain = {
    .bytes = sizeof(struct transport),
    .step = plain_step,
    .sendv = plain_sendv,
    .recvv = plain_recvv,
    .finish = plain_finish,
};

const struct transport_type *transport_default = &transport_plain;

// ---- streams ----

struct transport *transport_new(int fd) {
    struct transport *stream = calloc(1, transport_default->bytes);
    if (stream == NULL) {
        descriptor_close(fd);
        return NULL;
    }
    stream->type = transport_default;
    stream->references = 1;
    stream->fd = fd;
    stream->poller = -1;
    return stream;
}

int transport_dial(const struct wire_address *address, struct transport **out) {
    int fd = socket_dial(address);
    if (fd < 0) return fd;
    struct transport *stream = transport_new(fd);
    if (stream == NULL) return -ENOMEM;
    *out = stream;
    return 0;
}

int transport_step(struct transport *stream) {
    uint32_t events;
    int error = stream->type->step(stream, &events);
    if (error != -EAGAIN || stream->poller < 0) return error;
    return transport_watch(stream, stream->poller, events, stream->data) ? -EAGAIN : -errno;
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
    free(stream);
}

void transport_hang_up(struct transport *stream) { shutdown(stream->fd, SHUT_RDWR); }

bool transport_watch(struct transport *stream, int poller, uint32_t events, epoll_data_t data) {
    int operation = stream->poller == poller ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    struct epoll_event event = {.events = events, .data = data};
    if (epoll_ctl(poller, operation, stream->fd, &event) != 0) return false;
    stream->poller = poller;
    stream->data = data;
    return true;
}

void transport_unwatch(struct transport *stream) {
    if (stream->poller >= 0) epoll_ctl(stream->poller, EPOLL_CTL_DEL, stream->fd, NULL);
    stream->poller = -1;
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
