// Connections of wire-up that are no links yet; for peer/wireup and its parts alone.
#ifndef PCCL_PEER_WIREUP_PRIVATE_H
#define PCCL_PEER_WIREUP_PRIVATE_H

#include "base/log.h"
#include "net/endpoint.h"
#include "net/keys.h"
#include "peer/wireup.h"

enum {
    WIREUP_ACCEPT_PAUSE_MS = 100, // of the listener when the process is out of descriptors
    UNKNOWN_LEAST = 16,
    WITHIN_HOST_US = 500,           // at most
    RELAY_DIALS = KEYS_MAX_SECRETS, // of one that waits
    LISTENERS = 1 + WIRE_MAX_ADDRESSES,
    MEASUREMENT_SAMPLES = 256,
};
_Static_assert((int)LISTENERS <= (int)ENDPOINT_LISTENERS, "each card has one");

enum connection_state {
    AWAIT_HELLO = ENDPOINT_STRANGER, // accepted or at a relay, unknown
    DIALING,                         // connect under way
    AWAIT_ACK,                       // hello and padding sent, or waiting to be
    PARKED,                          // hello came early
    AWAIT_PADDING,
    ANSWERING, // accepted; the ACK waits to be sent
    FLOODING,  // outgoing measurement
    MEASURING, // incoming measurement
};

// When how many bytes of a measurement had come. All 0 at first.
struct measurement {
    uint64_t bytes;
    int64_t last;
    uint32_t count;
    struct sample {
        int64_t at;
        uint64_t bytes;
    } samples[MEASUREMENT_SAMPLES];
};

struct connection {
    struct endpoint_conn conn;    // receives not one byte beyond a frame
    int64_t ends;                 // its deadline, after that for padding, which counts as lost then; 0: none is awaited
    uint32_t duration_ms;         // FLOODING
    bool padded;                  // AWAIT_ACK: the padding has come
    struct wire_link_hello hello; // sent, or received from AWAIT_HELLO on
    struct measurement *measurement; // MEASURING
    uint8_t relay_dials;             // that are left, of one that waits at a relay
    bool at_member;                  // likewise: the relay is one
    // of a dial
    struct wire_reach reach;
    uint32_t tried;         // pairs of cards (peer/routes)
    int64_t last_deadline;  // of the last pair
    struct wire_address to; // that is dialled now
    const struct card *card;
};

struct dialled {
    struct wire_id id;
    uint32_t index;
    struct wire_address from, to; // family 0 of `from`: the system chose
};

struct wireup {
    struct transport_context *transport;
    struct endpoint endpoint; // of struct connection; its first listener is at the address that reached the master
    struct routes routes;
    struct dialled *dialled; // links that this side has made
    size_t dialled_count, dialled_room;
    wireup_judge_fn *judge;
    void *context;
    struct wireup_identity identity;
    int64_t park_limit;
    struct log_limit refusal_log, relay_log, shortage_log;
    struct wireup_event *events;
    size_t event_first, event_count, event_capacity;
    int64_t turn;               // its time, which names it
    struct relay_server *relay; // NULL: nobody has asked for it yet
    uint8_t *scratch;           // junk to send, bytes received
};

// ---- of wireup_connection ----
static inline struct connection *wireup_connection(struct endpoint_conn *conn) {
    return (struct connection *)(void *)conn;
}
static inline void wireup_connection_free(struct wireup *w, struct connection *c) {
    endpoint_close(&w->endpoint, &c->conn);
}
// Gives it another state and its deadline; padding is not awaited any more.
static inline void wireup_connection_set(struct wireup *w, struct connection *c, enum connection_state state,
                                         int64_t deadline) {
    c->ends = 0;
    endpoint_set(&w->endpoint, &c->conn, (uint8_t)state, deadline);
}
// Sends what the kernel takes of the output, and watches for room for the rest, or for input. False: that failed.
bool wireup_connection_flush(struct wireup *w, struct connection *c);
struct wire_header wireup_header(const struct wireup *w);
// The other side has heard the hello, or has said it: small packets pass. Large ones have half of the time left.
void wireup_await_padding(struct wireup *w, struct connection *c, int64_t now);
// The connection is a link to `id`. Frees it.
void wireup_hand_over(struct wireup *w, struct connection *c, const struct wire_id *id);
void wireup_push(struct wireup *w, const struct wireup_event *event);
// Logs that descriptors are short, if that is the error.
void wireup_tell_shortage(void *wireup, int error);
// Logs why the other end of a connection, or the relay that it leads through, was refused, or refuses.
void wireup_log_refusal(struct wireup *w, const struct connection *c, int error);

// ---- of wireup_dial ----
// A handshake through a relay has failed. The other end may try another secret: waits for it once more. Frees it.
void wireup_relay_again(struct wireup *w, struct connection *c);
void wireup_dial_step(struct wireup *w, struct connection *c);                    // DIALING
void wireup_dial_take_ack(struct wireup *w, struct connection *c, int64_t now);   // AWAIT_ACK
void wireup_dial_failed(struct wireup *w, struct connection *c, const char *why); // frees it
// The peer could not be reached this way: tries the next one. Frees it.
void wireup_dial_fail_route(struct wireup *w, struct connection *c, const char *why);

#endif
