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

static void tell_narrow(struct wireup *w, struct connection *c) {
    struct wireup_event event = {
        .kind = WIREUP_NARROW, .id = c->state == AWAIT_PADDING ? c->hello.from : c->hello.to, .index = c->hello.index};
    c->narrow_at = INT64_MAX;
    if (c->hello.kind == WIRE_LINK_DATA) wireup_push(w, &event);
}

// ---- accepting ----

static void take_hello(struct wireup *w, struct connection *c);

// Whether the other side has made it. This side has dialled those that wait at a relay.
static bool is_strange(const struct connection *c, enum connection_state state) {
    return c != NULL && c->state == state && !transport_is_relayed(c->stream);
}

static enum strangers_shown shown(const struct connection *c) {
    return strangers_shown(transport_has_proved(c->stream), c->asked);
}

// Returns the connection in this state that is dropped first; NULL if there are fewer than `most` in all.
static struct connection *find_surplus(const struct wireup *w, enum connection_state state, uint32_t most) {
    struct strangers strangers = {0};
    struct strangers_first first = {0};
    for (uint32_t i = 0; i < w->slot_count; i++) {
        const struct connection *c = w->slots[i];
        if (is_strange(c, state)) strangers_count(&strangers, shown(c), c->from);
    }
    for (uint32_t i = 0; i < w->slot_count && strangers.all >= most; i++) {
        struct connection *c = w->slots[i];
        if (is_strange(c, state)) strangers_compare(&first, &strangers, shown(c), c->from, c->since, c);
    }
    return first.who;
}

// Drops a connection of a state when there are `most` of them.
static void make_room(struct wireup *w, enum connection_state state, uint32_t most) {
    for (bool again = false;; again = true) {
        struct connection *c = find_surplus(w, state, most);
        if (c == NULL) return;
        uint32_t slot = c->slot, serial = c->serial;
        enum strangers_shown before = shown(c);
        if (state == AWAIT_HELLO) take_hello(w, c); // it may have come since
        c = w->slots[slot];
        if (c == NULL || c->serial != serial || c->state != state) return;
        if (!again && shown(c) > before) continue; // it may not be the first any more
        wireup_connection_free(w, c);
        return;
    }
}

// Sends the ACK. When it is out, the connection is a link, or measured.
static void answer(struct wireup *w, struct connection *c) {
    bool sent = wireup_connection_flush(w, c);
    if (sent && conn_out_waiting(&c->output) > 0) return;
    if (sent && c->hello.kind != WIRE_LINK_PROBE) {
        wireup_hand_over(w, c, &c->hello.from);
        return;
    }
    if (sent) c->measurement = calloc(1, sizeof *c->measurement);
    if (c->measurement == NULL) {
        wireup_connection_free(w, c);
        return;
    }
    c->state = MEASURING;
    c->deadline = platform_now_ns() + WIREUP_PROBE_MS * MS_NS;
}

static bool is_padding(const struct wire_header *header) { return header->type == WIRE_LINK_PADDING; }

// Says that the hello is heard, and answers when the padding behind it is here.
static void take_padding(struct wireup *w, struct connection *c) {
    bool good = wireup_connection_flush(w, c);
    while (good && conn_out_waiting(&c->output) == 0) {
        struct wire_header header;
        const uint8_t *body;
        ptrdiff_t got = conn_in_receive(&c->input, c->stream, 0);
        if (got == -EAGAIN) return;
        enum conn_next next = got > 0 ? conn_in_next(&c->input, is_padding, &header, &body) : CONN_MALFORMED;
        good = next != CONN_MALFORMED;
        if (next != CONN_FRAME) continue;
        wire_encode_link_padding(&c->output.bytes, wireup_header(w));
        wire_encode_empty(&c->output.bytes, wireup_header(w), WIRE_LINK_ACK);
        c->state = ANSWERING;
        c->narrow_at = INT64_MAX;
        c->deadline = platform_now_ns() + WIREUP_UNKNOWN_MS * MS_NS;
        answer(w, c);
        return;
    }
    if (!good) wireup_connection_free(w, c);
}

// Acts on a judgement of a complete hello. True: the connection stays parked.
static void act_on_hello(struct wireup *w, struct connection *c, enum member_judgement judgement) {
    if (judgement == MEMBER_PARK) {
        if (c->state == PARKED) return;
        make_room(w, PARKED, part_of_limit(2, WIREUP_PARKED));
        c->state = PARKED;
        c->deadline = platform_now_ns() + w->park_limit;
        if (!wireup_connection_watch(w, c, EPOLLRDHUP)) wireup_connection_free(w, c);
        return;
    }
    if (judgement == MEMBER_REJECT) {
        wireup_connection_free(w, c);
        return;
    }
    wire_encode_empty(&c->output.bytes, wireup_header(w), WIRE_LINK_HEARD);
    c->state = AWAIT_PADDING;
    c->deadline = platform_now_ns() + w->park_limit;
    wireup_await_padding(c, platform_now_ns());
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
        w->relay = relay_server_new(&options);
        if (w->relay != NULL && w->identity.run != 0) relay_server_set_secret(w->relay, w->identity.secret);
        if (w->relay != NULL)
            LOG(LOG_NOTICE, "relays for members that nobody can dial (PCCL_RELAY_FOR_OTHERS=0 forbids it)");
    }
    if (w->relay != NULL) {
        transport_give_relay(c->stream, w->relay);
        c->stream = NULL;
    }
    wireup_connection_free(w, c);
}

// Carries the handshake on. False: the hello cannot be received yet, or `c` is freed.
static bool is_open(struct wireup *w, struct connection *c) {
    if (c->open) return true;
    int asks = c->asked ? 0 : transport_asks_relay(c->stream);
    if (asks == -EAGAIN) return false;
    if (asks != 0) {
        give_to_relay(w, c);
        return false;
    }
    c->asked = true;
    int error = transport_step(c->stream);
    if (error == -EAGAIN) return false;
    if (error == 0 && wireup_connection_watch(w, c, EPOLLIN)) return c->open = true;
    wireup_log_refusal(w, c, error);
    if (transport_is_relayed(c->stream))
        wireup_relay_again(w, c);
    else
        wireup_connection_free(w, c);
    return false;
}

static void take_hello(struct wireup *w, struct connection *c) {
    if (!is_open(w, c)) return;
    for (;;) {
        ptrdiff_t got = conn_in_receive(&c->input, c->stream, 0);
        if (got == -EAGAIN) return;
        if (got <= 0) break;
        struct wire_header header;
        const uint8_t *body;
        enum conn_next next = conn_in_next(&c->input, is_hello, &header, &body);
        if (next == CONN_MORE) continue;
        if (next == CONN_MALFORMED || !wire_decode_link_hello(body, header.length, &c->hello)) break;
        if (!transport_may_be(c->stream, TRANSPORT_PEER, &c->hello.from)) break;
        act_on_hello(w, c, w->judge(w->context, &c->hello));
        return;
    }
    wireup_connection_free(w, c);
}

void wireup_recheck(struct wireup *w) {
    for (uint32_t i = 0; i < w->slot_count; i++) {
        struct connection *c = w->slots[i];
        if (c != NULL && c->state == PARKED) act_on_hello(w, c, w->judge(w->context, &c->hello));
    }
}

static void accept_some(struct wireup *w, struct transport_listener *listener, int64_t now) {
    for (int i = 0; i < TRANSPORT_LISTENER_TURN && !share_is_over(&w->strangers); i++) {
        struct transport *stream;
        struct wire_address from;
        int error = transport_listener_accept(listener, &stream, &from, now);
        if (error == -EAGAIN) return;
        if (error != 0 && transport_listener_pauses(listener)) {
            make_room(w, AWAIT_HELLO, 1);
            wireup_tell_shortage(w, error);
            return;
        }
        if (error != 0) continue; // that connection was gone before it was accepted
        make_room(w, AWAIT_HELLO, part_of_limit(WIREUP_UNKNOWN_PART, WIREUP_UNKNOWN));
        struct connection *c = wireup_connection_new(w, stream, AWAIT_HELLO, EPOLLIN, now + WIREUP_UNKNOWN_MS * MS_NS);
        if (c == NULL) continue;
        c->from = strangers_slot(&from);
        take_hello(w, c);
    }
}

// ---- life ----

struct wireup *wireup_new(struct transport_context *transport, int epoll, uint64_t first_data,
                          const struct wire_id *self, wireup_judge_fn *judge, void *context) {
    struct wireup *w = calloc(1, sizeof *w);
    if (w == NULL) return NULL;
    *w = (struct wireup){.transport = transport,
                         .epoll = epoll,
                         .first_data = first_data,
                         .judge = judge,
                         .context = context,
                         .identity.self = *self,
                         .park_limit = WIREUP_UNKNOWN_MS * MS_NS,
                         .refusal_log = {.lines = 8, .seconds = 10},
                         .relay_log = {.lines = 1, .seconds = 10},
                         .shortage_log = {.lines = 1, .seconds = 10}};
    for (uint32_t i = 0; i < LISTENERS; i++)
        w->listeners[i] = transport_listener_closed(transport, epoll, first_data + i, WIREUP_ACCEPT_PAUSE_MS);
    w->scratch = calloc(1, SCRATCH_BYTES);
    if (w->scratch != NULL) return w;
    free(w);
    return NULL;
}

void wireup_free(struct wireup *w) {
    if (w == NULL) return;
    relay_server_free(w->relay);
    for (uint32_t i = 0; i < LISTENERS; i++) transport_listener_close(&w->listeners[i]);
    for (uint32_t i = 0; i < w->slot_count; i++)
        if (w->slots[i] != NULL) wireup_connection_free(w, w->slots[i]);
    struct wireup_event event;
    while (wireup_next(w, &event)) transport_free(event.stream);
    free(w->slots);
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
    int error = -EADDRINUSE;
    for (uint32_t from = WIREUP_FIRST_PORT; error == -EADDRINUSE && from <= UINT16_MAX; from = *port + 1U) {
        error = transport_listener_open(&w->listeners[0], socket_listen_from(local, (uint16_t)from, port));
        for (uint32_t i = 1; i < count && error == 0; i++) {
            addresses[i].port = *port;
            error = transport_listener_open(&w->listeners[i], socket_listen(&addresses[i]));
        }
        for (uint32_t i = 0; i < count && error != 0; i++) transport_listener_close(&w->listeners[i]);
    }
    return error;
}

void wireup_identify(struct wireup *w, const struct wireup_identity *identity, int64_t park_ns) {
    w->identity = *identity;
    w->park_limit = park_ns;
    if (w->relay != NULL) relay_server_set_secret(w->relay, identity->secret);
}

void wireup_cancel(struct wireup *w, const struct wire_id *id) {
    for (uint32_t i = 0; i < w->slot_count; i++) {
        struct connection *c = w->slots[i];
        if (c == NULL || c->state == AWAIT_HELLO || c->hello.kind == WIRE_LINK_PRECOPY) continue;
        if (wire_id_equal(&c->hello.from, id) || wire_id_equal(&c->hello.to, id)) wireup_connection_free(w, c);
    }
    size_t kept = 0;
    for (size_t i = 0; i < w->dialled_count; i++)
        if (!wire_id_equal(&w->dialled[i].id, id)) w->dialled[kept++] = w->dialled[i];
    w->dialled_count = kept;
}

// ---- measuring ----

static void flood(struct wireup *w, struct connection *c) {
    for (size_t sent = 0; sent < TURN_BYTES;) {
        ptrdiff_t now_sent = transport_send(c->stream, w->scratch, SCRATCH_BYTES);
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
        ptrdiff_t got = transport_receive(c->stream, w->scratch, SCRATCH_BYTES);
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
    switch (c->state) {
    case DIALING: wireup_dial_step(w, c); break;
    case AWAIT_ACK: wireup_dial_take_ack(w, c, now); break;
    case AWAIT_HELLO: take_hello(w, c); break;
    case PARKED: wireup_connection_free(w, c); break; // it gave up
    case AWAIT_PADDING: take_padding(w, c); break;
    case ANSWERING: answer(w, c); break;
    case FLOODING: flood(w, c); break;
    case MEASURING: measure(w, c); break;
    }
}

void wireup_handle(struct wireup *w, uint64_t data, int64_t now) {
    if (now != w->turn) share_renew(&w->strangers, STRANGERS_TURN_US * US_NS);
    w->turn = now;
    bool listens = data < w->first_data + LISTENERS;
    uint64_t name = data - w->first_data - 1;
    uint32_t slot = (uint32_t)name & 0xfffff, serial = (uint32_t)(name >> 20);
    struct connection *c = !listens && slot < w->slot_count ? w->slots[slot] : NULL;
    if (!listens && (c == NULL || c->serial != serial)) return;
    bool stranger = listens || c->state == AWAIT_HELLO;
    if (stranger && !share_enter(&w->strangers)) return; // the poller tells again in the next turn
    if (listens)
        accept_some(w, &w->listeners[data - w->first_data], now);
    else
        advance(w, c, now);
    if (stranger) share_leave(&w->strangers);
}

static void time_out(struct wireup *w, struct connection *c) {
    if (transport_is_relayed(c->stream)) wireup_log_refusal(w, c, -ETIMEDOUT);
    switch (c->state) {
    case DIALING: wireup_dial_fail_route(w, c, "it took too long"); break;
    case AWAIT_ACK: wireup_dial_failed(w, c, "it took too long"); break;
    case FLOODING:
        transport_reset(c->stream); // megabytes queued for a slow link must not occupy it after the measurement
        wireup_connection_free(w, c);
        break;
    case MEASURING: end_measurement(w, c); break;
    default: wireup_connection_free(w, c); break;
    }
}

void wireup_tick(struct wireup *w, int64_t now) {
    for (uint32_t i = 0; i < LISTENERS; i++) transport_listener_tick(&w->listeners[i], now);
    for (uint32_t i = 0; i < w->slot_count; i++) {
        struct connection *c = w->slots[i];
        if (c != NULL && now >= c->narrow_at) tell_narrow(w, c);
        if (c != NULL && now >= c->deadline) time_out(w, c);
    }
}

int64_t wireup_deadline(const struct wireup *w) {
    int64_t at = INT64_MAX;
    for (uint32_t i = 0; i < LISTENERS; i++) at = platform_earlier(at, w->listeners[i].resumes_ns);
    for (uint32_t i = 0; i < w->slot_count; i++)
        if (w->slots[i] != NULL)
            at = platform_earlier(at, platform_earlier(w->slots[i]->deadline, w->slots[i]->narrow_at));
    return at;
}
