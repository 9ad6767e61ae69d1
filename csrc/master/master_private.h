// A connection of the master's body.
#ifndef PCCL_MASTER_MASTER_PRIVATE_H
#define PCCL_MASTER_MASTER_PRIVATE_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "net/conn.h"
#include "net/transport.h"
#include "net/wire_control.h"

enum conn_state {
    CONN_UNUSED,
    CONN_ANONYMOUS, // no hello yet
    CONN_KNOWN,     // the state machine knows it
    CONN_LOST,      // ended; the state machine is told after all that has arrived with it
    CONN_CLOSING,   // the state machine has forgotten it; its last words are being written
    CONN_ASKED,     // another master of the list, which has not yet told what it does
    CONN_STATES,
};

struct conn {
    enum conn_state state;
    struct transport *stream;
    bool opens;          // its handshake is under way: nothing can be sent or received yet
    bool broken, told;   // cannot be written to; CLOSING: everything is written and the end of the stream announced
    int64_t deadline_ns; // ANONYMOUS, CLOSING, ASKED
    struct wire_address source; // family 0: over the local socket
    struct conn_in in;
    struct conn_out out;
    bool wants_write;
};

static inline bool conn_hears(const struct conn *conn) {
    return conn->state == CONN_ANONYMOUS || conn->state == CONN_KNOWN || conn->state == CONN_ASKED;
}

static inline bool has_limit(const struct conn *conn) {
    return conn->state == CONN_ANONYMOUS || conn->state == CONN_CLOSING || conn->state == CONN_ASKED;
}

// Frame types that a connection accepts: from another master; as the first frame over the local socket, which only
// asks; and as the first frame of a stranger.
static inline bool conn_carries_answer(const struct wire_header *header) { return header->type == WIRE_STATUS_IS; }
static inline bool conn_carries_question(const struct wire_header *header) {
    return header->type == WIRE_STATUS || header->type == WIRE_DIAGNOSE;
}
static inline bool conn_carries_first(const struct wire_header *header) {
    return header->type == WIRE_HELLO || header->type == WIRE_RESUME || conn_carries_question(header);
}
static inline conn_carries_fn *conn_carries(const struct conn *conn) {
    if (conn->state == CONN_KNOWN) return conn_carries_control;
    if (conn->state == CONN_ASKED) return conn_carries_answer;
    return conn->source.family == 0 ? conn_carries_question : conn_carries_first;
}

// Reads at most one frame of a stranger, and holds only the memory that the frame takes. What is not heard is dropped.
static inline ptrdiff_t conn_receive(struct conn *conn, uint8_t *chunk, size_t bytes) {
    if (!conn_hears(conn)) return transport_receive(conn->stream, chunk, bytes);
    return conn_in_receive(&conn->in, conn->stream, conn->state == CONN_KNOWN ? bytes : 0);
}

// Judges the first frame of a connection, and decodes a HELLO. With keys, the peer has to have proved the id
// that it claims; in another version it claims none, and will be refused. 0, -EBADE, or -EPROTO: malformed.
static inline int conn_judge(const struct conn *conn, const struct wire_header *header, const uint8_t *body,
                             struct wire_hello *hello) {
    if (conn_carries_question(header)) return 0;
    bool decoded = header->type == WIRE_HELLO ? wire_decode_hello(body, header->length, hello)
                                              : wire_decode_identity(body, header->length, hello);
    if (!decoded) return header->type == WIRE_HELLO ? -EPROTO : 0; // a malformed RESUME gets an answer
    const struct wire_id *claimed = hello->version == WIRE_VERSION ? &hello->id : NULL;
    return transport_may_be(conn->stream, TRANSPORT_PEER, claimed) ? 0 : -EBADE;
}

// Whether the connection may read everything about the run: its process is of our user, or has keys.
static inline bool conn_is_trusted(const struct conn *conn) {
    return conn->source.family == 0 || conn->stream->peer.party != TRANSPORT_STRANGER;
}

#endif
