// Streams of bytes between two processes. What the bytes become on their way is the transport's: plain TCP today.
//
// All bytes of a stream pass through these functions. The descriptor is for pollers, and for what the kernel knows of
// the connection (net/socket, net/gauge). Nothing blocks, nothing raises SIGPIPE; errors are errno values, negated.
// One thread at a time sends, and one receives; they may be two. Anyone may hang up at any time.
#ifndef PCCL_NET_TRANSPORT_H
#define PCCL_NET_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "net/wire.h"

struct transport;

// A way to carry streams. What a stream of it needs beside `struct transport` lies behind it, in one allocation.
struct transport_type {
    size_t bytes; // of one stream, all 0 at first
    // Makes the next step of the handshake, see transport_step; -EAGAIN: `*events` are awaited. The other side steps
    // when it first receives, and sends nothing before.
    int (*step)(struct transport *stream, uint32_t *events);
    // Bytes taken (> 0), -EAGAIN: the poller tells when there is room (EPOLLOUT), or -errno. A transport that holds
    // bytes back leaves one of them out of its count, so that it is called again.
    ptrdiff_t (*sendv)(struct transport *stream, const struct iovec *parts, int count);
    // Bytes received (> 0), 0 = end of stream, -EAGAIN or -errno. Sets `buffered`.
    ptrdiff_t (*recvv)(struct transport *stream, const struct iovec *parts, int count);
    // Announces the end of what is sent.
    void (*finish)(struct transport *stream);
    // NULL: nothing is to be given back but the descriptor and the memory.
    void (*fini)(struct transport *stream);
};

struct transport {
    const struct transport_type *type;
    _Atomic uint32_t references; // of transport.c alone
    int fd;
    int poller; // that watches it, and tells `data`; -1: none
    epoll_data_t data;
    // The receiver's: recvv may give more at once, and no poller tells of it. False only when recvv has just seen that
    // the kernel has no more and holds nothing itself; so also after a call that did not ask the kernel, true.
    bool buffered;
};

extern const struct transport_type transport_plain;
// The transport of new streams, at both ends. Set it before the first stream.
extern const struct transport_type *transport_default;

// Takes the descriptor of a connection, and closes it when there is no memory: NULL.
struct transport *transport_new(int fd);
// Begins to connect: to be watched for EPOLLOUT, and carried on by steps. 0 or -errno.
int transport_dial(const struct wire_address *address, struct transport **out);
// Carries a dialled stream on. 0: bytes can be sent. -EAGAIN: again when its poller tells, which watches for what is
// awaited. Else -errno.
int transport_step(struct transport *stream);
// Gives a poller up and closes, or leaves that to the last one who holds it: closing alone does not end the polling
// while a child of fork has the socket open. NULL is allowed.
void transport_free(struct transport *stream);
// Holds it, for any thread that wants to know what the kernel says of its descriptor, and does nothing else with it.
struct transport *transport_hold(struct transport *stream);
void transport_release(struct transport *stream);
// The stream is to end in both directions. Both sides read what came before, and then the end.
void transport_hang_up(struct transport *stream);

// From now on the poller tells of `events` with `data`. False, and errno, when it cannot.
bool transport_watch(struct transport *stream, int poller, uint32_t events, epoll_data_t data);
void transport_unwatch(struct transport *stream);

static inline ptrdiff_t transport_sendv(struct transport *stream, const struct iovec *parts, int count) {
    return stream->type->sendv(stream, parts, count);
}

static inline ptrdiff_t transport_recvv(struct transport *stream, const struct iovec *parts, int count) {
    return stream->type->recvv(stream, parts, count);
}

static inline void transport_finish(struct transport *stream) { stream->type->finish(stream); }

ptrdiff_t transport_send(struct transport *stream, const void *bytes, size_t length);
// -EAGAIN: nothing is buffered, and a poller tells of what comes.
ptrdiff_t transport_receive(struct transport *stream, void *bytes, size_t capacity);

#endif
