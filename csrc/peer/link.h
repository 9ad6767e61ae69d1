// Connections between peers until they are links: listening, dialing, the hello, hellos that come early; and the flood
// connections by which links are measured. Owned and called by the control thread alone; nothing here blocks.
//
// Changes are queued as events (links_next). A connection that becomes a link leaves this module with its event.
// Acceptors survive hostile bytes: a bad hello closes its connection. The descriptors of the process are its owner's:
// connections without a hello hold at most the LINKS_UNKNOWN_PART-th part of the soft limit, and LINKS_UNKNOWN, for
// LINKS_UNKNOWN_MS each; parked hellos at most half of it, and LINKS_PARKED. Beyond that the oldest goes of the address
// that has most of them, unless its hello has come meanwhile. So a flood from a few addresses keeps out nobody else;
// one from as many addresses as there is room keeps out whoever needs longer for its hello than the flood for that many
// connections, and a dialler tries again.
#ifndef PCCL_PEER_LINK_H
#define PCCL_PEER_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "net/transport.h"
#include "net/wire_data.h"
#include "peer/member.h"

enum {
    LINKS_FIRST_PORT = 48149,
    LINKS_UNKNOWN = 600, // more than two neighbours with all their lanes, who dial at the same time
    LINKS_UNKNOWN_PART = 16,
    LINKS_UNKNOWN_MS = 5000,
    LINKS_PARKED = 1024,
    LINKS_PROBE_MS = 20000, // the longest measurement
};

struct links;

enum link_event_kind {
    LINK_EVENT_UP,       // `stream` now belongs to the receiver of the event
    LINK_EVENT_FAILED,   // a dial
    LINK_EVENT_NARROW,   // small frames pass between this peer and `id`, but padding seems to be lost
    LINK_EVENT_MEASURED, // bytes_per_s from `id` to this peer; or 0 because a probe to `id` failed, then `outgoing`
};

struct link_event {
    enum link_event_kind kind;
    struct wire_id id;
    uint32_t index;
    struct transport *stream;
    uint32_t latency_us;
    bool outgoing;
    uint64_t bytes_per_s;
};

// Identity of this peer. `secret` and `run` are known from WELCOME on.
struct link_identity {
    struct wire_id self;
    uint64_t run, generation;
    uint8_t secret[16];
};

typedef enum member_judgement links_judge_fn(void *context, const struct wire_link_hello *hello);

// Registers with `epoll`; its epoll data are `first_data` and above. Borrows `transport`. NULL when the system refuses.
struct links *links_new(struct transport_context *transport, int epoll, uint64_t first_data, const struct wire_id *self,
                        links_judge_fn *judge, void *context);
void links_free(struct links *links); // closes what is left, also the streams of events not taken
// Listens on the first free port from LINKS_FIRST_PORT. 0 or -errno.
int links_listen(struct links *links, const struct wire_address *local, uint16_t *port);
void links_identify(struct links *links, const struct link_identity *identity);

void links_dial(struct links *links, const struct wire_id *to, uint32_t index, const struct wire_address *address,
                int64_t deadline_ns);
void links_probe(struct links *links, const struct wire_id *to, const struct wire_address *address,
                 uint32_t duration_ms, int64_t deadline_ns);
void links_cancel(struct links *links, const struct wire_id *id); // what is under way with a peer that is gone
void links_recheck(struct links *links);                          // judges parked hellos again

void links_event(struct links *links, uint64_t data, int64_t now_ns); // epoll told of `data`
void links_tick(struct links *links, int64_t now_ns);
int64_t links_deadline(const struct links *links); // INT64_MAX = none
// Until when parked hellos of connections accepted from now on are kept.
void links_set_park_limit(struct links *links, int64_t limit_ns);
bool links_next(struct links *links, struct link_event *out);

#endif
