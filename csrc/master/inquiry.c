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

static int ask(struct transport *stream, struct conn_out *out, int64_t deadline_ns) {
    int error = 0;
    wire_encode_empty(&out->bytes, (struct wire_header){0}, WIRE_STATUS);
    do {
        error = await(stream, POLLOUT, deadline_ns);
        if (error == 0) error = transport_step(stream);
        if (error == 0) error = conn_out_flush(out, stream);
    } while (error == -EAGAIN || (error == 0 && conn_out_waiting(out) > 0));
    return error;
}

static bool is_answer(const struct wire_header *header) { return header->type == WIRE_STATUS_IS; }

static int hear(struct transport *stream, struct conn_in *in, int64_t deadline_ns, enum wire_activity *out) {
    for (;;) {
        struct wire_header header;
        const uint8_t *body;
        struct wire_status_is status;
        enum conn_next next = conn_in_next(in, is_answer, &header, &body);
        if (next == CONN_FRAME && wire_decode_status_is(body, header.length, &status)) {
            *out = status.activity;
            return 0;
        }
        if (next != CONN_MORE) return -EPROTO;
        ptrdiff_t got = conn_in_receive(in, stream, 0);
        if (got == 0) return -ECONNRESET;
        if (got < 0 && got != -EAGAIN) return (int)got;
        int error = got == -EAGAIN ? await(stream, POLLIN, deadline_ns) : 0;
        if (error != 0) return error;
    }
}

int inquiry_ask(const struct wire_address *master, int64_t deadline_ns, enum wire_activity *out) {
    struct transport *stream;
    struct conn_in in = {0};
    struct conn_out question = {0};
    int error = transport_dial(master, &stream);
    if (error != 0) return error;
    error = ask(stream, &question, deadline_ns);
    if (error == 0) error = hear(stream, &in, deadline_ns, out);
    conn_in_fini(&in);
    conn_out_fini(&question);
    transport_free(stream);
    return error;
}
