#define _GNU_SOURCE
#define LOG_COMPONENT "relay"
#include "net/relay_server.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/platform.h"
#include "base/share.h"
#include "net/socket.h"
#include "net/strangers.h"

enum { EVENTS = 64, TURN_READS = 4, ENDS_LEAST = 16, TURN_MS = 500, ACCEPTS_MOST = 64 };

enum end_state { END_ASKS, END_GREETED, END_CERTIFIES, END_WAITS, END_JOINED, END_CLOSED };

// A connection, with the bytes that came from it and that the other end has not taken.
struct end {
    enum end_state state;
    int fd;
    uint8_t slot;      // of the address that it comes from
    int64_t until_ns;  // it ends then; INT64_MAX: it does not
    uint32_t events;   // that are watched for; 0: it is not in the poller
    uint32_t received; // bytes of the question, the hello, or the certificate
    uint32_t more;     // bytes of the certificate, or of the name of its run
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
    uint32_t links_most, unknown_most;
    pthread_t thread;
    int epoll, wake;
    // the thread's own
    struct end **ends;
    size_t count, room;
    uint32_t unknown, waiting;
    uint8_t *scratch;
    int64_t resumes_ns; // the listener; INT64_MAX: it listens
    bool told_short;
    // guarded
    pthread_mutex_t lock;
    bool stops, has_secret;
    uint8_t secret[RELAY_SECRET_BYTES];
    int *given;
    size_t given_count, given_room;
    // read by others
    atomic_int listener;
    _Atomic uint32_t links;
    _Atomic uint64_t bytes;
};

// ---- connections ----

static bool is_short(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

static void count_state(struct relay_server *s, enum end_state state, int by) {
    if (state < END_WAITS) s->unknown += (uint32_t)by;
    if (state == END_WAITS) s->waiting += (uint32_t)by;
}

static void set_state(struct relay_server *s, struct end *end, enum end_state state) {
    count_state(s, end->state, -1);
    end->state = state;
    count_state(s, state, 1);
}

static bool watch(struct relay_server *s, struct end *end, uint32_t events) {
    if (events == end->events) return true;
    struct epoll_event event = {.events = events, .data.ptr = end};
    int operation = end->events == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    if (epoll_ctl(s->epoll, operation, end->fd, &event) != 0) return false;
    end->events = events;
    return true;
}

// The memory goes at the end of the turn, for events of it may be left.
static void close_end(struct relay_server *s, struct end *end) {
    if (end->state == END_CLOSED) return;
    if (end->state == END_JOINED && end->other->state == END_JOINED) atomic_fetch_sub(&s->links, 1);
    set_state(s, end, END_CLOSED);
    watch(s, end, 0);
    descriptor_close(end->fd);
    if (end->other != NULL) close_end(s, end->other);
}

static void sweep(struct relay_server *s) {
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++) {
        struct end *end = s->ends[i];
        if (end->state != END_CLOSED) {
            s->ends[kept++] = end;
            continue;
        }
        free(end->certificate);
        free(end->buffer);
        free(end);
    }
    s->count = kept;
}

static enum strangers_shown shown(const struct end *end) {
    return strangers_shown(false, end->received > 0 || end->state == END_CERTIFIES);
}

// The connection without a hello that goes first.
static struct end *surplus(const struct relay_server *s) {
    struct strangers strangers = {0};
    struct strangers_first first = {0};
    for (size_t i = 0; i < s->count; i++)
        if (s->ends[i]->state < END_WAITS) strangers_count(&strangers, shown(s->ends[i]), s->ends[i]->slot);
    for (size_t i = 0; i < s->count; i++) {
        struct end *end = s->ends[i];
        if (end->state < END_WAITS) strangers_compare(&first, &strangers, shown(end), end->slot, end->until_ns, end);
    }
    return first.who;
}

static bool greet(struct end *end) {
    uint8_t nonce[RELAY_NONCE_DIGITS / 2];
    if (!platform_random(nonce, sizeof nonce)) return false;
    relay_write_greeting(nonce, end->greeting);
    end->state = END_GREETED;
    end->received = 0;
    return send(end->fd, end->greeting, RELAY_GREETING_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) == RELAY_GREETING_BYTES;
}

static void add(struct relay_server *s, int fd, bool asks, const struct wire_address *from) {
    if (s->unknown >= s->unknown_most) close_end(s, surplus(s));
    struct end *end = GROW(s->ends, s->room, s->count, ENDS_LEAST) ? calloc(1, sizeof *end) : NULL;
    if (end == NULL) {
        descriptor_close(fd);
        return;
    }
    end->fd = fd;
    end->slot = strangers_slot(from);
    end->until_ns = platform_now_ns() + RELAY_HELLO_MS * MS_NS;
    s->ends[s->count++] = end;
    count_state(s, END_ASKS, 1);
    int alive = 1;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &alive, sizeof alive);
    if (!watch(s, end, EPOLLIN) || (!asks && !greet(end))) close_end(s, end);
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
#ifdef PCCL_HAVE_TLS
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
#else
static bool has_keys(const struct relay_server *s, struct end *end, const char *digits) {
    (void)s, (void)end, (void)digits;
    return false;
}
#endif

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
    for (size_t i = 0; i < s->count; i++)
        if (s->ends[i]->state == END_WAITS && s->ends[i] != end && is_other_end(end, s->ends[i], same))
            return s->ends[i];
    return NULL;
}

static void join(struct relay_server *s, struct end *one, struct end *two) {
    struct end *both[] = {one, two};
    one->other = two;
    two->other = one;
    for (int i = 0; i < 2; i++) {
        set_state(s, both[i], END_JOINED);
        both[i]->until_ns = INT64_MAX;
        free(both[i]->certificate);
        both[i]->certificate = NULL;
    }
    atomic_fetch_add(&s->links, 1);
    for (int i = 0; i < 2; i++)
        if (one->state == END_JOINED && send(both[i]->fd, "+", 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) close_end(s, one);
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
    } else if (full || s->waiting >= (s->of_run ? s->links_most : room)) {
        if (other != NULL) close_end(s, other);
        close_end(s, end);
    } else {
        set_state(s, end, END_WAITS);
        end->until_ns = platform_now_ns() + RELAY_WAIT_MS * MS_NS;
    }
}

// Receives up to `count` bytes in all. False: they are not all here, and maybe the end is closed.
static bool receive(struct relay_server *s, struct end *end, void *to, uint32_t count) {
    while (end->received < count) {
        ssize_t got = recv(end->fd, (char *)to + end->received, count - end->received, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (got <= 0) {
            close_end(s, end);
            return false;
        }
        end->received += (uint32_t)got;
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

static void hear(struct relay_server *s, struct end *end) {
    if (end->state == END_ASKS) {
        if (!receive(s, end, end->hello, RELAY_QUESTION_BYTES)) return;
        if (memcmp(end->hello, RELAY_QUESTION, RELAY_QUESTION_BYTES) != 0 || !greet(end)) close_end(s, end);
        return;
    }
    if (end->state == END_GREETED) {
        if (!receive(s, end, end->hello, RELAY_HELLO_BYTES)) return;
        bool good = is_hello(end);
        if (good && end->more > 0) good = (end->certificate = malloc(end->more)) != NULL;
        end->received = 0;
        set_state(s, end, END_CERTIFIES);
        if (!good) close_end(s, end);
    }
    if (end->state == END_CERTIFIES && receive(s, end, end->certificate, end->more))
        take_hello(s, end);
    else if (end->state == END_WAITS)
        close_end(s, end); // it has left, or speaks too soon
}

// ---- copying ----

// Sends what waits of an end to the other one. False: it broke.
static bool give(struct relay_server *s, struct end *end) {
    while (end->first < end->last) {
        ssize_t sent =
            send(end->other->fd, end->buffer + end->first, end->last - end->first, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) return errno == EAGAIN || errno == EINTR;
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
        ssize_t got = recv(end->fd, s->scratch, RELAY_BUFFER_BYTES, MSG_DONTWAIT);
        if (got < 0) return errno == EAGAIN || errno == EINTR;
        end->ended = got == 0;
        ssize_t sent = got == 0 ? 0 : send(end->other->fd, s->scratch, (size_t)got, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (sent < 0) sent = 0;
        atomic_fetch_add_explicit(&s->bytes, (uint64_t)sent, memory_order_relaxed);
        if (sent < got && !keep(end, s->scratch + sent, (size_t)(got - sent))) return false;
    }
    return true;
}

static bool pass_end(struct end *end, int64_t now) {
    if (!end->ended || end->last > 0 || end->told) return true;
    shutdown(end->other->fd, SHUT_WR);
    end->told = true;
    end->until_ns = now + RELAY_LINGER_MS * MS_NS;
    return !end->other->told;
}

static uint32_t wanted(const struct end *end) {
    return (!end->ended && end->last == 0 ? EPOLLIN : 0U) | (end->other->last > 0 ? EPOLLOUT : 0U);
}

static void carry(struct relay_server *s, struct end *end, uint32_t events) {
    bool good = (events & EPOLLERR) == 0;
    if (good && (events & (EPOLLIN | EPOLLHUP)) != 0) good = take(s, end);
    if (good && (events & EPOLLOUT) != 0) good = give(s, end->other);
    int64_t now = platform_now_ns();
    good = good && pass_end(end, now) && pass_end(end->other, now);
    good = good && watch(s, end, wanted(end)) && watch(s, end->other, wanted(end->other));
    if (!good) close_end(s, end);
}

// ---- the thread ----

static void pause_accepting(struct relay_server *s, int error) {
    if (!s->told_short)
        LOG(LOG_WARN, "no room for a connection beside %u links: %s; it tries again", atomic_load(&s->links),
            strerror(error));
    s->told_short = true;
    struct epoll_event event = {.events = 0, .data.ptr = &s->listener};
    epoll_ctl(s->epoll, EPOLL_CTL_MOD, atomic_load(&s->listener), &event);
    s->resumes_ns = platform_now_ns() + RELAY_PAUSE_MS * MS_NS;
}

static void accept_some(struct relay_server *s) {
    for (int i = 0; i < ACCEPTS_MOST; i++) {
        struct wire_address from;
        int fd = socket_accept(atomic_load(&s->listener), &from);
        if (fd >= 0) {
            add(s, fd, false, &from);
            continue;
        }
        if (is_short(-fd)) pause_accepting(s, -fd);
        if (fd == -EAGAIN || is_short(-fd)) return;
    }
}

static bool take_given(struct relay_server *s) {
    pthread_mutex_lock(&s->lock);
    bool goes_on = !s->stops;
    int *given = s->given;
    size_t count = s->given_count;
    s->given = NULL;
    s->given_count = s->given_room = 0;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < count; i++) {
        struct wire_address from = {0};
        socket_remote_address(given[i], &from);
        add(s, given[i], true, &from);
    }
    free(given);
    return goes_on;
}

static void tick(struct relay_server *s, int64_t now) {
    for (size_t i = 0; i < s->count; i++)
        if (now >= s->ends[i]->until_ns) close_end(s, s->ends[i]);
    if (now < s->resumes_ns) return;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &s->listener};
    epoll_ctl(s->epoll, EPOLL_CTL_MOD, atomic_load(&s->listener), &event);
    s->resumes_ns = INT64_MAX;
}

static void *run(void *server) {
    struct relay_server *s = server;
    struct epoll_event events[EVENTS];
    struct share strangers;
    int64_t ticked = platform_now_ns();
    while (take_given(s)) {
        int count = epoll_wait(s->epoll, events, EVENTS, TURN_MS);
        share_renew(&strangers, STRANGERS_TURN_US * US_NS);
        for (int i = 0; i < count; i++) {
            struct end *end = events[i].data.ptr;
            if (events[i].data.ptr == &s->wake)
                wake_clear(s->wake);
            else if (events[i].data.ptr == &s->listener)
                accept_some(s);
            else if (end->state == END_JOINED)
                carry(s, end, events[i].events);
            else if (end->state != END_CLOSED && share_enter(&strangers)) {
                hear(s, end);
                share_leave(&strangers);
            }
        }
        int64_t now = platform_now_ns();
        if (now - ticked >= TURN_MS * MS_NS) {
            tick(s, now);
            ticked = now;
        }
        sweep(s);
    }
    return NULL;
}

// ---- life ----

struct relay_server *relay_server_new(const struct relay_server_options *options) {
    struct relay_server *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->keys = options->keys == NULL ? NULL : keys_hold(options->keys);
    s->of_run = options->of_run;
    s->links_most = options->links;
    s->unknown_most =
        options->unknown > 0 && options->unknown < RELAY_UNKNOWN_MOST ? options->unknown : RELAY_UNKNOWN_MOST;
    s->resumes_ns = INT64_MAX;
    atomic_init(&s->listener, -1);
    pthread_mutex_init(&s->lock, NULL);
    s->scratch = malloc(RELAY_BUFFER_BYTES);
    s->epoll = descriptor_epoll();
    s->wake = wake_open();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &s->wake};
    if (s->scratch != NULL && s->epoll >= 0 && s->wake >= 0 &&
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &event) == 0 &&
        platform_thread_start(&s->thread, "pccl:relay", run, s))
        return s;
    s->stops = true; // there is no thread
    relay_server_free(s);
    return NULL;
}

void relay_server_free(struct relay_server *s) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    bool runs = !s->stops;
    s->stops = true;
    pthread_mutex_unlock(&s->lock);
    wake_signal(s->wake);
    if (runs) pthread_join(s->thread, NULL);
    for (size_t i = 0; i < s->given_count; i++) descriptor_close(s->given[i]);
    for (size_t i = 0; i < s->count; i++) close_end(s, s->ends[i]);
    sweep(s);
    free(s->given);
    free(s->ends);
    free(s->scratch);
    descriptor_close(atomic_load(&s->listener));
    descriptor_close(s->epoll);
    descriptor_close(s->wake);
    keys_release(s->keys);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int relay_server_listen(struct relay_server *s, const struct wire_address *address, uint16_t *port) {
    int fd = socket_listen(address);
    struct wire_address local;
    if (fd < 0) return fd;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &s->listener};
    atomic_store(&s->listener, fd);
    if (!socket_local_address(fd, &local) || epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) != 0) return -errno;
    *port = local.port;
    return 0;
}

void relay_server_take(struct relay_server *s, int fd) {
    pthread_mutex_lock(&s->lock);
    bool room = GROW(s->given, s->given_room, s->given_count, ENDS_LEAST);
    if (room) s->given[s->given_count++] = fd;
    pthread_mutex_unlock(&s->lock);
    if (!room) descriptor_close(fd);
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
