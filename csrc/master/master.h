// The master's driver: one thread (`pccl:master`) with one loop over the listening socket and all connections. It
// decides nothing: what it reads goes to the state machine (master/core), what the state machine says is carried out.
//
// A master serves several runs, each with a state machine of its own: a connection names its run before its first
// frame, and what it says reaches that one alone. The runs share the thread, the listeners, the keys and the limit of
// connections. A run of a new name is made for the first peer that says HELLO or RESUME in it. One that has ended
// keeps its place, with what is known of its end, until another name needs it.
//
// Whatever bytes arrive, at worst the connection that they came on is closed.
#ifndef PCCL_MASTER_MASTER_H
#define PCCL_MASTER_MASTER_H

#include <stdbool.h>
#include <stdint.h>

#include "net/transport.h"
#include "net/wire_control.h"

enum {
    // connections without a hello; net/endpoint drops one of more. All members may come at once
    MASTER_MAX_ANONYMOUS = 1024,
    MASTER_HELLO_LIMIT_MS = 5000, // for the hello
    MASTER_DIAL_BACK_MS = 2000,   // for a newcomer to answer a dial: a lost packet is sent again after a second
    MASTER_CLOSE_LIMIT_MS = 1000, // for the last words to a peer that is refused or expelled
    MASTER_PAUSE_MS = 500,        // in which nobody is accepted where descriptors or memory are short
    MASTER_YOUNG_MS = 100,        // newcomers wait so long for members of a run that another master has left
    MASTER_LOOK_MS = 1000,        // between two looks for a run that another one has taken up, while some wait here
    MASTER_MAX_UNSENT = 4 << 20,  // bytes; a peer that reads more slowly than this is lost
    MASTER_MAX_LISTENS = 3,       // addresses at which it listens
    // of the other masters of the list
    MASTER_STACKS_MS = 30000, // for a peer's answer to an operator, who waits less
    MASTER_ASK_MS = 300,      // for an answer; who has not given one by then counts as idle
    MASTER_BUSY_MS = 1000,    // for so long it is known that one gathers or serves
    MASTER_IDLE_MS = 100,     // or that all are idle: shorter, since a new run begins by that
};

struct master;

struct master_options {
    // Addresses at which it listens, all at the port of the first one; at most MASTER_MAX_LISTENS.
    const struct wire_address *listens;
    uint32_t listen_count;
    uint32_t heartbeat_limit_ms, deadlock_s;
    // The masters of the run, this one among them, in the order of preference; at most WIRE_MAX_MASTERS, or none. The
    // first one begins new runs, unless another one serves a run; all take up runs whose members come to them. `self`:
    // its place in the list.
    const struct wire_address *masters;
    uint32_t master_count, self;
    // The master ends by itself once neither it nor another master of its list has had a peer for so long, from its
    // beginning on. 0: it never does.
    uint32_t idle_limit_ms;
    // Nobody was ever at its address or at those of its list, so newcomers wait neither for members of an earlier run
    // nor, in the first MASTER_BUSY_MS, for what the others say.
    bool new;
    const char *events; // file of its flight recorder, as PCCL_EVENTS; NULL: that of the environment
    const struct transport_options *transport; // may be NULL, as for transport_context_new
};

// Binds, listens and starts the thread. 0 or -errno: -EADDRINUSE, -ENOMEM, ... `*out` is NULL then.
int master_start(const struct master_options *options, struct master **out);
// The port that a running master is bound to.
uint16_t master_port(const struct master *master);
// Asks the thread to end the run, close all connections and end. Async-signal-safe, repeatable.
void master_interrupt(struct master *master);
// The same without ending the run: the peers look for a master, as after a crash. Of both calls the first one counts.
void master_detach(struct master *master);
// Waits until the thread has ended and the port is free, or until `deadline_ns` (monotonic; INT64_MAX: for ever). True:
// it has ended. Any number of threads may wait.
bool master_await(struct master *master, int64_t deadline_ns);
// Stops the master first. Nobody may be waiting. NULL is allowed.
void master_free(struct master *master);

// ---- asking a master from outside of its run: status_query.c ----

// The first frame of a connection: STATUS, RUNS, DIAGNOSE, REMOVE or STACKS.
struct status_question {
    struct transport_context *context; // of a master, with keys, for REMOVE and STACKS
    struct wire_address master;
    struct wire_run run; // that it is about; empty: the one without a name, or all
    // The way goes by a local socket if the master is of this host. One of the same user then tells everything,
    // whatever the keys.
    bool local;
    enum wire_type type;
    const void *body;
    size_t length;
};

struct status_query;

// Asks, and waits for nothing. 0 or -errno.
int status_query_begin(const struct status_question *question, struct status_query **out);
// Waits for the answer until `deadline_ns` (monotonic): its body, which lives as long as the query, and its type, which
// is REMOVED where the master does not ask the peer for its stacks. Returns 0, or without an answer -ETIMEDOUT, after
// which you may wait again, -EPROTO, -ECONNREFUSED or another -errno.
int status_query_wait(struct status_query *query, int64_t deadline_ns, struct wire_header *header,
                      const uint8_t **body);
void status_query_end(struct status_query *query); // NULL is allowed

#endif
