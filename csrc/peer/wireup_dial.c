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

// Dials by the next pair of cards that is left for a link. Each has its share of the time.
static void dial_next(struct wireup *w, const struct connection *from) {
    struct route route;
    uint32_t tried = from->tried;
    int64_t now = platform_now_ns();
    while (routes_next(&w->routes, &from->reach, from->hello.index, &tried, now, &route)) {
        struct transport *stream;
        int64_t share = (from->last_deadline - now) / (1 + routes_left(&w->routes, &from->reach, tried));
        int error = transport_dial_from(w->transport, route.card, route.to, &stream);
        wireup_tell_shortage(w, error);
        struct connection *c = error != 0 ? NULL : wireup_connection_new(w, stream, DIALING, EPOLLOUT, now + share);
        if (c == NULL) {
            LOG(LOG_DEBUG, "cannot dial a peer: %s", transport_error(error != 0 ? error : ENOMEM));
            continue;
        }
        c->hello = from->hello;
        c->duration_ms = from->duration_ms;
        c->reach = from->reach;
        c->tried = tried;
        c->last_deadline = from->last_deadline;
        c->card = route.card;
        c->to = *route.to;
        return;
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
    struct transport *stream;
    int error =
        transport_dial_relay(w->transport, &from->to, &ask, waits ? TRANSPORT_ACCEPTS : TRANSPORT_DIALS, &stream);
    wireup_tell_shortage(w, error);
    enum connection_state state = waits ? AWAIT_HELLO : DIALING;
    struct connection *c = error != 0 ? NULL : wireup_connection_new(w, stream, state, EPOLLOUT, deadline);
    if (c == NULL) {
        char address[64];
        LOG_LIMITED(&w->relay_log, from->at_member ? LOG_DEBUG : LOG_WARN, "cannot use the relay at %s: %s",
                    socket_address_format(address, sizeof address, &from->to),
                    transport_error(error != 0 ? error : ENOMEM));
        if (!waits) push_failure(w, &from->hello);
        return;
    }
    c->hello = from->hello;
    c->asked = true;
    c->at_member = from->at_member;
    c->relay_dials = from->relay_dials;
    c->last_deadline = deadline;
    c->to = from->to;
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
    if (from.relay_dials-- > 0) dial_relay(w, &from, true, from.deadline);
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
    int error = transport_step(c->stream);
    if (error == -EAGAIN) return;
    if (error == 0 && !transport_may_be(c->stream, TRANSPORT_PEER, &c->hello.to)) error = -EBADE;
    if (error != 0) {
        wireup_log_refusal(w, c, error);
        (transport_refused(error) ? wireup_dial_failed : wireup_dial_fail_route)(w, c, transport_why(c->stream, error));
        return;
    }
    c->state = AWAIT_ACK;
    c->deadline = c->last_deadline;
    wire_encode_link_hello(&c->output.bytes, wireup_header(w), &c->hello);
    wire_encode_link_padding(&c->output.bytes, wireup_header(w));
    if (!wireup_connection_flush(w, c)) {
        wireup_dial_failed(w, c, cannot_send);
        return;
    }
    struct wireup_event event = {.kind = WIREUP_PROVED, .id = c->hello.to, .index = c->hello.index};
    if (c->stream->type->proves && c->hello.kind == WIRE_LINK_DATA) wireup_push(w, &event);
}

static bool is_answer(const struct wire_header *header) {
    return header->type == WIRE_LINK_HEARD || header->type == WIRE_LINK_PADDING || header->type == WIRE_LINK_ACK;
}

void wireup_dial_take_ack(struct wireup *w, struct connection *c, int64_t now) {
    struct wire_header header;
    const uint8_t *body;
    enum conn_next next = CONN_MORE;
    if (conn_out_waiting(&c->output) > 0) {
        if (!wireup_connection_flush(w, c)) wireup_dial_failed(w, c, cannot_send);
        return;
    }
    while (next == CONN_MORE || (next == CONN_FRAME && header.type != WIRE_LINK_ACK)) {
        // Bytes after the ACK belong to the data plane.
        ptrdiff_t got = conn_in_receive(&c->input, c->stream, 0);
        if (got == -EAGAIN) return;
        if (got <= 0) {
            wireup_dial_failed(w, c, got == 0 ? "the other side closed" : transport_error((int)got));
            return;
        }
        next = conn_in_next(&c->input, is_answer, &header, &body);
        if (next == CONN_FRAME && header.type == WIRE_LINK_HEARD) wireup_await_padding(c, now);
        if (next == CONN_FRAME && header.type == WIRE_LINK_PADDING) c->padded = true;
    }
    if (next == CONN_MALFORMED || !c->padded) {
        wireup_dial_failed(w, c, "the answer is not a LINK_ACK after padding");
    } else if (c->hello.kind == WIRE_LINK_PROBE) {
        c->state = FLOODING;
        c->deadline = now + (int64_t)c->duration_ms * MS_NS;
        if (!wireup_connection_watch(w, c, EPOLLOUT)) wireup_dial_failed(w, c, strerror(errno));
    } else {
        if (c->hello.kind == WIRE_LINK_DATA) note_dialled(w, c);
        wireup_hand_over(w, c, &c->hello.to);
    }
}
