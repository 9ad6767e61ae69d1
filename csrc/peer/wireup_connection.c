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
void wireup_tell_shortage(void *wireup, int error) {
    struct wireup *w = wireup;
    if (error != -EMFILE && error != -ENFILE) return;
    LOG_LIMITED(
        &w->shortage_log, LOG_ERR,
        "cannot open a link: %s; this process may open %llu descriptors, and a peer needs one for each member of "
        "its group and for each lane to its neighbours, or to all members in a weighted all-reduce; raise the soft "
        "limit before connecting (ulimit -n, or resource.setrlimit(resource.RLIMIT_NOFILE, ...))",
        strerror(-error), (unsigned long long)descriptor_limit());
}

void wireup_log_refusal(struct wireup *w, const struct connection *c, int error) {
    transport_log_refusal(c->conn.stream, error,
                          transport_is_relayed(c->conn.stream) ? &w->relay_log : &w->refusal_log);
}

// ---- connections ----

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

void wireup_await_padding(struct wireup *w, struct connection *c, int64_t now) {
    if (c->ends == 0) c->ends = c->conn.deadline_ns;
    endpoint_until(&w->endpoint, &c->conn, now + (c->ends - now) / 2);
}

void wireup_hand_over(struct wireup *w, struct connection *c, const struct wire_id *id) {
    uint32_t latency_us = transport_gauge(c->conn.stream).round_trip_us / 2;
    // A longer one is the load of the host, which is not far from itself.
    if (latency_us > WITHIN_HOST_US && transport_is_within_host(c->conn.stream)) latency_us = WITHIN_HOST_US;
    enum wireup_event_kind kind = c->hello.kind == WIRE_LINK_PRECOPY ? WIREUP_PRECOPY : WIREUP_UP;
    struct wireup_event event = {
        .kind = kind, .id = *id, .index = c->hello.index, .stream = c->conn.stream, .latency_us = latency_us};
    transport_unwatch(c->conn.stream);
    c->conn.stream = NULL;
    wireup_connection_free(w, c);
    wireup_push(w, &event);
}

struct wire_header wireup_header(const struct wireup *w) {
    return (struct wire_header){.run = w->identity.run, .generation = w->identity.generation};
}

bool wireup_connection_flush(struct wireup *w, struct connection *c) {
    struct conn_out *out = &c->conn.out;
    if (out->bytes.failed || conn_out_flush(out, c->conn.stream) != 0) return false;
    return endpoint_watch(&w->endpoint, &c->conn, conn_out_waiting(out) > 0 ? EPOLLOUT : EPOLLIN);
}
