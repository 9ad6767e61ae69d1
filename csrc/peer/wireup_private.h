// Connections of wire-up that are no links yet; for peer/wireup and its parts alone.
#ifndef PCCL_PEER_WIREUP_PRIVATE_H
#define PCCL_PEER_WIREUP_PRIVATE_H

#include "base/log.h"
#include "base/share.h"
#include "net/conn.h"
#include "net/keys.h"
#include "net/strangers.h"
#include "peer/wireup.h"

enum {
    WIREUP_ACCEPT_PAUSE_MS = 100, // of the listener when the process is out of descriptors
    UNKNOWN_LEAST = 16,
    WITHIN_HOST_US = 500,           // at most
    RELAY_DIALS = KEYS_MAX_SECRETS, // of one that waits
    LISTENERS = 1 + WIRE_MAX_ADDRESSES,
    MEASUREMENT_SAMPLES = 256,
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
    enum connection_state state;
    struct transport *stream;
    uint32_t slot, serial; // name it in epoll data; `serial` tells a reused slot apart
    int64_t deadline, since;
    int64_t narrow_at;            // when padding that has not come counts as lost; INT64_MAX: it does not
    uint32_t duration_ms;         // FLOODING
    bool padded;                  // AWAIT_ACK: the padding has come
    bool open;                    // AWAIT_HELLO: the handshake is over
    bool asked;                   // likewise: it does not ask for a relay
    uint8_t from;                 // accepted: slot of the address (net/strangers)
    struct wire_link_hello hello; // sent, or received from AWAIT_HELLO on
    struct conn_in input;         // frame being received, and not one byte beyond
    struct conn_out output;
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
    int epoll;
    struct transport_listener listeners[LISTENERS]; // the first at the address that reached the master
    uint64_t first_data;
    struct routes routes;
    struct dialled *dialled; // links that this side has made
    size_t dialled_count, dialled_room;
    wireup_judge_fn *judge;
    void *context;
    struct wireup_identity identity;
    int64_t park_limit;
    struct log_limit refusal_log, relay_log, shortage_log;
    struct connection **slots;
    size_t slot_room;
    uint32_t slot_count, serial;
    struct wireup_event *events;
    size_t event_first, event_count, event_capacity;
    int64_t turn;               // its time, which names it
    struct share strangers;     // of this turn, for handshakes and hellos
    struct relay_server *relay; // NULL: nobody has asked for it yet
    uint8_t *scratch;           // junk to send, bytes received
};

// ---- of wireup_connection ----
// Takes ownership of the stream in any case. NULL: the system refused.
struct connection *wireup_connection_new(struct wireup *w, struct transport *stream, enum connection_state state,
                                         uint32_t events, int64_t deadline);
void wireup_connection_free(struct wireup *w, struct connection *c);
bool wireup_connection_watch(struct wireup *w, struct connection *c, uint32_t events);
// Sends what the kernel takes of the output, and watches for room for the rest, or for input. False: that failed.
bool wireup_connection_flush(struct wireup *w, struct connection *c);
struct wire_header wireup_header(const struct wireup *w);
// The other side has heard the hello, or has said it: small packets pass. Large ones have half of the time left.
void wireup_await_padding(struct connection *c, int64_t now);
// The connection is a link to `id`. Frees it.
void wireup_hand_over(struct wireup *w, struct connection *c, const struct wire_id *id);
void wireup_push(struct wireup *w, const struct wireup_event *event);
// Logs that descriptors are short, if that is the error.
void wireup_tell_shortage(struct wireup *w, int error);
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
