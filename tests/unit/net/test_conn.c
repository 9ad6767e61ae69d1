// Whole frames over a stream, however they come: in one piece, byte by byte, many at once; and a queue whose stream
// takes little.
#define _GNU_SOURCE
#include "net/conn.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "fakes/transport.h"
#include "far_end.h"
#include "net/wire_control.h"

static struct transport *near, *far;

static void open_pair(void) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    near = far_end_new(ends[0]);
    far = far_end_new(ends[1]);
    REQUIRE(near != NULL && far != NULL);
}

static void close_pair(void) {
    transport_free(near);
    transport_free(far);
}

static struct wire_buffer some_frames(void) {
    struct wire_buffer frames = {0};
    for (uint64_t i = 0; i < 3; i++) {
        wire_encode_empty(&frames, (struct wire_header){.epoch = 2 * i}, WIRE_HEARTBEAT);
        wire_encode_text(&frames, (struct wire_header){.epoch = 2 * i + 1}, WIRE_REFUSED, "because");
    }
    return frames;
}

// Takes all that is there: the frames come in order, and are whole.
static uint64_t take_all(struct conn_in *in, uint64_t next) {
    struct wire_header header;
    const uint8_t *body;
    while (conn_in_next(in, conn_carries_control, &header, &body) == CONN_FRAME) {
        struct wire_text text;
        CHECK_EQ(header.epoch, next++);
        if (header.type == WIRE_REFUSED)
            CHECK(wire_decode_text(body, header.length, &text) && memcmp(text.chars, "because", 7) == 0);
    }
    return next;
}

static void test_pieces(void) {
    struct wire_buffer frames = some_frames();
    for (size_t piece = 1; piece <= frames.length; piece += piece < 50 ? 1 : 37) {
        for (size_t most = 0; most <= 200; most += 50) { // 0: frame by frame
            struct conn_in in = {0};
            uint64_t next = 0;
            open_pair();
            for (size_t at = 0; at < frames.length; at += piece) {
                size_t left = frames.length - at, length = left < piece ? left : piece;
                REQUIRE(far_end_write(near, frames.bytes + at, length));
                while (conn_in_receive(&in, far, most) > 0) next = take_all(&in, next);
            }
            CHECK_EQ(next, 6);
            CHECK_EQ(in.taken, in.bytes.length);
            CHECK_EQ(conn_in_receive(&in, far, most), -EAGAIN);
            wire_buffer_fini(&in.bytes);
            close_pair();
        }
    }
    wire_buffer_fini(&frames);
}

// Frame by frame, what lies behind a frame stays in the stream.
static void test_not_beyond(void) {
    struct wire_buffer frames = {0};
    struct wire_header header;
    const uint8_t *body;
    uint8_t behind[6];
    struct conn_in in = {0};
    wire_encode_text(&frames, (struct wire_header){0}, WIRE_REFUSED, "no");
    open_pair();
    REQUIRE(far_end_write(near, frames.bytes, frames.length) && far_end_write(near, "behind", 6));
    while (conn_in_next(&in, conn_carries_control, &header, &body) == CONN_MORE)
        REQUIRE(conn_in_receive(&in, far, 0) > 0);
    CHECK(far_end_read(far, behind, 6));
    CHECK(memcmp(behind, "behind", 6) == 0);
    wire_buffer_fini(&in.bytes);
    wire_buffer_fini(&frames);
    close_pair();
}

static bool carries_text(const struct wire_header *header) { return header->type == WIRE_REFUSED; }

// The header alone is enough to be refused, and what was good before it is not lost.
static void test_malformed(void) {
    struct wire_buffer frames = {0};
    struct wire_header header;
    const uint8_t *body;
    struct conn_in in = {0};
    wire_encode_text(&frames, (struct wire_header){0}, WIRE_REFUSED, "no");
    size_t good = frames.length;
    wire_encode_text(&frames, (struct wire_header){0}, WIRE_EXPELLED, "no");
    open_pair();
    REQUIRE(far_end_write(near, frames.bytes, good + WIRE_HEADER_BYTES));
    while (conn_in_receive(&in, far, 1000) > 0) continue;
    CHECK_EQ(conn_in_next(&in, carries_text, &header, &body), CONN_FRAME);
    CHECK_EQ(conn_in_next(&in, carries_text, &header, &body), CONN_MALFORMED);
    conn_in_clear(&in);
    frames.bytes[4] ^= 1; // the magic number
    REQUIRE(far_end_write(near, frames.bytes, WIRE_HEADER_BYTES));
    while (conn_in_receive(&in, far, 1000) > 0) continue;
    CHECK_EQ(conn_in_next(&in, conn_carries_control, &header, &body), CONN_MALFORMED);
    wire_buffer_fini(&in.bytes);
    wire_buffer_fini(&frames);
    close_pair();
}

// A stream that takes little: all arrives, in order, and what was sent does not pile up in memory.
static void test_queue(void) {
    static uint8_t piece[9000], got[64 * 1024];
    struct conn_out out = {0};
    uint64_t sent = 0, received = 0;
    open_pair();
    for (int i = 0; i < 400; i++) {
        for (size_t k = 0; k < sizeof piece; k++) piece[k] = (uint8_t)((sent + k) % 251);
        CHECK_EQ(conn_out_send(&out, near, piece, sizeof piece), 0);
        sent += sizeof piece;
        ptrdiff_t length = transport_receive(far, got, i % 3 == 0 ? sizeof got : 9000);
        for (ptrdiff_t k = 0; k < length; k++) CHECK(got[k] == (uint8_t)((received + (uint64_t)k) % 251));
        if (length > 0) received += (uint64_t)length;
        CHECK_EQ(conn_out_flush(&out, near), 0);
    }
    CHECK(out.bytes.capacity < 4000000);
    while (received < sent) {
        ptrdiff_t length = transport_receive(far, got, sizeof got);
        for (ptrdiff_t k = 0; k < length; k++) CHECK(got[k] == (uint8_t)((received + (uint64_t)k) % 251));
        if (length > 0) received += (uint64_t)length;
        CHECK_EQ(conn_out_flush(&out, near), 0);
    }
    CHECK_EQ(conn_out_waiting(&out), 0);
    transport_free(far);
    int error = conn_out_send(&out, near, piece, 1);
    while (error == 0 && conn_out_waiting(&out) > 0)
        error = conn_out_flush(&out, near); // a fake keeps it back at times
    CHECK_EQ(error, -EPIPE);                // and no signal
    transport_free(near);
    wire_buffer_fini(&out.bytes);
}

static void test_all(void) {
    test_pieces();
    test_not_beyond();
    test_malformed();
    test_queue();
}

int main(void) {
    test_all();
    for (uint64_t seed = 0; seed < 10; seed++) {
        check_case("seed %d of the fake transport", (int)seed);
        fake_transport_use(seed);
        test_all();
    }
    return check_status();
}
