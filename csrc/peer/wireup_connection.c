// Connections that are no links yet, and the events that tell what becomes of them.
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/descriptor.h"
#include "base/memory.h"
#include "base/platform.h"
#include "peer/wireup_private.h"

// The limit is the host program's to raise: the library changes nothing of its process.
void wireup_tell_shortage(struct wireup *w, int error) {
    if (error != -EMFILE && error != -ENFILE) return;
    LOG_LIMITED(
        &w->shortage_log, LOG_ERR,
        "cannot open a link: %s; this process may open %llu descriptors, and a peer needs one for each member of "
        "its group and for each lane to its neighbours, or to all members in a weighted all-reduce; raise the soft "
        "limit before connecting (ulimit -n, or resource.setrlimit(resource.RLIMIT_NOFILE, ...))",
        strerror(-error), (unsigned long long)descriptor_limit());
}

void wireup_log_refusal(struct wireup *w, const struct connection *c, int error) {
    transport_log_refusal(c->stream, error, transport_is_relayed(c->stream) ? &w->relay_log : &w->refusal_log);
}

// ---- connections ----

void wireup_connection_free(struct wireup *w, struct connection *c) {
    w->slots[c->slot] = NULL;
    transport_free(c->stream);
    wire_buffer_fini(&c->input.bytes);
    wire_buffer_fini(&c->output.bytes);
    free(c->measurement);
    free(c);
}

bool wireup_connection_watch(struct wireup *w, struct connection *c, uint32_t events) {
    // The first of our data are the listeners': serials begin at 1.
    uint64_t data = w->first_data + 1 + (((uint64_t)c->serial << 20) | c->slot);
    return transport_watch(c->stream, w->epoll, events, (epoll_data_t){.u64 = data});
}

struct connection *wireup_connection_new(struct wireup *w, struct transport *stream, enum connection_state state,
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
    if (!wireup_connection_watch(w, c, events)) {
        wireup_connection_free(w, c);
        return NULL;
    }
    return c;
}

void wireup_push(struct wireup *w, const struct wireup_event *event) {
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

void wireup_await_padding(struct connection *c, int64_t now) { c->narrow_at = now + (c->deadline - now) / 2; }

void wireup_hand_over(struct wireup *w, struct connection *c, const struct wire_id *id) {
    uint32_t latency_us = transport_gauge(c->stream).round_trip_us / 2;
    // A longer one is the load of the host, which is not far from itself.
    if (latency_us > WITHIN_HOST_US && transport_is_within_host(c->stream)) latency_us = WITHIN_HOST_US;
    enum wireup_event_kind kind = c->hello.kind == WIRE_LINK_PRECOPY ? WIREUP_PRECOPY : WIREUP_UP;
    struct wireup_event event = {
        .kind = kind, .id = *id, .index = c->hello.index, .stream = c->stream, .latency_us = latency_us};
    transport_unwatch(c->stream);
    c->stream = NULL;
    wireup_connection_free(w, c);
    wireup_push(w, &event);
}

struct wire_header wireup_header(const struct wireup *w) {
    return (struct wire_header){.run = w->identity.run, .generation = w->identity.generation};
}

bool wireup_connection_flush(struct wireup *w, struct connection *c) {
    if (c->output.bytes.failed || conn_out_flush(&c->output, c->stream) != 0) return false;
    return wireup_connection_watch(w, c, conn_out_waiting(&c->output) > 0 ? EPOLLOUT : EPOLLIN);
}
