// Two ends of TLS (net/tls) with somebody between them. The input is a program of who steps, sends and receives, and of
// what passes from one to the other: as it is, cut, with a bit changed, or bytes of the input in its place. Whatever
// happens, an end receives only what the other one has sent, in order, and an end that was told of an error stays
// closed.
#include "net/tls.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "unit/key_files.h"

#ifdef PCCL_HAVE_TLS

enum { PASSED = 4096, SENT = 40000 };

static struct transport_context *contexts[2]; // a peer, and a master
static uint8_t plain[2][SENT];                // what each end sends

struct end {
    struct transport *stream;
    int middle;
    bool open, failed;
    size_t sent, received;
};

static void make_contexts(void) {
    if (contexts[0] != NULL) return;
    for (int i = 0; i < 2; i++) {
        struct keys *keys = key_files_load(i == 1, 1, 1, 0);
        struct transport_options options = {.keys = keys, .party = i == 1 ? TRANSPORT_MASTER : TRANSPORT_PEER};
        contexts[i] = tls_context_new(&options);
        keys_release(keys);
        MUST(contexts[i] != NULL);
        tls_renew_after(contexts[i], 5);
        for (size_t at = 0; at < SENT; at++) plain[i][at] = (uint8_t)(at * 7 + (size_t)i + at / 251);
    }
}

static void step(struct end *end) {
    if (end->open || end->failed) return;
    int error = transport_step(end->stream);
    end->open = error == 0;
    end->failed = error != 0 && error != -EAGAIN;
}

static void send_some(struct end *end, const uint8_t *from, size_t length) {
    if (length > SENT - end->sent) length = SENT - end->sent;
    if (length == 0) return;
    size_t first = length / 3;
    struct iovec parts[] = {{(void *)(from + end->sent), first}, {(void *)(from + end->sent + first), length - first}};
    ptrdiff_t sent = transport_sendv(end->stream, parts, 2);
    MUST(sent < 0 || (size_t)sent <= length);
    MUST(sent < 0 || end->open);
    if (sent > 0) end->sent += (size_t)sent;
}

static void receive_some(struct end *end, const struct end *other, const uint8_t *expected, size_t length) {
    uint8_t bytes[SENT];
    ptrdiff_t got = transport_receive(end->stream, bytes, 1 + length);
    if (got <= 0) return;
    MUST(end->open);
    // The byte that a sender left out of its count is on its way.
    MUST(end->received + (size_t)got <= other->sent + 1);
    MUST(memcmp(bytes, expected + end->received, (size_t)got) == 0);
    end->received += (size_t)got;
}

static void pass(struct fuzz *in, struct end *from, struct end *to, uint8_t how) {
    uint8_t bytes[PASSED];
    size_t most = how == 0 ? sizeof bytes : (size_t)fuzz_u8(in) + 1;
    ssize_t got = recv(from->middle, bytes, most, MSG_DONTWAIT);
    if (got <= 0) return;
    if (how == 2) bytes[fuzz_u64(in) % (uint64_t)got] ^= (uint8_t)(1u << fuzz_below(in, 8));
    if (how == 3) fuzz_bytes(in, bytes, (size_t)got);
    if (how == 4) return; // it is lost
    for (int times = how == 5 ? 2 : 1; times > 0; times--)
        send(to->middle, bytes, (size_t)got, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz in = {data, data + size};
    struct end ends[2] = {{0}};
    make_contexts();
    bool plainly = fuzz_u8(&in) & 1; // without a handshake that goes well first
    for (int i = 0; i < 2; i++) {
        int pair[2];
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        ends[i].middle = pair[1];
        ends[i].stream = transport_new(contexts[i], pair[0], i == 0 ? TRANSPORT_DIALS : TRANSPORT_ACCEPTS);
        MUST(ends[i].stream != NULL);
    }
    for (int turn = 0; turn < 4 && !plainly; turn++)
        for (int i = 0; i < 2; i++) {
            step(&ends[i]);
            pass(&in, &ends[i], &ends[1 - i], 0);
        }
    MUST(plainly || (ends[0].open && ends[1].open));
    fuzz_refuse(fuzz_u8(&in));
    while (fuzz_more(&in)) {
        uint8_t word = fuzz_u8(&in), what = word >> 1 & 7;
        int i = word & 1;
        struct end *end = &ends[i], *other = &ends[1 - i];
        if (what < 6) pass(&in, end, other, what);
        step(end);
        step(other);
        if (what == 6) send_some(end, plain[i], (size_t)fuzz_u8(&in) * (fuzz_u8(&in) & 3 ? 7 : 150));
        if (what == 7) receive_some(end, other, plain[1 - i], (size_t)fuzz_u8(&in) * 40);
    }
    fuzz_refuse(0);
    for (int i = 0; i < 2; i++) {
        MUST(!ends[i].failed || transport_send(ends[i].stream, plain[i], 1) < 0);
        transport_free(ends[i].stream);
        close(ends[i].middle);
    }
    return 0;
}

#else

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return data == NULL && size > 0; }

#endif
