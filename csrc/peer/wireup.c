#define _GNU_SOURCE
#include "peer/wireup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/platform.h"
#include "net/conn.h"
#include "net/socket.h"
#include "net/transport.h"

enum {
    SCRATCH_BYTES = 1 << 18,
    TURN_BYTES = 1 << 20,         // one measurement moves no more per wake-up, so that control frames are not held up
    WIREUP_ACCEPT_PAUSE_MS = 100, // of the listener when the process is out of descriptors
    UNKNOWN_LEAST = 16,
    MEASUREMENT_SAMPLES = 256,
    SAMPLE_NS = 4000000,  // between two samples of a measurement, at least
    WITHIN_HOST_US = 500, // at most
    ADDRESS_SLOTS = 256,
};

enum connection_state {
    DIALING,     // connect under way
    AWAIT_ACK,   // hello and padding sent, or in `output`
    AWAIT_HELLO, // accepted, unknown
    PARKED,      // hello came early
    AWAIT_PADDING,
    ANSWERING, // accepted; the ACK is in `output`
    FLOODING,  // outgoing measurement
    MEASURING, // incoming measurement
};

struct connection {
    enum connection_state state;
    struct transport *stream;
    uint32_t slot, serial; // name it in epoll data; `serial` tells a reused slot apart
    int64_t deadline, since;
    int64_t narrow_at;            // when padding that has not come counts as lost; INT64_MAX: it does not
    uint32_t duration_ms;         // FLOODING
    bool padded;                  // AWAIT_ACK: the padding has come
    bool open;                    // AWAIT_HELLO: the handshake is over
    uint8_t from;                 // accepted: slot of the address
    struct wire_link_hello hello; // sent, or received from AWAIT_HELLO on
    struct conn_in input;         // frame being received, and not one byte beyond
    struct conn_out output;
    struct measurement { // MEASURING: when how many bytes had come
        uint64_t bytes;
        int64_t last;
        uint32_t count;
        struct sample {
            int64_t at;
            uint64_t bytes;
        } samples[MEASUREMENT_SAMPLES];
    } *measurement;
};

struct wireup {
    struct transport_context *transport;
    int epoll;
    struct transport_listener listener;
    uint64_t first_data;
    wireup_judge_fn *judge;
    void *context;
    struct wireup_identity identity;
    int64_t park_limit;
    struct log_limit refusal_log, shortage_log;
    struct connection **slots;
    size_t slot_room;
    uint32_t slot_count, serial;
    struct wireup_event *events;
    size_t event_first, event_count, event_capacity;
    uint8_t *scratch; // junk to send, bytes received
};

// ---- descriptors ----

static uint32_t part_of_limit(uint64_t part, uint32_t most) {
    uint64_t descriptors = descriptor_limit() / part;
    return descriptors < UNKNOWN_LEAST ? UNKNOWN_LEAST : descriptors < most ? (uint32_t)descriptors : most;
}

// The limit is the host program's to raise: the library changes nothing of its process.
static void tell_shortage(struct wireup *w, int error) {
    if (error != -EMFILE && error != -ENFILE) return;
    LOG_LIMITED(
        &w->shortage_log, LOG_ERR,
        "cannot open a link: %s; this process may open %llu descriptors, and a peer needs one for each member of "
        "its group and for each lane to its neighbours, or to all members in a weighted all-reduce; raise the soft "
        "limit before connecting (ulimit -n, or resource.setrlimit(resource.RLIMIT_NOFILE, ...))",
        strerror(-error), (unsigned long long)descriptor_limit());
}

// ---- connections ----

static void connection_free(struct wireup *w, struct connection *c) {
    w->slots[c->slot] = NULL;
    transport_free(c->stream);
    conn_in_fini(&c->input);
    conn_out_fini(&c->output);
    free(c->measurement);
    free(c);
}

static bool connection_watch(struct wireup *w, struct connection *c, uint32_t events) {
    // Data 0 of ours is the listener.
    uint64_t data = w->first_data + 1 + (((uint64_t)c->serial << 20) | c->slot);
    return transport_watch(c->stream, w->epoll, events, (epoll_data_t){.u64 = data});
}

// Takes ownership of the stream in any case.
static struct connection *connection_new(struct wireup *w, struct transport *stream, enum connection_state state,
                                         uint32_t events, int64_t deadline) {
    uint32_t slot = 0;
    while (slot < w->slot_count && w->slots[slot] != NULL) slot++;
    bool room = slot < 1u << 20 && GROW(w->slots, w->slot_room, slot, 32);
    struct connection *c = room ? calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        transport_free(stream);
        return NULL;
    }
    if (slot == w->slot_count) w->slot_count++;
    *c = (struct connection){.state = state,
                             .stream = stream,
                             .slot = slot,
                             .serial = ++w->serial,
                             .deadline = deadline,
                             .since = platform_now_ns(),
                             .narrow_at = INT64_MAX};
    w->slots[slot] = c;
    if (!connection_watch(w, c, events)) {
        connection_free(w, c);
        return NULL;
    }
    return c;
}

static void push_event(struct wireup *w, const struct wireup_event *event) {
    if (w->event_first > 0 && w->event_first == w->event_count) w->event_first = w->event_count = 0;
    if (!GROW(w->events, w->event_capacity, w->event_count, 16)) {
        LOG(LOG_ERR, "dropped a link event: out of memory"); // a link is reported missing when its time is up
        transport_free(event->stream);
        return;
    }
    w->events[w->event_count++] = *event;
}

bool wireup_next(struct wireup *w, struct wireup_event *out) {
    if (w->event_first == w->event_count) return false;
    *out = w->events[w->event_first++];
    return true;
}

static void push_failure(struct wireup *w, const struct wire_link_hello *hello) {
    bool probe = hello->kind == WIRE_LINK_PROBE;
    struct wireup_event event = {
        .kind = probe ? WIREUP_MEASURED : WIREUP_FAILED, .id = hello->to, .index = hello->index, .outgoing = probe};
    push_event(w, &event);
}

// The other side has heard the hello, or has said it: small packets pass. Large ones have half of the time left.
static void await_padding(struct connection *c, int64_t now) { c->narrow_at = now + (c->deadline - now) / 2; }

static void tell_narrow(struct wireup *w, struct connection *c) {
    struct wireup_event event = {
        .kind = WIREUP_NARROW, .id = c->state == AWAIT_PADDING ? c->hello.from : c->hello.to, .index = c->hello.index};
    c->narrow_at = INT64_MAX;
    if (c->hello.kind == WIRE_LINK_DATA) push_event(w, &event);
}

static void hand_over(struct wireup *w, struct connection *c, const struct wire_id *id) {
    uint32_t latency_us = transport_gauge(c->stream).round_trip_us / 2;
    // A longer one is the load of the host, which is not far from itself.
    if (latency_us > WITHIN_HOST_US && transport_is_within_host(c->stream)) latency_us = WITHIN_HOST_US;
    struct wireup_event event = {
        .kind = WIREUP_UP, .id = *id, .index = c->hello.index, .stream = c->stream, .latency_us = latency_us};
    transport_unwatch(c->stream);
    c->stream = NULL;
    connection_free(w, c);
    push_event(w, &event);
}

// ---- dialing ----

static void dial(struct wireup *w, enum wire_link_kind kind, const struct wire_id *to, uint32_t index,
                 const struct wire_address *address, uint32_t duration_ms, int64_t deadline) {
    struct wire_link_hello hello = {
        .version = WIRE_VERSION, .kind = (uint8_t)kind, .from = w->identity.self, .to = *to, .index = index};
    memcpy(hello.secret, w->identity.secret, sizeof hello.secret);
    struct transport *stream;
    int error = transport_dial(w->transport, address, &stream);
    tell_shortage(w, error);
    struct connection *c = error != 0 ? NULL : connection_new(w, stream, DIALING, EPOLLOUT, deadline);
    if (c == NULL) {
        LOG(LOG_DEBUG, "cannot dial a peer: %s", transport_error(error != 0 ? error : ENOMEM));
        push_failure(w, &hello);
        return;
    }
    c->hello = hello;
    c->duration_ms = duration_ms;
}

void wireup_dial(struct wireup *w, const struct wire_id *to, uint32_t index, const struct wire_address *address,
                 int64_t deadline) {
    dial(w, WIRE_LINK_DATA, to, index, address, 0, deadline);
}

void wireup_probe(struct wireup *w, const struct wire_id *to, const struct wire_address *address, uint32_t duration_ms,
                  int64_t deadline) {
    uint32_t most = WIREUP_PROBE_MS / 2;
    dial(w, WIRE_LINK_PROBE, to, 0, address, duration_ms < most ? duration_ms : most, deadline);
}

static void fail_dial(struct wireup *w, struct connection *c, const char *why) {
    LOG(LOG_DEBUG, "cannot dial a peer, link %u: %s", c->hello.index, why);
    push_failure(w, &c->hello);
    connection_free(w, c);
}

static struct wire_header link_header(const struct wireup *w) {
    return (struct wire_header){.run = w->identity.run, .generation = w->identity.generation};
}

// Sends what the kernel takes of the output, and watches for room for the rest, or for input. False: that failed.
static bool connection_flush(struct wireup *w, struct connection *c) {
    if (c->output.bytes.failed || conn_out_flush(&c->output, c->stream) != 0) return false;
    return connection_watch(w, c, conn_out_waiting(&c->output) > 0 ? EPOLLOUT : EPOLLIN);
}

static const char cannot_send[] = "cannot send the hello";

static void connect_on(struct wireup *w, struct connection *c) {
    int error = transport_step(c->stream);
    if (error == -EAGAIN) return;
    if (error == 0 && !transport_may_be(c->stream, TRANSPORT_PEER, &c->hello.to)) error = -EBADE;
    if (error != 0) {
        transport_log_refusal(c->stream, error, &w->refusal_log);
        fail_dial(w, c, transport_why(c->stream, error));
        return;
    }
    c->state = AWAIT_ACK;
    wire_encode_link_hello(&c->output.bytes, link_header(w), &c->hello);
    wire_encode_link_padding(&c->output.bytes, link_header(w));
    if (!connection_flush(w, c)) fail_dial(w, c, cannot_send);
}

static bool is_answer(const struct wire_header *header) {
    return header->type == WIRE_LINK_HEARD || header->type == WIRE_LINK_PADDING || header->type == WIRE_LINK_ACK;
}

static void take_ack(struct wireup *w, struct connection *c, int64_t now) {
    struct wire_header header;
    const uint8_t *body;
    enum conn_next next = CONN_MORE;
    while (next == CONN_MORE || (next == CONN_FRAME && header.type != WIRE_LINK_ACK)) {
        // Bytes after the ACK belong to the data plane.
        ptrdiff_t got = conn_in_receive(&c->input, c->stream, 0);
        if (got == -EAGAIN) return;
        if (got <= 0) {
            fail_dial(w, c, got == 0 ? "the other side closed" : transport_error((int)got));
            return;
        }
        next = conn_in_next(&c->input, is_answer, &header, &body);
        if (next == CONN_FRAME && header.type == WIRE_LINK_HEARD) await_padding(c, now);
        if (next == CONN_FRAME && header.type == WIRE_LINK_PADDING) c->padded = true;
    }
    if (next == CONN_MALFORMED || !c->padded) {
        fail_dial(w, c, "the answer is not a LINK_ACK after padding");
    } else if (c->hello.kind == WIRE_LINK_PROBE) {
        c->state = FLOODING;
        c->deadline = now + (int64_t)c->duration_ms * MS_NS;
        if (!connection_watch(w, c, EPOLLOUT)) fail_dial(w, c, strerror(errno));
    } else {
        hand_over(w, c, &c->hello.to);
    }
}

// ---- measuring ----

// The rate of the later two thirds: the start of a connection tells of its window and of token buckets, not of the
// link.
static uint64_t measurement_rate(const struct measurement *m) {
    if (m->count == 0) return 0;
    int64_t begin = m->samples[0].at + (m->last - m->samples[0].at) / 3;
    struct sample from = m->samples[0];
    for (uint32_t i = 1; i < m->count && m->samples[i].at <= begin; i++) from = m->samples[i];
    if (m->last - from.at < SAMPLE_NS) from = (struct sample){.at = m->samples[0].at}; // all came in one go
    int64_t span = m->last - from.at > MS_NS ? m->last - from.at : MS_NS;
    return (uint64_t)((double)(m->bytes - from.bytes) * 1e9 / (double)span);
}

static void flood(struct wireup *w, struct connection *c) {
    for (size_t sent = 0; sent < TURN_BYTES;) {
        ptrdiff_t now_sent = transport_send(c->stream, w->scratch, SCRATCH_BYTES);
        if (now_sent == -EAGAIN) return;
        if (now_sent <= 0) {
            connection_free(w, c); // the receiver reports what it got
            return;
        }
        sent += (size_t)now_sent;
    }
}

static void end_measurement(struct wireup *w, struct connection *c) {
    struct wireup_event event = {
        .kind = WIREUP_MEASURED, .id = c->hello.from, .bytes_per_s = measurement_rate(c->measurement)};
    connection_free(w, c);
    push_event(w, &event);
}

static void measure(struct wireup *w, struct connection *c) {
    struct measurement *m = c->measurement;
    for (size_t total = 0; total < TURN_BYTES || c->stream->buffered;) {
        ptrdiff_t got = transport_receive(c->stream, w->scratch, SCRATCH_BYTES);
        if (got == -EAGAIN) return;
        if (got <= 0) {
            end_measurement(w, c);
            return;
        }
        total += (size_t)got;
        m->bytes += (uint64_t)got;
        m->last = platform_now_ns();
        bool due = m->count == 0 || m->last - m->samples[m->count - 1].at >= SAMPLE_NS;
        if (due && m->count < MEASUREMENT_SAMPLES)
            m->samples[m->count++] = (struct sample){.at = m->last, .bytes = m->bytes};
    }
}

// ---- accepting ----

static void take_hello(struct wireup *w, struct connection *c);

// Returns the oldest connection in this state from the address that has most of them; NULL if there are fewer than
// `most` in all.
static struct connection *find_surplus(const struct wireup *w, enum connection_state state, uint32_t most) {
    struct connection *oldest = NULL;
    uint32_t count = 0, counts[ADDRESS_SLOTS] = {0}, crowd = 0;
    for (uint32_t i = 0; i < w->slot_count; i++) {
        const struct connection *c = w->slots[i];
        if (c == NULL || c->state != state) continue;
        count++;
        if (++counts[c->from] > crowd) crowd = counts[c->from];
    }
    if (count < most) return NULL;
    for (uint32_t i = 0; i < w->slot_count; i++) {
        struct connection *c = w->slots[i];
        if (c == NULL || c->state != state || counts[c->from] < crowd) continue;
        if (oldest == NULL || c->since < oldest->since ||
            (c->since == oldest->since && (int32_t)(c->serial - oldest->serial) < 0))
            oldest = c;
    }
    return oldest;
}

// Drops a connection of a state when there are `most` of them.
static void make_room(struct wireup *w, enum connection_state state, uint32_t most) {
    struct connection *c = find_surplus(w, state, most);
    if (c == NULL) return;
    uint32_t slot = c->slot, serial = c->serial;
    if (state == AWAIT_HELLO) take_hello(w, c); // it may have come since
    c = w->slots[slot];
    if (c != NULL && c->serial == serial && c->state == state) connection_free(w, c);
}

// Sends the ACK. When it is out, the connection is a link, or measured.
static void answer(struct wireup *w, struct connection *c) {
    bool sent = connection_flush(w, c);
    if (sent && conn_out_waiting(&c->output) > 0) return;
    if (sent && c->hello.kind == WIRE_LINK_DATA) {
        hand_over(w, c, &c->hello.from);
        return;
    }
    if (sent) c->measurement = calloc(1, sizeof *c->measurement);
    if (c->measurement == NULL) {
        connection_free(w, c);
        return;
    }
    c->state = MEASURING;
    c->deadline = platform_now_ns() + WIREUP_PROBE_MS * MS_NS;
}

static bool is_padding(const struct wire_header *header) { return header->type == WIRE_LINK_PADDING; }

// Says that the hello is heard, and answers when the padding behind it is here.
static void take_padding(struct wireup *w, struct connection *c) {
    bool good = connection_flush(w, c);
    while (good && conn_out_waiting(&c->output) == 0) {
        struct wire_header header;
        const uint8_t *body;
        ptrdiff_t got = conn_in_receive(&c->input, c->stream, 0);
        if (got == -EAGAIN) return;
        enum conn_next next = got > 0 ? conn_in_next(&c->input, is_padding, &header, &body) : CONN_MALFORMED;
        good = next != CONN_MALFORMED;
        if (next != CONN_FRAME) continue;
        wire_encode_link_padding(&c->output.bytes, link_header(w));
        wire_encode_empty(&c->output.bytes, link_header(w), WIRE_LINK_ACK);
        c->state = ANSWERING;
        c->narrow_at = INT64_MAX;
        c->deadline = platform_now_ns() + WIREUP_UNKNOWN_MS * MS_NS;
        answer(w, c);
        return;
    }
    if (!good) connection_free(w, c);
}

// Acts on a judgement of a complete hello. True: the connection stays parked.
static void act_on_hello(struct wireup *w, struct connection *c, enum member_judgement judgement) {
    if (judgement == MEMBER_PARK) {
        if (c->state == PARKED) return;
        make_room(w, PARKED, part_of_limit(2, WIREUP_PARKED));
        c->state = PARKED;
        c->deadline = platform_now_ns() + w->park_limit;
        if (!connection_watch(w, c, EPOLLRDHUP)) connection_free(w, c);
        return;
    }
    if (judgement == MEMBER_REJECT) {
        connection_free(w, c);
        return;
    }
    wire_encode_empty(&c->output.bytes, link_header(w), WIRE_LINK_HEARD);
    c->state = AWAIT_PADDING;
    c->deadline = platform_now_ns() + w->park_limit;
    await_padding(c, platform_now_ns());
    take_padding(w, c);
}

static bool is_hello(const struct wire_header *header) { return header->type == WIRE_LINK_HELLO; }

// Carries the handshake on. False: the hello cannot be received yet, or `c` is freed.
static bool is_open(struct wireup *w, struct connection *c) {
    if (c->open) return true;
    int error = transport_step(c->stream);
    if (error == -EAGAIN) return false;
    if (error == 0 && connection_watch(w, c, EPOLLIN)) return c->open = true;
    transport_log_refusal(c->stream, error, &w->refusal_log);
    connection_free(w, c);
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
    connection_free(w, c);
}

void wireup_recheck(struct wireup *w) {
    for (uint32_t i = 0; i < w->slot_count; i++) {
        struct connection *c = w->slots[i];
        if (c != NULL && c->state == PARKED) act_on_hello(w, c, w->judge(w->context, &c->hello));
    }
}

static void accept_some(struct wireup *w, int64_t now) {
    for (int i = 0; i < TRANSPORT_LISTENER_TURN; i++) {
        struct transport *stream;
        struct wire_address from;
        int error = transport_listener_accept(&w->listener, &stream, &from, now);
        if (error == -EAGAIN) return;
        if (error != 0 && transport_listener_pauses(&w->listener)) {
            make_room(w, AWAIT_HELLO, 1);
            tell_shortage(w, error);
            return;
        }
        if (error != 0) continue; // that connection was gone before it was accepted
        make_room(w, AWAIT_HELLO, part_of_limit(WIREUP_UNKNOWN_PART, WIREUP_UNKNOWN));
        struct connection *c = connection_new(w, stream, AWAIT_HELLO, EPOLLIN, now + WIREUP_UNKNOWN_MS * MS_NS);
        if (c == NULL) continue;
        c->from = (uint8_t)(socket_address_network(&from) % ADDRESS_SLOTS);
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
                         .listener = transport_listener_closed(transport, epoll, first_data, WIREUP_ACCEPT_PAUSE_MS),
                         .first_data = first_data,
                         .judge = judge,
                         .context = context,
                         .identity.self = *self,
                         .park_limit = WIREUP_UNKNOWN_MS * MS_NS,
                         .refusal_log = {.lines = 8, .seconds = 10},
                         .shortage_log = {.lines = 1, .seconds = 10}};
    w->scratch = calloc(1, SCRATCH_BYTES);
    if (w->scratch != NULL) return w;
    free(w);
    return NULL;
}

void wireup_free(struct wireup *w) {
    if (w == NULL) return;
    transport_listener_close(&w->listener);
    for (uint32_t i = 0; i < w->slot_count; i++)
        if (w->slots[i] != NULL) connection_free(w, w->slots[i]);
    struct wireup_event event;
    while (wireup_next(w, &event)) transport_free(event.stream);
    free(w->slots);
    free(w->events);
    free(w->scratch);
    free(w);
}

int wireup_listen(struct wireup *w, const struct wire_address *local, uint16_t *port) {
    return transport_listener_open(&w->listener, socket_listen_from(local, WIREUP_FIRST_PORT, port));
}

void wireup_identify(struct wireup *w, const struct wireup_identity *identity) { w->identity = *identity; }

void wireup_set_park_limit(struct wireup *w, int64_t limit) { w->park_limit = limit; }

void wireup_cancel(struct wireup *w, const struct wire_id *id) {
    for (uint32_t i = 0; i < w->slot_count; i++) {
        struct connection *c = w->slots[i];
        if (c == NULL || c->state == AWAIT_HELLO) continue;
        if (wire_id_equal(&c->hello.from, id) || wire_id_equal(&c->hello.to, id)) connection_free(w, c);
    }
}

// ---- the loop ----

static void advance(struct wireup *w, struct connection *c, int64_t now) {
    switch (c->state) {
    case DIALING: connect_on(w, c); break;
    case AWAIT_ACK:
        if (conn_out_waiting(&c->output) == 0)
            take_ack(w, c, now);
        else if (!connection_flush(w, c))
            fail_dial(w, c, cannot_send);
        break;
    case AWAIT_HELLO: take_hello(w, c); break;
    case PARKED: connection_free(w, c); break; // it gave up
    case AWAIT_PADDING: take_padding(w, c); break;
    case ANSWERING: answer(w, c); break;
    case FLOODING: flood(w, c); break;
    case MEASURING: measure(w, c); break;
    }
}

void wireup_handle(struct wireup *w, uint64_t data, int64_t now) {
    if (data == w->first_data) {
        accept_some(w, now);
        return;
    }
    uint64_t name = data - w->first_data - 1;
    uint32_t slot = (uint32_t)name & 0xfffff, serial = (uint32_t)(name >> 20);
    struct connection *c = slot < w->slot_count ? w->slots[slot] : NULL;
    if (c != NULL && c->serial == serial) advance(w, c, now);
}

static void time_out(struct wireup *w, struct connection *c) {
    switch (c->state) {
    case DIALING:
    case AWAIT_ACK: fail_dial(w, c, "it took too long"); break;
    case FLOODING:
        transport_reset(c->stream); // megabytes queued for a slow link must not occupy it after the measurement
        connection_free(w, c);
        break;
    case MEASURING: end_measurement(w, c); break;
    default: connection_free(w, c); break;
    }
}

void wireup_tick(struct wireup *w, int64_t now) {
    transport_listener_tick(&w->listener, now);
    for (uint32_t i = 0; i < w->slot_count; i++) {
        struct connection *c = w->slots[i];
        if (c != NULL && now >= c->narrow_at) tell_narrow(w, c);
        if (c != NULL && now >= c->deadline) time_out(w, c);
    }
}

int64_t wireup_deadline(const struct wireup *w) {
    int64_t at = w->listener.resumes_ns;
    for (uint32_t i = 0; i < w->slot_count; i++)
        if (w->slots[i] != NULL)
            at = platform_earlier(at, platform_earlier(w->slots[i]->deadline, w->slots[i]->narrow_at));
    return at;
}
