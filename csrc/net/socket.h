// Non-blocking TCP sockets and addresses. Every function returns at once; errors are errno values, negated.
#ifndef PCCL_NET_SOCKET_H
#define PCCL_NET_SOCKET_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "net/wire.h"

// A network card of this host.
struct card {
    struct wire_address address; // port 0
    char device[IF_NAMESIZE];    // "": unknown
};

// Conversions. IPv4-mapped IPv6 addresses become IPv4. False: a family we do not speak.
bool socket_address_from_sockaddr(struct wire_address *out, const struct sockaddr *in);
socklen_t socket_address_to_sockaddr(struct sockaddr_storage *out, const struct wire_address *in);
// Returns the IPv4 address in an IPv4-mapped IPv6 address, and any other one as it is.
struct wire_address socket_address_unmapped(struct wire_address address);
// Whether it is in 127.0.0.0/8, or ::1; likewise of an IPv4-mapped address.
bool socket_address_is_loopback(const struct wire_address *address);
// Hashes the network of an IPv6 address, or a whole IPv4 address.
uint64_t socket_address_network(const struct wire_address *address);
// Whether it is the wildcard 0.0.0.0 or ::, also as an IPv4-mapped address.
bool socket_address_is_any(const struct wire_address *address);
// "1.2.3.4:5" or "[::1]:5"; at least 64 bytes.
const char *socket_address_format(char *out, size_t capacity, const struct wire_address *address);
// Reads 1.2.3.4:48148 or [::1]:48148 from `length` characters. False: it is neither.
bool socket_address_parse(const char *text, size_t length, struct wire_address *out);
// Reads the same, or a host name and a port, which it looks up: this may take seconds. `out` may be NULL:
// nothing is looked up. Returns NULL, or why not.
const char *socket_address_look_up(const char *text, struct wire_address *out);

// Congestion control: a connection between processes of one host uses Reno, every other one what the system chooses
// (docs/decisions/reno-within-a-host.md).

// Listens; an IPv6 wildcard also takes IPv4. Port 0 = any. Returns the descriptor or -errno.
int socket_listen(const struct wire_address *address);
// Listens on the first free port from `first` upward (wraps to any free port after 65535). Writes the port used.
int socket_listen_from(const struct wire_address *address, uint16_t first, uint16_t *port);
// Whether the process at the other end of a local connection is of our user.
bool socket_is_of_user(int fd);
// Accepts one connection, with the options of every connection set. -EAGAIN when none waits. `from` has family 0 for a
// local socket of our user (net/rendezvous); those of other users are refused.
int socket_accept(int listener, struct wire_address *from);
// Begins to connect; poll for writable, then ask socket_connect_result: 0, -EINPROGRESS or -errno. `card`: of this
// host, to dial from; an address of this host is dialled as without one. NULL: the system chooses.
int socket_dial_from(const struct card *card, const struct wire_address *address);
static inline int socket_dial(const struct wire_address *address) { return socket_dial_from(NULL, address); }
int socket_connect_result(int fd);
bool socket_local_address(int fd, struct wire_address *out);
bool socket_remote_address(int fd, struct wire_address *out);
// Whether a connection to this address would stay on this host, by the system's routes.
bool socket_address_is_within_host(const struct wire_address *address);
// Whether both ends of this connection are on this host: they have the same address, or both a loopback address.
bool socket_within_host(int fd);
// Whether two addresses are equal but for their ports.
static inline bool socket_address_same_host(const struct wire_address *a, const struct wire_address *b) {
    return a->family == b->family && memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}
static inline bool socket_address_equal(const struct wire_address *a, const struct wire_address *b) {
    return a->port == b->port && socket_address_same_host(a, b);
}
// Writes the name of the connection's congestion control; at least 16 bytes. False: unknown.
bool socket_congestion(int fd, char *out, size_t capacity);
// Returns whether the system permits this process the congestion control `name`. If not, `allowed` gets the permitted
// names, with spaces between them, cut to `capacity`.
bool socket_may_choose(const char *name, char *allowed, size_t capacity);
// Sets the congestion control of a connection, if that leads to another host.
void socket_apply_congestion(int fd, const char *name);
// Whether the other side has ended the connection, or it broke; bytes may be left to read.
bool socket_has_ended(int fd);

// ---- the kernel's metrics of a connection ----

// A sample of the metrics. A metric that the kernel does not have is 0.
struct gauge {
    bool tells_queue;        // `queued` is known
    uint64_t queued;         // bytes that were handed to the kernel and that the other side has not acknowledged
    uint64_t acked, busy_us; // bytes acknowledged so far, and the time in which there were some to send
    uint32_t round_trip_us;  // the shortest of late: a process that is slow to answer does not make it longer
    uint32_t smoothed_us;    // the round trip as it is now, queues on the way included
    uint32_t window;         // bytes that may be under way: the congestion window
    uint32_t retransmits;    // segments sent again so far
    uint32_t segments;       // with data, sent so far
    uint32_t waiting;        // bytes that were handed to the kernel and that it has not sent yet
    uint64_t window_us;      // of busy_us, in which the other side's receive window was full
    uint64_t buffer_us;      // of busy_us, in which the send buffer was full
};

// Reads them. No other module does.
struct gauge socket_gauge(int fd);

#endif
