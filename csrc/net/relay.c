#define _GNU_SOURCE
#include "net/relay.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "net/keys.h"
#include "net/socket.h"

static const char greeting[] = "pccl relay 1 ";

static void put_hex(char *out, const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

// Without keys, and with certificates, nothing is proved.
static bool prove(const struct relay_hello *hello, const char *words, uint8_t proof[KEYS_SECRET_BYTES]) {
    memset(proof, 0, KEYS_SECRET_BYTES);
#ifdef PCCL_HAVE_TLS
    if (hello->keys == NULL || keys_secret_count(hello->keys) == 0) return true;
    uint8_t key[KEYS_SECRET_BYTES];
    char text[RELAY_GREETING_BYTES + RELAY_TEXT];
    size_t nonce = RELAY_GREETING_BYTES - (sizeof greeting - 1) - 1;
    snprintf(text, sizeof text, "%.*s %s ", (int)nonce, hello->greeting + sizeof greeting - 1, words);
    return ed25519_hash("pccl relay key", keys_secret(hello->keys, 0)->bytes, key) && ed25519_hash(text, key, proof);
#else
    (void)hello;
    (void)words;
    return true;
#endif
}

static int answer(struct relay_hello *hello, int fd) {
    char words[RELAY_TEXT], text[RELAY_TEXT];
    uint8_t proof[KEYS_SECRET_BYTES];
    char ids[2][2 * WIRE_ID_BYTES + 1], digits[2 * KEYS_SECRET_BYTES + 1];
    put_hex(ids[0], hello->self.bytes, WIRE_ID_BYTES);
    put_hex(ids[1], hello->other.bytes, WIRE_ID_BYTES);
    snprintf(words, sizeof words, "%s %s %08x", ids[0], ids[1], hello->index);
    if (!prove(hello, words, proof)) return -ENOMEM;
    put_hex(digits, proof, sizeof proof);
    int length = snprintf(text, sizeof text, "%s %s\n", words, digits);
    // Nothing was sent before, so there is room for it.
    ssize_t sent = send(fd, text, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == length ? 0 : -EPIPE;
}

int relay_step(struct relay_hello *hello, int fd, uint32_t *awaits) {
    if (hello->state == RELAY_CONNECTS) {
        int error = socket_connect_result(fd);
        *awaits = EPOLLOUT;
        if (error != 0) return error == -EINPROGRESS ? -EAGAIN : error;
        hello->state = RELAY_GREETS;
    }
    *awaits = EPOLLIN;
    while (hello->state == RELAY_GREETS) {
        ssize_t got = recv(fd, hello->greeting + hello->received, RELAY_GREETING_BYTES - hello->received, MSG_DONTWAIT);
        if (got <= 0) return got == 0 ? -ECONNRESET : -errno;
        hello->received = (uint8_t)(hello->received + got);
        if (hello->received < RELAY_GREETING_BYTES) continue;
        if (memcmp(hello->greeting, greeting, sizeof greeting - 1) != 0) return -EPROTO;
        int error = answer(hello, fd);
        if (error != 0) return error;
        hello->state = RELAY_WAITS;
    }
    if (hello->state == RELAY_WAITS) {
        char word;
        ssize_t got = recv(fd, &word, 1, MSG_DONTWAIT);
        if (got <= 0) return got == 0 ? -ECONNREFUSED : -errno;
        if (word != '+') return -EPROTO;
        hello->state = RELAY_JOINED;
    }
    return 0;
}
