// The thread of a master: reads what arrives, gives it to the state machine (master/core), and carries out the answer.
#define _GNU_SOURCE
#define LOG_COMPONENT "master"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/descriptor.h"
#include "master/master_private.h"
#include "master/matrix.h"
#include "net/socket.h"

enum {
    FAREWELL_CHUNKS = 64, // read from a peer at the end, at most
    // The next turn does the work that is left.
    RUNS_TURN_US = 20000, // of a turn for the connections of all runs, in equal parts
    LATE_TURNS = 16,      // a run with more work than time judges silence only in one turn of so many
};

_Static_assert(CORE_MAX_KNOWN + MASTER_MAX_ANONYMOUS < ACTIONS_MAX_CONNS, "a place is left for other masters");

// ---- connections ----

// Reads at most one frame of a stranger, and holds only the memory that the frame takes. What is not heard is dropped.
static ptrdiff_t conn_receive(struct conn *conn, uint8_t *chunk, size_t bytes) {
    if (!master_conn_hears(conn)) return transport_receive(conn->at.stream, chunk, bytes);
    return conn_in_receive(&conn->at.in, conn->at.stream, conn->at.state == CONN_KNOWN ? bytes : 0);
}

// Judges the first frame of a connection, and decodes a HELLO. With keys, the peer has to have proved the id
// that it claims; in another version it claims none, and will be refused. 0, -EBADE, or -EPROTO: malformed.
static int conn_judge(const struct conn *conn, const struct wire_header *header, const uint8_t *body,
                      struct wire_hello *hello) {
    if (master_conn_asks(header)) return 0;
    bool decoded = header->type == WIRE_HELLO ? wire_decode_hello(body, header->length, hello)
                                              : wire_decode_identity(body, header->length, hello);
    if (!decoded) return header->type == WIRE_HELLO ? -EPROTO : 0; // a malformed RESUME gets an answer
    const struct wire_id *claimed = hello->version == WIRE_VERSION ? &hello->id : NULL;
    return transport_is_peer(conn->at.stream, claimed) ? 0 : -EBADE;
}

// Whether the connection may read everything about the run: its process is of our user, or has keys.
static bool conn_is_trusted(const struct conn *conn) {
    return conn->at.source.family == 0 || conn->at.stream->peer.party != TRANSPORT_STRANGER;
}

// ---- what the state machine says ----

static void carry_out(struct master *master, struct master_run *run, const struct actions *actions) {
    const char *name = run->name.chars;
    for (size_t i = 0; i < actions->log_count; i++)
        LOG_LIMITED(actions->logs[i].of_strangers ? &master->strangers_log : &master->run_log, actions->logs[i].level,
                    "%s%s%s%s", *name ? "run " : "", name, *name ? ": " : "", actions->logs[i].text);
    if (actions->event_count > 0) master_record(master, run, actions);
    for (size_t i = 0; i < actions->send_count; i++) {
        const struct actions_send *send = &actions->sends[i];
        master_conn_send(master, master_conn(master, send->conn), actions->bytes.bytes + send->offset, send->length);
    }
    for (size_t i = 0; i < actions->close_count; i++)
        master_conn_start_closing(master, master_conn(master, actions->closes[i]));
    uint8_t random[CORE_RANDOM_BYTES];
    if (core_wants_random(run->core) && platform_random(random, sizeof random)) core_set_random(run->core, random);
}

static void conn_lose(struct master *master, struct conn *conn, const char *why) {
    if (conn->at.state != CONN_KNOWN) {
        master_conn_close(master, conn);
        return;
    }
    conn->broken = true;
    conn->lost = why;
    endpoint_set(&master->endpoint, &conn->at, CONN_LOST, INT64_MAX);
}

static void conn_expel(struct master *master, struct conn *conn, const char *why) {
    bool known = conn->at.state == CONN_KNOWN;
    const struct actions *actions = known ? core_expel(conn->run->core, master->now_ns, conn->at.place, why) : NULL;
    if (actions != NULL)
        carry_out(master, conn->run, actions);
    else
        conn_lose(master, conn, why);
}

// Many of a run that end together, as with a rack, are one epoch and not one each.
static void tell_lost(struct master *master) {
    while (master->endpoint.counts[CONN_LOST] > 0) {
        struct master_run *run = NULL;
        size_t count = 0;
        for (uint32_t i = 0; i < master->endpoint.count; i++) {
            struct conn *conn = master_conn(master, i);
            if (conn == NULL || conn->at.state != CONN_LOST || (run != NULL && conn->run != run)) continue;
            run = conn->run;
            master->lost[count++] = (struct core_loss){i, conn->lost};
            master_conn_close(master, conn);
        }
        carry_out(master, run, core_peers_lost(run->core, master->now_ns, master->lost, count));
    }
}

// ---- the other masters of the list ----

// All at once, and nothing waits for them.
static void ask_others(struct master *master, struct question *question, const char *run) {
    if (question->asked) return;
    question->asked = true;
    question->most = WIRE_IDLE;
    struct wire_run name = {{0}};
    memcpy(name.chars, run, strlen(run));
    for (uint32_t i = 0; i < master->other_count; i++) {
        struct transport *stream;
        if (transport_dial(master->transport, &master->others[i], &stream) != 0) continue;
        transport_expect(stream, TRANSPORT_MASTER, NULL);
        struct endpoint_conn *at =
            endpoint_add(&master->endpoint, stream, CONN_ASKED, EPOLLOUT, master->now_ns + MASTER_ASK_MS * MS_NS);
        if (at == NULL) continue;
        at->source = master->others[i];
        ((struct conn *)(void *)at)->question = question;
        question->open++;
        if (name.chars[0] != 0) wire_encode_run(&at->out.bytes, (struct wire_header){0}, &name);
        wire_encode_empty(&at->out.bytes, (struct wire_header){0}, WIRE_STATUS);
    }
}

// Asks the other masters while this one gathers: a peer that missed a takeover dials the first master of its list.
static void look_elsewhere(struct master *master, struct master_run *run) {
    if (master->other_count == 0 || core_activity(run->core) != WIRE_GATHERS) {
        run->looks_ns = INT64_MAX;
        return;
    }
    if (run->looks_ns <= master->now_ns) ask_others(master, &run->question, run->name.chars);
    if (run->looks_ns <= master->now_ns || run->looks_ns == INT64_MAX)
        run->looks_ns = master->now_ns + MASTER_LOOK_MS * MS_NS;
}

// Whether all have answered, or had their time.
static bool is_answered(struct question *question) {
    if (!question->asked || question->open > 0) return false;
    question->asked = false;
    return true;
}

static void hear_others(struct master *master, struct master_run *run) {
    if (!is_answered(&run->question)) return;
    enum wire_activity most = run->question.most;
    run->known_until_ns = master->now_ns + (most == WIRE_IDLE ? MASTER_IDLE_MS : MASTER_BUSY_MS) * MS_NS;
    carry_out(master, run, core_others_are(run->core, master->now_ns, most));
}

// Returns what this master does in the busiest of its runs.
static enum wire_activity activity_of_all(const struct master *master) {
    enum wire_activity most = WIRE_IDLE;
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++) {
        const struct master_core *core = master->runs[i].core;
        if (core != NULL && core_activity(core) > most) most = core_activity(core);
    }
    return most;
}

// Ends when its limit has passed without a peer, unless another master of the list has a run.
static void end_if_idle(struct master *master) {
    bool idle = master->endpoint.counts[CONN_KNOWN] + master->endpoint.counts[CONN_HELD] == 0 &&
                activity_of_all(master) == WIRE_IDLE;
    if (!idle || master->idle_limit_ms == 0)
        master->ends_ns = INT64_MAX;
    else if (master->ends_ns == INT64_MAX)
        master->ends_ns = master->now_ns + master->idle_limit_ms * MS_NS;
    else if (master->ends_ns <= master->now_ns)
        ask_others(master, &master->every_run, WIRE_EVERY_RUN);
    if (!is_answered(&master->every_run) || master->ends_ns > master->now_ns) return;
    if (master->every_run.most == WIRE_IDLE)
        master_interrupt(master);
    else
        master->ends_ns = INT64_MAX;
}

// ---- reading ----

static void conn_refuse(struct master *master, struct conn *conn, int error) {
    char address[64];
    socket_address_format(address, sizeof address, &conn->at.source);
    if (transport_refused(error))
        LOG_LIMITED(&master->strangers_log, LOG_WARN, "%s %s: %s",
                    conn->at.state == CONN_ASKED ? "cannot ask the other master of the list at" : "refused", address,
                    transport_why(conn->at.stream, error));
    master_conn_close(master, conn);
}

static void answer(struct master *master, struct conn *conn, const struct wire_header *header, const uint8_t *body) {
    struct wire_status_is status = {.activity = WIRE_IDLE, .ended_ms = UINT64_MAX};
    struct master_run *run = master_find_run(master, &conn->named);
    if (strcmp(conn->named.chars, WIRE_EVERY_RUN) == 0) status.activity = (uint8_t)activity_of_all(master);
    if (run != NULL) status = core_status(run->core, master->now_ns);
    if (header->type == WIRE_REMOVE || header->type == WIRE_STACKS) {
        const struct actions *actions = NULL;
        const char *why = master_take_request(master, conn, header, body, &actions);
        if (actions != NULL) carry_out(master, run, actions);
        if (why == NULL && header->type == WIRE_STACKS) return; // it waits for the peer's answer
        wire_encode_text(&conn->at.out.bytes, (struct wire_header){0}, WIRE_REMOVED, why != NULL ? why : "");
    } else if (header->type == WIRE_RUNS && conn_is_trusted(conn))
        master_tell_runs(master, &transport_peer(conn->at.stream)->run, &conn->at.out.bytes);
    else if (header->type == WIRE_RUNS)
        wire_encode_runs_are(&conn->at.out.bytes, (struct wire_header){0}, &(struct wire_runs_are){0});
    else if (header->type == WIRE_STATUS)
        wire_encode_status_is(&conn->at.out.bytes, (struct wire_header){0}, &status);
    else if (run != NULL)
        core_describe(run->core, master->now_ns, header, body, conn_is_trusted(conn), &conn->at.out.bytes);
    else
        matrix_count(master->heartbeat_limit_ms * MS_NS, 0, 0, &conn->at.out.bytes);
    master_conn_start_closing(master, conn);
}

// Has the connection enter the run that it wants to be in. NULL: it was refused; who has lost a master seeks on.
static struct master_run *enter_run(struct master *master, struct conn *conn, bool resumes) {
    bool full = master->endpoint.counts[CONN_KNOWN] >= CORE_MAX_KNOWN;
    bool named = strcmp(conn->named.chars, WIRE_EVERY_RUN) != 0;
    struct master_run *run = full || !named ? NULL : master_open_run(master, &conn->named);
    if (run != NULL) {
        endpoint_set(&master->endpoint, &conn->at, CONN_KNOWN, INT64_MAX);
        return conn->run = run;
    }
    LOG_LIMITED(&master->strangers_log, LOG_WARN, "refused a peer of run %s: %s", conn->named.chars,
                full ? "there are too many connections" : "there are too many runs");
    if (resumes) {
        master_conn_close(master, conn);
        return NULL;
    }
    char text[WIRE_MAX_TEXT];
    snprintf(text, sizeof text, "the master serves %d runs with names, its maximum; use another master",
             WIRE_MAX_RUNS - 1);
    wire_encode_text(&conn->at.out.bytes, (struct wire_header){0}, WIRE_REFUSED,
                     full ? "the master has its maximum number of connections; use another master" : text);
    master_conn_start_closing(master, conn);
    return NULL;
}

static void begin_run(struct master *master, struct conn *conn, const struct wire_hello *hello) {
    struct master_run *run = enter_run(master, conn, false);
    if (run == NULL) return;
    bool may_begin = !master->standby && master->other_count > 0 && core_activity(run->core) != WIRE_SERVES;
    if (may_begin && master->now_ns >= run->known_until_ns) {
        ask_others(master, &run->question, run->name.chars);
        core_await_others(run->core);
    }
    carry_out(master, run, core_peer_connected(run->core, master->now_ns, conn->at.place, &conn->at.source, hello));
}

static void on_frame(struct master *master, struct conn *conn, const struct wire_header *header, const uint8_t *body) {
    uint32_t index = conn->at.place;
    if (conn->at.state == CONN_KNOWN && header->type == WIRE_STACKS_ARE) {
        master_tell_stacks(master, conn, body, header->length);
        return;
    }
    if (conn->at.state == CONN_KNOWN) {
        carry_out(master, conn->run, core_message(conn->run->core, master->now_ns, index, header, body));
        return;
    }
    if (header->type == WIRE_RUN) {
        if (!wire_decode_run(body, header->length, &conn->named)) conn_refuse(master, conn, -EPROTO);
        return;
    }
    if (master_refuse_run(master, conn, header)) return;
    struct wire_hello hello;
    int error = conn_judge(conn, header, body, &hello);
    if (error != 0 || master_conn_asks(header)) {
        if (error != 0)
            conn_refuse(master, conn, error);
        else
            answer(master, conn, header, body);
        return;
    }
    if (header->type == WIRE_RESUME) {
        struct master_run *run = enter_run(master, conn, true);
        if (run != NULL)
            carry_out(master, run, core_peer_resumed(run->core, master->now_ns, index, &conn->at.source, header, body));
    } else if (dial_back_begin(master, conn, &hello)) {
        endpoint_set(&master->endpoint, &conn->at, CONN_HELD, master->now_ns + MASTER_DIAL_BACK_MS * MS_NS);
        if (!endpoint_watch(&master->endpoint, &conn->at, 0)) master_conn_close(master, conn); // its end only
    } else {
        begin_run(master, conn, &hello);
    }
}

static void on_answer(struct master *master, struct conn *conn, const struct wire_header *header, const uint8_t *body) {
    struct wire_status_is status;
    if (wire_decode_status_is(body, header->length, &status) && status.activity > conn->question->most)
        conn->question->most = status.activity;
    master_conn_close(master, conn);
}

// Gives the state machine the frames that are complete. Returns false if no more is to be read: the time is over, or
// the connection is lost, closed or held.
static bool take_frames(struct master *master, struct conn *conn) {
    while (master_conn_hears(conn)) {
        struct wire_header header;
        const uint8_t *body;
        enum conn_next next = conn_in_next(&conn->at.in, master_conn_carries(conn), &header, &body);
        if (next == CONN_MORE) return true;
        if (next == CONN_FRAME && conn->at.state == CONN_ASKED)
            on_answer(master, conn, &header, body);
        else if (next == CONN_FRAME)
            on_frame(master, conn, &header, body);
        else
            conn_expel(master, conn, "it sent an invalid message");
        bool left = master_conn_hears(conn) && conn->at.in.taken < conn->at.in.bytes.length;
        if (!left || !share_is_over(master->share)) continue;
        master_conn_put_off(master, conn, true);
        return false;
    }
    return conn->at.state != ENDPOINT_CLOSED && conn->at.state != CONN_LOST && conn->at.state != CONN_HELD;
}

// Reads one chunk, so that the other connections have their turn. The poller does not tell of bytes that an encrypted
// stream holds: these are read in the next turn.
static void conn_read(struct master *master, struct conn *conn) {
    bool more;
    if (master_conn_hears(conn) && !take_frames(master, conn)) return; // those that the turn before has left
    do {
        uint8_t before = conn->at.state;
        ptrdiff_t got = conn_receive(conn, master->chunk, sizeof master->chunk);
        master->now_ns = platform_now_ns(); // this process may have been stopped since it looked last
        if (got == -EAGAIN) break;
        if (got <= 0) {
            if (got == -ENOMSG)
                conn_expel(master, conn, transport_error(-ENOMSG));
            else
                conn_lose(master, conn,
                          got == 0         ? "its connection ended"
                          : got == -ENOMEM ? "the master is out of memory"
                                           : "its connection broke");
            return;
        }
        // A broken connection must end soon, whatever it has sent. TELEMETRY and NUMBERS come from other threads and go
        // on even if the peer's control thread hangs; a part of a header (0) may be of one of them.
        uint16_t type = conn_in_type(&conn->at.in);
        bool by_control = type != 0 && type != WIRE_TELEMETRY && type != WIRE_NUMBERS;
        if (conn->at.state == CONN_KNOWN && !conn->broken && by_control)
            core_heard(conn->run->core, master->now_ns, conn->at.place);
        if (!take_frames(master, conn)) return;
        more = conn->at.state == before && (before == CONN_ANONYMOUS || before == CONN_ASKED);
    } while (more && !share_is_over(master->share));
    if (conn->at.stream->buffered) master_conn_put_off(master, conn, true);
    if (master_conn_hears(conn) && conn->at.in.taken == conn->at.in.bytes.length) conn_in_clear(&conn->at.in);
}

// The test of a newcomer's address has ended.
static void admit_held(struct master *master, struct conn *conn) {
    struct wire_hello hello;
    dial_back_end(master, conn, &hello);
    endpoint_set(&master->endpoint, &conn->at, CONN_ANONYMOUS, INT64_MAX);
    begin_run(master, conn, &hello);
    if (conn->at.state != CONN_KNOWN) return;
    if (endpoint_await(&master->endpoint, &conn->at))
        conn_read(master, conn);
    else
        conn_lose(master, conn, "the master is out of memory");
}

// ---- handshakes ----

// Carries the handshake on. Then a dialled connection can be written, and an accepted one read.
static void conn_handshake(struct master *master, struct conn *conn) {
    int error = endpoint_step(&master->endpoint, &conn->at);
    if (error == -EAGAIN) return;
    if (error != 0)
        conn_refuse(master, conn, error);
    else if (conn->at.stream->buffered)
        conn_read(master, conn);
}

// ---- the endpoint ----

static void master_conn_hear(void *context, struct endpoint_conn *conn) {
    struct master *master = context;
    master->share = &master->endpoint.strangers;
    (conn->opens ? conn_handshake : conn_read)(master, (struct conn *)(void *)conn);
}

static void master_conn_time_out(void *context, struct endpoint_conn *conn) {
    (conn->state == CONN_HELD ? admit_held : master_conn_close)(context, (struct conn *)(void *)conn);
}

static void master_conn_shortage(void *context, int error) {
    struct master *master = context;
    LOG_LIMITED(&master->shortage_log, LOG_ERR, "cannot accept connections now: %s", strerror(-error));
}

const struct endpoint_type master_conns = {
    .bytes = sizeof(struct conn),
    .hello_ms = MASTER_HELLO_LIMIT_MS,
    .pause_ms = MASTER_PAUSE_MS,
    .spare_state = CONN_CLOSING,
    .hear = master_conn_hear,
    .time_out = master_conn_time_out,
    .shortage = master_conn_shortage,
    .fini = master_conn_fini,
};

// ---- the loop ----

static int64_t next_deadline(struct master *master) {
    int64_t next = endpoint_deadline(&master->endpoint);
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++) {
        const struct master_run *run = &master->runs[i];
        if (run->core == NULL) continue;
        next = platform_earlier(next, platform_earlier(core_next_deadline(run->core), run->looks_ns));
    }
    if (!master->every_run.asked) next = platform_earlier(next, master->ends_ns);
    return next;
}

static void act_on_time(struct master *master) {
    endpoint_tick(&master->endpoint, master->now_ns);
    tell_lost(master);
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++) {
        struct master_run *run = &master->runs[i];
        if (run->core == NULL) continue;
        bool heard_all = !run->late || run->late_turns % LATE_TURNS == LATE_TURNS - 1;
        if (heard_all && core_next_deadline(run->core) <= master->now_ns)
            carry_out(master, run, core_tick(run->core, master->now_ns));
        look_elsewhere(master, run);
        hear_others(master, run);
    }
}

static void on_conn(struct master *master, struct conn *conn, uint32_t events) {
    if (conn->at.opens) {
        struct conn *held = NULL;
        if (conn->at.state == CONN_DIALS)
            held = dial_back_step(master, conn);
        else
            conn_handshake(master, conn);
        if (held != NULL) admit_held(master, held);
        return;
    }
    if (events & EPOLLOUT) master_conn_flush(master, conn);
    if (conn->at.state == CONN_CLOSING) master_conn_end(master, conn);
    if (conn->at.state != ENDPOINT_CLOSED && (events & ~(uint32_t)EPOLLOUT)) conn_read(master, conn);
}

static void begin_turn(struct master *master) {
    int64_t runs = 0;
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++) {
        struct master_run *run = &master->runs[i];
        run->late_turns = run->late ? run->late_turns + 1 : 0;
        run->late = false;
        runs += run->core != NULL;
    }
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++)
        share_renew(&master->runs[i].share, RUNS_TURN_US * US_NS / (runs > 0 ? runs : 1));
    endpoint_begin_turn(&master->endpoint);
}

// Serves a connection while its run, or all strangers, have time in this turn. False: they have none; it is put off.
static bool serve_conn(struct master *master, struct conn *conn, uint32_t events) {
    struct share *share = conn->run != NULL ? &conn->run->share : &master->endpoint.strangers;
    if (conn->at.state == CONN_LOST) return true;
    if (!share_enter(share)) {
        // The end of a held connection, of which the poller tells alone, is told again.
        if (conn->at.state != CONN_HELD) master_conn_put_off(master, conn, true);
        if (conn->run != NULL) conn->run->late = true;
        return false;
    }
    master->share = share;
    on_conn(master, conn, events);
    share_leave(share);
    return true;
}

// The first one that is put off again comes first in the next turn.
static void serve_put_off(struct master *master) {
    uint32_t begin = master->put_off_first, count = master->endpoint.count;
    bool all = true;
    for (uint32_t i = 0, left = master->put_off_count; i < count && left > 0; i++) {
        uint32_t place = (begin + i) % count;
        struct conn *conn = master_conn(master, place);
        if (conn == NULL || !conn->put_off) continue;
        left--;
        master_conn_put_off(master, conn, false);
        if (serve_conn(master, conn, EPOLLIN | EPOLLOUT) || !all) continue;
        all = false;
        master->put_off_first = place;
    }
}

static void serve(struct master *master) {
    struct epoll_event *events = master->events;
    bool overslept = false;
    end_if_idle(master);
    while (atomic_load(&master->ending) == ENDING_NOT) {
        int64_t began = platform_now_ns();
        int wait_ms = master->put_off_count > 0 ? 0 : platform_wait_ms(began, next_deadline(master));
        int count = epoll_wait(master->endpoint.poller, events, MASTER_EVENTS, wait_ms);
        master->now_ns = platform_now_ns();
        begin_turn(master);
        serve_put_off(master);
        for (int i = 0; i < count; i++) {
            uint64_t token = events[i].data.u64;
            bool woken = token == MASTER_TOKEN_WAKE;
            if (woken) wake_clear(master->wake);
            struct endpoint_conn *conn = woken ? NULL : endpoint_handle(&master->endpoint, token, master->now_ns);
            if (conn != NULL) serve_conn(master, (struct conn *)(void *)conn, events[i].events);
        }
        tell_lost(master);
        overslept = !overslept && platform_overslept(began, wait_ms, platform_now_ns());
        if (overslept) continue;
        act_on_time(master);
        end_if_idle(master);
    }
}

// Reads what still arrives, since a reset would destroy the last frames.
static void say_farewell(struct master *master) {
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++)
        if (master->runs[i].core != NULL)
            carry_out(master, &master->runs[i], core_farewell(master->runs[i].core, master->now_ns));
    for (uint32_t i = 0; i < master->endpoint.count; i++) {
        struct conn *conn = master_conn(master, i);
        if (conn == NULL || conn->at.state != CONN_KNOWN) continue;
        transport_finish(conn->at.stream);
        for (int chunk = 0; chunk < FAREWELL_CHUNKS; chunk++)
            if (transport_receive(conn->at.stream, master->chunk, sizeof master->chunk) <= 0) break;
    }
}

void master_close_all(struct master *master) {
    endpoint_fini(&master->endpoint);
    descriptor_close(master->endpoint.poller);
}

void *master_loop(void *context) {
    struct master *master = context;
    serve(master);
    bool detached = atomic_load(&master->ending) == ENDING_DETACHED;
    if (!detached) say_farewell(master);
    master_close_all(master);
    uint32_t peers = 0;
    for (uint32_t i = 0; i < WIRE_MAX_RUNS; i++)
        if (master->runs[i].core != NULL) peers += core_peer_count(master->runs[i].core);
    if (activity_of_all(master) == WIRE_IDLE)
        LOG(LOG_NOTICE, "stopped: no run was under way");
    else
        LOG(LOG_NOTICE, "stopped, %u peer%s: %s", peers, peers == 1 ? "" : "s",
            detached ? "the run waits for another master, or for this one to return" : "the run has ended");
    pthread_mutex_lock(&master->lock);
    master->ended = true;
    pthread_cond_broadcast(&master->changed);
    pthread_mutex_unlock(&master->lock);
    return NULL;
}

// ---- the end ----

static void stop(struct master *master, enum ending ending) {
    int not_yet = ENDING_NOT;
    atomic_compare_exchange_strong(&master->ending, &not_yet, (int)ending);
    wake_signal(master->wake);
}

void master_interrupt(struct master *master) { stop(master, ENDING_RUN); }
void master_detach(struct master *master) { stop(master, ENDING_DETACHED); }
