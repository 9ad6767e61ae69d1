// How fast one stream carries bytes over loopback, and what it costs: plain TCP, TLS, and AES-128-GCM alone, without and
// with the copies that OpenSSL makes of each record.
//
//     encryption KEYS SECONDS ROUNDS [METHOD]
//
// A thread sends and another one receives, 1 MiB at a time. Each round prints a line for each method, in turn: method,
// GiB/s, processor seconds per GiB of both threads together. Of messages of 4 KiB, which one thread
// sends and receives, it counts millions in place of GiB. bench/encryption.py makes the keys and runs it. With a
// method alone, perf and strace see nothing else.
#define _GNU_SOURCE
#include <errno.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "net/socket.h"
#include "net/tls.h"
#include "net/transport.h"

enum { PIECE = 1 << 20, WAIT_MS = 10000, RECORD = 16 * 1024, TURN = 4 * RECORD, MESSAGE = 4096 + 64, ROOM = 8192 };

static double processor_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void fail(const char *what, int error) {
    fprintf(stderr, "encryption: %s: %s\n", what, strerror(error));
    exit(1);
}

static void await(const struct transport *stream, short events) {
    if (poll(&(struct pollfd){.fd = stream->fd, .events = events}, 1, WAIT_MS) != 1) fail("wait", ETIMEDOUT);
}

static void connect_ends(struct transport_context *dials, struct transport_context *accepts,
                         struct transport *ends[2]) {
    struct wire_address any = {.family = 4, .bytes = {127, 0, 0, 1}}, address, from;
    struct transport_listener listener = transport_listener_closed(accepts, descriptor_epoll(), 0, 100);
    int results[2] = {-EAGAIN, -EAGAIN}, error = transport_listener_open(&listener, socket_listen(&any));
    if (error != 0 || !socket_local_address(listener.fd, &address)) fail("listen", -error);
    error = transport_dial(dials, &address, &ends[0]);
    if (error != 0) fail("dial", -error);
    while ((error = transport_listener_accept(&listener, &ends[1], &from, 0)) == -EAGAIN)
        if (poll(&(struct pollfd){.fd = listener.fd, .events = POLLIN}, 1, WAIT_MS) != 1) fail("accept", ETIMEDOUT);
    if (error != 0) fail("accept", -error);
    while (results[0] == -EAGAIN || results[1] == -EAGAIN)
        for (int i = 0; i < 2; i++) {
            if (results[i] == -EAGAIN) results[i] = transport_step(ends[i]);
            if (results[i] != 0 && results[i] != -EAGAIN) fail("handshake", -results[i]);
        }
    transport_listener_close(&listener);
    descriptor_close(listener.poller);
}

struct receiver {
    struct transport *stream;
    size_t piece; // received at once
};

static void *receive(void *argument) {
    static uint8_t bytes[PIECE];
    const struct receiver *receiver = argument;
    struct transport *stream = receiver->stream;
    size_t *total = calloc(1, sizeof *total);
    ptrdiff_t got;
    while ((got = transport_receive(stream, bytes, receiver->piece)) != 0) {
        if (got == -EAGAIN)
            await(stream, POLLIN);
        else if (got < 0)
            fail("receive", (int)-got);
        else
            *total += (size_t)got;
    }
    return total;
}

// `units`: GiB, or millions of messages. `before`: processor_s at the beginning.
static void report(const char *method, double units, double seconds, double before) {
    printf("%s %.4f %.4f\n", method, units / seconds, (processor_s() - before) / units);
    fflush(stdout);
}

static double gib(size_t bytes) { return (double)bytes / (1 << 30); }

// `piece`: sent at once. `part`: received at once.
static void carry(const char *method, struct transport_context *dials, struct transport_context *accepts, size_t piece,
                  size_t part, double seconds) {
    static uint8_t bytes[PIECE];
    struct transport *ends[2];
    pthread_t receiver;
    void *total;
    connect_ends(dials, accepts, ends);
    struct receiver at = {ends[1], part};
    if (pthread_create(&receiver, NULL, receive, &at) != 0) fail("thread", EAGAIN);
    double before = processor_s();
    int64_t began = platform_now_ns();
    while (platform_now_ns() - began < (int64_t)(seconds * 1e9))
        for (size_t done = 0; done < PIECE;) {
            size_t now = piece < PIECE - done ? piece : PIECE - done;
            ptrdiff_t sent = transport_send(ends[0], bytes + done, now);
            if (sent == -EAGAIN)
                await(ends[0], POLLOUT);
            else if (sent < 0)
                fail("send", (int)-sent);
            else
                done += (size_t)sent;
        }
    transport_finish(ends[0]);
    pthread_join(receiver, &total);
    double wall = (double)(platform_now_ns() - began) / 1e9;
    report(method, gib(*(size_t *)total), wall, before);
    free(total);
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
}

// Encrypts and decrypts records: what no program around it can do without. `copies`: OpenSSL encrypts a copy of what it is
// given, and gives a copy of what it has decrypted. These lie in 1 MiB, as those of `carry`; otherwise all is in cache.
static void cipher(const char *method, bool copies, double seconds) {
    static uint8_t from[PIECE], to[PIECE], bytes[RECORD], out[RECORD + 16];
    uint8_t key[16] = {1}, nonce[12] = {2}, tag[16];
    EVP_CIPHER_CTX *contexts[2] = {EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_new()};
    size_t total = 0;
    int length;
    for (int i = 0; i < 2; i++) EVP_CipherInit_ex(contexts[i], EVP_aes_128_gcm(), NULL, key, nonce, i == 0);
    double before = processor_s();
    int64_t began = platform_now_ns();
    for (; platform_now_ns() - began < (int64_t)(seconds * 1e9); total += RECORD) {
        if (copies) memcpy(bytes, from + total % PIECE, RECORD);
        for (int i = 0; i < 2; i++) {
            EVP_CipherInit_ex(contexts[i], NULL, NULL, NULL, nonce, i == 0);
            EVP_CipherUpdate(contexts[i], i == 0 ? out : bytes, &length, i == 0 ? bytes : out, RECORD);
            if (i == 1) EVP_CIPHER_CTX_ctrl(contexts[i], EVP_CTRL_GCM_SET_TAG, 16, tag);
            if (EVP_CipherFinal_ex(contexts[i], tag, &length) != 1) fail("cipher", EBADMSG);
            if (i == 0) EVP_CIPHER_CTX_ctrl(contexts[i], EVP_CTRL_GCM_GET_TAG, 16, tag);
        }
        if (copies) memcpy(to + total % PIECE, bytes, RECORD);
    }
    report(method, gib(total), (double)(platform_now_ns() - began) / 1e9, before);
    for (int i = 0; i < 2; i++) EVP_CIPHER_CTX_free(contexts[i]);
}

// A thread sends a message and receives it at the other end, again and again: what one costs without any waiting.
static void messages(const char *method, struct transport_context *context, double seconds) {
    static uint8_t bytes[MESSAGE], room[ROOM];
    struct transport *ends[2];
    size_t count = 0;
    connect_ends(context, context, ends);
    double before = processor_s();
    int64_t began = platform_now_ns();
    for (; platform_now_ns() - began < (int64_t)(seconds * 1e9); count++) {
        if (transport_send(ends[0], bytes, MESSAGE) != MESSAGE) fail("send", EAGAIN);
        for (size_t at = 0; at < MESSAGE || ends[1]->buffered;) {
            ptrdiff_t got = transport_recvv(ends[1], &(struct iovec){room, ROOM}, 1);
            if (got <= 0 && got != -EAGAIN) fail("receive", (int)-got);
            if (got > 0) at += (size_t)got;
        }
    }
    report(method, (double)count / 1e6, (double)(platform_now_ns() - began) / 1e9, before);
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
}

static bool wanted(const char *only, const char *method) { return only[0] == '\0' || strcmp(only, method) == 0; }

int main(int argc, char **argv) {
    char reason[KEYS_REASON_BYTES];
    if (argc != 4 && argc != 5) return 2;
    struct keys *keys = keys_load(argv[1], reason);
    if (keys == NULL) {
        fprintf(stderr, "encryption: %s\n", reason);
        return 1;
    }
    double seconds = atof(argv[2]);
    struct transport_context *plain = transport_context_new(NULL);
    struct transport_options options = {.keys = keys, .party = TRANSPORT_PEER};
    struct transport_context *tls = tls_context_new(&options);
    if (plain == NULL || tls == NULL) fail("contexts", ENOMEM);
    const char *only = argc == 5 ? argv[4] : "";
    for (int round = 0; round < atoi(argv[3]); round++) {
        if (wanted(only, "plain")) carry("plain", plain, plain, PIECE, PIECE, seconds);
        if (wanted(only, "pieces")) carry("pieces", plain, plain, TURN, RECORD, seconds);
        if (wanted(only, "tls")) carry("tls", tls, tls, PIECE, PIECE, seconds);
        if (wanted(only, "plain-messages")) messages("plain-messages", plain, seconds);
        if (wanted(only, "tls-messages")) messages("tls-messages", tls, seconds);
        if (wanted(only, "cipher")) cipher("cipher", false, seconds);
        if (wanted(only, "copies")) cipher("copies", true, seconds);
    }
    transport_context_release(plain);
    transport_context_release(tls);
    keys_release(keys);
    return 0;
}
