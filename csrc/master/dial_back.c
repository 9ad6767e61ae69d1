// Whether others can dial a newcomer: the master tries before it registers it, and says at once what would otherwise
// show in the links that cannot be made. A connection that is made and closed tells; nothing is sent on it.
//
// A peer that announces no address is dialled where the master sees it, so the master's failure counts: the peer is one
// that cannot be dialled, and dials the others. An announced address may be one that the master cannot reach and
// members can: the failure is told, and changes nothing.
//
// Peers at loopback, and those behind NAT, are not dialled. At most DIAL_BACKS newcomers are held at a time, for
// MASTER_DIAL_BACK_MS each; others are registered as they come.
#define LOG_COMPONENT "master"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "master/master_private.h"
#include "master/membership.h"
#include "net/peer_name.h"
#include "net/socket.h"

enum { DIAL_BACKS = 64 };

struct dial_back {
    struct wire_hello hello;
    struct wire_address address; // the first that was dialled
    uint32_t open;               // connections that are being made
    bool answered;               // one was made
    int error;                   // of the last that failed
};

static bool is_tested(const struct master *master, const struct conn *conn, const struct wire_hello *hello) {
    bool translated = hello->reach.count == 0 && hello->local.family != 0 &&
                      !socket_address_same_host(&hello->local, &conn->at.source);
    return hello->version == WIRE_VERSION && !hello->reach.closed && !translated &&
           !socket_address_is_loopback(&conn->at.source) && master->endpoint.counts[CONN_HELD] < DIAL_BACKS;
}

// Whoever reaches this master from another host may not have it look at what is at this host alone, or at its link
// (metadata of clouds).
static bool is_private(const struct wire_address *address) {
    struct wire_address a = socket_address_unmapped(*address);
    if (socket_address_is_loopback(&a) || socket_address_is_any(&a)) return true;
    return a.family == 4 ? (a.bytes[0] == 169 && a.bytes[1] == 254) || a.bytes[0] >= 224
                         : (a.bytes[0] == 0xfe && (a.bytes[1] & 0xc0) == 0x80) || a.bytes[0] == 0xff;
}

static void dial(struct master *master, struct conn *held, const struct wire_address *address) {
    if (is_private(address)) return;
    struct transport *stream;
    int error = transport_dial(master->plain, address, &stream);
    struct endpoint_conn *conn =
        error != 0 ? NULL : endpoint_add(&master->endpoint, stream, CONN_DIALS, EPOLLOUT, INT64_MAX);
    if (conn == NULL) {
        held->back->error = error != 0 ? error : held->back->error;
        return;
    }
    ((struct conn *)(void *)conn)->held = held;
    held->back->open++;
}

// Tells the peer and the log that it could not be dialled.
static void tell(struct master *master, struct conn *held, const struct dial_back *back) {
    char address[64], text[WIRE_MAX_TEXT];
    const struct wire_hello *hello = &back->hello;
    bool announced = hello->reach.count > 0;
    unsigned port = back->address.port;
    snprintf(text, sizeof text,
             "cannot dial this peer at %s (%s): %s. Open TCP port %u in its firewall, or name another address in "
             "PCCL_ADDRESS%s",
             socket_address_format(address, sizeof address, &back->address),
             back->error == 0 ? "no answer" : transport_error(back->error),
             announced ? "perhaps no other peer can" : "it counts as one that nobody can dial, and dials the others",
             port, announced ? "; if nobody can dial it, set PCCL_ADDRESS=none" : "");
    LOG_LIMITED(&master->strangers_log, LOG_WARN, "%s: %s", peer_label(&hello->id, &hello->name).chars, text);
    struct wire_buffer frame = {0};
    wire_encode_text(&frame, (struct wire_header){0}, WIRE_WAITING, text);
    if (!frame.failed) master_conn_send(master, held, frame.bytes, frame.length);
    wire_buffer_fini(&frame);
}

bool dial_back_begin(struct master *master, struct conn *conn, const struct wire_hello *hello) {
    if (!is_tested(master, conn, hello) || (conn->back = calloc(1, sizeof *conn->back)) == NULL) return false;
    struct wire_reach reach = hello->reach;
    if (reach.count == 0) {
        reach.addresses[reach.count++] = conn->at.source;
        reach.addresses[0].port = hello->port;
    }
    conn->back->hello = *hello;
    conn->back->address = reach.addresses[0];
    for (uint32_t i = 0; i < reach.count; i++) dial(master, conn, &reach.addresses[i]);
    if (conn->back->open > 0) return true;
    bool unreachable = hello->reach.count > 0 && conn->back->error == -ENETUNREACH;
    if (unreachable) tell(master, conn, conn->back); // else the system refuses a connection
    free(conn->back);
    conn->back = NULL;
    return false;
}

struct conn *dial_back_step(struct master *master, struct conn *conn) {
    struct conn *held = conn->held;
    int error = transport_step(conn->at.stream);
    if (error == -EAGAIN) return NULL;
    master_conn_close(master, conn);
    held->back->open--;
    held->back->answered = error == 0;
    if (error != 0) held->back->error = error;
    return error == 0 || held->back->open == 0 ? held : NULL;
}

void dial_back_end(struct master *master, struct conn *held, struct wire_hello *hello) {
    struct dial_back back = *held->back;
    master_conn_forget_dials(master, held);
    *hello = back.hello;
    if (back.answered) return;
    tell(master, held, &back);
    if (hello->reach.count == 0) hello->reach.closed = 1;
}
