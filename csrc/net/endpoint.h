// An endpoint: the listeners of a process and the connections that are not handed over to others, in one poller. It
// accepts strangers and drops one where there are too many, pauses where descriptors are short, carries handshakes on,
// judges who strangers are, and tells when the time of a connection is up. The master, wire-up and the relay use it.
//
// A connection begins as a stranger. Its user gives it another state once it has said what it is for. Beyond the limit
// of strangers, one goes first if its address has more than a quarter of them, so that one host drops nobody else. Then
// goes one that has shown least of who it is: whoever only opens connections, or repeats what others have said, drops
// no process that has keys. Of equals, the oldest from the address that has most of them goes.
//
// One thread owns an endpoint. Nothing blocks.
#ifndef PCCL_NET_ENDPOINT_H
#define PCCL_NET_ENDPOINT_H

#include "base/share.h"
#include "net/conn.h"

enum {
    ENDPOINT_LISTENERS = 6,
    ENDPOINT_STRANGER = 0, // the state of a connection that was accepted
    ENDPOINT_STATES = 8,   // of a user, at most
    ENDPOINT_CLOSED = ENDPOINT_STATES,
    ENDPOINT_PLACES = 1 << 20,    // connections, at most
    ENDPOINT_STRANGERS_US = 5000, // of a turn, for strangers; the rest waits for the next turn
};

// A connection: the first member of what the user keeps for it.
struct endpoint_conn {
    struct transport *stream; // owned
    struct conn_in in;
    struct conn_out out;
    struct wire_address source; // of one that was accepted; family 0: over the local socket
    uint32_t place, serial;     // name it in the poller; no other one has had both
    int64_t since_ns, deadline_ns;
    uint8_t state;              // ENDPOINT_STRANGER, another one of the user, or ENDPOINT_CLOSED
    bool opens;                 // its handshake is under way: nothing can be sent or received yet
    struct endpoint_conn *next; // of those that are closed
};

// Functions of the user.
struct endpoint_type {
    size_t bytes;        // of what the user keeps for a connection; all 0 behind the first member
    uint32_t hello_ms;   // in which a stranger has to say what it is for
    uint32_t pause_ms;   // in which nobody is accepted where descriptors or memory are short
    uint8_t spare_state; // one of these is dropped where all places are taken
    // Hears a stranger: it was accepted, may have said something, or is about to be dropped and may have since.
    void (*hear)(void *user, struct endpoint_conn *conn);
    // The deadline of a connection has passed. The user closes it or sets another one.
    void (*time_out)(void *user, struct endpoint_conn *conn);
    // Connections cannot be accepted now because of this error.
    void (*shortage)(void *user, int error);
    // Releases what the user keeps for a connection that closes. NULL: nothing.
    void (*fini)(void *user, struct endpoint_conn *conn);
};

// The user sets the first fields, up to `strangers_most`; all others are 0 at first.
struct endpoint {
    const struct endpoint_type *type;
    void *user;
    struct transport_context *context; // borrowed; of accepted streams
    int poller;                        // borrowed
    uint64_t first_data;               // its data in the poller are these and above
    uint32_t places_most;              // connections, at most; ENDPOINT_PLACES or fewer
    uint32_t strangers_most;           // strangers, at most
    int listeners[ENDPOINT_LISTENERS];
    uint32_t listener_count;
    int64_t resumes_ns;            // all of them; 0: they listen
    struct endpoint_conn **places; // NULL: a free one
    size_t room;
    uint32_t count, used, serial;     // places up to the last one; those taken
    uint32_t counts[ENDPOINT_STATES]; // connections by state
    struct endpoint_conn *closed;     // freed with the next turn: their users may still look at the state
    struct share strangers;           // of this turn
    int64_t next_ns;                  // no deadline is before, if there are connections
};

// Closes all listeners and connections.
void endpoint_fini(struct endpoint *endpoint);

// Takes a listening socket, or an error in place of one. 0 or -errno, and then it is closed.
int endpoint_listen(struct endpoint *endpoint, int fd);
// Listens at each address, at one port, which the first address gets: its own, or if that is 0 one that is free at all
// of them, from `first` on if that is not 0. Addresses behind the first that this machine does not have are left out.
// 0 or -errno, and then nothing listens.
int endpoint_listen_all(struct endpoint *endpoint, struct wire_address *addresses, uint32_t count, uint32_t first);

// Begins a turn of the thread.
void endpoint_begin_turn(struct endpoint *endpoint);
// Acts on what the poller has told of `data`: accepts and hears strangers. Returns another connection that it is of;
// NULL: there is none.
struct endpoint_conn *endpoint_handle(struct endpoint *endpoint, uint64_t data, int64_t now_ns);
// Listens again after a pause, and tells of each connection whose deadline has passed.
void endpoint_tick(struct endpoint *endpoint, int64_t now_ns);
// When the next tick is due; INT64_MAX: never. It may be too early.
int64_t endpoint_deadline(const struct endpoint *endpoint);

// Adds a connection, whose handshake begins. Takes `stream` in any case. NULL: the system refuses, or all places are
// taken.
struct endpoint_conn *endpoint_add(struct endpoint *endpoint, struct transport *stream, uint8_t state, uint32_t events,
                                   int64_t deadline_ns);
// Adds a stranger that comes from `source`, and drops one where there are too many.
struct endpoint_conn *endpoint_add_stranger(struct endpoint *endpoint, struct transport *stream,
                                            const struct wire_address *source, int64_t now_ns);
void endpoint_close(struct endpoint *endpoint, struct endpoint_conn *conn);
// Gives a connection another state, in which it has this deadline; INT64_MAX: none.
void endpoint_set(struct endpoint *endpoint, struct endpoint_conn *conn, uint8_t state, int64_t deadline_ns);
void endpoint_until(struct endpoint *endpoint, struct endpoint_conn *conn, int64_t deadline_ns);
// False, and errno: the poller refuses.
bool endpoint_watch(struct endpoint *endpoint, struct endpoint_conn *conn, uint32_t events);
// Watches for what comes, and for room while something waits to be sent.
bool endpoint_await(struct endpoint *endpoint, struct endpoint_conn *conn);
// Carries the handshake on. 0: it is over, and the other end of a dialled stream is the one that was expected; the
// connection awaits what comes. -EAGAIN: call again when the poller tells. Else -errno: close it.
int endpoint_step(struct endpoint *endpoint, struct endpoint_conn *conn);
// Drops a connection in `state` if there are `most` of them that this side has not dialled.
void endpoint_make_room(struct endpoint *endpoint, uint8_t state, uint32_t most);

#endif
