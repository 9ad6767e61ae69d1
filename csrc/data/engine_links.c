// Calls of the control side on the links of an engine.
#define _GNU_SOURCE
#include "base/log.h"
#include "data/core.h"
#include "data/engine.h"
#include "data/op_peer.h"
#include "link/connection.h"

uint64_t engine_add_link(struct engine *engine, const struct wire_id *id, uint32_t index, struct transport *stream) {
    if (stream == NULL) return 0;
    bool from_elsewhere = false;
    transport_apply_congestion(stream);
    engine_lock(engine);
    bool open = index <= WIRE_MAX_LANES && engine_is_open(engine);
    uint64_t serial = open ? lanes_add(engine->lanes, id, index, stream, &from_elsewhere) : 0;
    struct peer_label label = {.chars = ""};
    if (from_elsewhere) label = neighbour_label(neighbour_find(engine->lanes, id));
    engine_unlock(engine);
    if (from_elsewhere)
        LOG(LOG_WARN, "refused a connection that claims to be %s: its link is up, from another address", label.chars);
    if (serial == 0) transport_free(stream);
    return serial;
}

bool engine_has_link(struct engine *engine, const struct wire_id *id, uint32_t index) {
    engine_lock(engine);
    struct neighbour *peer = neighbour_find(engine->lanes, id);
    bool has = peer != NULL && index <= WIRE_MAX_LANES && peer->lanes[index] != NULL;
    engine_unlock(engine);
    return has;
}

void engine_drop_peer(struct engine *engine, const struct wire_id *id) {
    engine_lock(engine);
    lanes_drop(engine->lanes, id);
    engine_unlock(engine);
}

void engine_set_silence(struct engine *engine, int64_t limit_ns) { lanes_set_silence(engine->lanes, limit_ns); }

void engine_fix_lanes(struct engine *engine) { lanes_fix(engine->lanes); }

struct neighbour *engine_member(struct engine *engine, const struct wire_id *id) {
    engine_assert_locked(engine);
    struct neighbour *peer = neighbour_find(engine->lanes, id);
    return peer != NULL && op_peer_of(peer)->member.rank != UINT32_MAX && !peer->dropped ? peer : NULL;
}
