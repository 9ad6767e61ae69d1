// A transport that does whatever net/transport.h allows: it changes every byte by its place in the stream, cuts sends
// and receives anywhere, would block although it could go on, holds received bytes back, and sends late what it has
// taken; and its dials begin with a greeting, as a sealed stream's would.
//
// Linked in with the CMake option PCCL_FAKES, with which the linker leads transport_context_new here.
// PCCL_FAKE_TRANSPORT=seed in the environment makes it the transport of all contexts. Both ends of a stream have to have
// it; one that does not greet is carried all the same, and so is a pair of sockets whose ends never step.
#define _GNU_SOURCE
#include "transport.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "net/transport.h"

enum { PIECE_BYTES = 64 * 1024, GREETING_BYTES = 8 };

static const uint8_t hello[GREETING_BYTES] = "hello?\r\n", answer[GREETING_BYTES] = "hello!\r\n";

// One direction of a stream; each is used by one thread at a time.
struct way {
    uint64_t random;
    uint64_t place; // in the stream, of the next byte
    size_t begin, end;
    uint8_t bytes[PIECE_BYTES]; // [begin, end) wait
};

struct fake {
    struct transport stream; // first
    struct way out, in;
    size_t answered, heard; // bytes of the greeting: of the own part, and of the other's
    bool open;
};

static bool used;
static uint64_t seed;
static _Atomic uint64_t streams;

static uint8_t pad(uint64_t place) { return (uint8_t)(0xA5 + 29 * place); }

static struct fake *fake_of(struct transport *stream) { return (struct fake *)(void *)stream; }

static uint32_t below(struct way *way, uint32_t bound) {
    if (way->random == 0) way->random = (seed + atomic_fetch_add(&streams, 1)) * UINT64_C(0x9E3779B97F4A7C15) | 1;
    way->random ^= way->random << 13;
    way->random ^= way->random >> 7;
    way->random ^= way->random << 17;
    return (uint32_t)(way->random >> 32) % bound;
}

static size_t some_length(struct way *way) { return 1 + below(way, below(way, 4) == 0 ? 40 : PIECE_BYTES); }

static void change(struct way *way, uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) bytes[i] ^= pad(way->place++);
}

// Copies from or to the parts, at most so many bytes.
static size_t copy(const struct iovec *parts, int count, uint8_t *bytes, size_t most, bool out) {
    size_t done = 0;
    for (int i = 0; i < count && done < most; i++) {
        size_t length = parts[i].iov_len < most - done ? parts[i].iov_len : most - done;
        memcpy(out ? bytes + done : parts[i].iov_base, out ? parts[i].iov_base : bytes + done, length);
        done += length;
    }
    return done;
}

// ---- sending ----

// Would block for no reason. The kernel tells of room when it is given some, as the contract asks for, or, where it has
// none now, when there is some: it has to be asked.
static ptrdiff_t block(struct transport *stream) {
    if (poll(&(struct pollfd){.fd = stream->fd, .events = POLLOUT}, 1, 0) == 0) return -EAGAIN;
    int bytes = 0;
    socklen_t length = sizeof bytes;
    getsockopt(stream->fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length);
    bytes /= 2; // it counts twice
    setsockopt(stream->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    return -EAGAIN;
}

// Sends at most `most` of what waits. 0 or -errno.
static int flush(struct fake *fake, size_t most) {
    struct way *out = &fake->out;
    size_t length = out->end - out->begin < most ? out->end - out->begin : most;
    ssize_t sent = send(fake->stream.fd, out->bytes + out->begin, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return -errno;
    out->begin += (size_t)sent;
    return 0;
}

static ptrdiff_t fake_sendv(struct transport *stream, const struct iovec *parts, int count) {
    struct fake *fake = fake_of(stream);
    struct way *out = &fake->out;
    if (below(out, 16) == 0) return block(stream);
    if (out->begin < out->end) { // of what was counted but for its last byte
        int error = flush(fake, PIECE_BYTES);
        if (error != 0) return error;
        if (out->begin < out->end) return block(stream);
        return 1;
    }
    size_t taken = copy(parts, count, out->bytes, some_length(out), true);
    uint64_t place = out->place;
    out->begin = 0;
    out->end = taken;
    change(out, out->bytes, taken);
    int error = flush(fake, taken > 1 && below(out, 4) == 0 ? taken / 2 : taken);
    if (error != 0 || (out->begin < out->end && taken == 1)) { // nothing went
        out->begin = out->end = 0;
        out->place = place;
        return error == 0 ? -EAGAIN : error;
    }
    return (ptrdiff_t)(out->begin < out->end ? taken - 1 : taken);
}

static void fake_finish(struct transport *stream) { shutdown(stream->fd, SHUT_WR); }

// ---- receiving ----

// What is there, without an error. 0: end of stream, and -errno.
static ptrdiff_t receive(struct transport *stream, uint8_t *bytes, size_t length, int flags) {
    ssize_t got = recv(stream->fd, bytes, length, MSG_DONTWAIT | flags);
    return got < 0 ? -errno : got;
}

static ptrdiff_t fake_recvv(struct transport *stream, const struct iovec *parts, int count) {
    struct fake *fake = fake_of(stream);
    struct way *in = &fake->in;
    if (below(in, 16) == 0) {
        stream->buffered = true;
        return -EAGAIN;
    }
    stream->buffered = false;
    bool emptied = false; // the kernel
    if (in->begin == in->end) {
        size_t wanted = some_length(in);
        ptrdiff_t got = receive(stream, in->bytes, wanted, 0);
        if (got <= 0) return got;
        in->begin = 0;
        in->end = (size_t)got;
        change(in, in->bytes, in->end);
        emptied = in->end < wanted;
    }
    size_t waiting = in->end - in->begin, most = some_length(in);
    size_t given = copy(parts, count, in->bytes + in->begin, waiting < most ? waiting : most, false);
    in->begin += given;
    // What came since an earlier read may have been told of already.
    stream->buffered = in->begin < in->end || !emptied;
    return (ptrdiff_t)given;
}

// ---- greeting ----

// Sends the rest of `bytes`, one or a few at a time. 0: all are sent; -EAGAIN or -errno.
static int say(struct fake *fake, const uint8_t bytes[GREETING_BYTES]) {
    struct transport *stream = &fake->stream;
    while (fake->answered < GREETING_BYTES) {
        size_t part = 1 + below(&fake->out, (uint32_t)(GREETING_BYTES - fake->answered));
        ssize_t sent = send(stream->fd, bytes + fake->answered, part, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) return -errno;
        fake->answered += (size_t)sent;
        stream->awaits = EPOLLOUT;
        if (fake->answered < GREETING_BYTES && below(&fake->out, 2) == 0) return -EAGAIN;
    }
    return 0;
}

// Hears `bytes`, some of them at a time. 0: all have come; -EAGAIN or -errno.
static int hear(struct fake *fake, const uint8_t bytes[GREETING_BYTES]) {
    uint8_t heard[GREETING_BYTES];
    fake->stream.awaits = EPOLLIN;
    ptrdiff_t got = receive(&fake->stream, heard, GREETING_BYTES - fake->heard, 0);
    if (got <= 0) return got == 0 ? -ECONNRESET : (int)got;
    if (memcmp(heard, bytes + fake->heard, (size_t)got) != 0) return -EPROTO;
    fake->heard += (size_t)got;
    return fake->heard == GREETING_BYTES ? 0 : -EAGAIN;
}

// Looks at the first byte, which stays to be received: a stranger, who does not greet, is carried all the same. 0 or
// -errno; -EAGAIN until there is one, or what comes after this look would be taken for a wrong greeting.
static int look(struct fake *fake, bool *stranger) {
    uint8_t first = hello[0];
    ptrdiff_t got = fake->heard > 0 ? 1 : receive(&fake->stream, &first, 1, MSG_PEEK);
    fake->stream.awaits = EPOLLIN;
    *stranger = first != hello[0];
    return got > 0 ? 0 : got == 0 ? -ECONNRESET : (int)got;
}

static int fake_step(struct transport *stream) {
    struct fake *fake = fake_of(stream);
    bool dials = stream->role == TRANSPORT_DIALS;
    int error = fake->open ? 0 : transport_plain.step(stream);
    if (error != 0 || fake->open) return error;
    bool stranger = false;
    if (!dials && (error = look(fake, &stranger)) != 0) return error;
    if (!stranger) {
        bool says = dials ? fake->answered < GREETING_BYTES : fake->heard == GREETING_BYTES;
        stream->awaits = says ? EPOLLOUT : EPOLLIN;
        if (below(&fake->out, 4) == 0) return -EAGAIN; // for no reason
        error = dials ? say(fake, hello) : fake->heard < GREETING_BYTES ? hear(fake, hello) : 0;
        if (error == 0) error = dials ? hear(fake, answer) : say(fake, answer);
    }
    if (error != 0) return error;
    stream->buffered = fake->open = true; // of what has come a poller may have told already
    return 0;
}

static const struct transport_type fake = {
    .bytes = sizeof(struct fake),
    .step = fake_step,
    .sendv = fake_sendv,
    .recvv = fake_recvv,
    .finish = fake_finish,
};

void fake_transport_use(uint64_t new_seed) {
    seed = new_seed + 1;
    used = true;
}

struct transport_context *__real_transport_context_new(const struct transport_options *options);
struct transport_context *__wrap_transport_context_new(const struct transport_options *options);
struct transport_context *__wrap_transport_context_new(const struct transport_options *options) {
    struct transport_context *context = __real_transport_context_new(options);
    if (context != NULL && used) context->type = &fake;
    return context;
}

__attribute__((constructor)) void fake_transport(void);
void fake_transport(void) {
    const char *text = getenv("PCCL_FAKE_TRANSPORT");
    if (text != NULL && *text != 0) fake_transport_use(strtoull(text, NULL, 10));
}
