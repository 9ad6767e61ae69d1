// Frames over one stream (net/conn), whatever bytes come and however a transport cuts them. The input is how it cuts,
// and the bytes. The frames are those that lie in the bytes, in order, and nothing behind the last is taken where a
// stream is read frame by frame. What is sent comes out again, whole and once, however little is taken at a time.
#include "net/conn.h"

#include <errno.h>

#include "fuzz.h"

enum { MOST = 1000, PIECE = 700 };

// Gives and takes as many bytes as it likes, or none.
struct stream {
    struct transport transport; // first
    const uint8_t *at, *end;    // what is to be received
    struct wire_buffer sent;
    uint64_t random;
};

static uint32_t below(struct stream *stream, uint32_t bound) {
    stream->random = stream->random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(stream->random >> 33) % bound;
}

static ptrdiff_t give(struct transport *transport, const struct iovec *parts, int count) {
    struct stream *stream = (struct stream *)(void *)transport;
    size_t left = (size_t)(stream->end - stream->at), most = 1 + below(stream, below(stream, 4) == 0 ? 3 : MOST);
    MUST(count == 1 && parts[0].iov_len > 0);
    if (below(stream, 8) == 0) {
        transport->buffered = left > 0 && below(stream, 2) == 0;
        return -EAGAIN;
    }
    if (left > parts[0].iov_len) left = parts[0].iov_len;
    if (left > most) left = most;
    memcpy(parts[0].iov_base, stream->at, left);
    stream->at += left;
    transport->buffered = stream->at < stream->end;
    return (ptrdiff_t)left;
}

static ptrdiff_t take(struct transport *transport, const struct iovec *parts, int count) {
    struct stream *stream = (struct stream *)(void *)transport;
    size_t most = 1 + below(stream, PIECE);
    MUST(count == 1 && parts[0].iov_len > 0);
    if (below(stream, 4) == 0) return -EAGAIN;
    if (most > parts[0].iov_len) most = parts[0].iov_len;
    struct wire_buffer bytes = {.bytes = parts[0].iov_base, .length = most};
    wire_buffer_append(&stream->sent, &bytes);
    MUST(!stream->sent.failed);
    return (ptrdiff_t)most;
}

static const struct transport_type type = {.sendv = take, .recvv = give};

// The next frame of the bytes, as one who has them all sees it.
static enum conn_next next_of(const uint8_t *at, const uint8_t *end, struct wire_header *header) {
    if (end - at < WIRE_HEADER_BYTES) return CONN_MORE;
    if (!wire_header_decode(at, header) || !conn_carries_control(header)) return CONN_MALFORMED;
    return (size_t)(end - at) - WIRE_HEADER_BYTES < header->length ? CONN_MORE : CONN_FRAME;
}

static void receive(struct stream *stream, const uint8_t *bytes, size_t length, bool by_frame) {
    struct conn_in in = {0};
    const uint8_t *at = bytes, *end = bytes + length, *body;
    struct wire_header header, expected;
    bool refused = false;
    for (ptrdiff_t got = -EAGAIN; got != 0 && !refused;) {
        got = conn_in_receive(&in, &stream->transport, by_frame ? 0 : 1 + below(stream, MOST));
        refused = got == -ENOMEM;
        MUST(got >= 0 || got == -EAGAIN || refused);
        MUST(got != -EAGAIN || !stream->transport.buffered);
        enum conn_next next;
        while ((next = conn_in_next(&in, conn_carries_control, &header, &body)) == CONN_FRAME) {
            MUST(next_of(at, end, &expected) == CONN_FRAME);
            MUST(header.type == expected.type && header.length == expected.length && header.epoch == expected.epoch);
            MUST(memcmp(body, at + WIRE_HEADER_BYTES, header.length) == 0);
            at += WIRE_HEADER_BYTES + header.length;
            MUST(!by_frame || at == stream->at);
        }
        if (next == CONN_MALFORMED) {
            MUST(next_of(at, end, &expected) == CONN_MALFORMED);
            break;
        }
        if (got == 0) MUST(next_of(at, end, &expected) == CONN_MORE);
        MUST(in.bytes.length - in.taken <= WIRE_HEADER_BYTES + WIRE_MAX_CONTROL_BYTES + MOST);
    }
    wire_buffer_fini(&in.bytes);
}

static void send_bytes(struct stream *stream, const uint8_t *bytes, size_t length) {
    struct conn_out out = {0};
    size_t at = 0;
    int error = 0;
    while (at < length && error == 0) {
        size_t piece = 1 + below(stream, PIECE);
        if (piece > length - at) piece = length - at;
        error = conn_out_send(&out, &stream->transport, bytes + at, piece);
        at += piece;
        if (error == 0 && below(stream, 3) == 0) error = conn_out_flush(&out, &stream->transport);
    }
    MUST(error == 0 || error == -ENOMEM);
    while (error == 0 && conn_out_waiting(&out) > 0) error = conn_out_flush(&out, &stream->transport);
    MUST(stream->sent.length <= length &&
         (stream->sent.length == 0 || memcmp(stream->sent.bytes, bytes, stream->sent.length) == 0));
    MUST(error != 0 || stream->sent.length == length);
    wire_buffer_fini(&out.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz in = {data, data + size};
    bool by_frame = fuzz_u8(&in) & 1;
    uint8_t refused = fuzz_u8(&in);
    uint64_t random = fuzz_u8(&in);
    size_t length = (size_t)(in.end - in.at);
    const uint8_t *bytes = in.at;
    struct stream stream = {.transport = {.type = &type, .fd = -1, .poller = -1}, .random = random};
    stream.sent.bytes = malloc(length + 1); // of its own, so that no memory is refused here
    stream.sent.capacity = length + 1;
    MUST(stream.sent.bytes != NULL);
    stream.at = bytes;
    stream.end = bytes + length;
    fuzz_refuse(refused);
    receive(&stream, bytes, length, by_frame);
    fuzz_refuse(refused);
    send_bytes(&stream, bytes, length);
    fuzz_refuse(0);
    wire_buffer_fini(&stream.sent);
    return 0;
}
