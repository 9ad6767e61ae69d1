// How fast one stream carries bytes over loopback, and what it costs: plain TCP, TLS, and AES-128-GCM alone.
//
//     encryption KEYS SECONDS ROUNDS
//
// A thread sends and another one receives, 1 MiB at a time. Each round prints a line for each method, in turn: method,
// GiB/s, processor seconds per GiB of both threads together. bench/encryption.py makes the keys and runs it.
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

enum { PIECE = 1 << 20, WAIT_MS = 10000, RECORD = 16 * 1024 };

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

static void *receive(void *stream) {
    static uint8_t bytes[PIECE];
    size_t *total = calloc(1, sizeof *total);
    ptrdiff_t got;
    while ((got = transport_receive(stream, bytes, sizeof bytes)) != 0) {
        if (got == -EAGAIN)
            await(stream, POLLIN);
        else if (got < 0)
            fail("receive", (int)-got);
        else
            *total += (size_t)got;
    }
    return total;
}

static void report(const char *method, double bytes, double seconds, double processor) {
    double gib = bytes / (1 << 30);
    printf("%s %.3f %.3f\n", method, gib / seconds, processor / gib);
    fflush(stdout);
}

static void carry(const char *method, struct transport_context *dials, struct transport_context *accepts,
                  double seconds) {
    static uint8_t bytes[PIECE];
    struct transport *ends[2];
    pthread_t receiver;
    void *total;
    connect_ends(dials, accepts, ends);
    if (pthread_create(&receiver, NULL, receive, ends[1]) != 0) fail("thread", EAGAIN);
    double processor = processor_s();
    int64_t began = platform_now_ns();
    while (platform_now_ns() - began < (int64_t)(seconds * 1e9))
        for (size_t at = 0; at < PIECE;) {
            ptrdiff_t sent = transport_send(ends[0], bytes + at, PIECE - at);
            if (sent == -EAGAIN)
                await(ends[0], POLLOUT);
            else if (sent < 0)
                fail("send", (int)-sent);
            else
                at += (size_t)sent;
        }
    transport_finish(ends[0]);
    pthread_join(receiver, &total);
    double wall = (double)(platform_now_ns() - began) / 1e9;
    report(method, (double)*(size_t *)total, wall, processor_s() - processor);
    free(total);
    for (int i = 0; i < 2; i++) transport_free(ends[i]);
}

// Encrypts and decrypts records, in cache: what no program around it can do without.
static void cipher(double seconds) {
    static uint8_t bytes[RECORD], out[RECORD + 16];
    uint8_t key[16] = {1}, nonce[12] = {2}, tag[16];
    EVP_CIPHER_CTX *contexts[2] = {EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_new()};
    size_t total = 0;
    int length;
    for (int i = 0; i < 2; i++) EVP_CipherInit_ex(contexts[i], EVP_aes_128_gcm(), NULL, key, nonce, i == 0);
    double processor = processor_s();
    int64_t began = platform_now_ns();
    for (; platform_now_ns() - began < (int64_t)(seconds * 1e9); total += RECORD)
        for (int i = 0; i < 2; i++) {
            EVP_CipherInit_ex(contexts[i], NULL, NULL, NULL, nonce, i == 0);
            EVP_CipherUpdate(contexts[i], i == 0 ? out : bytes, &length, i == 0 ? bytes : out, RECORD);
            if (i == 1) EVP_CIPHER_CTX_ctrl(contexts[i], EVP_CTRL_GCM_SET_TAG, 16, tag);
            if (EVP_CipherFinal_ex(contexts[i], tag, &length) != 1) fail("cipher", EBADMSG);
            if (i == 0) EVP_CIPHER_CTX_ctrl(contexts[i], EVP_CTRL_GCM_GET_TAG, 16, tag);
        }
    report("aes-128-gcm", (double)total, (double)(platform_now_ns() - began) / 1e9, processor_s() - processor);
    for (int i = 0; i < 2; i++) EVP_CIPHER_CTX_free(contexts[i]);
}

int main(int argc, char **argv) {
    char reason[KEYS_REASON_BYTES];
    if (argc != 4) return 2;
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
    for (int round = 0; round < atoi(argv[3]); round++) {
        carry("plain", plain, plain, seconds);
        carry("tls", tls, tls, seconds);
        cipher(seconds);
    }
    transport_context_release(plain);
    transport_context_release(tls);
    keys_release(keys);
    return 0;
}
