// A listening socket in a poller. Where descriptors or memory are short it pauses, for one that stays readable would
// keep its thread spinning.
#ifndef PCCL_NET_LISTENER_H
#define PCCL_NET_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "net/transport.h"

enum { LISTENER_TURN = 64 }; // connections accepted before others have their turn

struct listener {
    struct transport_context *context; // borrowed; of the streams that it accepts
    int fd;                            // owned; -1: it is closed
    int poller;
    uint64_t token;
    uint32_t pause_ms;
    int64_t resumes_ns; // INT64_MAX: it listens
};

// Returns a closed listener, to be opened with these.
struct listener listener_closed(struct transport_context *context, int poller, uint64_t token, uint32_t pause_ms);
// Takes a listening socket, or an error in place of one. 0 or -errno, and then it is closed.
int listener_open(struct listener *listener, int fd);
// Listens at each address, at one port: that of the first, which gets the one in use; 0 is any port that is free at all
// of them. Addresses behind the first that this machine does not have are left out. 0 or -errno, and then all are
// closed.
int listener_open_all(struct listener *listeners, struct wire_address *addresses, uint32_t count);
void listener_close(struct listener *listener);
// Accepts a connection, whose handshake is to be carried on (transport_step). 0 or -errno. -EAGAIN: none waits. If the
// listener pauses after an error, memory or descriptors are short; else the connection was gone before it was accepted.
int listener_accept(struct listener *listener, struct transport **out, struct wire_address *from, int64_t now_ns);
bool listener_pauses(const struct listener *listener);
void listener_tick(struct listener *listener, int64_t now_ns);

#endif
