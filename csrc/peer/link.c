#define _GNU_SOURCE
#include "peer/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/platform.h"
#include "net/conn.h"
#include "net/listener.h"
#include "net/socket.h"
#include "peer/measurement.h"

enum {
    SCRATCH_BYTES = 1 << 18,
    TURN_BYTES = 1 << 20,          // one measurement moves no more per wake-up, so that control frames are not held up
    LINKS_ACCEPT_PAUSE_MS = 100,   // of the listener when the process is out of descriptors
    LINKS_SHORTAGE_LOG_MS = 10000, // between two lines of the log on that
    UNKNOWN_LEAST = 16,
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
    struct measurement *measurement; // MEASURING
};

struct links {
    struct transport_context *transport;
    int epoll;
    struct listener listener;
    uint64_t first_data;
    links_judge_fn *judge;
    void *context;
    struct link_identity identity;
    int64_t park_limit, tell_at; // tell_at: from then on a shortage of descriptors is told again
    struct log_limit refusal_log;
    struct connection **slots;
    uint32_t slot_count, serial;
    struct link_event *events;
    size_t event_first, event_count, event_capacity;
    uint8_t *scratch; // junk to send, bytes received
};

// ---- descriptors ----

static uint32_t part_of_limit(uint64_t part, uint32_t most) {
    uint64_t descriptors = descriptor_limit() / part;
    return descriptors < UNKNOWN_LEAST ? UNKNOWN_LEAST : descriptors < most ? (uint32_t)descriptors : most;
}

// The limit is the host program's to raise: the library changes nothing of its process.
static void tell_shortage(struct links *links, int error) {
    int64_t now = platform_now_ns();
    if ((error != -EMFILE && error != -ENFILE) || now < links->tell_at) return;
    links->tell_at = now + LINKS_SHORTAGE_LOG_MS * MS_NS;
    LOG(LOG_ERR,
        "cannot open a link: %s; this process may open %llu descriptors, and a peer needs one for each member of "
        "its group and for each lane to its neighbours, or to all members in a weighted all-reduce; raise the soft "
        "limit before connecting (ulimit -n, or resource.setrlimit(resource.RLIMIT_NOFILE, ...))",
        strerror(-error), (unsigned long long)descriptor_limit());
}

// ---- connections ----

static void connection_free(struct links *links, struct connection *c) {
    links->slots[c->slot] = NULL;
    transport_free(c->stream);
    conn_in_fini(&c->input);
    conn_out_fini(&c->output);
    free(c->measurement);
    free(c);
}

static bool connection_watch(struct links *links, struct connection *c, uint32_t events) {
    // Data 0 of ours is the listener.
    uint64_t data = links->first_data + 1 + (((uint64_t)c->serial << 20) | c->slot);
    return transport_watch(c->stream, links->epoll, events, (epoll_data_t){.u64 = data});
}

static bool slot_find(struct links *links, uint32_t *slot) {
    for (*slot = 0; *slot < links->slot_count; (*slot)++)
        if (links->slots[*slot] == NULL) return true;
    uint32_t count = links->slot_count ? 2 * links->slot_count : 32;
    if (count > 1u << 20) return false;
    struct connection **grown = realloc(links->slots, count * sizeof(struct connection *));
    if (grown == NULL) return false;
    memset(grown + links->slot_count, 0, (count - links->slot_count) * sizeof(struct connection *));
    links->slots = grown;
    links->slot_count = count;
    return true;
}

// Takes ownership of the stream in any case.
static struct connection *connection_new(struct links *links, struct transport *stream, enum connection_state state,
                                         uint32_t events, int64_t deadline) {
    struct connection *c = calloc(1, sizeof *c);
    uint32_t slot;
    if (c == NULL || !slot_find(links, &slot)) {
        free(c);
        transport_free(stream);
        return NULL;
    }
    *c = (struct connection){.state = state,
                             .stream = stream,
                             .slot = slot,
                             .serial = ++links->serial,
                             .deadline = deadline,
                             .since = platform_now_ns(),
                             .narrow_at = INT64_MAX};
    links->slots[slot] = c;
    if (!connection_watch(links, c, events)) {
        connection_free(links, c);
        return NULL;
    }
    return c;
}

static void push_event(struct links *links, const struct link_event *event) {
    if (links->event_first > 0 && links->event_first == links->event_count) links->event_first = links->event_count = 0;
    if (!GROW(links->events, links->event_capacity, links->event_count, 16)) {
        LOG(LOG_ERR, "dropped a link event: out of memory"); // a link is reported missing when its time is up
        transport_free(event->stream);
        return;
    }
    links->events[links->event_count++] = *event;
}

bool links_next(struct links *links, struct link_event *out) {
    if (links->event_first == links->event_count) return false;
    *out = links->events[links->event_first++];
    return true;
}

static void push_failure(struct links *links, const struct wire_link_hello *hello) {
    bool probe = hello->kind == WIRE_LINK_PROBE;
    struct link_event event = {.kind = probe ? LINK_EVENT_MEASURED : LINK_EVENT_FAILED,
                               .id = hello->to,
                               .index = hello->index,
                               .outgoing = probe};
    push_event(links, &event);
}

// The other side has heard the hello, or has said it: small packets pass. Large ones have half of the time left.
static void await_padding(struct connection *c, int64_t now) { c->narrow_at = now + (c->deadline - now) / 2; }

static void tell_narrow(struct links *links, struct connection *c) {
    struct link_event event = {.kind = LINK_EVENT_NARROW,
                               .id = c->state == AWAIT_PADDING ? c->hello.from : c->hello.to,
                               .index = c->hello.index};
    c->narrow_at = INT64_MAX;
    if (c->hello.kind == WIRE_LINK_DATA) push_event(links, &event);
}

static void hand_over(struct links *links, struct connection *c, const struct wire_id *id) {
    struct link_event event = {.kind = LINK_EVENT_UP, .id = *id, .index = c->hello.index};
    event.latency_us = transport_gauge(c->stream).round_trip_us / 2;
    // A longer one is the load of the host, which is not far from itself.
    if (event.latency_us > WITHIN_HOST_US && transport_is_within_host(c->stream)) event.latency_us = WITHIN_HOST_US;
    event.stream = c->stream;
    transport_unwatch(c->stream);
    c->stream = NULL;
    connection_free(links, c);
    push_event(links, &event);
}

// ---- dialing ----

static void dial(struct links *links, const struct wire_link_hello *hello, const struct wire_address *address,
                 uint32_t duration_ms, int64_t deadline) {
    struct transport *stream;
    int error = transport_dial(links->transport, address, &stream);
    tell_shortage(links, error);
    struct connection *c = error != 0 ? NULL : connection_new(links, stream, DIALING, EPOLLOUT, deadline);
    if (c == NULL) {
        LOG(LOG_DEBUG, "cannot dial a peer: %s", transport_error(error != 0 ? error : ENOMEM));
        push_failure(links, hello);
        return;
    }
    c->hello = *hello;
    c->duration_ms = duration_ms;
}

static struct wire_link_hello hello_to(const struct links *links, const struct wire_id *to, enum wire_link_kind kind,
                                       uint32_t index) {
    struct wire_link_hello hello = {
        .version = WIRE_VERSION, .kind = (uint8_t)kind, .from = links->identity.self, .to = *to, .index = index};
    memcpy(hello.secret, links->identity.secret, sizeof hello.secret);
    return hello;
}

void links_dial(struct links *links, const struct wire_id *to, uint32_t index, const struct wire_address *address,
                int64_t deadline) {
    struct wire_link_hello hello = hello_to(links, to, WIRE_LINK_DATA, index);
    dial(links, &hello, address, 0, deadline);
}

void links_probe(struct links *links, const struct wire_id *to, const struct wire_address *address,
                 uint32_t duration_ms, int64_t deadline) {
    struct wire_link_hello hello = hello_to(links, to, WIRE_LINK_PROBE, 0);
    dial(links, &hello, address, duration_ms < LINKS_PROBE_MS / 2 ? duration_ms : LINKS_PROBE_MS / 2, deadline);
}

static void fail_dial(struct links *links, struct connection *c, const char *why) {
    LOG(LOG_DEBUG, "cannot dial a peer, link %u: %s", c->hello.index, why);
    struct wire_link_hello hello = c->hello;
    connection_free(links, c);
    push_failure(links, &hello);
}

static struct wire_header link_header(const struct links *links) {
    return (struct wire_header){.run = links->identity.run, .generation = links->identity.generation};
}

// Sends what the kernel takes of the output, and watches for room for the rest, or for input. False: that failed.
static bool connection_flush(struct links *links, struct connection *c) {
    if (c->output.bytes.failed || conn_out_flush(&c->output, c->stream) != 0) return false;
    return connection_watch(links, c, conn_out_waiting(&c->output) > 0 ? EPOLLOUT : EPOLLIN);
}

static void send_hello(struct links *links, struct connection *c) {
    if (!connection_flush(links, c)) fail_dial(links, c, "cannot send the hello");
}

static void connect_on(struct links *links, struct connection *c) {
    int error = transport_step(c->stream);
    if (error == -EAGAIN) return;
    if (error == 0 && !transport_may_be(c->stream, TRANSPORT_PEER, &c->hello.to)) error = -EBADE;
    if (error != 0) {
        transport_log_refusal(c->stream, error, &links->refusal_log);
        fail_dial(links, c, transport_why(c->stream, error));
        return;
    }
    c->state = AWAIT_ACK;
    wire_encode_link_hello(&c->output.bytes, link_header(links), &c->hello);
    wire_encode_link_padding(&c->output.bytes, link_header(links));
    send_hello(links, c);
}

static bool is_answer(const struct wire_header *header) {
    return header->type == WIRE_LINK_HEARD || header->type == WIRE_LINK_PADDING || header->type == WIRE_LINK_ACK;
}

static void take_ack(struct links *links, struct connection *c, int64_t now) {
    struct wire_header header;
    const uint8_t *body;
    enum conn_next next = CONN_MORE;
    while (next == CONN_MORE || (next == CONN_FRAME && header.type != WIRE_LINK_ACK)) {
        // Bytes after the ACK belong to the data plane.
        ptrdiff_t got = conn_in_receive(&c->input, c->stream, 0);
        if (got == -EAGAIN) return;
        if (got <= 0) {
            fail_dial(links, c, got == 0 ? "the other side closed" : transport_error((int)got));
            return;
        }
        next = conn_in_next(&c->input, is_answer, &header, &body);
        if (next == CONN_FRAME && header.type == WIRE_LINK_HEARD) await_padding(c, now);
        if (next == CONN_FRAME && header.type == WIRE_LINK_PADDING) c->padded = true;
    }
    if (next == CONN_MALFORMED || !c->padded) {
        fail_dial(links, c, "the answer is not a LINK_ACK after padding");
    } else if (c->hello.kind == WIRE_LINK_PROBE) {
        c->state = FLOODING;
        c->deadline = now + (int64_t)c->duration_ms * MS_NS;
        if (!connection_watch(links, c, EPOLLOUT)) fail_dial(links, c, strerror(errno));
    } else {
        hand_over(links, c, &c->hello.to);
    }
}

// ---- measuring ----

static void flood(struct links *links, struct connection *c) {
    for (size_t sent = 0; sent < TURN_BYTES;) {
        ptrdiff_t now_sent = transport_send(c->stream, links->scratch, SCRATCH_BYTES);
        if (now_sent == -EAGAIN) return;
        if (now_sent <= 0) {
            connection_free(links, c); // the receiver reports what it got
            return;
        }
        sent += (size_t)now_sent;
    }
}

static void end_flood(struct links *links, struct connection *c) {
    // A reset, so that megabytes queued for a slow link do not occupy it after the measurement.
    transport_reset(c->stream);
    connection_free(links, c);
}

static void end_measurement(struct links *links, struct connection *c) {
    struct link_event event = {
        .kind = LINK_EVENT_MEASURED, .id = c->hello.from, .bytes_per_s = measurement_rate(c->measurement)};
    connection_free(links, c);
    push_event(links, &event);
}

static void measure(struct links *links, struct connection *c, int64_t now) {
    struct measurement *m = c->measurement;
    for (size_t total = 0; total < TURN_BYTES || c->stream->buffered;) {
        ptrdiff_t got = transport_receive(c->stream, links->scratch, SCRATCH_BYTES);
        if (got == -EAGAIN) return;
        if (got <= 0) {
            end_measurement(links, c);
            return;
        }
        total += (size_t)got;
        measurement_note(m, (uint64_t)got, now = platform_now_ns());
    }
}

// ---- accepting ----

static void take_hello(struct links *links, struct connection *c);

// Returns the oldest connection in this state from the address that has most of them; NULL if there are fewer than
// `most` in all.
static struct connection *find_surplus(const struct links *links, enum connection_state state, uint32_t most) {
    struct connection *oldest = NULL;
    uint32_t count = 0, counts[ADDRESS_SLOTS] = {0}, crowd = 0;
    for (uint32_t i = 0; i < links->slot_count; i++) {
        const struct connection *c = links->slots[i];
        if (c == NULL || c->state != state) continue;
        count++;
        if (++counts[c->from] > crowd) crowd = counts[c->from];
    }
    if (count < most) return NULL;
    for (uint32_t i = 0; i < links->slot_count; i++) {
        struct connection *c = links->slots[i];
        if (c == NULL || c->state != state || counts[c->from] < crowd) continue;
        if (oldest == NULL || c->since < oldest->since ||
            (c->since == oldest->since && (int32_t)(c->serial - oldest->serial) < 0))
            oldest = c;
    }
    return oldest;
}

// Drops a connection of a state when there are `most` of them.
static void make_room(struct links *links, enum connection_state state, uint32_t most) {
    struct connection *c = find_surplus(links, state, most);
    if (c == NULL) return;
    uint32_t slot = c->slot, serial = c->serial;
    if (state == AWAIT_HELLO) take_hello(links, c); // it may have come since
    c = links->slots[slot];
    if (c != NULL && c->serial == serial && c->state == state) connection_free(links, c);
}

// Sends the ACK. When it is out, the connection is a link, or measured.
static void answer(struct links *links, struct connection *c) {
    bool sent = connection_flush(links, c);
    if (sent && conn_out_waiting(&c->output) > 0) return;
    if (sent && c->hello.kind == WIRE_LINK_DATA) {
        hand_over(links, c, &c->hello.from);
        return;
    }
    if (sent) c->measurement = calloc(1, sizeof *c->measurement);
    if (c->measurement == NULL) {
        connection_free(links, c);
        return;
    }
    c->state = MEASURING;
    c->deadline = platform_now_ns() + LINKS_PROBE_MS * MS_NS;
}

static bool is_padding(const struct wire_header *header) { return header->type == WIRE_LINK_PADDING; }

// Says that the hello is heard, and answers when the padding behind it is here.
static void take_padding(struct links *links, struct connection *c) {
    bool good = connection_flush(links, c);
    while (good && conn_out_waiting(&c->output) == 0) {
        struct wire_header header;
        const uint8_t *body;
        ptrdiff_t got = conn_in_receive(&c->input, c->stream, 0);
        if (got == -EAGAIN) return;
        enum conn_next next = got > 0 ? conn_in_next(&c->input, is_padding, &header, &body) : CONN_MALFORMED;
        good = next != CONN_MALFORMED;
        if (next != CONN_FRAME) continue;
        wire_encode_link_padding(&c->output.bytes, link_header(links));
        wire_encode_empty(&c->output.bytes, link_header(links), WIRE_LINK_ACK);
        c->state = ANSWERING;
        c->narrow_at = INT64_MAX;
        c->deadline = platform_now_ns() + LINKS_UNKNOWN_MS * MS_NS;
        answer(links, c);
        return;
    }
    if (!good) connection_free(links, c);
}

// Acts on a judgement of a complete hello. True: the connection stays parked.
static void act_on_hello(struct links *links, struct connection *c, enum member_judgement judgement) {
    if (judgement == MEMBER_PARK) {
        if (c->state == PARKED) return;
        make_room(links, PARKED, part_of_limit(2, LINKS_PARKED));
        c->state = PARKED;
        c->deadline = platform_now_ns() + links->park_limit;
        if (!connection_watch(links, c, EPOLLRDHUP)) connection_free(links, c);
        return;
    }
    if (judgement == MEMBER_REJECT) {
        connection_free(links, c);
        return;
    }
    wire_encode_empty(&c->output.bytes, link_header(links), WIRE_LINK_HEARD);
    c->state = AWAIT_PADDING;
    c->deadline = platform_now_ns() + links->park_limit;
    await_padding(c, platform_now_ns());
    take_padding(links, c);
}

static bool is_hello(const struct wire_header *header) { return header->type == WIRE_LINK_HELLO; }

// Carries the handshake on. False: the hello cannot be received yet, or `c` is freed.
static bool is_open(struct links *links, struct connection *c) {
    if (c->open) return true;
    int error = transport_step(c->stream);
    if (error == -EAGAIN) return false;
    if (error == 0 && connection_watch(links, c, EPOLLIN)) return c->open = true;
    transport_log_refusal(c->stream, error, &links->refusal_log);
    connection_free(links, c);
    return false;
}

static void take_hello(struct links *links, struct connection *c) {
    if (!is_open(links, c)) return;
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
        act_on_hello(links, c, links->judge(links->context, &c->hello));
        return;
    }
    connection_free(links, c);
}

void links_recheck(struct links *links) {
    for (uint32_t i = 0; i < links->slot_count; i++) {
        struct connection *c = links->slots[i];
        if (c != NULL && c->state == PARKED) act_on_hello(links, c, links->judge(links->context, &c->hello));
    }
}

static void accept_some(struct links *links, int64_t now) {
    for (int i = 0; i < LISTENER_TURN; i++) {
        struct transport *stream;
        struct wire_address from;
        int error = listener_accept(&links->listener, &stream, &from, now);
        if (error == -EAGAIN) return;
        if (error != 0 && listener_pauses(&links->listener)) {
            make_room(links, AWAIT_HELLO, 1);
            tell_shortage(links, error);
            return;
        }
        if (error != 0) continue; // that connection was gone before it was accepted
        make_room(links, AWAIT_HELLO, part_of_limit(LINKS_UNKNOWN_PART, LINKS_UNKNOWN));
        struct connection *c = connection_new(links, stream, AWAIT_HELLO, EPOLLIN, now + LINKS_UNKNOWN_MS * MS_NS);
        if (c == NULL) continue;
        c->from = (uint8_t)(socket_address_network(&from) % ADDRESS_SLOTS);
        take_hello(links, c);
    }
}

// ---- life ----

struct links *links_new(struct transport_context *transport, int epoll, uint64_t first_data, const struct wire_id *self,
                        links_judge_fn *judge, void *context) {
    struct links *links = calloc(1, sizeof *links);
    if (links == NULL) return NULL;
    *links = (struct links){.transport = transport,
                            .epoll = epoll,
                            .listener = listener_closed(transport, epoll, first_data, LINKS_ACCEPT_PAUSE_MS),
                            .first_data = first_data,
                            .judge = judge,
                            .context = context,
                            .identity.self = *self};
    links->park_limit = LINKS_UNKNOWN_MS * MS_NS;
    links->refusal_log = (struct log_limit){.lines = 8, .seconds = 10};
    links->scratch = calloc(1, SCRATCH_BYTES);
    if (links->scratch != NULL) return links;
    free(links);
    return NULL;
}

void links_free(struct links *links) {
    if (links == NULL) return;
    listener_close(&links->listener);
    for (uint32_t i = 0; i < links->slot_count; i++)
        if (links->slots[i] != NULL) connection_free(links, links->slots[i]);
    struct link_event event;
    while (links_next(links, &event)) transport_free(event.stream);
    free(links->slots);
    free(links->events);
    free(links->scratch);
    free(links);
}

int links_listen(struct links *links, const struct wire_address *local, uint16_t *port) {
    return listener_open(&links->listener, socket_listen_from(local, LINKS_FIRST_PORT, port));
}

void links_identify(struct links *links, const struct link_identity *identity) { links->identity = *identity; }

void links_set_park_limit(struct links *links, int64_t limit) { links->park_limit = limit; }

void links_cancel(struct links *links, const struct wire_id *id) {
    for (uint32_t i = 0; i < links->slot_count; i++) {
        struct connection *c = links->slots[i];
        if (c == NULL || c->state == AWAIT_HELLO) continue;
        if (wire_id_equal(&c->hello.from, id) || wire_id_equal(&c->hello.to, id)) connection_free(links, c);
    }
}

// ---- the loop ----

static void advance(struct links *links, struct connection *c, int64_t now) {
    switch (c->state) {
    case DIALING: connect_on(links, c); break;
    case AWAIT_ACK:
        if (conn_out_waiting(&c->output) > 0)
            send_hello(links, c);
        else
            take_ack(links, c, now);
        break;
    case AWAIT_HELLO: take_hello(links, c); break;
    case PARKED: connection_free(links, c); break; // it gave up
    case AWAIT_PADDING: take_padding(links, c); break;
    case ANSWERING: answer(links, c); break;
    case FLOODING: flood(links, c); break;
    case MEASURING: measure(links, c, now); break;
    }
}

void links_event(struct links *links, uint64_t data, int64_t now) {
    if (data == links->first_data) {
        accept_some(links, now);
        return;
    }
    uint64_t name = data - links->first_data - 1;
    uint32_t slot = (uint32_t)name & 0xfffff, serial = (uint32_t)(name >> 20);
    struct connection *c = slot < links->slot_count ? links->slots[slot] : NULL;
    if (c != NULL && c->serial == serial) advance(links, c, now);
}

static void time_out(struct links *links, struct connection *c) {
    switch (c->state) {
    case DIALING:
    case AWAIT_ACK: fail_dial(links, c, "it took too long"); break;
    case FLOODING: end_flood(links, c); break;
    case MEASURING: end_measurement(links, c); break;
    default: connection_free(links, c); break;
    }
}

void links_tick(struct links *links, int64_t now) {
    listener_tick(&links->listener, now);
    for (uint32_t i = 0; i < links->slot_count; i++) {
        struct connection *c = links->slots[i];
        if (c != NULL && now >= c->narrow_at) tell_narrow(links, c);
        if (c != NULL && now >= c->deadline) time_out(links, c);
    }
}

int64_t links_deadline(const struct links *links) {
    int64_t at = links->listener.resumes_ns;
    for (uint32_t i = 0; i < links->slot_count; i++)
        if (links->slots[i] != NULL)
            at = platform_earlier(at, platform_earlier(links->slots[i]->deadline, links->slots[i]->narrow_at));
    return at;
}
