#include "master/inquiry.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>

#include "base/platform.h"
#include "net/conn.h"
#include "net/transport.h"

// 0 once one of the events is there, or the connection has ended.
static int await(const struct transport *stream, short events, int64_t deadline_ns) {
    struct pollfd awaited = {.fd = stream->fd, .events = events};
    for (;;) {
        int64_t now_ns = platform_now_ns();
        if (now_ns >= deadline_ns) return -ETIMEDOUT;
        int ready = poll(&awaited, 1, platform_wait_ms(now_ns, deadline_ns));
        if (ready > 0) return 0;
        if (ready < 0 && errno != EINTR) return -errno;
    }
}

static int ask(struct transport *stream, struct conn_out *out, enum wire_type question, int64_t deadline_ns) {
    int error = 0;
    wire_encode_empty(&out->bytes, (struct wire_header){0}, question);
    do {
        error = await(stream, POLLOUT, deadline_ns);
        if (error == 0) error = transport_step(stream);
        if (error == 0) error = conn_out_flush(out, stream);
    } while (error == -EAGAIN || (error == 0 && conn_out_waiting(out) > 0));
    return error;
}

static bool is_answer(const struct wire_header *header) {
    return header->type == WIRE_STATUS_IS || header->type == WIRE_MATRIX;
}

// An answer of this type, decoded.
static int hear(struct transport *stream, struct conn_in *in, enum wire_type answer, int64_t deadline_ns, void *out) {
    for (;;) {
        struct wire_header header;
        const uint8_t *body;
        enum conn_next next = conn_in_next(in, is_answer, &header, &body);
        if (next == CONN_FRAME && header.type == answer) {
            bool good = answer == WIRE_MATRIX ? wire_decode_matrix(body, header.length, out)
                                              : wire_decode_status_is(body, header.length, out);
            return good ? 0 : -EPROTO;
        }
        if (next != CONN_MORE) return -EPROTO;
        ptrdiff_t got = conn_in_receive(in, stream, 0);
        if (got == 0) return -ECONNRESET;
        if (got < 0 && got != -EAGAIN) return (int)got;
        int error = got == -EAGAIN ? await(stream, POLLIN, deadline_ns) : 0;
        if (error != 0) return error;
    }
}

static int inquire(const struct wire_address *master, enum wire_type question, enum wire_type answer,
                   int64_t deadline_ns, void *out) {
    struct transport *stream;
    struct conn_in in = {0};
    struct conn_out sent = {0};
    int error = transport_dial(master, &stream);
    if (error != 0) return error;
    error = ask(stream, &sent, question, deadline_ns);
    if (error == 0) error = hear(stream, &in, answer, deadline_ns, out);
    conn_in_fini(&in);
    conn_out_fini(&sent);
    transport_free(stream);
    return error;
}

int inquiry_ask(const struct wire_address *master, int64_t deadline_ns, enum wire_activity *out) {
    struct wire_status_is status;
    int error = inquire(master, WIRE_STATUS, WIRE_STATUS_IS, deadline_ns, &status);
    if (error == 0) *out = status.activity;
    return error;
}

int inquiry_diagnose(const struct wire_address *master, int64_t deadline_ns, struct wire_matrix *out) {
    return inquire(master, WIRE_DIAGNOSE, WIRE_MATRIX, deadline_ns, out);
}
