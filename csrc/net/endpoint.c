#include "net/endpoint.h"

#include <errno.h>
#include <stdlib.h>

#include "base/descriptor.h"
#include "base/memory.h"
#include "base/platform.h"

enum {
    ACCEPTS = 64,    // of a listener, before others have their turn
    PORT_TRIES = 16, // a port that is free at one address may be taken at another one
    ADDRESSES = 256, // slots of addresses, which may share one
    CROWD = 4,       // an address with more than one of so many is a crowd
    PLACES_LEAST = 32,
};

// ---- listeners ----

static bool watch_listener(const struct endpoint *e, uint32_t index, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.u64 = e->first_data + index};
    return epoll_ctl(e->poller, operation, e->listeners[index], &event) == 0;
}

int endpoint_listen(struct endpoint *e, int fd) {
    if (fd < 0) return fd;
    e->listeners[e->listener_count] = fd;
    if (watch_listener(e, e->listener_count, EPOLL_CTL_ADD, EPOLLIN)) {
        e->listener_count++;
        return 0;
    }
    int error = errno;
    descriptor_close(fd);
    return -error;
}

static void close_listeners(struct endpoint *e) {
    while (e->listener_count > 0) {
        watch_listener(e, --e->listener_count, EPOLL_CTL_DEL, 0); // closing does not, while a child has it open
        descriptor_close(e->listeners[e->listener_count]);
    }
}

static int listen_at_port(struct endpoint *e, struct wire_address *addresses, uint32_t count, uint32_t first) {
    struct wire_address *at = addresses;
    int fd = first == 0 ? socket_listen(at) : socket_listen_from(at, (uint16_t)first, &at->port);
    int error = endpoint_listen(e, fd);
    if (error == 0 && first == 0 && !socket_local_address(fd, at)) return -EIO;
    for (uint32_t i = 1; i < count && error == 0; i++) {
        addresses[i].port = at->port;
        error = endpoint_listen(e, socket_listen(&addresses[i]));
        if (error == -EADDRNOTAVAIL || error == -EAFNOSUPPORT) error = 0;
    }
    return error;
}

int endpoint_listen_all(struct endpoint *e, struct wire_address *addresses, uint32_t count, uint32_t first) {
    uint16_t port = addresses[0].port;
    int error = -EADDRINUSE, tries = first == 0 && port != 0 ? 1 : first == 0 ? PORT_TRIES : UINT16_MAX;
    while (error == -EADDRINUSE && tries-- > 0 && first <= UINT16_MAX) {
        addresses[0].port = port;
        error = listen_at_port(e, addresses, count, first);
        if (error != 0) close_listeners(e);
        if (first != 0) first = addresses[0].port + 1U;
    }
    return error;
}

static bool pauses(const struct endpoint *e) { return e->resumes_ns != 0; }

// A listener that stays readable while descriptors or memory are short would keep its thread spinning.
static void pause_all(struct endpoint *e, int64_t now_ns) {
    for (uint32_t i = 0; i < e->listener_count; i++) watch_listener(e, i, EPOLL_CTL_MOD, 0);
    e->resumes_ns = now_ns + e->type->pause_ms * MS_NS;
}

static void resume_all(struct endpoint *e, int64_t now_ns) {
    if (!pauses(e) || now_ns < e->resumes_ns) return;
    bool listens = true;
    for (uint32_t i = 0; i < e->listener_count; i++) listens &= watch_listener(e, i, EPOLL_CTL_MOD, EPOLLIN);
    e->resumes_ns = listens ? 0 : now_ns + e->type->pause_ms * MS_NS;
}

static bool is_shortage(int error) {
    return error == -EMFILE || error == -ENFILE || error == -ENOBUFS || error == -ENOMEM;
}

// ---- connections ----

static void free_closed(struct endpoint *e) {
    while (e->closed != NULL) {
        struct endpoint_conn *conn = e->closed;
        e->closed = conn->next;
        free(conn);
    }
}

void endpoint_fini(struct endpoint *e) {
    close_listeners(e);
    for (uint32_t i = 0; i < e->count; i++)
        if (e->places[i] != NULL) endpoint_close(e, e->places[i]);
    free_closed(e);
    free(e->places);
    e->places = NULL;
    e->count = 0;
}

bool endpoint_watch(struct endpoint *e, struct endpoint_conn *conn, uint32_t events) {
    // The first of its data are those of the listeners: serials begin at 1.
    uint64_t data = e->first_data + ((uint64_t)conn->serial * ENDPOINT_PLACES | conn->place);
    return transport_watch(conn->stream, e->poller, events, (epoll_data_t){.u64 = data});
}

bool endpoint_await(struct endpoint *e, struct endpoint_conn *conn) {
    return endpoint_watch(e, conn, conn_out_waiting(&conn->out) > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

struct endpoint_conn *endpoint_add(struct endpoint *e, struct transport *stream, uint8_t state, uint32_t events,
                                   int64_t deadline_ns) {
    if (e->used == e->places_most) endpoint_make_room(e, e->type->spare_state, 1);
    uint32_t place = 0;
    while (place < e->count && e->places[place] != NULL) place++;
    bool room = place < e->places_most && GROW(e->places, e->room, place, PLACES_LEAST);
    struct endpoint_conn *conn = room ? calloc(1, e->type->bytes) : NULL;
    if (conn == NULL) {
        transport_free(stream);
        return NULL;
    }
    *conn = (struct endpoint_conn){.stream = stream,
                                   .place = place,
                                   .serial = ++e->serial,
                                   .since_ns = platform_now_ns(),
                                   .state = state,
                                   .opens = true};
    if (place == e->count) e->count++;
    e->places[place] = conn;
    e->used++;
    e->counts[state]++;
    endpoint_until(e, conn, deadline_ns);
    if (endpoint_watch(e, conn, events)) return conn;
    endpoint_close(e, conn);
    return NULL;
}

void endpoint_close(struct endpoint *e, struct endpoint_conn *conn) {
    if (conn->state == ENDPOINT_CLOSED) return;
    e->counts[conn->state]--;
    conn->state = ENDPOINT_CLOSED;
    e->places[conn->place] = NULL;
    e->used--;
    if (e->type->fini != NULL) e->type->fini(e->user, conn);
    transport_free(conn->stream);
    conn->stream = NULL;
    wire_buffer_fini(&conn->in.bytes);
    wire_buffer_fini(&conn->out.bytes);
    conn->next = e->closed;
    e->closed = conn;
}

void endpoint_until(struct endpoint *e, struct endpoint_conn *conn, int64_t deadline_ns) {
    conn->deadline_ns = deadline_ns;
    e->next_ns = e->used > 1 ? platform_earlier(e->next_ns, deadline_ns) : deadline_ns;
}

void endpoint_set(struct endpoint *e, struct endpoint_conn *conn, uint8_t state, int64_t deadline_ns) {
    e->counts[conn->state]--;
    e->counts[conn->state = state]++;
    endpoint_until(e, conn, deadline_ns);
}

int endpoint_step(struct endpoint *e, struct endpoint_conn *conn) {
    int error = transport_step(conn->stream);
    if (error != 0) return error;
    conn->opens = false;
    return endpoint_await(e, conn) ? 0 : -errno;
}

// ---- strangers ----

enum shown { SHOWN_NOTHING, SHOWN_BYTES, SHOWN_PROOF, SHOWN_KINDS };

static enum shown shown(const struct endpoint_conn *conn) {
    if (transport_has_proved(conn->stream)) return SHOWN_PROOF;
    return conn->stream->speaks || conn->in.bytes.length > 0 ? SHOWN_BYTES : SHOWN_NOTHING;
}

static size_t slot_of(const struct endpoint_conn *conn) { return socket_address_network(&conn->source) % ADDRESSES; }

// Connections that wait at a relay were dialled by this side.
static bool is_counted(const struct endpoint_conn *conn, uint8_t state) {
    return conn != NULL && conn->state == state && !transport_is_relayed(conn->stream);
}

// Returns the connection in this state that is dropped first; NULL if there are fewer than `most`.
static struct endpoint_conn *find_surplus(const struct endpoint *e, uint8_t state, uint32_t most) {
    uint32_t of_kind[SHOWN_KINDS][ADDRESSES] = {{0}}, of_slot[ADDRESSES] = {0}, all = 0;
    if (e->counts[state] < most) return NULL;
    for (uint32_t i = 0; i < e->count; i++) {
        const struct endpoint_conn *conn = e->places[i];
        if (!is_counted(conn, state)) continue;
        of_kind[shown(conn)][slot_of(conn)]++;
        of_slot[slot_of(conn)]++;
        all++;
    }
    struct endpoint_conn *first = NULL;
    uint64_t first_rank = 0;
    for (uint32_t i = 0; i < e->count && all >= most; i++) {
        struct endpoint_conn *conn = e->places[i];
        if (!is_counted(conn, state)) continue;
        bool crowd = of_slot[slot_of(conn)] > all / CROWD;
        uint64_t rank =
            (uint64_t)crowd << 40 | (uint64_t)(SHOWN_KINDS - shown(conn)) << 32 | of_kind[shown(conn)][slot_of(conn)];
        if (first != NULL && (rank < first_rank || (rank == first_rank && conn->since_ns >= first->since_ns))) continue;
        first = conn;
        first_rank = rank;
    }
    return first;
}

void endpoint_make_room(struct endpoint *e, uint8_t state, uint32_t most) {
    for (bool again = false;; again = true) {
        struct endpoint_conn *conn = find_surplus(e, state, most);
        if (conn == NULL) return;
        enum shown before = shown(conn);
        if (state == ENDPOINT_STRANGER) e->type->hear(e->user, conn);
        if (conn->state != state) return;
        if (!again && shown(conn) > before) continue; // it may not be the first any more
        endpoint_close(e, conn);
        return;
    }
}

struct endpoint_conn *endpoint_add_stranger(struct endpoint *e, struct transport *stream,
                                            const struct wire_address *source, int64_t now_ns) {
    endpoint_make_room(e, ENDPOINT_STRANGER, e->strangers_most);
    struct endpoint_conn *conn =
        endpoint_add(e, stream, ENDPOINT_STRANGER, EPOLLIN, now_ns + e->type->hello_ms * MS_NS);
    if (conn != NULL) conn->source = *source;
    return conn;
}

static void accept_some(struct endpoint *e, int listener, int64_t now_ns) {
    int error = 0;
    for (uint32_t i = 0; i < ACCEPTS && error != -EAGAIN && !pauses(e) && share_enter(&e->strangers); i++) {
        struct transport *stream;
        struct wire_address source;
        error = transport_accept(e->context, listener, &stream, &source);
        if (is_shortage(error)) { // of other errors: the connection was gone before it was accepted
            pause_all(e, now_ns);
            e->type->shortage(e->user, error);
            endpoint_make_room(e, ENDPOINT_STRANGER, 1);
        }
        struct endpoint_conn *conn = error == 0 ? endpoint_add_stranger(e, stream, &source, now_ns) : NULL;
        if (conn != NULL) e->type->hear(e->user, conn);
        share_leave(&e->strangers);
    }
}

// ---- the loop ----

void endpoint_begin_turn(struct endpoint *e) {
    free_closed(e);
    share_renew(&e->strangers, ENDPOINT_STRANGERS_US * US_NS);
}

struct endpoint_conn *endpoint_handle(struct endpoint *e, uint64_t data, int64_t now_ns) {
    uint64_t name = data - e->first_data;
    uint32_t place = (uint32_t)(name % ENDPOINT_PLACES), serial = (uint32_t)(name / ENDPOINT_PLACES);
    if (name < e->listener_count) {
        accept_some(e, e->listeners[name], now_ns);
        return NULL;
    }
    struct endpoint_conn *conn = place < e->count ? e->places[place] : NULL;
    if (conn == NULL || conn->serial != serial) return NULL;
    if (conn->state != ENDPOINT_STRANGER) return conn;
    if (!share_enter(&e->strangers)) return NULL; // the poller tells again in the next turn
    e->type->hear(e->user, conn);
    share_leave(&e->strangers);
    return NULL;
}

void endpoint_tick(struct endpoint *e, int64_t now_ns) {
    resume_all(e, now_ns);
    if (now_ns < e->next_ns) return;
    for (uint32_t i = 0; i < e->count; i++)
        if (e->places[i] != NULL && e->places[i]->deadline_ns <= now_ns) e->type->time_out(e->user, e->places[i]);
    e->next_ns = INT64_MAX;
    for (uint32_t i = 0; i < e->count; i++)
        if (e->places[i] != NULL) e->next_ns = platform_earlier(e->next_ns, e->places[i]->deadline_ns);
}

int64_t endpoint_deadline(const struct endpoint *e) {
    int64_t next_ns = e->used > 0 ? e->next_ns : INT64_MAX;
    return pauses(e) ? platform_earlier(next_ns, e->resumes_ns) : next_ns;
}
