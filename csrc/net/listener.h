// A listening socket in a poller. Where descriptors or memory are short it pauses, for one that stays readable would
// keep its thread spinning.
#ifndef PCCL_NET_LISTENER_H
#define PCCL_NET_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "net/transport.h"

enum { LISTENER_TURN = 64 }; // connections accepted before others have their turn

struct listener {
    int fd; // owned; -1: it is closed
    int poller;
    uint64_t token;
    uint32_t pause_ms;
    int64_t resumes_ns; // INT64_MAX: it listens
};

// Closed, and to be opened with these.
struct listener listener_closed(int poller, uint64_t token, uint32_t pause_ms);
// Takes a listening socket, or an error in place of one. 0 or -errno, and then it is closed.
int listener_open(struct listener *listener, int fd);
void listener_close(struct listener *listener);
// 0: a connection. -EAGAIN: none waits. Any other error, and the listener pauses: one of shortage. Else the connection
// was gone before it was accepted.
int listener_accept(struct listener *listener, struct transport **out, struct wire_address *from, int64_t now_ns);
bool listener_pauses(const struct listener *listener);
void listener_tick(struct listener *listener, int64_t now_ns);

#endif
