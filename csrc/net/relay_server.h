// The relay's side of net/relay: joins two connections that name the same link, and copies bytes between them without
// knowing what they are. `pccl relay` runs one, and so does a member for pairs that nobody can dial.
//
// A thread of its own, pccl:relay, has all connections. One that has not named a link ends after RELAY_HELLO_MS, one
// whose other end does not come after RELAY_WAIT_MS, and the other direction of a link RELAY_LINGER_MS after the first
// has ended. net/endpoint drops one of too many connections without a hello. What one end does not take
// waits in at most RELAY_BUFFER_BYTES for each direction; meanwhile no more is read for it.
#ifndef PCCL_NET_RELAY_SERVER_H
#define PCCL_NET_RELAY_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "net/relay.h"
#include "net/transport.h"

enum {
    RELAY_HELLO_MS = 5000,
    RELAY_WAIT_MS = 30000,
    RELAY_LINGER_MS = 30000,
    RELAY_PAUSE_MS = 500,     // in which it accepts nobody when the system has no descriptor or memory for a connection
    RELAY_UNKNOWN_MOST = 256, // connections without a hello
    RELAY_BUFFER_BYTES = 256 * 1024,
    RELAY_LINK_DESCRIPTORS = 2,
};

struct relay_server_options {
    struct keys *keys; // who may use it; held. NULL: everybody, or with `of_run` all members
    bool of_run;       // members of a run may, by the secret of relay_server_set_secret
    uint32_t links;    // that it joins at most, including those whose other end has not come, unless `of_run`: then as
                       // many more connections may wait
    uint32_t unknown;  // connections without a hello, at most RELAY_UNKNOWN_MOST; 0: that
    const struct wire_address *listens; // NULL: nowhere; port 0 is any
    uint16_t *port;                     // gets the port at which it listens
};

struct relay_server;

// Listens, and starts the thread. 0 or -errno, and then `*out` is NULL.
int relay_server_new(const struct relay_server_options *options, struct relay_server **out);
// Closes all connections, and ends the thread. NULL is allowed.
void relay_server_free(struct relay_server *server);
// Takes the connection of an accepted stream, on which the other side begins with RELAY_QUESTION. Frees the stream, of
// which nothing was read. Closes the connection if memory is short.
void relay_server_take(struct relay_server *server, struct transport *stream);
// Until it was called, nobody proves that it is of the run.
void relay_server_set_secret(struct relay_server *server, const uint8_t secret[RELAY_SECRET_BYTES]);
// How many links it relays now, and how many bytes it has passed on.
void relay_server_counts(const struct relay_server *server, uint32_t *links, uint64_t *bytes);

#endif
