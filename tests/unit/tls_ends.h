// Two ends of TLS with the test between them, or over TCP.
#ifndef PCCL_TESTS_TLS_ENDS_H
#define PCCL_TESTS_TLS_ENDS_H

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/descriptor.h"
#include "far_end.h"
#include "key_files.h"
#include "net/tls.h"
#include "net/transport.h"

// ---- contexts ----

static inline struct transport_context *context_of(struct keys *keys, enum transport_party party) {
    struct transport_options options = {.keys = keys, .party = party};
    struct transport_context *context = tls_context_new(&options);
    keys_release(keys);
    REQUIRE(context != NULL);
    return context;
}

static inline struct transport_context *master_context(void) {
    return context_of(key_files_load(true, 1, 1, 0), TRANSPORT_MASTER);
}

static inline struct transport_context *peer_context(void) {
    return context_of(key_files_load(false, 1, 1, 0), TRANSPORT_PEER);
}

// ---- two ends, with the test in the middle ----

typedef void change_fn(int direction, uint8_t *bytes, size_t *length, size_t capacity);

struct wire {
    struct transport *ends[2]; // the dialler, and who accepts
    int middle[2];
    int results[2];   // of steps
    size_t passed[2]; // bytes from each end
};

static inline void open_wire(struct wire *wire, struct transport_context *dials, struct transport_context *accepts) {
    int sockets[2];
    *wire = (struct wire){.results = {-EAGAIN, -EAGAIN}};
    for (int i = 0; i < 2; i++) {
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0);
        wire->middle[i] = sockets[1];
        wire->ends[i] =
            transport_new(i == 0 ? dials : accepts, sockets[0], i == 0 ? TRANSPORT_DIALS : TRANSPORT_ACCEPTS);
        REQUIRE(wire->ends[i] != NULL);
    }
}

static inline void close_end(struct wire *wire, int end) {
    transport_free(wire->ends[end]);
    wire->ends[end] = NULL;
}

static inline void close_wire(struct wire *wire) {
    for (int i = 0; i < 2; i++) {
        close_end(wire, i);
        if (wire->middle[i] >= 0) close(wire->middle[i]);
    }
}

// Passes on what came from one end. False: nothing came.
static inline bool pass(struct wire *wire, int from, change_fn *change) {
    uint8_t bytes[1 << 17];
    if (wire->middle[from] < 0) return false;
    ssize_t got = recv(wire->middle[from], bytes, sizeof bytes / 2, MSG_DONTWAIT);
    if (got == 0) {
        shutdown(wire->middle[1 - from], SHUT_WR);
        return false;
    }
    if (got < 0) return false;
    size_t length = (size_t)got;
    if (change != NULL) change(from, bytes, &length, sizeof bytes);
    wire->passed[from] += length;
    for (size_t at = 0; at < length;) {
        ssize_t sent = send(wire->middle[1 - from], bytes + at, length - at, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) break;
        if (sent > 0) at += (size_t)sent;
    }
    return true;
}

static inline void step_end(struct wire *wire, int end) {
    if (wire->ends[end] == NULL || wire->results[end] != -EAGAIN) return;
    wire->results[end] = transport_step(wire->ends[end]);
    if (wire->results[end] != 0 && wire->results[end] != -EAGAIN) close_end(wire, end); // as its owner does
}

// Steps until both ends are done, or wait for something that does not come.
static inline void shake_hands(struct wire *wire, change_fn *change) {
    for (int idle = 0; idle < 3; idle++) {
        for (int i = 0; i < 2; i++) {
            step_end(wire, i);
            while (pass(wire, i, change)) idle = 0;
        }
    }
}

static inline void open_good(struct wire *wire) {
    struct transport_context *dials = peer_context(), *accepts = master_context();
    open_wire(wire, dials, accepts);
    shake_hands(wire, NULL);
    REQUIRE(CHECK_EQ(wire->results[0], 0) && CHECK_EQ(wire->results[1], 0));
    transport_context_release(dials);
    transport_context_release(accepts);
}

static inline void open_tcp(struct transport *ends[2], uint32_t renewal, int buffer) {
    struct transport_context *dials = peer_context(), *accepts = master_context();
    int results[2], connections;
    if (renewal != 0) {
        tls_renew_after(dials, renewal);
        tls_renew_after(accepts, renewal + 1);
    }
    far_end_connect(dials, accepts, results, ends, &connections);
    REQUIRE(CHECK_EQ(results[0], 0) && CHECK_EQ(results[1], 0));
    for (int i = 0; i < 2 && buffer > 0; i++)
        REQUIRE(setsockopt(ends[i]->fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer) == 0);
    transport_context_release(dials);
    transport_context_release(accepts);
}

#endif
