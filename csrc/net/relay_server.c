#define _GNU_SOURCE
#define LOG_COMPONENT "relay"
#include "net/relay_server.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/platform.h"
#include "net/endpoint.h"

enum { WAKE_DATA = 0, EVENTS = 64, TURN_READS = 4, GIVEN_LEAST = 16, TURN_MS = 500 };

enum end_state { END_STRANGER = ENDPOINT_STRANGER, END_WAITS, END_JOINED };
enum end_step { END_ACCEPTED, END_ASKS, END_GREETED, END_CERTIFIES };

// A connection, with the bytes that came from it and that the other end has not taken.
struct end {
    struct endpoint_conn conn;
    enum end_step step; // of a stranger
    uint32_t received;  // bytes of the question, the hello, or the certificate
    uint32_t more;      // bytes of the certificate, or of the name of its run
    char greeting[RELAY_GREETING_BYTES + 1];
    char hello[RELAY_HELLO_BYTES + 1];
    uint8_t *certificate;
    struct wire_run run; // to which its keys are confined; without a name: to none
    struct end *other;
    uint8_t *buffer; // while something waits
    size_t first, last;
    bool ended, told; // it sends nothing more; the other end was told so
};

struct relay_server {
    struct keys *keys;
    bool of_run;
    uint32_t links_most;
    pthread_t thread;
    int wake;
    // the thread's own
    struct transport_context plain; // held by its streams, and by the server
    struct endpoint endpoint;       // of struct end
    uint8_t *scratch;
    bool told_short;
    // guarded
    pthread_mutex_t lock;
    bool stops, has_secret;
    uint8_t secret[RELAY_SECRET_BYTES];
    struct transport **given;
    size_t given_count, given_room;
    // read by others
    _Atomic uint32_t links;
    _Atomic uint64_t bytes;
};

// ---- connections ----

static struct end *end_of(struct endpoint_conn *conn) { return (struct end *)(void *)conn; }

static void close_end(struct relay_server *s, struct end *end) { endpoint_close(&s->endpoint, &end->conn); }

// Ends the link, too.
static void relay_end_fini(void *server, struct endpoint_conn *conn) {
    struct relay_server *s = server;
    struct end *end = end_of(conn);
    free(end->certificate);
    free(end->buffer);
    end->certificate = end->buffer = NULL;
    if (end->other == NULL || end->other->conn.state == ENDPOINT_CLOSED) return;
    atomic_fetch_sub(&s->links, 1);
    close_end(s, end->other);
}

// A broken connection that nothing is expected of would keep the poller telling.
static bool watch(struct relay_server *s, struct end *end, uint32_t events) {
    if (events != 0) return endpoint_watch(&s->endpoint, &end->conn, events);
    transport_unwatch(end->conn.stream);
    return true;
}

static bool greet(struct end *end) {
    uint8_t nonce[RELAY_NONCE_DIGITS / 2];
    if (!platform_random(nonce, sizeof nonce)) return false;
    relay_write_greeting(nonce, end->greeting);
    end->step = END_GREETED;
    end->received = 0;
    end->conn.stream->speaks = false;
    return transport_send(end->conn.stream, end->greeting, RELAY_GREETING_BYTES) == RELAY_GREETING_BYTES;
}

// ---- who may use it ----

static bool is_proof(const char *digits, const uint8_t proof[SHA256_BYTES]) {
    char own[2 * SHA256_BYTES + 1];
    unsigned char differs = 0;
    relay_put_hex(own, proof, SHA256_BYTES);
    for (size_t i = 0; i < 2 * SHA256_BYTES; i++) differs |= (unsigned char)(own[i] ^ digits[i]);
    return differs == 0;
}

static bool is_of_run(struct relay_server *s, const struct end *end, const char *digits) {
    uint8_t proof[SHA256_BYTES], secret[RELAY_SECRET_BYTES];
    pthread_mutex_lock(&s->lock);
    bool known = s->has_secret;
    memcpy(secret, s->secret, sizeof secret);
    pthread_mutex_unlock(&s->lock);
    return known && relay_prove_run(relay_nonce(end->greeting), end->hello, s->keys, secret, proof) &&
           is_proof(digits, proof);
}

// Whether it has proved that it has the keys.
static bool is_certified(const struct relay_server *s, const struct end *end) {
    uint8_t hash[SHA256_BYTES];
    return end->more > 0 && relay_hash(relay_nonce(end->greeting), end->hello, hash) &&
           certificates_signed(keys_certificates(s->keys), hash, end->certificate, end->more);
}

static bool has_keys(const struct relay_server *s, struct end *end, const char *digits) {
    if (keys_certificates(s->keys) != NULL) return is_certified(s, end);
    if (end->more > 0 && !wire_is_run_name((const char *)end->certificate, end->more)) return false;
    if (end->more > 0) memcpy(end->run.chars, end->certificate, end->more);
    for (size_t i = 0; i < RELAY_PROOFS; i++)
        for (size_t k = 0; k < keys_secret_count(s->keys); k++) {
            uint8_t proof[SHA256_BYTES];
            bool proved = relay_prove_keys(relay_nonce(end->greeting), end->hello, s->keys, k, &end->run, proof);
            if (proved && is_proof(digits + i * (2 * SHA256_BYTES + 1), proof)) return true;
        }
    return false;
}

static bool may_use(struct relay_server *s, struct end *end) {
    const char *digits = end->hello + RELAY_WORDS_BYTES + 1;
    if (s->of_run) return is_of_run(s, end, digits);
    return s->keys == NULL || has_keys(s, end, digits);
}

// ---- joining ----

enum { ID_DIGITS = 2 * WIRE_ID_BYTES, INDEX_DIGITS = 8 };

// Whether it names the same link of the same run from the other side; `same`: from the same one.
static bool is_other_end(const struct end *a, const struct end *b, bool same) {
    const char *mine = a->hello, *its = b->hello;
    size_t first = same ? 0 : ID_DIGITS + 1, second = same ? ID_DIGITS + 1 : 0;
    return memcmp(mine, its + first, ID_DIGITS) == 0 && memcmp(mine + ID_DIGITS + 1, its + second, ID_DIGITS) == 0 &&
           memcmp(mine + 2 * (ID_DIGITS + 1), its + 2 * (ID_DIGITS + 1), INDEX_DIGITS) == 0 &&
           strcmp(a->run.chars, b->run.chars) == 0;
}

static struct end *find(const struct relay_server *s, const struct end *end, bool same) {
    for (uint32_t i = 0; i < s->endpoint.count; i++) {
        struct endpoint_conn *conn = s->endpoint.places[i];
        if (conn != NULL && conn->state == END_WAITS && is_other_end(end, end_of(conn), same)) return end_of(conn);
    }
    return NULL;
}

static void join(struct relay_server *s, struct end *one, struct end *two) {
    struct end *both[] = {one, two};
    one->other = two;
    two->other = one;
    bool good = true;
    atomic_fetch_add(&s->links, 1);
    for (int i = 0; i < 2; i++) {
        endpoint_set(&s->endpoint, &both[i]->conn, END_JOINED, INT64_MAX);
        free(both[i]->certificate);
        both[i]->certificate = NULL;
        good = good && transport_send(both[i]->conn.stream, "+", 1) == 1;
    }
    if (!good) close_end(s, one);
}

static void take_hello(struct relay_server *s, struct end *end) {
    end->hello[RELAY_WORDS_BYTES] = 0;
    if (memcmp(end->hello, end->hello + ID_DIGITS + 1, ID_DIGITS) == 0 || !may_use(s, end)) {
        close_end(s, end);
        return;
    }
    struct end *other = find(s, end, false), *before = find(s, end, true);
    if (before != NULL) close_end(s, before);
    // At a member those that wait have places of their own: half of them wait at their second choice (peer/mesh), where
    // mostly nobody comes.
    uint32_t links = atomic_load(&s->links), room = s->links_most - links;
    bool full = room == 0;
    if (other != NULL && !full) {
        join(s, other, end);
    } else if (full || s->endpoint.counts[END_WAITS] >= (s->of_run ? s->links_most : room)) {
        if (other != NULL) close_end(s, other);
        close_end(s, end);
    } else {
        endpoint_set(&s->endpoint, &end->conn, END_WAITS, platform_now_ns() + RELAY_WAIT_MS * MS_NS);
    }
}

// Receives up to `count` bytes in all. False: they are not all here, and maybe the end is closed.
static bool receive(struct relay_server *s, struct end *end, void *to, uint32_t count) {
    while (end->received < count) {
        ptrdiff_t got = transport_receive(end->conn.stream, (char *)to + end->received, count - end->received);
        if (got <= 0 && got != -EAGAIN) close_end(s, end);
        if (got <= 0) return false;
        end->received += (uint32_t)got;
        end->conn.stream->speaks = true;
    }
    return true;
}

static bool is_hello(struct end *end) {
    static const size_t spaces[] = {ID_DIGITS, 2 * ID_DIGITS + 1, RELAY_WORDS_BYTES, RELAY_WORDS_BYTES + 65,
                                    RELAY_WORDS_BYTES + 130};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (end->hello[spaces[i]] != ' ') return false;
    char *rest;
    unsigned long more = strtoul(end->hello + RELAY_WORDS_BYTES + 131, &rest, 16);
    end->more = (uint32_t)more;
    return rest == end->hello + RELAY_HELLO_BYTES - 1 && *rest == '\n' && more <= RELAY_CERTIFICATE_BYTES;
}

// Hears a stranger until it waits for the other end or is joined with it.
static void relay_end_hear(void *server, struct endpoint_conn *conn) {
    struct relay_server *s = server;
    struct end *end = end_of(conn);
    bool good = end->step != END_ACCEPTED || greet(end);
    if (end->step == END_ASKS) {
        if (!receive(s, end, end->hello, RELAY_QUESTION_BYTES)) return;
        good = memcmp(end->hello, RELAY_QUESTION, RELAY_QUESTION_BYTES) == 0 && greet(end);
    } else if (good && end->step == END_GREETED) {
        if (!receive(s, end, end->hello, RELAY_HELLO_BYTES)) return;
        good = is_hello(end);
        if (good && end->more > 0) good = (end->certificate = malloc(end->more)) != NULL;
        end->received = 0;
        end->step = END_CERTIFIES;
    }
    if (!good)
        close_end(s, end);
    else if (end->step == END_CERTIFIES && receive(s, end, end->certificate, end->more))
        take_hello(s, end);
}

// ---- copying ----

// Sends what waits of an end to the other one. False: it broke.
static bool give(struct relay_server *s, struct end *end) {
    while (end->first < end->last) {
        ptrdiff_t sent = transport_send(end->other->conn.stream, end->buffer + end->first, end->last - end->first);
        if (sent < 0) return sent == -EAGAIN;
        end->first += (size_t)sent;
        atomic_fetch_add_explicit(&s->bytes, (uint64_t)sent, memory_order_relaxed);
    }
    free(end->buffer);
    end->buffer = NULL;
    end->first = end->last = 0;
    return true;
}

static bool keep(struct end *end, const uint8_t *bytes, size_t length) {
    end->buffer = malloc(length);
    if (end->buffer == NULL) return false;
    memcpy(end->buffer, bytes, length);
    end->last = length;
    return true;
}

// Receives from an end, and sends to the other one. False: the link is over.
static bool take(struct relay_server *s, struct end *end) {
    for (int i = 0; i < TURN_READS && end->last == 0 && !end->ended; i++) {
        ptrdiff_t got = transport_receive(end->conn.stream, s->scratch, RELAY_BUFFER_BYTES);
        if (got < 0) return got == -EAGAIN;
        end->ended = got == 0;
        ptrdiff_t sent = got == 0 ? 0 : transport_send(end->other->conn.stream, s->scratch, (size_t)got);
        if (sent < 0 && sent != -EAGAIN) return false;
        if (sent < 0) sent = 0;
        atomic_fetch_add_explicit(&s->bytes, (uint64_t)sent, memory_order_relaxed);
        if (sent < got && !keep(end, s->scratch + sent, (size_t)(got - sent))) return false;
    }
    return true;
}

static bool pass_end(struct relay_server *s, struct end *end) {
    if (!end->ended || end->last > 0 || end->told) return true;
    transport_finish(end->other->conn.stream);
    end->told = true;
    endpoint_until(&s->endpoint, &end->conn, platform_now_ns() + RELAY_LINGER_MS * MS_NS);
    return !end->other->told;
}

static uint32_t wanted(const struct end *end) {
    return (!end->ended && end->last == 0 ? EPOLLIN : 0U) | (end->other->last > 0 ? EPOLLOUT : 0U);
}

static void carry(struct relay_server *s, struct end *end, uint32_t events) {
    bool good = (events & EPOLLERR) == 0;
    if (good && (events & (EPOLLIN | EPOLLHUP)) != 0) good = take(s, end);
    if (good && (events & EPOLLOUT) != 0) good = give(s, end->other);
    good = good && pass_end(s, end) && pass_end(s, end->other);
    good = good && watch(s, end, wanted(end)) && watch(s, end->other, wanted(end->other));
    if (!good) close_end(s, end);
}

// ---- the thread ----

static void relay_end_shortage(void *server, int error) {
    struct relay_server *s = server;
    if (!s->told_short)
        LOG(LOG_WARN, "no room for a connection beside %u links: %s; it tries again", atomic_load(&s->links),
            strerror(-error));
    s->told_short = true;
}

static void add_given(struct relay_server *s, struct transport *stream) {
    struct wire_address from = {0};
    transport_remote_address(stream, &from);
    struct endpoint_conn *conn = endpoint_add_stranger(&s->endpoint, stream, &from, platform_now_ns());
    if (conn != NULL) end_of(conn)->step = END_ASKS;
}

static bool take_given(struct relay_server *s) {
    pthread_mutex_lock(&s->lock);
    bool goes_on = !s->stops;
    struct transport **given = s->given;
    size_t count = s->given_count;
    s->given = NULL;
    s->given_count = s->given_room = 0;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < count; i++) add_given(s, given[i]);
    free(given);
    return goes_on;
}

static void *run(void *server) {
    struct relay_server *s = server;
    struct epoll_event events[EVENTS];
    while (take_given(s)) {
        int count = epoll_wait(s->endpoint.poller, events, EVENTS, TURN_MS);
        endpoint_begin_turn(&s->endpoint);
        for (int i = 0; i < count; i++) {
            bool woken = events[i].data.u64 == WAKE_DATA;
            if (woken) wake_clear(s->wake);
            struct endpoint_conn *conn =
                woken ? NULL : endpoint_handle(&s->endpoint, events[i].data.u64, platform_now_ns());
            if (conn != NULL && conn->state == END_JOINED)
                carry(s, end_of(conn), events[i].events);
            else if (conn != NULL)
                endpoint_close(&s->endpoint, conn); // it has left, or speaks too soon
        }
        endpoint_tick(&s->endpoint, platform_now_ns());
    }
    return NULL;
}

// ---- life ----

static void relay_end_time_out(void *server, struct endpoint_conn *conn) { close_end(server, end_of(conn)); }

static const struct endpoint_type ends = {
    .bytes = sizeof(struct end),
    .hello_ms = RELAY_HELLO_MS,
    .pause_ms = RELAY_PAUSE_MS,
    .spare_state = END_STRANGER,
    .hear = relay_end_hear,
    .time_out = relay_end_time_out,
    .shortage = relay_end_shortage,
    .fini = relay_end_fini,
};

static int open_all(struct relay_server *s, const struct relay_server_options *options) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE_DATA};
    int poller = s->endpoint.poller = descriptor_epoll();
    s->scratch = malloc(RELAY_BUFFER_BYTES);
    s->wake = wake_open();
    if (s->scratch == NULL || poller < 0 || s->wake < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, s->wake, &event) != 0)
        return -ENOMEM;
    if (options->listens != NULL) {
        struct wire_address address = *options->listens;
        int error = endpoint_listen_all(&s->endpoint, &address, 1, 0);
        if (error != 0) return error;
        *options->port = address.port;
    }
    return platform_thread_start(&s->thread, "pccl:relay", run, s) ? 0 : -ENOMEM;
}

int relay_server_new(const struct relay_server_options *options, struct relay_server **out) {
    struct relay_server *s = *out = calloc(1, sizeof *s);
    if (s == NULL) return -ENOMEM;
    bool limited = options->unknown > 0 && options->unknown < RELAY_UNKNOWN_MOST;
    s->keys = options->keys == NULL ? NULL : keys_hold(options->keys);
    s->of_run = options->of_run;
    s->links_most = options->links;
    s->endpoint = (struct endpoint){.type = &ends,
                                    .user = s,
                                    .context = &s->plain,
                                    .first_data = WAKE_DATA + 1,
                                    .places_most = ENDPOINT_PLACES,
                                    .strangers_most = limited ? options->unknown : RELAY_UNKNOWN_MOST};
    transport_context_init(&s->plain, &transport_plain, NULL);
    pthread_mutex_init(&s->lock, NULL);
    int error = open_all(s, options);
    if (error == 0) return 0;
    s->stops = true; // there is no thread
    relay_server_free(s);
    *out = NULL;
    return error;
}

void relay_server_free(struct relay_server *s) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    bool runs = !s->stops;
    s->stops = true;
    pthread_mutex_unlock(&s->lock);
    wake_signal(s->wake);
    if (runs) pthread_join(s->thread, NULL);
    for (size_t i = 0; i < s->given_count; i++) transport_free(s->given[i]);
    endpoint_fini(&s->endpoint);
    free(s->given);
    free(s->scratch);
    descriptor_close(s->endpoint.poller);
    descriptor_close(s->wake);
    keys_release(s->keys);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void relay_server_take(struct relay_server *s, struct transport *stream) {
    int fd = stream->fd;
    stream->fd = -1;
    transport_free(stream);
    stream = transport_new(&s->plain, fd, TRANSPORT_ACCEPTS);
    if (stream == NULL) return;
    pthread_mutex_lock(&s->lock);
    bool room = GROW(s->given, s->given_room, s->given_count, GIVEN_LEAST);
    if (room) s->given[s->given_count++] = stream;
    pthread_mutex_unlock(&s->lock);
    if (!room) transport_free(stream);
    wake_signal(s->wake);
}

void relay_server_set_secret(struct relay_server *s, const uint8_t secret[RELAY_SECRET_BYTES]) {
    pthread_mutex_lock(&s->lock);
    memcpy(s->secret, secret, sizeof s->secret);
    s->has_secret = true;
    pthread_mutex_unlock(&s->lock);
}

void relay_server_counts(const struct relay_server *s, uint32_t *links, uint64_t *bytes) {
    *links = atomic_load(&s->links);
    *bytes = atomic_load(&s->bytes);
}
