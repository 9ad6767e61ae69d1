// The connections of a master: their places, their states, and what is written to them.
#define _GNU_SOURCE
#define LOG_COMPONENT "master"
#include <errno.h>
#include <stdlib.h>

#include "master/master_private.h"

void master_conn_put_off(struct master *master, struct conn *conn, bool put_off) {
    master->put_off_count += (uint32_t)put_off - (uint32_t)conn->put_off;
    conn->put_off = put_off;
}

void master_conn_forget_dials(struct master *master, struct conn *held) {
    for (uint32_t i = 0; i < master->endpoint.count && master->endpoint.counts[CONN_DIALS] > 0; i++) {
        struct conn *conn = master_conn(master, i);
        if (conn != NULL && conn->at.state == CONN_DIALS && conn->held == held) master_conn_close(master, conn);
    }
    free(held->back);
    held->back = NULL;
}

void master_conn_close(struct master *master, struct conn *conn) { endpoint_close(&master->endpoint, &conn->at); }

void master_conn_fini(void *context, struct endpoint_conn *at) {
    struct master *master = context;
    struct conn *conn = (struct conn *)(void *)at;
    if (conn->back != NULL) master_conn_forget_dials(master, conn);
    if (conn->question != NULL) conn->question->open--;
    master_conn_put_off(master, conn, false);
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
    if (conn->at.state == CONN_KNOWN) return conn_carries_control;
    if (conn->at.state == CONN_ASKED) return conn_carries_answer;
    bool local = conn->at.source.family == 0, named = conn->named.chars[0] != 0;
    if (named) return local ? master_conn_asks : conn_carries_first;
    return local ? conn_carries_named_question : conn_carries_named_first;
}

// ---- writing ----

// Reads what arrived before the end, then the end: the last frame says why the connection ended.
static void break_off(struct conn *conn) {
    conn->broken = true;
    transport_hang_up(conn->at.stream);
}

void master_conn_send(struct master *master, struct conn *conn, const uint8_t *from, size_t length) {
    if (conn->broken) return;
    int error = conn_out_send(&conn->at.out, conn->at.stream, from, length);
    bool full = error == -ENOMEM || conn_out_waiting(&conn->at.out) > MASTER_MAX_UNSENT;
    if (full) LOG_LIMITED(&master->strangers_log, LOG_WARN, "dropped a peer: it does not read what the master sends");
    if (error != 0 || full || !endpoint_await(&master->endpoint, &conn->at)) break_off(conn);
}

void master_conn_flush(struct master *master, struct conn *conn) {
    if (conn->broken) return;
    bool sent = conn_out_flush(&conn->at.out, conn->at.stream) == 0;
    if (!sent || !endpoint_await(&master->endpoint, &conn->at)) break_off(conn);
}

// ---- closing: reads what still arrives, since a reset would destroy the last frames ----

void master_conn_end(struct master *master, struct conn *conn) {
    if (!conn->broken && conn_out_waiting(&conn->at.out) > 0) return;
    if (conn->broken) {
        master_conn_close(master, conn);
    } else if (!conn->told) {
        conn->told = true;
        transport_finish(conn->at.stream);
    }
}

void master_conn_start_closing(struct master *master, struct conn *conn) {
    endpoint_set(&master->endpoint, &conn->at, CONN_CLOSING, master->now_ns + MASTER_CLOSE_LIMIT_MS * MS_NS);
    conn->run = NULL;
    conn_in_clear(&conn->at.in);
    master_conn_flush(master, conn);
    master_conn_end(master, conn);
}
