// The connections of a master: their places, their states, and what is written to them.
#define _GNU_SOURCE
#define LOG_COMPONENT "master"
#include <errno.h>
#include <stdlib.h>

#include "master/master_private.h"
#include "net/strangers.h"

void master_conn_set(struct master *master, struct conn *conn, enum conn_state state) {
    master->conn_count[conn->state]--;
    conn->state = state;
    master->conn_count[state]++;
}

void master_conn_put_off(struct master *master, struct conn *conn, bool put_off) {
    master->put_off_count += (uint32_t)put_off - (uint32_t)conn->put_off;
    conn->put_off = put_off;
}

void master_conn_forget_dials(struct master *master, struct conn *held) {
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS && master->conn_count[CONN_DIALS] > 0; i++)
        if (master->conns[i].state == CONN_DIALS && master->conns[i].held == held)
            master_conn_close(master, &master->conns[i]);
    free(held->back);
    held->back = NULL;
}

void master_conn_close(struct master *master, struct conn *conn) {
    if (conn->back != NULL) master_conn_forget_dials(master, conn);
    if (conn->question != NULL) conn->question->open--;
    transport_free(conn->stream);
    wire_buffer_fini(&conn->in.bytes);
    wire_buffer_fini(&conn->out.bytes);
    master_conn_set(master, conn, CONN_UNUSED);
    master_conn_put_off(master, conn, false);
    *conn = (struct conn){0};
}

// ---- what they carry ----

// Frame types that a connection accepts: from another master; as the first frame over the local socket, which only
// asks; and as the first frame of a stranger. The name of a run may come before the first frame.
static bool conn_carries_answer(const struct wire_header *header) { return header->type == WIRE_STATUS_IS; }
bool master_conn_asks(const struct wire_header *header) {
    return header->type == WIRE_STATUS || header->type == WIRE_DIAGNOSE || header->type == WIRE_RUNS ||
           header->type == WIRE_REMOVE || header->type == WIRE_STACKS;
}
static bool conn_carries_first(const struct wire_header *header) {
    return header->type == WIRE_HELLO || header->type == WIRE_RESUME || master_conn_asks(header);
}
static bool conn_carries_named_question(const struct wire_header *header) {
    return header->type == WIRE_RUN || master_conn_asks(header);
}
static bool conn_carries_named_first(const struct wire_header *header) {
    return header->type == WIRE_RUN || conn_carries_first(header);
}
conn_carries_fn *master_conn_carries(const struct conn *conn) {
    if (conn->state == CONN_KNOWN) return conn_carries_control;
    if (conn->state == CONN_ASKED) return conn_carries_answer;
    bool local = conn->source.family == 0, named = conn->named.chars[0] != 0;
    if (named) return local ? master_conn_asks : conn_carries_first;
    return local ? conn_carries_named_question : conn_carries_named_first;
}

// ---- writing ----

// Reads what arrived before the end, then the end: the last frame says why the connection ended.
static void break_off(struct conn *conn) {
    conn->broken = true;
    transport_hang_up(conn->stream);
}

static void want_write(struct master *master, struct conn *conn, bool wanted) {
    if (conn->wants_write == wanted) return;
    conn->wants_write = wanted;
    if (!master_conn_watch(master, conn, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN)) break_off(conn);
}

void master_conn_send(struct master *master, struct conn *conn, const uint8_t *from, size_t length) {
    if (conn->broken) return;
    int error = conn_out_send(&conn->out, conn->stream, from, length);
    bool full = error == -ENOMEM || conn_out_waiting(&conn->out) > MASTER_MAX_UNSENT;
    if (full) LOG_LIMITED(&master->strangers_log, LOG_WARN, "dropped a peer: it does not read what the master sends");
    if (error != 0 || full) break_off(conn);
    if (!conn->broken) want_write(master, conn, conn_out_waiting(&conn->out) > 0);
}

void master_conn_flush(struct master *master, struct conn *conn) {
    if (!conn->broken && conn_out_flush(&conn->out, conn->stream) != 0) break_off(conn);
    if (!conn->broken) want_write(master, conn, conn_out_waiting(&conn->out) > 0);
}

// ---- closing: reads what still arrives, since a reset would destroy the last frames ----

void master_conn_end(struct master *master, struct conn *conn) {
    if (!conn->broken && conn_out_waiting(&conn->out) > 0) return;
    if (conn->broken) {
        master_conn_close(master, conn);
    } else if (!conn->told) {
        conn->told = true;
        transport_finish(conn->stream);
    }
}

void master_conn_start_closing(struct master *master, struct conn *conn) {
    master_conn_set(master, conn, CONN_CLOSING);
    conn->run = NULL;
    conn->deadline_ns = master->now_ns + MASTER_CLOSE_LIMIT_MS * MS_NS;
    conn_in_clear(&conn->in);
    master_conn_flush(master, conn);
    master_conn_end(master, conn);
}

// ---- opening ----

// The one whose deadline comes first; NULL: there is none.
static struct conn *oldest(struct master *master, enum conn_state state) {
    struct conn *found = NULL;
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS; i++) {
        struct conn *conn = &master->conns[i];
        if (conn->state == state && (found == NULL || conn->deadline_ns < found->deadline_ns)) found = conn;
    }
    return found;
}

static enum strangers_shown shown(const struct conn *conn) {
    return strangers_shown(transport_has_proved(conn->stream), conn->stream->speaks || conn->in.bytes.length > 0);
}

void master_conn_drop_stranger(struct master *master) {
    struct strangers strangers = {0};
    struct strangers_first first = {0};
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS; i++) {
        const struct conn *conn = &master->conns[i];
        if (conn->state == CONN_ANONYMOUS) strangers_count(&strangers, shown(conn), strangers_slot(&conn->source));
    }
    for (uint32_t i = 0; i < ACTIONS_MAX_CONNS; i++) {
        struct conn *conn = &master->conns[i];
        if (conn->state == CONN_ANONYMOUS)
            strangers_compare(&first, &strangers, shown(conn), strangers_slot(&conn->source), conn->deadline_ns, conn);
    }
    if (first.who != NULL) master_conn_close(master, first.who);
}

struct conn *master_conn_open(struct master *master, struct transport *stream, enum conn_state state, int64_t ms) {
    if (master->conn_count[CONN_UNUSED] == 0 && master->conn_count[CONN_CLOSING] > 0)
        master_conn_close(master, oldest(master, CONN_CLOSING));
    struct conn *conn = oldest(master, CONN_UNUSED);
    if (conn == NULL) {
        transport_free(stream);
        return NULL;
    }
    int64_t deadline_ns = master->now_ns + ms * MS_NS;
    *conn = (struct conn){.stream = stream, .deadline_ns = deadline_ns, .opens = true};
    master_conn_set(master, conn, state);
    conn->wants_write = state == CONN_ASKED || state == CONN_DIALS;
    if (master_conn_watch(master, conn, conn->wants_write ? EPOLLOUT : EPOLLIN)) return conn;
    master_conn_close(master, conn);
    return NULL;
}
