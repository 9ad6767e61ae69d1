// A connection of the master's body.
#ifndef PCCL_MASTER_MASTER_PRIVATE_H
#define PCCL_MASTER_MASTER_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>

#include "net/conn.h"
#include "net/transport.h"

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

#endif
