// The relay's side of a hello (net/relay_server). The input chooses whether the relay has keys, and for each of two
// connections whether its bytes are a good hello, one that is changed, or bytes of the input. The relay joins only two
// good ones, and passes on what one sends.
#include "net/relay_server.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "unit/key_files.h"

#ifdef PCCL_HAVE_TLS

enum { WAIT_MS = 10000 };

static struct relay_server *servers[2]; // without keys, and with

static struct keys *keys;
static struct transport_context *context;

static void make_servers(void) {
    if (keys != NULL) return;
    keys = key_files_load(false, 1, 1, 0);
    context = transport_context_new(NULL);
    for (int i = 0; i < 2; i++) {
        struct relay_server_options options = {.keys = i == 0 ? NULL : keys, .links = 8};
        MUST(relay_server_new(&options, &servers[i]) == 0);
    }
}

// Receives so many bytes. False: the relay has closed the connection.
static bool receive(int fd, char *bytes, size_t length) {
    for (size_t at = 0; at < length;) {
        MUST(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, WAIT_MS) == 1);
        ssize_t got = recv(fd, bytes + at, length - at, 0);
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return true;
}

// Writes a good hello from one end of a link, and behind it room for two bytes of a name.
static void write_hello(const char *greeting, int end, bool with_keys, char hello[RELAY_HELLO_BYTES + 3]) {
    char ids[2][2 * WIRE_ID_BYTES + 1];
    uint8_t proofs[RELAY_PROOFS][SHA256_BYTES] = {{0}};
    struct wire_run run = {{0}};
    for (int i = 0; i < 2; i++) relay_put_hex(ids[i], (const uint8_t[WIRE_ID_BYTES]){(uint8_t)(1 + i)}, WIRE_ID_BYTES);
    snprintf(hello, RELAY_WORDS_BYTES + 1, "%s %s 00000003", ids[end], ids[1 - end]);
    for (size_t i = 0; i < RELAY_PROOFS && with_keys; i++)
        MUST(relay_prove_keys(relay_nonce(greeting), hello, keys, i, &run, proofs[i]));
    for (size_t i = 0; i < RELAY_PROOFS; i++) {
        char *at = hello + RELAY_WORDS_BYTES + i * (1 + 2 * SHA256_BYTES);
        *at = ' ';
        relay_put_hex(at + 1, proofs[i], SHA256_BYTES);
    }
    snprintf(hello + RELAY_HELLO_BYTES - 6, 7, " 0000\n");
}

// Says its part on a connection. Returns whether the hello is good.
static bool say(struct fuzz *in, int fd, int end, bool with_keys) {
    char greeting[RELAY_GREETING_BYTES + 1] = "", hello[RELAY_HELLO_BYTES + 3] = "", good[sizeof hello];
    uint8_t how = fuzz_u8(in) % 4;
    if (how == 3) { // not even the question
        size_t length = fuzz_u8(in);
        uint8_t bytes[256];
        fuzz_bytes(in, bytes, length);
        send(fd, bytes, length, MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        return false;
    }
    send(fd, RELAY_QUESTION, RELAY_QUESTION_BYTES, MSG_NOSIGNAL);
    MUST(receive(fd, greeting, RELAY_GREETING_BYTES));
    write_hello(greeting, end, with_keys, hello);
    memcpy(good, hello, sizeof good);
    if (how == 1)
        for (uint32_t changes = 1 + fuzz_below(in, 4); changes > 0; changes--)
            fuzz_change(in, hello, RELAY_HELLO_BYTES);
    if (how == 2) fuzz_bytes(in, hello, RELAY_HELLO_BYTES);
    size_t first = fuzz_u8(in) % RELAY_HELLO_BYTES;
    send(fd, hello, first, MSG_NOSIGNAL);
    send(fd, hello + first, RELAY_HELLO_BYTES - first, MSG_NOSIGNAL);
    bool same = memcmp(hello, good, RELAY_HELLO_BYTES) == 0;
    if (!same) shutdown(fd, SHUT_WR); // the relay ends what waits for more
    return same;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz in = {data, data + size};
    int fds[2];
    bool good[2];
    make_servers();
    struct fuzz_work before = fuzz_work_begin();
    bool with_keys = fuzz_u8(&in) & 1;
    for (int i = 0; i < 2; i++) {
        int pair[2];
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        fds[i] = pair[0];
        relay_server_take(servers[with_keys], transport_new(context, pair[1], TRANSPORT_ACCEPTS));
        good[i] = say(&in, fds[i], i, with_keys);
    }
    char byte = 0;
    if (good[0] && good[1]) {
        for (int i = 0; i < 2; i++) MUST(receive(fds[i], &byte, 1) && byte == '+');
        MUST(send(fds[0], "x", 1, MSG_NOSIGNAL) == 1 && receive(fds[1], &byte, 1) && byte == 'x');
    }
    for (int i = 0; i < 2; i++) {
        if (good[i]) shutdown(fds[i], SHUT_RDWR);
        // A hello that was changed into another good one is joined with nobody.
        while (!good[i] && receive(fds[i], &byte, 1)) continue;
        close(fds[i]);
    }
    fuzz_work_end(&before, size);
    return 0;
}

#else

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return data == NULL && size > 0; }

#endif
