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

// Asks what it does in this run (NULL: the one without a name), and waits for the answer until `deadline_ns`
// (monotonic). Returns 0, or without an answer -ETIMEDOUT, -EPROTO, -ECONNREFUSED or another -errno.
int status_query_ask(struct transport_context *context, const struct wire_address *master, const struct wire_run *run,
                     int64_t deadline_ns, struct wire_status_is *out);
// Asks which runs it serves. A master that does not trust this process names none. `local` as for status_query_begin.
// Otherwise as status_query_ask.
int status_query_runs(struct transport_context *context, const struct wire_address *master, bool local,
                      int64_t deadline_ns, struct wire_runs_are *out);

// Has a member taken out of the run. `context` has to be of a master, with keys. `out`: why the master did not; empty:
// it did. Otherwise as status_query_ask.
int status_query_remove(struct transport_context *context, const struct wire_address *master,
                        const struct wire_run *run, const struct wire_remove *remove, int64_t deadline_ns,
                        struct wire_text *out);

struct status_stacks {
    struct wire_text why; // the master does not ask the peer; empty: it has
    uint32_t length;
    char chars[WIRE_MAX_STACKS]; // any bytes
};

// Asks where the threads of a peer's program stand, likewise. -ETIMEDOUT: the peer, or the master, has not answered.
int status_query_stacks(struct transport_context *context, const struct wire_address *master,
                        const struct wire_run *run, const struct wire_id *id, int64_t deadline_ns,
                        struct status_stacks *out);

// Asks what the members of its run have seen of their ops and of each other, in pieces.
struct status_query;

// 0 or -errno. Waits for nothing. `proof` is that of a member. NULL: of somebody else, who is told everything by a
// master whose run has the same keys, and counts by any other one. With `local`, a master of the same user on this host
// also tells everything, whatever the keys.
int status_query_begin(struct transport_context *context, const struct wire_address *master, const struct wire_run *run,
                       const struct wire_diagnose *proof, bool local, struct status_query **out);
// Like status_query_ask; after -ETIMEDOUT you may wait again. The caller owns `members` and `edges` of `out`.
int status_query_wait(struct status_query *query, int64_t deadline_ns, struct wire_matrix *out);
void status_query_end(struct status_query *query); // NULL is allowed

#endif
