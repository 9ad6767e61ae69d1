#include "net/conn.h"

#include <errno.h>
#include <string.h>

enum { KEPT_BYTES = 16 * 1024 }; // more than that is given back when it is empty

static void clear(struct wire_buffer *bytes, size_t *begin) {
    *begin = bytes->length = 0;
    bytes->failed = false;
    if (bytes->capacity > KEPT_BYTES) wire_buffer_fini(bytes);
}

// ---- reading ----

bool conn_carries_control(const struct wire_header *header) { return header->length <= WIRE_MAX_CONTROL_BYTES; }

enum conn_next conn_in_next(struct conn_in *in, conn_carries_fn *carries, struct wire_header *header,
                            const uint8_t **body) {
    size_t there = in->bytes.length - in->taken;
    if (there < WIRE_HEADER_BYTES) return CONN_MORE;
    const uint8_t *frame = in->bytes.bytes + in->taken;
    if (!wire_header_decode(frame, header) || !carries(header)) return CONN_MALFORMED;
    if (there - WIRE_HEADER_BYTES < header->length) return CONN_MORE;
    *body = frame + WIRE_HEADER_BYTES;
    in->taken += WIRE_HEADER_BYTES + header->length;
    return CONN_FRAME;
}

uint16_t conn_in_type(const struct conn_in *in) {
    struct wire_header header;
    bool there = in->bytes.length - in->taken >= WIRE_HEADER_BYTES;
    return there && wire_header_decode(in->bytes.bytes + in->taken, &header) ? header.type : 0;
}

// To the end of the header or the frame at hand, which was found to be good.
static size_t missing(const struct conn_in *in) {
    struct wire_header header;
    if (in->bytes.length < WIRE_HEADER_BYTES) return WIRE_HEADER_BYTES - in->bytes.length;
    wire_header_decode(in->bytes.bytes, &header);
    return WIRE_HEADER_BYTES + header.length - in->bytes.length;
}

ptrdiff_t conn_in_receive(struct conn_in *in, struct transport *from, size_t most) {
    struct wire_buffer *bytes = &in->bytes;
    bytes->length -= in->taken;
    if (in->taken > 0 && bytes->length > 0) memmove(bytes->bytes, bytes->bytes + in->taken, bytes->length);
    in->taken = 0;
    if (most == 0) most = missing(in);
    if (!wire_buffer_reserve(bytes, most)) return -ENOMEM;
    ptrdiff_t got = transport_receive(from, bytes->bytes + bytes->length, most);
    if (got > 0) bytes->length += (size_t)got;
    return got;
}

int conn_in_frame(struct conn_in *in, struct transport *from, conn_carries_fn *carries, struct wire_header *header,
                  const uint8_t **body) {
    for (;;) {
        enum conn_next next = conn_in_next(in, carries, header, body);
        if (next != CONN_MORE) return next == CONN_FRAME ? 1 : -EPROTO;
        ptrdiff_t got = conn_in_receive(in, from, 0);
        if (got <= 0) return (int)got;
    }
}

int conn_in_end(const struct conn_in *in) {
    size_t length = sizeof CONN_WANTS_KEYS - 1;
    bool alert = in->bytes.length == length && memcmp(in->bytes.bytes, CONN_WANTS_KEYS, length) == 0;
    return alert ? -ENOKEY : -ECONNRESET;
}

void conn_in_clear(struct conn_in *in) { clear(&in->bytes, &in->taken); }

// ---- sending ----

size_t conn_out_waiting(const struct conn_out *out) { return out->bytes.length - out->sent; }

// Reuses the room of sent bytes.
static bool append(struct conn_out *out, const uint8_t *bytes, size_t length) {
    struct wire_buffer *to = &out->bytes;
    if (out->sent > 0 && to->length + length > to->capacity) {
        to->length -= out->sent;
        memmove(to->bytes, to->bytes + out->sent, to->length);
        out->sent = 0;
    }
    wire_buffer_append(to, &(struct wire_buffer){.bytes = (uint8_t *)bytes, .length = length});
    return !to->failed;
}

int conn_out_send(struct conn_out *out, struct transport *to, const uint8_t *bytes, size_t length) {
    ptrdiff_t sent = conn_out_waiting(out) > 0 ? 0 : transport_send(to, bytes, length);
    if (sent < 0 && sent != -EAGAIN) return (int)sent;
    size_t done = sent > 0 ? (size_t)sent : 0;
    return append(out, bytes + done, length - done) ? 0 : -ENOMEM;
}

int conn_out_flush(struct conn_out *out, struct transport *to) {
    while (conn_out_waiting(out) > 0) {
        ptrdiff_t sent = transport_send(to, out->bytes.bytes + out->sent, conn_out_waiting(out));
        if (sent == -EAGAIN) return 0;
        if (sent < 0) return (int)sent;
        out->sent += (size_t)sent;
    }
    conn_out_clear(out);
    return 0;
}

void conn_out_clear(struct conn_out *out) { clear(&out->bytes, &out->sent); }
