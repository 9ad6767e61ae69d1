// Requests of operators. Only who has proved in the handshake that it has the master's key may make one: no other user
// of this host, and no peer.
//
// STACKS goes on to the peer, and its answer to all who wait for that peer. Nobody remembers the question: an answer
// without a waiting connection is dropped, and a connection without an answer ends by its deadline. So a peer that
// hangs, dies, or answers twice costs nothing.
#include <string.h>

#include "master/master_private.h"

static const struct wire_id nobody;

static const char *ask_stacks(struct master *master, struct conn *conn, const struct master_run *run,
                              const struct wire_id *id) {
    struct wire_buffer frame = {0};
    uint32_t index;
    if (!core_find_conn(run->core, id, &index)) return "there is no such peer in the run";
    wire_encode_bytes(&frame, (struct wire_header){0}, WIRE_STACKS, id->bytes, sizeof id->bytes);
    if (!frame.failed) master_conn_send(master, master_conn(master, index), frame.bytes, frame.length);
    bool sent = !frame.failed;
    wire_buffer_fini(&frame);
    if (!sent) return "the master is out of memory";
    conn->asks = *id;
    endpoint_until(&master->endpoint, &conn->at, master->now_ns + MASTER_STACKS_MS * MS_NS);
    return NULL;
}

const char *master_take_request(struct master *master, struct conn *conn, const struct wire_header *header,
                                const uint8_t *body, const struct actions **actions) {
    struct master_run *run = master_find_run(master, &conn->named);
    struct wire_remove remove;
    struct wire_id id;
    const char *why;
    if (!conn->at.stream->type->proves) return "this needs a run with keys, and the keys of its masters";
    if (conn->at.stream->peer.party != TRANSPORT_MASTER) return "this needs the keys of the masters (run.master)";
    if (run == NULL) return "the master does not serve this run";
    if (header->type == WIRE_STACKS) {
        memcpy(id.bytes, body, sizeof id.bytes); // the length was checked with the header
        return ask_stacks(master, conn, run, &id);
    }
    if (!wire_decode_remove(body, header->length, &remove)) return "malformed REMOVE";
    *actions = core_remove(run->core, master->now_ns, &remove, &why);
    return why;
}

void master_tell_stacks(struct master *master, const struct conn *from, const uint8_t *text, size_t length) {
    for (uint32_t i = 0; i < master->endpoint.count; i++) {
        struct conn *conn = master_conn(master, i);
        uint32_t index;
        if (conn == NULL || conn->at.state != CONN_ANONYMOUS || wire_id_equal(&conn->asks, &nobody)) continue;
        if (!core_find_conn(from->run->core, &conn->asks, &index) || master_conn(master, index) != from) continue;
        wire_encode_bytes(&conn->at.out.bytes, (struct wire_header){0}, WIRE_STACKS_ARE, text, length);
        master_conn_start_closing(master, conn);
    }
}
