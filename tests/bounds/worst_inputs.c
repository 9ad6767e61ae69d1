// Sends a listener of pccl what costs it most for its size. tests/bounds/worst_inputs.py runs it.
//
//     worst_inputs KEYS ADDRESS PORT KIND BYTES
//
// Prepares the bytes, prints "ready", waits for a line, sends them, and prints how many went. KIND:
//   updates     KeyUpdate records behind one handshake with the keys     asked    the same, each wants an answer
//   bytes       records of one byte each                                 hellos   beginnings of handshakes with the keys
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/socket.h"
#include "net/tls_private.h"

enum { WAIT_MS = 10000, HELLOS_MOST = 900 };

static struct wire_address master;

static void fail(const char *what) {
    fprintf(stderr, "worst_inputs: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int dial(void) {
    int fd = socket_dial(&master);
    if (fd < 0 || poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, WAIT_MS) != 1) fail("connect");
    return fd;
}

static struct transport *open_stream(struct transport_context *context) {
    struct transport *stream;
    int error = transport_dial(context, &master, &stream);
    while (error == 0 && (error = transport_step(stream)) == -EAGAIN)
        error = transport_wait(stream, stream->awaits, WAIT_MS) ? 0 : -ETIMEDOUT;
    if (error == 0) return stream;
    errno = -error;
    fail("handshake");
    return NULL;
}

static void be_ready(void) {
    puts("ready");
    fflush(stdout);
    while (getchar() != '\n') continue;
}

// Sends all of it, or what the other side takes.
static size_t pour(int fd, const char *bytes, size_t length) {
    size_t sent = 0;
    while (sent < length) {
        ssize_t now = send(fd, bytes + sent, length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (now > 0) sent += (size_t)now;
        if (now < 0 && errno != EAGAIN) break;
        if (now < 0 && poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, WAIT_MS) != 1) break;
    }
    return sent;
}

static size_t send_records(struct transport_context *context, const char *kind, size_t bytes) {
    struct transport *stream = open_stream(context);
    SSL *ssl = tls_of(stream)->ssl;
    BIO *out = BIO_new(BIO_s_mem());
    char *made;
    size_t written;
    SSL_set0_wbio(ssl, out);
    while ((size_t)BIO_get_mem_data(out, &made) < bytes) {
        int update = strcmp(kind, "asked") == 0 ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED;
        if (strcmp(kind, "bytes") == 0)
            SSL_write_ex(ssl, "x", 1, &written);
        else if (SSL_key_update(ssl, update) != 1 || SSL_do_handshake(ssl) != 1)
            fail("KeyUpdate");
    }
    be_ready();
    return pour(stream->fd, made, (size_t)BIO_get_mem_data(out, &made));
}

static size_t send_hellos(struct transport_context *context, size_t bytes) {
    static char hello[HELLOS_MOST][4096];
    static size_t lengths[HELLOS_MOST];
    static int sockets[HELLOS_MOST];
    size_t count = 0, made = 0, sent = 0;
    for (; count < HELLOS_MOST && made < bytes; made += lengths[count++]) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) fail("socketpair");
        struct transport *stream = transport_new(context, pair[0], TRANSPORT_DIALS);
        if (stream == NULL || transport_step(stream) != -EAGAIN) fail("the beginning of a handshake");
        lengths[count] = (size_t)recv(pair[1], hello[count], sizeof hello[count], 0);
        transport_free(stream);
        close(pair[1]);
        sockets[count] = dial();
    }
    be_ready();
    for (size_t i = 0; i < count; i++) sent += pour(sockets[i], hello[i], lengths[i]);
    return sent;
}

int main(int argc, char **argv) {
    char reason[KEYS_REASON_BYTES];
    if (argc != 6) return 2;
    struct keys *keys = keys_load(argv[1], reason);
    if (keys == NULL) fail(reason);
    master = (struct wire_address){.family = 4, .port = (uint16_t)atoi(argv[3])};
    if (inet_pton(AF_INET, argv[2], master.bytes) != 1) return 2;
    struct transport_options options = {.keys = keys, .party = TRANSPORT_PEER};
    struct transport_context *context = tls_context_new(&options);
    if (context == NULL) fail("context");
    size_t bytes = strtoul(argv[5], NULL, 10);
    size_t sent = strcmp(argv[4], "hellos") == 0 ? send_hellos(context, bytes) : send_records(context, argv[4], bytes);
    printf("%zu\n", sent);
    return 0;
}
