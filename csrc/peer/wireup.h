// Wire-up, as UCX calls it: connections between peers until they are links. Listening, dialing, the hello, hellos that
// come early; and the flood connections by which links are measured. Owned and called by the control thread alone;
// nothing here blocks.
//
// Changes are queued as events (wireup_next). A connection that becomes a link leaves this module with its event.
// Acceptors survive hostile bytes: a bad hello closes its connection. The descriptors of the process are its owner's:
// connections without a hello hold at most the WIREUP_UNKNOWN_PART-th part of the soft limit, and WIREUP_UNKNOWN, for
// WIREUP_UNKNOWN_MS each; parked hellos at most half of it, and WIREUP_PARKED. Beyond that net/endpoint drops one. A
// flood from as many addresses as there is room keeps out whoever needs longer for its hello than the flood for that
// many connections, and a dialler tries again.
#ifndef PCCL_PEER_WIREUP_H
#define PCCL_PEER_WIREUP_H

#include <stdbool.h>
#include <stdint.h>

#include "net/transport.h"
#include "net/wire_data.h"
#include "peer/member.h"
#include "peer/routes.h"

enum {
    WIREUP_FIRST_PORT = 48149,
    WIREUP_UNKNOWN = 600, // more than two neighbours with all their lanes, who dial at the same time
    WIREUP_UNKNOWN_PART = 16,
    WIREUP_UNKNOWN_MS = 5000,
    WIREUP_PARKED = 1024,
    WIREUP_PROBE_MS = 20000, // the longest measurement
    WIREUP_RELAY_LINKS = 256,
    WIREUP_RELAY_PART = 8, // of the descriptors that the process may have, for links of others at most
};

struct wireup;

enum wireup_event_kind {
    WIREUP_UP,       // `stream` now belongs to the receiver of the event
    WIREUP_FAILED,   // a dial
    WIREUP_PROVED,   // a dial: the other end has proved that it is `id`, and the hello is sent
    WIREUP_PRECOPY,  // as UP, a stream of that kind; NULL: the dial failed
    WIREUP_NARROW,   // small frames pass between this peer and `id`, but padding seems to be lost
    WIREUP_MEASURED, // bytes_per_s from `id` to this peer; or 0 because a probe to `id` failed, then `outgoing`
};

struct wireup_event {
    enum wireup_event_kind kind;
    struct wire_id id;
    uint32_t index;
    struct transport *stream;
    uint32_t latency_us;
    bool outgoing;
    uint64_t bytes_per_s;
};

// Identity of this peer. `secret` and `run` are known from WELCOME on.
struct wireup_identity {
    struct wire_id self;
    uint64_t run, generation;
    uint8_t secret[16];
};

typedef enum member_judgement wireup_judge_fn(void *context, const struct wire_link_hello *hello);

// Registers with `epoll`; its epoll data are `first_data` and above. Borrows `transport`. NULL when the system refuses.
struct wireup *wireup_new(struct transport_context *transport, int epoll, uint64_t first_data,
                          const struct wire_id *self, wireup_judge_fn *judge, void *context);
void wireup_free(struct wireup *w); // closes what is left, also the streams of events not taken
// Listens at `local` and at the address of each card, on the first port from WIREUP_FIRST_PORT that is free at all of
// them. Whether the peer relays for others follows from where the cards are announced. 0 or -errno.
int wireup_listen(struct wireup *w, const struct wire_address *local, const struct cards *cards, uint16_t *port);
// Parked hellos of connections accepted from now on are kept for `park_ns`.
void wireup_identify(struct wireup *w, const struct wireup_identity *identity, int64_t park_ns);

// Dials one address of `reach` after the other, from one card after the other (peer/routes), until one answers.
// `kind`: WIRE_LINK_DATA, or WIRE_LINK_PRECOPY, which ends with WIREUP_PRECOPY, and only its end cancels it.
void wireup_dial(struct wireup *w, enum wire_link_kind kind, const struct wire_id *to, uint32_t index,
                 const struct wire_reach *reach, int64_t deadline_ns);
// A dial of kind WIRE_LINK_PROBE, which measures the link.
void wireup_probe(struct wireup *w, const struct wire_id *to, const struct wire_reach *reach, uint32_t duration_ms,
                  int64_t deadline_ns);
// Dials the member of the action, or else `relay`, for MEMBER_RELAY. If that waits, the hello comes from the
// other end, and no event tells if none does.
void wireup_relay(struct wireup *w, const struct wire_address *relay, const struct member_action *action,
                  int64_t now_ns, int64_t limit_ns);
// A link was silent: the cards that it used come last for a while.
void wireup_avoid(struct wireup *w, const struct wire_id *id, uint32_t index, int64_t now_ns);
void wireup_cancel(struct wireup *w, const struct wire_id *id); // what is under way with a peer that is gone
void wireup_recheck(struct wireup *w);                          // judges parked hellos again

void wireup_handle(struct wireup *w, uint64_t data, int64_t now_ns); // epoll told of `data`
void wireup_tick(struct wireup *w, int64_t now_ns);
int64_t wireup_deadline(const struct wireup *w); // INT64_MAX = none
bool wireup_next(struct wireup *w, struct wireup_event *out);

#endif
