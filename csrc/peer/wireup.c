#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/descriptor.h"
#include "base/platform.h"
#include "net/relay_server.h"
#include "net/socket.h"
#include "peer/wireup_private.h"

enum {
    SCRATCH_BYTES = 1 << 18,
    TURN_BYTES = 1 << 20, // one measurement moves no more per wake-up, so that control frames are not held up
    SAMPLE_NS = 4000000,  // between two samples of a measurement, at least
};

static uint32_t part_of_limit(uint64_t part, uint32_t most) {
    uint64_t descriptors = descriptor_limit() / part;
    return descriptors < UNKNOWN_LEAST ? UNKNOWN_LEAST : descriptors < most ? (uint32_t)descriptors : most;
}

// The small frames pass. Waits for the padding, which counts as lost, for what is left of the time.
static void tell_narrow(struct wireup *w, struct connection *c) {
    const struct wire_id *id = c->conn.state == AWAIT_PADDING ? &c->hello.from : &c->hello.to;
    struct wireup_event event = {.kind = WIREUP_NARROW, .id = *id, .index = c->hello.index};
    endpoint_until(&w->endpoint, &c->conn, c->ends);
    c->ends = 0;
    if (c->hello.kind == WIRE_LINK_DATA) wireup_push(w, &event);
}

// ---- accepting ----

// Sends the ACK. When it is out, the connection is a link, or measured.
static void answer(struct wireup *w, struct connection *c) {
    bool sent = wireup_connection_flush(w, c);
    if (sent && conn_out_waiting(&c->conn.out) > 0) return;
    if (sent && c->hello.kind != WIRE_LINK_PROBE) {
        wireup_hand_over(w, c, &c->hello.from);
        return;
    }
    if (sent) c->measurement = calloc(1, sizeof *c->measurement);
    if (c->measurement == NULL) {
        wireup_connection_free(w, c);
        return;
    }
    wireup_connection_set(w, c, MEASURING, platform_now_ns() + WIREUP_PROBE_MS * MS_NS);
}

static bool is_padding(const struct wire_header *header) { return header->type == WIRE_LINK_PADDING; }

// Says that the hello is heard, and answers when the padding behind it is here.
static void take_padding(struct wireup *w, struct connection *c) {
    struct wire_header header;
    const uint8_t *body;
    bool good = wireup_connection_flush(w, c);
    if (good && conn_out_waiting(&c->conn.out) > 0) return;
    int got = good ? conn_in_frame(&c->conn.in, c->conn.stream, is_padding, &header, &body) : -EPIPE;
    if (got == -EAGAIN) return;
    if (got <= 0) {
        wireup_connection_free(w, c);
        return;
    }
    wire_encode_link_padding(&c->conn.out.bytes, wireup_header(w));
    wire_encode_empty(&c->conn.out.bytes, wireup_header(w), WIRE_LINK_ACK);
    wireup_connection_set(w, c, ANSWERING, platform_now_ns() + WIREUP_UNKNOWN_MS * MS_NS);
    answer(w, c);
}

// Acts on a judgement of a complete hello.
static void act_on_hello(struct wireup *w, struct connection *c, enum member_judgement judgement) {
    if (judgement == MEMBER_PARK) {
        if (c->conn.state == PARKED) return;
        endpoint_make_room(&w->endpoint, PARKED, part_of_limit(2, WIREUP_PARKED));
        wireup_connection_set(w, c, PARKED, platform_now_ns() + w->park_limit);
        if (!endpoint_watch(&w->endpoint, &c->conn, EPOLLRDHUP)) wireup_connection_free(w, c);
        return;
    }
    if (judgement == MEMBER_REJECT) {
        wireup_connection_free(w, c);
        return;
    }
    wire_encode_empty(&c->conn.out.bytes, wireup_header(w), WIRE_LINK_HEARD);
    wireup_connection_set(w, c, AWAIT_PADDING, platform_now_ns() + w->park_limit);
    wireup_await_padding(w, c, platform_now_ns());
    take_padding(w, c);
}

static bool is_hello(const struct wire_header *header) { return header->type == WIRE_LINK_HELLO; }

// Gives a connection that asks for a relay to the one of this peer, which begins with the first. Frees it.
static void give_to_relay(struct wireup *w, struct connection *c) {
    struct relay_server_options options = {
        .keys = w->transport->options.keys,
        .of_run = true,
        .links = part_of_limit(WIREUP_RELAY_PART * RELAY_LINK_DESCRIPTORS, WIREUP_RELAY_LINKS),
        .unknown = part_of_limit(WIREUP_UNKNOWN_PART, WIREUP_UNKNOWN)};
    if (w->relay == NULL && (w->routes.cards.reach.relays & WIRE_RELAYS) != 0) {
        relay_server_new(&options, &w->relay);
        if (w->relay != NULL && w->identity.run != 0) relay_server_set_secret(w->relay, w->identity.secret);
        if (w->relay != NULL)
            LOG(LOG_NOTICE, "relays for members that nobody can dial (PCCL_RELAY_FOR_OTHERS=0 forbids it)");
    }
    if (w->relay != NULL) {
        relay_server_take(w->relay, c->conn.stream);
        c->conn.stream = NULL;
    }
    wireup_connection_free(w, c);
}

// Carries the handshake on. False: the hello cannot be received yet, or `c` is freed.
static bool is_open(struct wireup *w, struct connection *c) {
    struct transport *stream = c->conn.stream;
    bool relayed = transport_is_relayed(stream);
    if (!c->conn.opens) return true;
    int asks = stream->speaks || relayed ? 0 : transport_asks_relay(stream);
    if (asks == -EAGAIN) return false;
    if (asks != 0) {
        give_to_relay(w, c);
        return false;
    }
    stream->speaks = true;
    int error = endpoint_step(&w->endpoint, &c->conn);
    if (error == 0 || error == -EAGAIN) return error == 0;
    wireup_log_refusal(w, c, error);
    (relayed ? wireup_relay_again : wireup_connection_free)(w, c);
    return false;
}

static void wireup_take_hello(void *wireup, struct endpoint_conn *conn) {
    struct wireup *w = wireup;
    struct connection *c = wireup_connection(conn);
    struct wire_header header;
    const uint8_t *body;
    int got = is_open(w, c) ? conn_in_frame(&conn->in, conn->stream, is_hello, &header, &body) : -EAGAIN;
    if (got == -EAGAIN) return;
    if (got > 0 && wire_decode_link_hello(body, header.length, &c->hello) &&
        transport_is_peer(conn->stream, &c->hello.from))
        act_on_hello(w, c, w->judge(w->context, &c->hello));
    else
        wireup_connection_free(w, c);
}

void wireup_recheck(struct wireup *w) {
    for (uint32_t i = 0; i < w->endpoint.count; i++) {
        struct connection *c = wireup_connection(w->endpoint.places[i]);
        if (c != NULL && c->conn.state == PARKED) act_on_hello(w, c, w->judge(w->context, &c->hello));
    }
}

// ---- measuring ----

static void flood(struct wireup *w, struct connection *c) {
    for (size_t sent = 0; sent < TURN_BYTES;) {
        ptrdiff_t now_sent = transport_send(c->conn.stream, w->scratch, SCRATCH_BYTES);
        if (now_sent == -EAGAIN) return;
        if (now_sent <= 0) {
            wireup_connection_free(w, c); // the receiver reports what it got
            return;
        }
        sent += (size_t)now_sent;
    }
}

static void add_sample(struct measurement *m, uint64_t bytes, int64_t now_ns) {
    m->bytes += bytes;
    m->last = now_ns;
    bool due = m->count == 0 || m->last - m->samples[m->count - 1].at >= SAMPLE_NS;
    if (due && m->count < MEASUREMENT_SAMPLES)
        m->samples[m->count++] = (struct sample){.at = m->last, .bytes = m->bytes};
}

// Bytes/s in the later two thirds: the start of a connection tells of its window and of token buckets, not of the link.
static uint64_t rate_of(const struct measurement *m) {
    if (m->count == 0) return 0;
    int64_t begin = m->samples[0].at + (m->last - m->samples[0].at) / 3;
    struct sample from = m->samples[0];
    for (uint32_t i = 1; i < m->count && m->samples[i].at <= begin; i++) from = m->samples[i];
    if (m->last - from.at < SAMPLE_NS) from = (struct sample){.at = m->samples[0].at}; // all came in one go
    int64_t span = m->last - from.at > MS_NS ? m->last - from.at : MS_NS;
    return (uint64_t)((double)(m->bytes - from.bytes) * 1e9 / (double)span);
}

static void end_measurement(struct wireup *w, struct connection *c) {
    struct wireup_event event = {.kind = WIREUP_MEASURED, .id = c->hello.from, .bytes_per_s = rate_of(c->measurement)};
    wireup_connection_free(w, c);
    wireup_push(w, &event);
}

static void measure(struct wireup *w, struct connection *c) {
    struct measurement *m = c->measurement;
    for (size_t total = 0; total < TURN_BYTES;) { // the poller tells again of what is left, or of the end
        ptrdiff_t got = transport_receive(c->conn.stream, w->scratch, SCRATCH_BYTES);
        if (got == -EAGAIN) return;
        if (got <= 0) {
            end_measurement(w, c);
            return;
        }
        total += (size_t)got;
        add_sample(m, (uint64_t)got, platform_now_ns());
    }
}

// ---- the loop ----

static void advance(struct wireup *w, struct connection *c, int64_t now) {
    switch ((enum connection_state)c->conn.state) {
    case DIALING: wireup_dial_step(w, c); break;
    case AWAIT_ACK: wireup_dial_take_ack(w, c, now); break;
    case AWAIT_HELLO: break;                          // heard by the endpoint
    case PARKED: wireup_connection_free(w, c); break; // it gave up
    case AWAIT_PADDING: take_padding(w, c); break;
    case ANSWERING: answer(w, c); break;
    case FLOODING: flood(w, c); break;
    case MEASURING: measure(w, c); break;
    }
}

void wireup_handle(struct wireup *w, uint64_t data, int64_t now) {
    if (now != w->turn) endpoint_begin_turn(&w->endpoint);
    w->turn = now;
    struct endpoint_conn *conn = endpoint_handle(&w->endpoint, data, now);
    if (conn != NULL) advance(w, wireup_connection(conn), now);
}

static void wireup_fini(void *wireup, struct endpoint_conn *conn) {
    (void)wireup;
    free(wireup_connection(conn)->measurement);
}

static void wireup_time_out(void *wireup, struct endpoint_conn *conn) {
    struct wireup *w = wireup;
    struct connection *c = wireup_connection(conn);
    if (c->ends != 0) {
        tell_narrow(w, c);
        return;
    }
    if (transport_is_relayed(conn->stream)) wireup_log_refusal(w, c, -ETIMEDOUT);
    switch ((enum connection_state)conn->state) {
    case DIALING: wireup_dial_fail_route(w, c, "it took too long"); break;
    case AWAIT_ACK: wireup_dial_failed(w, c, "it took too long"); break;
    case FLOODING:
        transport_reset(conn->stream); // megabytes queued for a slow link must not occupy it after the measurement
        wireup_connection_free(w, c);
        break;
    case MEASURING: end_measurement(w, c); break;
    default: wireup_connection_free(w, c); break;
    }
}

static const struct endpoint_type connections = {
    .bytes = sizeof(struct connection),
    .hello_ms = WIREUP_UNKNOWN_MS,
    .pause_ms = WIREUP_ACCEPT_PAUSE_MS,
    .spare_state = PARKED,
    .hear = wireup_take_hello,
    .time_out = wireup_time_out,
    .shortage = wireup_tell_shortage,
    .fini = wireup_fini,
};

void wireup_tick(struct wireup *w, int64_t now) { endpoint_tick(&w->endpoint, now); }

int64_t wireup_deadline(const struct wireup *w) { return endpoint_deadline(&w->endpoint); }

// ---- life ----

struct wireup *wireup_new(struct transport_context *transport, int epoll, uint64_t first_data,
                          const struct wire_id *self, wireup_judge_fn *judge, void *context) {
    struct wireup *w = calloc(1, sizeof *w);
    if (w == NULL) return NULL;
    *w = (struct wireup){.transport = transport,
                         .endpoint = {.type = &connections,
                                      .user = w,
                                      .context = transport,
                                      .poller = epoll,
                                      .first_data = first_data,
                                      .places_most = ENDPOINT_PLACES,
                                      .strangers_most = part_of_limit(WIREUP_UNKNOWN_PART, WIREUP_UNKNOWN)},
                         .judge = judge,
                         .context = context,
                         .identity.self = *self,
                         .park_limit = WIREUP_UNKNOWN_MS * MS_NS,
                         .refusal_log = {.lines = 8, .seconds = 10},
                         .relay_log = {.lines = 1, .seconds = 10},
                         .shortage_log = {.lines = 1, .seconds = 10}};
    w->scratch = calloc(1, SCRATCH_BYTES);
    if (w->scratch != NULL) return w;
    free(w);
    return NULL;
}

void wireup_free(struct wireup *w) {
    if (w == NULL) return;
    relay_server_free(w->relay);
    endpoint_fini(&w->endpoint);
    struct wireup_event event;
    while (wireup_next(w, &event)) transport_free(event.stream);
    free(w->events);
    free(w->dialled);
    free(w->scratch);
    free(w);
}

int wireup_listen(struct wireup *w, const struct wire_address *local, const struct cards *cards, uint16_t *port) {
    struct wire_address addresses[LISTENERS] = {*local};
    uint32_t count = 1;
    w->routes.cards = *cards;
    for (uint32_t i = 0; i < cards->count; i++)
        if (!socket_address_same_host(&cards->list[i].address, local)) addresses[count++] = cards->list[i].address;
    int error = endpoint_listen_all(&w->endpoint, addresses, count, WIREUP_FIRST_PORT);
    *port = addresses[0].port;
    return error;
}

void wireup_identify(struct wireup *w, const struct wireup_identity *identity, int64_t park_ns) {
    w->identity = *identity;
    w->park_limit = park_ns;
    if (w->relay != NULL) relay_server_set_secret(w->relay, identity->secret);
}

void wireup_cancel(struct wireup *w, const struct wire_id *id) {
    for (uint32_t i = 0; i < w->endpoint.count; i++) {
        struct connection *c = wireup_connection(w->endpoint.places[i]);
        if (c == NULL || c->conn.state == AWAIT_HELLO || c->hello.kind == WIRE_LINK_PRECOPY) continue;
        if (wire_id_equal(&c->hello.from, id) || wire_id_equal(&c->hello.to, id)) wireup_connection_free(w, c);
    }
    size_t kept = 0;
    for (size_t i = 0; i < w->dialled_count; i++)
        if (!wire_id_equal(&w->dialled[i].id, id)) w->dialled[kept++] = w->dialled[i];
    w->dialled_count = kept;
}
