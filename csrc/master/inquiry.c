#include "master/inquiry.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/platform.h"
#include "net/conn.h"
#include "net/local.h"
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

struct inquiry {
    struct transport *stream;
    struct conn_in in;
    struct conn_out out; // the question, until it is sent
};

// Sends what is left of the question.
static int ask(struct inquiry *inquiry, int64_t deadline_ns) {
    int error = 0;
    while (conn_out_waiting(&inquiry->out) > 0 && (error == 0 || error == -EAGAIN)) {
        error = await(inquiry->stream, POLLOUT, deadline_ns);
        if (error == 0) error = transport_step(inquiry->stream);
        if (error == 0) error = conn_out_flush(&inquiry->out, inquiry->stream);
    }
    return error;
}

static bool is_answer(const struct wire_header *header) {
    return header->type == WIRE_STATUS_IS || header->type == WIRE_MATRIX;
}

// An answer of this type, decoded.
static int hear(struct inquiry *inquiry, enum wire_type answer, int64_t deadline_ns, void *out) {
    for (;;) {
        struct wire_header header;
        const uint8_t *body;
        enum conn_next next = conn_in_next(&inquiry->in, is_answer, &header, &body);
        if (next == CONN_FRAME && header.type == answer) {
            bool good = answer == WIRE_MATRIX ? wire_decode_matrix(body, header.length, out)
                                              : wire_decode_status_is(body, header.length, out);
            return good ? 0 : -EPROTO;
        }
        if (next != CONN_MORE) return -EPROTO;
        ptrdiff_t got = conn_in_receive(&inquiry->in, inquiry->stream, 0);
        if (got == 0) return -ECONNRESET;
        if (got < 0 && got != -EAGAIN) return (int)got;
        int error = got == -EAGAIN ? await(inquiry->stream, POLLIN, deadline_ns) : 0;
        if (error != 0) return error;
    }
}

static int dial(struct inquiry *inquiry, const struct wire_address *master, bool local) {
    int fd = local ? local_dial(master) : -1;
    *inquiry = (struct inquiry){0};
    if (fd < 0) return transport_dial(master, &inquiry->stream);
    inquiry->stream = transport_new(fd);
    return inquiry->stream == NULL ? -ENOMEM : 0;
}

static int carry_on(struct inquiry *inquiry, enum wire_type answer, int64_t deadline_ns, void *out) {
    int error = ask(inquiry, deadline_ns);
    return error == 0 ? hear(inquiry, answer, deadline_ns, out) : error;
}

static void end(struct inquiry *inquiry) {
    conn_in_fini(&inquiry->in);
    conn_out_fini(&inquiry->out);
    transport_free(inquiry->stream);
}

int inquiry_ask(const struct wire_address *master, int64_t deadline_ns, struct wire_status_is *out) {
    struct inquiry inquiry;
    int error = dial(&inquiry, master, false);
    if (error != 0) return error;
    wire_encode_empty(&inquiry.out.bytes, (struct wire_header){0}, WIRE_STATUS);
    error = carry_on(&inquiry, WIRE_STATUS_IS, deadline_ns, out);
    end(&inquiry);
    return error;
}

int inquiry_begin(const struct wire_address *master, const struct wire_diagnose *proof, struct inquiry **out) {
    struct inquiry *inquiry = malloc(sizeof *inquiry);
    int error = inquiry == NULL ? -ENOMEM : dial(inquiry, master, proof == NULL);
    if (error != 0) {
        free(inquiry);
        return error;
    }
    if (proof != NULL)
        wire_encode_diagnose(&inquiry->out.bytes, (struct wire_header){0}, proof);
    else
        wire_encode_empty(&inquiry->out.bytes, (struct wire_header){0}, WIRE_DIAGNOSE);
    *out = inquiry;
    return 0;
}

int inquiry_wait(struct inquiry *inquiry, int64_t deadline_ns, struct wire_matrix *out) {
    return carry_on(inquiry, WIRE_MATRIX, deadline_ns, out);
}

void inquiry_end(struct inquiry *inquiry) {
    if (inquiry == NULL) return;
    end(inquiry);
    free(inquiry);
}
