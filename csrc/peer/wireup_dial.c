// Dialling peers. The measurement of a link begins as a dial, too.
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/platform.h"
#include "net/relay.h"
#include "peer/wireup_private.h"

static void push_failure(struct wireup *w, const struct wire_link_hello *hello) {
    static const enum wireup_event_kind kinds[] = {0, WIREUP_FAILED, WIREUP_MEASURED, WIREUP_PRECOPY}; // by kind
    struct wireup_event event = {.kind = kinds[hello->kind], .id = hello->to, .index = hello->index, .outgoing = true};
    wireup_push(w, &event);
}

// Begins a connection on a stream that was dialled, with what `like` has. `error`: of the dial. 0 or -errno.
static int begin(struct wireup *w, const struct connection *like, struct transport *stream, int error, bool waits,
                 int64_t deadline) {
    wireup_tell_shortage(w, error);
    if (error != 0) return error;
    if (!waits) transport_expect(stream, TRANSPORT_PEER, &like->hello.to);
    uint8_t state = waits ? AWAIT_HELLO : DIALING;
    struct endpoint_conn *conn = endpoint_add(&w->endpoint, stream, state, EPOLLOUT, deadline), begun;
    if (conn == NULL) return -ENOMEM;
    begun = *conn;
    *wireup_connection(conn) = *like;
    *conn = begun;
    return 0;
}

// Dials by the next pair of cards that is left for a link. Each has its share of the time.
static void dial_next(struct wireup *w, const struct connection *from) {
    struct connection next = *from;
    struct route route;
    int64_t now = platform_now_ns();
    while (routes_next(&w->routes, &next.reach, next.hello.index, &next.tried, now, &route)) {
        struct transport *stream;
        int64_t share = (next.last_deadline - now) / (1 + routes_left(&w->routes, &next.reach, next.tried));
        next.card = route.card;
        next.to = *route.to;
        int error = transport_dial_from(w->transport, route.card, route.to, &stream);
        error = begin(w, &next, stream, error, false, now + share);
        if (error == 0) return;
        LOG(LOG_DEBUG, "cannot dial a peer: %s", transport_error(error));
    }
    push_failure(w, &from->hello);
}

static struct wire_link_hello hello_to(const struct wireup *w, enum wire_link_kind kind, const struct wire_id *to,
                                       uint32_t index) {
    struct wire_link_hello hello = {
        .version = WIRE_VERSION, .kind = (uint8_t)kind, .from = w->identity.self, .to = *to, .index = index};
    memcpy(hello.secret, w->identity.secret, sizeof hello.secret);
    return hello;
}

void wireup_dial(struct wireup *w, enum wire_link_kind kind, const struct wire_id *to, uint32_t index,
                 const struct wire_reach *reach, int64_t deadline) {
    dial_next(w,
              &(struct connection){.hello = hello_to(w, kind, to, index), .reach = *reach, .last_deadline = deadline});
}

static void dial_relay(struct wireup *w, const struct connection *from, bool waits, int64_t deadline) {
    struct relay_hello ask = {
        .self = from->hello.from, .other = from->hello.to, .index = from->hello.index, .at_member = from->at_member};
    memcpy(ask.secret, w->identity.secret, sizeof ask.secret);
    struct connection next = *from;
    struct transport *stream;
    next.last_deadline = deadline;
    enum transport_role role = waits ? TRANSPORT_ACCEPTS : TRANSPORT_DIALS;
    int error = transport_dial_relay(w->transport, &from->to, &ask, role, &stream);
    error = begin(w, &next, stream, error, waits, deadline);
    if (error == 0) return;
    char address[64];
    LOG_LIMITED(&w->relay_log, from->at_member ? LOG_DEBUG : LOG_WARN, "cannot use the relay at %s: %s",
                socket_address_format(address, sizeof address, &from->to), transport_error(error));
    if (!waits) push_failure(w, &from->hello);
}

void wireup_relay(struct wireup *w, const struct wire_address *relay, const struct member_action *action, int64_t now,
                  int64_t limit) {
    const struct wire_reach *reach = &action->reach;
    bool at_member = reach->count > 0;
    struct connection first = {.at_member = at_member, .relay_dials = RELAY_DIALS - 1};
    first.hello = hello_to(w, WIRE_LINK_DATA, &action->id, action->index);
    first.to = at_member ? reach->addresses[action->index % reach->count] : *relay;
    dial_relay(w, &first, action->waits, now + (action->again ? limit / 2 : limit));
}

void wireup_relay_again(struct wireup *w, struct connection *c) {
    struct connection from = *c;
    wireup_connection_free(w, c);
    if (from.relay_dials-- > 0) dial_relay(w, &from, true, from.conn.deadline_ns);
}

void wireup_probe(struct wireup *w, const struct wire_id *to, const struct wire_reach *reach, uint32_t duration_ms,
                  int64_t deadline) {
    uint32_t most = WIREUP_PROBE_MS / 2;
    dial_next(w, &(struct connection){.hello = hello_to(w, WIRE_LINK_PROBE, to, 0),
                                      .reach = *reach,
                                      .duration_ms = duration_ms < most ? duration_ms : most,
                                      .last_deadline = deadline});
}

// Remembers how a link was made, should it fall silent.
static void note_dialled(struct wireup *w, const struct connection *c) {
    size_t i = 0;
    while (i < w->dialled_count &&
           (w->dialled[i].index != c->hello.index || !wire_id_equal(&w->dialled[i].id, &c->hello.to)))
        i++;
    if (i == w->dialled_count && !GROW(w->dialled, w->dialled_room, i, 16)) return;
    if (i == w->dialled_count) w->dialled_count++;
    w->dialled[i] = (struct dialled){.id = c->hello.to, .index = c->hello.index, .to = c->to};
    if (c->card != NULL) w->dialled[i].from = c->card->address;
}

void wireup_avoid(struct wireup *w, const struct wire_id *id, uint32_t index, int64_t now) {
    for (size_t i = 0; i < w->dialled_count; i++) {
        const struct dialled *link = &w->dialled[i];
        if (link->index == index && wire_id_equal(&link->id, id))
            routes_avoid(&w->routes, link->from.family == 0 ? NULL : &link->from, &link->to, now);
    }
}

void wireup_dial_failed(struct wireup *w, struct connection *c, const char *why) {
    LOG(LOG_DEBUG, "cannot dial a peer, link %u: %s", c->hello.index, why);
    push_failure(w, &c->hello);
    wireup_connection_free(w, c);
}

void wireup_dial_fail_route(struct wireup *w, struct connection *c, const char *why) {
    char address[64];
    LOG(LOG_DEBUG, "cannot dial %s, link %u: %s", socket_address_format(address, sizeof address, &c->to),
        c->hello.index, why);
    routes_avoid(&w->routes, c->card == NULL ? NULL : &c->card->address, &c->to, platform_now_ns());
    struct connection from = *c;
    wireup_connection_free(w, c);
    dial_next(w, &from);
}

static const char cannot_send[] = "cannot send the hello";

void wireup_dial_step(struct wireup *w, struct connection *c) {
    struct transport *stream = c->conn.stream;
    int error = endpoint_step(&w->endpoint, &c->conn);
    if (error == -EAGAIN) return;
    if (error != 0) {
        wireup_log_refusal(w, c, error);
        (transport_refused(error) ? wireup_dial_failed : wireup_dial_fail_route)(w, c, transport_why(stream, error));
        return;
    }
    wireup_connection_set(w, c, AWAIT_ACK, c->last_deadline);
    wire_encode_link_hello(&c->conn.out.bytes, wireup_header(w), &c->hello);
    wire_encode_link_padding(&c->conn.out.bytes, wireup_header(w));
    if (!wireup_connection_flush(w, c)) {
        wireup_dial_failed(w, c, cannot_send);
        return;
    }
    struct wireup_event event = {.kind = WIREUP_PROVED, .id = c->hello.to, .index = c->hello.index};
    if (stream->type->proves && c->hello.kind == WIRE_LINK_DATA) wireup_push(w, &event);
}

static bool is_answer(const struct wire_header *header) {
    return header->type == WIRE_LINK_HEARD || header->type == WIRE_LINK_PADDING || header->type == WIRE_LINK_ACK;
}

void wireup_dial_take_ack(struct wireup *w, struct connection *c, int64_t now) {
    struct wire_header header;
    const uint8_t *body;
    int got = 1;
    if (conn_out_waiting(&c->conn.out) > 0) {
        if (!wireup_connection_flush(w, c)) wireup_dial_failed(w, c, cannot_send);
        return;
    }
    for (header.type = 0; got > 0 && header.type != WIRE_LINK_ACK;) { // bytes after the ACK are of the data plane
        got = conn_in_frame(&c->conn.in, c->conn.stream, is_answer, &header, &body);
        if (got == -EAGAIN) return;
        if (got > 0 && header.type == WIRE_LINK_HEARD) wireup_await_padding(w, c, now);
        if (got > 0 && header.type == WIRE_LINK_PADDING) c->padded = true;
    }
    if (got <= 0 && got != -EPROTO) {
        wireup_dial_failed(w, c, got == 0 ? "the other side closed" : transport_error(got));
    } else if (got <= 0 || !c->padded) {
        wireup_dial_failed(w, c, "the answer is not a LINK_ACK after padding");
    } else if (c->hello.kind == WIRE_LINK_PROBE) {
        wireup_connection_set(w, c, FLOODING, now + (int64_t)c->duration_ms * MS_NS);
        if (!endpoint_watch(&w->endpoint, &c->conn, EPOLLOUT)) wireup_dial_failed(w, c, strerror(errno));
    } else {
        if (c->hello.kind == WIRE_LINK_DATA) note_dialled(w, c);
        wireup_hand_over(w, c, &c->hello.to);
    }
}
