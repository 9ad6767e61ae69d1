#define _GNU_SOURCE
#include "net/relay.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "net/socket.h"

static const char greeting[] = "pccl relay 2 ";

void relay_put_hex(char *out, const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

void relay_write_greeting(const uint8_t nonce[RELAY_NONCE_DIGITS / 2], char out[RELAY_GREETING_BYTES + 1]) {
    memcpy(out, greeting, sizeof greeting - 1);
    relay_put_hex(out + sizeof greeting - 1, nonce, RELAY_NONCE_DIGITS / 2);
    memcpy(out + RELAY_GREETING_BYTES - 1, "\n", 2);
}

const char *relay_nonce(const char *text) { return text + sizeof greeting - 1; }

// ---- proofs ----

static bool prove(const char *nonce, const char *words, const uint8_t key[SHA256_BYTES], uint8_t out[SHA256_BYTES]) {
    char text[RELAY_NONCE_DIGITS + RELAY_WORDS_BYTES + 3];
    snprintf(text, sizeof text, "%.*s %.*s ", RELAY_NONCE_DIGITS, nonce, RELAY_WORDS_BYTES, words);
    return ed25519_hash(text, key, out);
}

bool relay_hash(const char *nonce, const char *words, uint8_t out[SHA256_BYTES]) {
    return prove(nonce, words, (const uint8_t[SHA256_BYTES]){0}, out);
}

bool relay_prove_keys(const char *nonce, const char *words, const struct keys *keys, size_t index,
                      const struct wire_run *run, uint8_t out[SHA256_BYTES]) {
    uint8_t key[SHA256_BYTES];
    struct keys_secret secret;
    memset(out, 0, SHA256_BYTES);
    if (keys == NULL || index >= keys_secret_count(keys)) return true;
    bool proved = keys_secret_of(keys, index, run, &secret) && ed25519_hash("pccl relay key", secret.bytes, key) &&
                  prove(nonce, words, key, out);
    explicit_bzero(&secret, sizeof secret);
    explicit_bzero(key, sizeof key);
    return proved;
}

bool relay_prove_run(const char *nonce, const char *words, const struct keys *keys,
                     const uint8_t secret[RELAY_SECRET_BYTES], uint8_t out[SHA256_BYTES]) {
    uint8_t key[SHA256_BYTES] = {0};
    memcpy(key, secret, RELAY_SECRET_BYTES);
    if (keys != NULL) return prove(nonce, words, key, out);
    memcpy(out, key, sizeof key);
    return true;
}

// ---- the peer's side ----

// Writes what follows the hello. Returns its length.
static size_t certify(const struct relay_hello *hello, const char *words, uint8_t *out) {
    uint8_t hash[SHA256_BYTES];
    if (hello->at_member || hello->keys == NULL) return 0;
    if (keys_certificates(hello->keys) == NULL) {
        size_t length = strlen(keys_run(hello->keys)->chars);
        memcpy(out, keys_run(hello->keys)->chars, length);
        return length;
    }
    if (!relay_hash(relay_nonce(hello->greeting), words, hash)) return 0;
    return certificates_sign(keys_certificates(hello->keys), hash, out);
}

static int answer(const struct relay_hello *hello, int fd) {
    const char *nonce = relay_nonce(hello->greeting);
    const struct wire_run *run = hello->keys == NULL ? NULL : keys_run(hello->keys);
    char ids[2][2 * WIRE_ID_BYTES + 1], words[RELAY_WORDS_BYTES + 1], digits[RELAY_PROOFS][2 * SHA256_BYTES + 1];
    struct {
        char text[RELAY_HELLO_BYTES];
        uint8_t certificate[RELAY_CERTIFICATE_BYTES];
    } out;
    relay_put_hex(ids[0], hello->self.bytes, WIRE_ID_BYTES);
    relay_put_hex(ids[1], hello->other.bytes, WIRE_ID_BYTES);
    snprintf(words, sizeof words, "%s %s %08x", ids[0], ids[1], hello->index);
    for (size_t i = 0; i < RELAY_PROOFS; i++) {
        uint8_t proof[SHA256_BYTES] = {0};
        bool proved = hello->at_member ? i > 0 || relay_prove_run(nonce, words, hello->keys, hello->secret, proof)
                                       : relay_prove_keys(nonce, words, hello->keys, i, run, proof);
        if (!proved) return -ENOMEM;
        relay_put_hex(digits[i], proof, sizeof proof);
    }
    size_t more = certify(hello, words, out.certificate);
    char text[RELAY_HELLO_BYTES + 1];
    snprintf(text, sizeof text, "%s %s %s %04x\n", words, digits[0], digits[1], (unsigned)more & 0xffff);
    memcpy(out.text, text, sizeof out.text);
    // At most the question was sent before, so there is room for it.
    size_t length = sizeof out.text + more;
    ssize_t sent = send(fd, &out, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == (ssize_t)length ? 0 : -EPIPE;
}

int relay_step(struct relay_hello *hello, int fd, uint32_t *awaits) {
    if (hello->state == RELAY_CONNECTS) {
        int error = socket_connect_result(fd);
        *awaits = EPOLLOUT;
        if (error != 0) return error == -EINPROGRESS ? -EAGAIN : error;
        if (hello->at_member && send(fd, RELAY_QUESTION, RELAY_QUESTION_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return -errno;
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

const char *relay_why(const struct relay_hello *hello, int error) {
    bool waits = hello->state == RELAY_WAITS;
    if (hello->state == RELAY_JOINED || (waits && error == -ETIMEDOUT)) return NULL; // the other end did not come
    if (hello->state == RELAY_GREETS) return "it does not answer as a relay";
    return waits ? "it ended the connection: it has keys of another run, or no room, or was stopped" : strerror(-error);
}
