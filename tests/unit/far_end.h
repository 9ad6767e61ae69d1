// A test's own end of a stream whose other end is the library's: whatever transport carries it, the test speaks bytes.
#ifndef PCCL_TESTS_FAR_END_H
#define PCCL_TESTS_FAR_END_H

#include <errno.h>
#include <poll.h>

#include "base/descriptor.h"
#include "check.h"
#include "net/socket.h"
#include "net/transport.h"

enum { FAR_END_PATIENCE_MS = 30000 };

static const struct wire_address any_port = {.family = 4, .bytes = {127, 0, 0, 1}};

// The test's context, which lives as long as its process.
static inline struct transport_context *far_end_context(void) {
    static struct transport_context *context;
    if (context == NULL) context = transport_context_new(NULL);
    return context;
}

static inline struct transport *far_end_with(int fd, enum transport_role role) {
    struct transport_context *context = transport_context_new(NULL);
    struct transport *stream = context == NULL ? NULL : transport_new(context, fd, role);
    transport_context_release(context); // the stream holds it
    return stream;
}

// A stream over an end of a pair of sockets, or over a connection that is made: nobody steps. NULL: no memory.
static inline struct transport *far_end_new(int fd) { return far_end_with(fd, TRANSPORT_DIALS); }

// A stream that was dialled by the library. The functions below carry its handshake on.
static inline struct transport *far_end_accepted(int fd) { return far_end_with(fd, TRANSPORT_ACCEPTS); }

static inline bool far_end_await(struct transport *stream, short events) {
    return poll(&(struct pollfd){.fd = stream->fd, .events = events}, 1, FAR_END_PATIENCE_MS) == 1;
}

// NULL: nobody listens there. As a stranger, who leaves out what a transport says before anything else.
static inline struct transport *far_end_dial(const struct wire_address *address) {
    int fd = socket_dial(address);
    if (fd < 0) return NULL;
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    if (poll(&polled, 1, FAR_END_PATIENCE_MS) == 1 && socket_connect_result(fd) == 0) return far_end_new(fd);
    descriptor_close(fd);
    return NULL;
}

static inline int far_end_open(struct transport *stream) {
    int error = 0;
    while (stream->role == TRANSPORT_ACCEPTS && (error = transport_step(stream)) == -EAGAIN)
        if (!far_end_await(stream, (short)stream->awaits)) break;
    return error;
}

// False: the stream has broken.
static inline bool far_end_write(struct transport *stream, const void *bytes, size_t length) {
    if (far_end_open(stream) != 0) return false;
    for (size_t at = 0; at < length;) {
        ptrdiff_t sent = transport_send(stream, (const uint8_t *)bytes + at, length - at);
        if (sent > 0)
            at += (size_t)sent;
        else if (sent != -EAGAIN || !far_end_await(stream, POLLOUT))
            return false;
    }
    return true;
}

// What is there, at least a byte; 0: the end of the stream, and -errno.
static inline ptrdiff_t far_end_read_some(struct transport *stream, void *out, size_t capacity) {
    ptrdiff_t got = far_end_open(stream);
    if (got != 0) return got;
    while ((got = transport_receive(stream, out, capacity)) == -EAGAIN)
        if (!far_end_await(stream, POLLIN)) break;
    return got;
}

// Exactly `length` bytes. False: the stream has ended.
static inline bool far_end_read(struct transport *stream, void *out, size_t length) {
    for (size_t at = 0; at < length;) {
        ptrdiff_t got = far_end_read_some(stream, (uint8_t *)out + at, length - at);
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return true;
}

// Whether the other side closes; what it still says is dropped.
static inline bool far_end_closes(struct transport *stream) {
    uint8_t bytes[256];
    ptrdiff_t got;
    do got = far_end_read_some(stream, bytes, sizeof bytes);
    while (got > 0);
    return got != -EAGAIN;
}

// Dials a listener and is accepted; both ends step as a poller tells them. Returns what their steps came to, and the
// streams where both are 0.
static inline void far_end_connect(struct transport_context *dials, struct transport_context *accepts, int results[2],
                                   struct transport *ends[2], int *accepted_count) {
    int poller = descriptor_epoll();
    struct wire_address address, from;
    int listener = socket_listen(&any_port);
    *accepted_count = 0;
    ends[0] = ends[1] = NULL;
    results[0] = results[1] = -EAGAIN;
    struct epoll_event waits = {.events = EPOLLIN, .data.u64 = 2};
    REQUIRE(listener >= 0 && socket_local_address(listener, &address));
    REQUIRE(epoll_ctl(poller, EPOLL_CTL_ADD, listener, &waits) == 0);
    REQUIRE(transport_dial(dials, &address, &ends[0]) == 0);
    REQUIRE(transport_watch(ends[0], poller, EPOLLOUT, (epoll_data_t){.u64 = 0}));
    while (results[0] == -EAGAIN || (results[0] == 0 && results[1] == -EAGAIN)) {
        struct epoll_event told[3];
        int count = epoll_wait(poller, told, 3, FAR_END_PATIENCE_MS);
        REQUIRE(count > 0);
        for (int i = 0; i < count; i++) {
            uint64_t data = told[i].data.u64;
            if (data == 2 && ends[1] == NULL) {
                REQUIRE(transport_accept(accepts, listener, &ends[1], &from) == 0);
                REQUIRE(transport_watch(ends[1], poller, EPOLLIN, (epoll_data_t){.u64 = 1}));
                ++*accepted_count;
                results[1] = transport_step(ends[1]);
                if (results[1] == 0) transport_unwatch(ends[1]);
            } else if (data < 2 && ends[data] != NULL && results[data] == -EAGAIN) {
                results[data] = transport_step(ends[data]);
                if (results[data] == 0) transport_unwatch(ends[data]);
            }
            if (ends[1] != NULL && results[1] != 0 && results[1] != -EAGAIN) {
                transport_free(ends[1]);
                ends[1] = NULL;
            }
        }
    }
    descriptor_close(listener);
    descriptor_close(poller);
}

#endif
