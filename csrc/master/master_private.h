// The state of a master's thread: its connections, listeners and timers.
#ifndef PCCL_MASTER_MASTER_PRIVATE_H
#define PCCL_MASTER_MASTER_PRIVATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "base/platform.h"
#include "base/recorder.h"
#include "base/share.h"
#include "master/core.h"
#include "master/master.h"
#include "net/endpoint.h"
#include "net/wire_control.h"

enum {
    MASTER_CHUNK_BYTES = 64 * 1024,            // read from one connection before the others have their turn
    MASTER_LISTENERS = 2 * MASTER_MAX_LISTENS, // for each address one, and one for this host and user
    MASTER_TOKEN_WAKE = 0,                     // the endpoint's are behind it
    MASTER_TOKENS,
    // all at once, so that a tick comes after everything that has arrived
    MASTER_EVENTS = ACTIONS_MAX_CONNS + MASTER_LISTENERS + 1,
};
_Static_assert((int)MASTER_LISTENERS <= (int)ENDPOINT_LISTENERS, "each address has two");

enum ending {
    ENDING_NOT,
    ENDING_RUN,
    ENDING_DETACHED, // peers look for another master, or for this one when it is back
};

enum conn_state {
    CONN_ANONYMOUS = ENDPOINT_STRANGER, // no hello yet
    CONN_HELD,                          // has said HELLO, and is dialled before the state machine hears of it
    CONN_KNOWN,                         // the state machine knows it
    CONN_LOST,                          // ended; the state machine is told after all that has arrived with it
    CONN_CLOSING,                       // the state machine has forgotten it; its last words are being written
    CONN_ASKED,                         // another master of the list, which has not yet told what it does
    CONN_DIALS,                         // to the address of one that is held
};

// A question to all other masters of the list, at once.
struct question {
    bool asked;
    uint32_t open;           // connections on which an answer may still come
    enum wire_activity most; // of the answers
};

// A run that this master serves, or has served.
struct master_run {
    struct wire_run name;
    struct master_core *core; // NULL: the place is free
    struct question question; // what the others do in this run
    int64_t known_until_ns;   // the answer holds
    int64_t looks_ns;         // for a run of another master; INT64_MAX: nobody waits here
    uint64_t begun;           // grows from run to run: the lowest is the oldest
    struct share share;       // of this turn, for its connections
    bool late;                // there was no time for some of them
    uint32_t late_turns;      // in a row, before this one
};

struct conn {
    struct endpoint_conn at;
    struct wire_run named;     // ANONYMOUS: the run that it has named
    struct wire_id asks;       // ANONYMOUS: the peer whose stacks it waits for; all 0: none
    struct master_run *run;    // KNOWN, LOST
    struct question *question; // ASKED: what it asks
    struct dial_back *back;    // HELD: owned
    struct conn *held;         // DIALS: for whom
    const char *lost;          // LOST: why
    bool broken, told; // cannot be written to; CLOSING: everything is written and the end of the stream announced
    bool put_off;      // served in the next turn: its stream holds bytes, frames are left, or its time was over
};

struct master {
    struct wire_address addresses[MASTER_MAX_LISTENS];
    uint32_t address_count;
    bool standby;
    int wake;
    atomic_int ending; // enum ending

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended; // guarded by `lock`
    // The rest is the thread's.
    struct transport_context *transport, *plain; // of all connections; of those that only show whether one can be made
    struct recorder *recorder;                   // of the events of all runs; NULL: none
    struct endpoint endpoint;                    // of struct conn
    int64_t now_ns;
    uint32_t heartbeat_limit_ms, deadlock_s;
    int64_t survivors_until_ns, new_until_ns; // of each run that is made: see MASTER_YOUNG_MS, and `new` in the options
    struct master_run runs[WIRE_MAX_RUNS];    // the first is the one without a name, which is always there
    uint64_t runs_begun;
    struct wire_address others[WIRE_MAX_MASTERS]; // masters of the list; set before the thread begins
    uint32_t other_count;
    struct question every_run; // what the others do in any run
    uint32_t idle_limit_ms;    // after which it ends; 0: never
    int64_t ends_ns;           // unless somebody comes; INT64_MAX: somebody is here
    struct log_limit run_log, strangers_log, shortage_log;
    uint32_t put_off_count, put_off_first;
    struct share *share;                      // of the connection that is served now
    struct core_loss lost[ACTIONS_MAX_CONNS]; // of one run
    uint8_t chunk[MASTER_CHUNK_BYTES];
    struct epoll_event events[MASTER_EVENTS];
};

// ---- master_runs.c ----

// The run of this name; NULL: there is none.
struct master_run *master_find_run(struct master *master, const struct wire_run *name);
// The same, and makes one: in a free place, or in that of the oldest run that has ended. NULL: there is no place, or
// memory is refused.
struct master_run *master_open_run(struct master *master, const struct wire_run *name);
// Appends the answer to RUNS: of the run with the name `only`, or of all if that is no name.
void master_tell_runs(const struct master *master, const struct wire_run *only, struct wire_buffer *out);
// Refuses the first frame of a connection whose keys are confined to another run than the one that it has named. All
// but members that resume are told. False: it may go on.
bool master_refuse_run(struct master *master, struct conn *conn, const struct wire_header *header);
// Writes the events of a run into the flight recorder.
void master_record(struct master *master, const struct master_run *run, const struct actions *actions);

// ---- master_loop.c ----

extern const struct endpoint_type master_conns;
// The thread, with the master as context.
void *master_loop(void *context);
// Closes all connections and listeners.
void master_close_all(struct master *master);

// ---- master_conns.c ----

// The connection in a place of the endpoint, by which the state machine names it. NULL: there is none.
static inline struct conn *master_conn(const struct master *master, uint32_t place) {
    return (struct conn *)(void *)master->endpoint.places[place];
}
static inline bool master_conn_hears(const struct conn *conn) {
    return conn->at.state == CONN_ANONYMOUS || conn->at.state == CONN_KNOWN || conn->at.state == CONN_ASKED;
}
// Whether a frame of this type asks for something, and is answered with the end of the connection.
bool master_conn_asks(const struct wire_header *header);
conn_carries_fn *master_conn_carries(const struct conn *conn);
void master_conn_put_off(struct master *master, struct conn *conn, bool put_off);
// Releases what the master keeps for it. For the endpoint.
void master_conn_fini(void *master, struct endpoint_conn *conn);
void master_conn_close(struct master *master, struct conn *conn);
// Closes a connection once everything is sent, and its end has been heard.
void master_conn_start_closing(struct master *master, struct conn *conn);
// Goes on with that.
void master_conn_end(struct master *master, struct conn *conn);
// Closes the dials for a newcomer that is held, and ends its test.
void master_conn_forget_dials(struct master *master, struct conn *held);
// Sends what the kernel takes; the rest waits.
void master_conn_send(struct master *master, struct conn *conn, const uint8_t *from, size_t length);
void master_conn_flush(struct master *master, struct conn *conn);

// ---- master_operator.c ----

// Takes a REMOVE or STACKS, of those who have proved that they have the master's key. Returns why not, or NULL: it is
// done, or the connection waits for the peer's stacks. `actions`: set if the run's state machine answers.
const char *master_take_request(struct master *master, struct conn *conn, const struct wire_header *header,
                                const uint8_t *body, const struct actions **actions);
// Passes a peer's stacks on to all who wait for them. Without any they are dropped.
void master_tell_stacks(struct master *master, const struct conn *from, const uint8_t *text, size_t length);

// ---- dial_back.c ----

// Dials the addresses of a newcomer. False: it is not to be held.
bool dial_back_begin(struct master *master, struct conn *conn, const struct wire_hello *hello);
// An event of a connection in state DIALS. Returns the newcomer whose test has ended; NULL: it goes on.
struct conn *dial_back_step(struct master *master, struct conn *conn);
// Ends the test, and tells what is wrong. `hello`: what the state machine is to hear.
void dial_back_end(struct master *master, struct conn *held, struct wire_hello *hello);

#endif
