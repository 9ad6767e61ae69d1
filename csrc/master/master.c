#define _GNU_SOURCE
#define LOG_COMPONENT "master"
#include "master/master.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/platform.h"
#include "net/context.h"
#include "net/listener.h"
#include "net/rendezvous.h"
#include "net/socket.h"
#include "master/master_private.h"
#include "master/core.h"
#include "master/keys_signer.h"

enum {
    CHUNK_BYTES = 64 * 1024,    // read from one connection before the others have their turn
    ACCEPT_PAUSE_MS = 500,      // when descriptors or memory are short
    LOCAL = MASTER_MAX_LISTENS, // the listener for this host and user (net/rendezvous), behind those of addresses
    LISTENERS,
    TOKEN_LISTENER = ACTIONS_MAX_CONNS,
    TOKEN_WAKE = TOKEN_LISTENER + LISTENERS,
    EVENTS, // all at once, so that a tick comes after everything that has arrived
};

_Static_assert(CORE_MAX_KNOWN + MASTER_MAX_ANONYMOUS < ACTIONS_MAX_CONNS, "a place is left for other masters");

enum ending {
    ENDING_NOT,
    ENDING_RUN,
    ENDING_DETACHED, // peers look for another master, or for this one when it is back
};

struct master {
    struct wire_address addresses[MASTER_MAX_LISTENS];
    uint32_t address_count, heartbeat_limit_ms;
    bool standby, new;
    int wake;
    atomic_int ending; // enum ending

    bool run; // guarded by the caller: run, await and free do not race
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended; // guarded by `lock`
    // The rest is the thread's.
    struct transport_context *transport;
    int poller;
    struct listener listeners[LISTENERS];
    int64_t now_ns;
    struct master_core *core;
    struct wire_address others[WIRE_MAX_MASTERS]; // masters of the list; set before the thread begins
    uint32_t other_count;
    bool asks;               // all of them, at once
    enum wire_activity most; // of the answers
    int64_t known_until_ns;  // `most` holds
    int64_t looks_ns;        // for a run of another master; INT64_MAX: nobody waits here
    uint32_t idle_limit_ms;  // after which it ends; 0: never
    int64_t ends_ns;         // unless somebody comes; INT64_MAX: somebody is here
    struct log_limit run_log, strangers_log, shortage_log;
    struct conn conns[ACTIONS_MAX_CONNS];
    uint32_t conn_count[CONN_STATES];
    struct core_loss lost[ACTIONS_MAX_CONNS]; // in this turn
    size_t lost_count;
    uint8_t chunk[CHUNK_BYTES];
    struct epoll_event events[EVENTS];
};

// ---- connections ----

static uint32_t index_of(const struct master *master, const struct conn *conn) {
    return (uint32_t)(conn - master->conns);
}

static void set_state(struct master *master, struct conn *conn, enum conn_state state) {
    master->conn_count[conn->state]--;
    conn->state = state;
    master->conn_count[state]++;
}

static void conn_close(struct master *master, struct conn *conn) {
    transport_free(conn->stream);
    conn_in_fini(&conn->in);
    conn_out_fini(&conn->out);
    set_state(master, conn, CONN_UNUSED);
    *conn = (struct conn){0};
}

static bool conn_watch(struct master *master, struct conn *conn, uint32_t events) {
    return transport_watch(conn->stream, master->poller, events, (epoll_data_t){.u64 = index_of(master, conn)});
}

// ---- writing ----

// Reads what arrived before the end, then the end: the last frame says why the connection ended.
static void conn_break(struct conn *conn) {
    conn->broken = true;
    transport_hang_up(conn->stream);
}

static void want_write(struct master *master, struct conn *conn, bool wanted) {
    if (conn->wants_write == wanted) return;
    conn->wants_write = wanted;
    if (!conn_watch(master, conn, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN)) conn_break(conn);
}

static void conn_send(struct master *master, struct conn *conn, const uint8_t *from, size_t length) {
    if (conn->broken) return;
    int error = conn_out_send(&conn->out, conn->stream, from, length);
    bool full = error == -ENOMEM || conn_out_waiting(&conn->out) > MASTER_MAX_UNSENT;
    if (full) LOG_LIMITED(&master->strangers_log, LOG_WARN, "dropped a peer: it does not read what the master sends");
    if (error != 0 || full) conn_break(conn);
    if (!conn->broken) want_write(master, conn, conn_out_waiting(&conn->out) > 0);
}

static void conn_flush(struct master *master, struct conn *conn) {
    if (!conn->broken && conn_out_flush(&conn->out, conn->stream) != 0) conn_break(conn);
    if (!conn->broken) want_write(master, conn, conn_out_waiting(&conn->out) > 0);
}

// ---- closing: reads what still arrives, since a reset would destroy the last frames ----

static void conn_end(struct master *master, struct conn *conn) {
    if (!conn->broken && conn_out_waiting(&conn->out) > 0) return;
    if (conn->broken) {
        conn_close(master, conn);
    } else if (!conn->told) {
        conn->told = true;
        transport_finish(conn->stream);
    }
}

static void conn_start_closing(struct master *master, struct conn *conn) {
    set_state(master, conn, CONN_CLOSING);
    conn->deadline_ns = master->now_ns + MASTER_CLOSE_LIMIT_MS * MS_NS;
    conn_in_clear(&conn->in);
    conn_end(master, conn);
}

// ---- what the state machine says ----

static void carry_out(struct master *master, const struct actions *actions) {
    for (size_t i = 0; i < actions->log_count; i++)
        LOG_LIMITED(actions->logs[i].of_strangers ? &master->strangers_log : &master->run_log, actions->logs[i].level,
                    "%s", actions->logs[i].text);
    for (size_t i = 0; i < actions->send_count; i++) {
        const struct actions_send *send = &actions->sends[i];
        conn_send(master, &master->conns[send->conn], actions->bytes.bytes + send->offset, send->length);
    }
    for (size_t i = 0; i < actions->close_count; i++) conn_start_closing(master, &master->conns[actions->closes[i]]);
    uint8_t random[CORE_RANDOM_BYTES];
    if (core_wants_random(master->core) && platform_random(random, sizeof random))
        core_set_random(master->core, random);
}

static void conn_lose(struct master *master, struct conn *conn, const char *why) {
    if (conn->state != CONN_KNOWN) {
        conn_close(master, conn);
        return;
    }
    conn->broken = true;
    set_state(master, conn, CONN_LOST);
    master->lost[master->lost_count++] = (struct core_loss){index_of(master, conn), why};
}

// Many that end together, as with a rack, are one epoch and not one each.
static void tell_lost(struct master *master) {
    size_t count = 0;
    for (size_t i = 0; i < master->lost_count; i++) // the state machine may have forgotten some since
        if (master->conns[master->lost[i].conn].state == CONN_LOST) master->lost[count++] = master->lost[i];
    master->lost_count = 0;
    for (size_t i = 0; i < count; i++) conn_close(master, &master->conns[master->lost[i].conn]);
    if (count > 0) carry_out(master, core_peers_lost(master->core, master->now_ns, master->lost, count));
}

// ---- accepting and dialling ----

static struct conn *oldest(struct master *master, enum conn_state state) {
    struct conn *found = NULL;
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS; i++) {
        struct conn *conn = &master->conns[i];
        if (conn->state == state && (found == NULL || conn->deadline_ns < found->deadline_ns)) found = conn;
    }
    return found;
}

// NULL: there is no place for it, and it is closed.
static struct conn *conn_open(struct master *master, struct transport *stream, enum conn_state state, int64_t ms) {
    if (master->conn_count[CONN_UNUSED] == 0 && master->conn_count[CONN_CLOSING] > 0)
        conn_close(master, oldest(master, CONN_CLOSING));
    struct conn *conn = oldest(master, CONN_UNUSED);
    if (conn == NULL) {
        transport_free(stream);
        return NULL;
    }
    int64_t deadline_ns = master->now_ns + ms * MS_NS;
    *conn = (struct conn){.stream = stream, .deadline_ns = deadline_ns, .opens = true};
    set_state(master, conn, state);
    conn->wants_write = state == CONN_ASKED;
    if (conn_watch(master, conn, conn->wants_write ? EPOLLOUT : EPOLLIN)) return conn;
    conn_close(master, conn);
    return NULL;
}

static void tell_shortage(struct master *master, int error) {
    LOG_LIMITED(&master->shortage_log, LOG_ERR, "cannot accept connections now: %s", strerror(error));
    if (master->conn_count[CONN_ANONYMOUS] > 0) conn_close(master, oldest(master, CONN_ANONYMOUS));
}

// ---- the other masters of the list ----

// All at once, and nothing waits for them.
static void ask_others(struct master *master) {
    if (master->asks) return;
    master->asks = true;
    master->most = WIRE_IDLE;
    for (uint32_t i = 0; i < master->other_count; i++) {
        struct transport *stream;
        if (transport_dial(master->transport, &master->others[i], &stream) != 0) continue;
        struct conn *conn = conn_open(master, stream, CONN_ASKED, MASTER_ASK_MS);
        if (conn != NULL) wire_encode_empty(&conn->out.bytes, (struct wire_header){0}, WIRE_STATUS);
    }
}

// Asks the other masters while this one gathers: a peer that missed a takeover dials the first master of its list.
static void look_elsewhere(struct master *master) {
    if (master->other_count == 0 || core_activity(master->core) != WIRE_GATHERS) {
        master->looks_ns = INT64_MAX;
        return;
    }
    if (master->looks_ns <= master->now_ns) ask_others(master);
    if (master->looks_ns <= master->now_ns || master->looks_ns == INT64_MAX)
        master->looks_ns = master->now_ns + MASTER_LOOK_MS * MS_NS;
}

// All have answered, or had their time.
static void hear_others(struct master *master) {
    if (!master->asks || master->conn_count[CONN_ASKED] > 0) return;
    master->asks = false;
    master->known_until_ns = master->now_ns + (master->most == WIRE_IDLE ? MASTER_IDLE_MS : MASTER_BUSY_MS) * MS_NS;
    carry_out(master, core_others_are(master->core, master->now_ns, master->most));
    if (master->ends_ns > master->now_ns) return;
    if (master->most == WIRE_IDLE)
        master_interrupt(master);
    else
        master->ends_ns = INT64_MAX;
}

// Ends when its limit has passed without a peer, unless another master of the list has a run.
static void end_if_idle(struct master *master) {
    bool idle = master->conn_count[CONN_KNOWN] == 0 && core_activity(master->core) == WIRE_IDLE;
    if (!idle || master->idle_limit_ms == 0)
        master->ends_ns = INT64_MAX;
    else if (master->ends_ns == INT64_MAX)
        master->ends_ns = master->now_ns + master->idle_limit_ms * MS_NS;
    else if (master->ends_ns <= master->now_ns)
        ask_others(master);
}

// ---- reading ----

static void conn_refuse(struct master *master, struct conn *conn, int error) {
    char address[64];
    socket_address_format(address, sizeof address, &conn->source);
    if (transport_refused(error))
        LOG_LIMITED(&master->strangers_log, LOG_WARN, "refused %s: %s", address, transport_why(conn->stream, error));
    conn_close(master, conn);
}

static void answer(struct master *master, struct conn *conn, const struct wire_header *header, const uint8_t *body) {
    struct wire_status_is status = {.activity = (uint8_t)core_activity(master->core),
                                    .completed = core_completed(master->core)};
    if (header->type == WIRE_STATUS)
        wire_encode_status_is(&conn->out.bytes, (struct wire_header){0}, &status);
    else
        core_describe(master->core, master->now_ns, header, body, conn_is_trusted(conn), &conn->out.bytes);
    conn_flush(master, conn);
    conn_start_closing(master, conn);
}

static void on_frame(struct master *master, struct conn *conn, const struct wire_header *header, const uint8_t *body) {
    uint32_t index = index_of(master, conn);
    if (conn->state == CONN_KNOWN) {
        carry_out(master, core_message(master->core, master->now_ns, index, header, body));
        return;
    }
    struct wire_hello hello;
    int error = conn_judge(conn, header, body, &hello);
    if (error != 0 || conn_carries_question(header)) {
        if (error != 0)
            conn_refuse(master, conn, error);
        else
            answer(master, conn, header, body);
        return;
    }
    bool resumes = header->type == WIRE_RESUME, serves = core_activity(master->core) == WIRE_SERVES;
    bool may_begin = !resumes && !master->standby && master->other_count > 0 && !serves;
    if (may_begin && master->now_ns >= master->known_until_ns) {
        ask_others(master);
        core_await_others(master->core);
    }
    set_state(master, conn, CONN_KNOWN);
    carry_out(master, resumes ? core_peer_resumed(master->core, master->now_ns, index, &conn->source, header, body)
                              : core_peer_connected(master->core, master->now_ns, index, &conn->source, &hello));
}

static void on_answer(struct master *master, struct conn *conn, const struct wire_header *header, const uint8_t *body) {
    struct wire_status_is status;
    if (wire_decode_status_is(body, header->length, &status) && status.activity > master->most)
        master->most = status.activity;
    conn_close(master, conn);
}

// Gives the state machine the frames that are complete.
static void take_frames(struct master *master, struct conn *conn) {
    while (conn_hears(conn)) {
        struct wire_header header;
        const uint8_t *body;
        enum conn_next next = conn_in_next(&conn->in, conn_carries(conn), &header, &body);
        if (next == CONN_MORE) return;
        if (next == CONN_FRAME && conn->state == CONN_ASKED)
            on_answer(master, conn, &header, body);
        else if (next == CONN_FRAME)
            on_frame(master, conn, &header, body);
        else
            conn_lose(master, conn, "it sent an invalid message");
    }
}

static void conn_read(struct master *master, struct conn *conn) {
    bool more;
    do {
        enum conn_state before = conn->state;
        ptrdiff_t got = conn_receive(conn, master->chunk, sizeof master->chunk);
        master->now_ns = platform_now_ns(); // this process may have been stopped since it looked last
        if (got == -EAGAIN) break;
        if (got <= 0) {
            conn_lose(master, conn,
                      got == 0         ? "its connection ended"
                      : got == -ENOMEM ? "the master is out of memory"
                                       : "its connection broke");
            return;
        }
        // A broken connection must end soon, whatever it has sent. TELEMETRY comes from the data plane and goes on even
        // if the peer's control thread hangs.
        if (conn->state == CONN_KNOWN && !conn->broken && conn_in_type(&conn->in) != WIRE_TELEMETRY)
            core_heard(master->core, master->now_ns, index_of(master, conn));
        take_frames(master, conn);
        if (conn->state == CONN_UNUSED || conn->state == CONN_LOST) return;
        more = conn->stream->buffered || (conn->state == before && (before == CONN_ANONYMOUS || before == CONN_ASKED));
    } while (more);
    if (conn_hears(conn) && conn->in.taken == conn->in.bytes.length) conn_in_clear(&conn->in);
}

// ---- handshakes ----

// Carries the handshake on. Then a dialled connection can be written, and an accepted one read.
static void conn_handshake(struct master *master, struct conn *conn) {
    int error = transport_step(conn->stream);
    if (error == -EAGAIN) return;
    conn->opens = false;
    if (error == 0 && conn->state == CONN_ASKED && !transport_may_be(conn->stream, TRANSPORT_MASTER, NULL))
        error = -EBADE;
    if (error != 0 || !conn_watch(master, conn, conn->wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN))
        conn_refuse(master, conn, error);
    else if (conn->stream->buffered)
        conn_read(master, conn);
}

static void accept_some(struct master *master, struct listener *listener) {
    for (uint32_t i = 0; i < LISTENER_TURN; i++) {
        struct transport *stream;
        struct wire_address source;
        int error = listener_accept(listener, &stream, &source, master->now_ns);
        if (listener_pauses(listener)) tell_shortage(master, -error);
        if (error == -EAGAIN || listener_pauses(listener)) return;
        if (error != 0) continue; // that connection was gone before it was accepted
        if (master->conn_count[CONN_ANONYMOUS] >= MASTER_MAX_ANONYMOUS)
            conn_close(master, oldest(master, CONN_ANONYMOUS));
        struct conn *conn = conn_open(master, stream, CONN_ANONYMOUS, MASTER_HELLO_LIMIT_MS);
        if (conn != NULL) conn->source = source;
        if (conn != NULL) conn_handshake(master, conn);
    }
}

// ---- the loop ----

static bool some_have_limits(const struct master *m) {
    return m->conn_count[CONN_ANONYMOUS] + m->conn_count[CONN_CLOSING] + m->conn_count[CONN_ASKED] > 0;
}

static int64_t next_deadline(struct master *master) {
    int64_t next = platform_earlier(core_next_deadline(master->core), master->looks_ns);
    for (uint32_t i = 0; i < LISTENERS; i++) next = platform_earlier(next, master->listeners[i].resumes_ns);
    if (!master->asks) next = platform_earlier(next, master->ends_ns);
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS && some_have_limits(master); i++)
        if (has_limit(&master->conns[i])) next = platform_earlier(next, master->conns[i].deadline_ns);
    return next;
}

static void act_on_time(struct master *master) {
    for (uint32_t i = 0; i < LISTENERS; i++) listener_tick(&master->listeners[i], master->now_ns);
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS && some_have_limits(master); i++)
        if (has_limit(&master->conns[i]) && master->conns[i].deadline_ns <= master->now_ns)
            conn_close(master, &master->conns[i]);
    if (core_next_deadline(master->core) <= master->now_ns) carry_out(master, core_tick(master->core, master->now_ns));
}

static void on_conn(struct master *master, struct conn *conn, uint32_t events) {
    if (conn->state == CONN_UNUSED || conn->state == CONN_LOST) return; // closed by an event before this one
    if (conn->opens) {
        conn_handshake(master, conn);
        return;
    }
    if (events & EPOLLOUT) conn_flush(master, conn);
    if (conn->state == CONN_CLOSING) conn_end(master, conn);
    if (conn->state != CONN_UNUSED && (events & ~(uint32_t)EPOLLOUT)) conn_read(master, conn);
}

static void serve(struct master *master) {
    struct epoll_event *events = master->events;
    bool overslept = false;
    end_if_idle(master);
    while (atomic_load(&master->ending) == ENDING_NOT) {
        int64_t began = platform_now_ns();
        int wait_ms = platform_wait_ms(began, next_deadline(master));
        int count = epoll_wait(master->poller, events, EVENTS, wait_ms);
        master->now_ns = platform_now_ns();
        for (int i = 0; i < count; i++) {
            uint64_t token = events[i].data.u64;
            if (token == TOKEN_WAKE)
                wake_clear(master->wake);
            else if (token >= TOKEN_LISTENER)
                accept_some(master, &master->listeners[token - TOKEN_LISTENER]);
            else
                on_conn(master, &master->conns[token], events[i].events);
        }
        tell_lost(master);
        overslept = !overslept && platform_overslept(began, wait_ms, platform_now_ns());
        if (overslept) continue;
        act_on_time(master);
        look_elsewhere(master);
        end_if_idle(master);
        hear_others(master);
    }
}

// Reads what still arrives, since a reset would destroy the last frames.
static void say_farewell(struct master *master) {
    carry_out(master, core_farewell(master->core, master->now_ns));
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS; i++) {
        struct conn *conn = &master->conns[i];
        if (conn->state != CONN_KNOWN) continue;
        transport_finish(conn->stream);
        while (transport_receive(conn->stream, master->chunk, sizeof master->chunk) > 0) continue;
    }
}

static void close_all(struct master *master) {
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS; i++)
        if (master->conns[i].state != CONN_UNUSED) conn_close(master, &master->conns[i]);
    for (uint32_t i = 0; i < LISTENERS; i++) listener_close(&master->listeners[i]);
    descriptor_close(master->poller);
    master->poller = -1;
}

static void *thread_main(void *context) {
    struct master *master = context;
    serve(master);
    bool detached = atomic_load(&master->ending) == ENDING_DETACHED;
    if (!detached) say_farewell(master);
    close_all(master);
    LOG(LOG_NOTICE, "stopped, %u peers: %s", core_peer_count(master->core),
        detached ? "the run waits for another master, or for this one to return" : "the run has ended");
    pthread_mutex_lock(&master->lock);
    master->ended = true;
    pthread_cond_broadcast(&master->changed);
    pthread_mutex_unlock(&master->lock);
    return NULL;
}

// ---- life ----

static void make_listeners(struct master *master) {
    for (uint32_t i = 0; i < LISTENERS; i++)
        master->listeners[i] = listener_closed(master->transport, master->poller, TOKEN_LISTENER + i, ACCEPT_PAUSE_MS);
}

struct master *master_new(const struct wire_address *listen, uint32_t heartbeat_limit_ms,
                          const struct transport_options *transport) {
    struct master *master = calloc(1, sizeof *master);
    if (master == NULL) return NULL;
    master->addresses[master->address_count++] = *listen;
    master->heartbeat_limit_ms = heartbeat_limit_ms;
    master->poller = -1;
    master->transport = context_new(transport);
    master->looks_ns = INT64_MAX;
    master->ends_ns = INT64_MAX;
    master->run_log = (struct log_limit){.lines = 100, .seconds = 10};
    master->strangers_log = (struct log_limit){.lines = 20, .seconds = 10};
    master->shortage_log = (struct log_limit){.lines = 1, .seconds = 10};
    master->conn_count[CONN_UNUSED] = ACTIONS_MAX_CONNS;
    master->wake = wake_open();
    pthread_mutex_init(&master->lock, NULL);
    if (master->transport != NULL && master->wake >= 0 && platform_cond_init(&master->changed)) return master;
    pthread_mutex_destroy(&master->lock);
    descriptor_close(master->wake);
    transport_context_release(master->transport);
    free(master);
    return NULL;
}

void master_set_list(struct master *master, const struct wire_address *masters, uint32_t count, uint32_t self) {
    master->other_count = 0;
    for (uint32_t i = 0; i < count; i++)
        if (i != self) master->others[master->other_count++] = masters[i];
    master->standby = self > 0;
}

void master_listen_also(struct master *master, const struct wire_address *address) {
    if (master->address_count < MASTER_MAX_LISTENS) master->addresses[master->address_count++] = *address;
}

void master_set_new(struct master *master) { master->new = true; }
void master_set_idle_limit(struct master *master, uint32_t limit_ms) { master->idle_limit_ms = limit_ms; }

static int open_all(struct master *master) {
    master->poller = descriptor_epoll();
    make_listeners(master);
    if (master->poller < 0) return master->poller;
    int error = listener_open_all(master->listeners, master->addresses, master->address_count);
    if (error != 0) return error;
    listener_open(&master->listeners[LOCAL], rendezvous_listen_master(master_port(master))); // else counts only here
    struct epoll_event woken = {.events = EPOLLIN, .data.u64 = TOKEN_WAKE};
    if (epoll_ctl(master->poller, EPOLL_CTL_ADD, master->wake, &woken) != 0) return -ENOMEM;
    uint8_t random[CORE_RANDOM_BYTES];
    if (!platform_random(random, sizeof random)) return -EIO;
    master->now_ns = platform_now_ns();
    master->core = core_new(master->heartbeat_limit_ms, random, master->now_ns);
    if (master->core == NULL) return -ENOMEM;
    core_set_standby(master->core, master->standby);
    keys_sign_epochs(master->transport->options.keys, master->core);
    if (!master->new) core_expect_survivors(master->core, master->now_ns + MASTER_YOUNG_MS * MS_NS);
    if (master->new) master->known_until_ns = master->now_ns + MASTER_BUSY_MS * MS_NS; // the others are new, too
    return platform_thread_start(&master->thread, "pccl:master", thread_main, master) ? 0 : -EAGAIN;
}

int master_run(struct master *master) {
    if (master->run) return -EALREADY;
    int error = open_all(master);
    if (error == 0) {
        master->run = true;
        return 0;
    }
    core_free(master->core);
    master->core = NULL;
    close_all(master);
    return error;
}

uint16_t master_port(const struct master *master) { return master->addresses[0].port; }

static void stop(struct master *master, enum ending ending) {
    int not_yet = ENDING_NOT;
    atomic_compare_exchange_strong(&master->ending, &not_yet, (int)ending);
    wake_signal(master->wake);
}

void master_interrupt(struct master *master) { stop(master, ENDING_RUN); }
void master_detach(struct master *master) { stop(master, ENDING_DETACHED); }

bool master_await(struct master *master, int64_t deadline_ns) {
    if (!master->run) return true;
    bool in_time = true;
    pthread_mutex_lock(&master->lock);
    while (!master->ended && in_time) in_time = platform_cond_wait(&master->changed, &master->lock, deadline_ns);
    bool ended = master->ended;
    pthread_mutex_unlock(&master->lock);
    return ended;
}

void master_free(struct master *master) {
    if (master == NULL) return;
    if (master->run) {
        master_interrupt(master);
        pthread_join(master->thread, NULL);
    }
    core_free(master->core);
    pthread_cond_destroy(&master->changed);
    pthread_mutex_destroy(&master->lock);
    descriptor_close(master->wake);
    transport_context_release(master->transport);
    free(master);
}
