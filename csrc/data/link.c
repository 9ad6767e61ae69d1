#define _GNU_SOURCE
#include "data/link.h"

#include <stdlib.h>
#include <sys/socket.h>

#include "base/log.h"
#include "data/lane_private.h"
#include "net/socket.h"

struct neighbour *neighbour_find(struct engine *engine, const struct wire_id *id) {
    struct neighbour *peer = engine->peers;
    while (peer != NULL && !wire_id_equal(&peer->member.id, id)) peer = peer->next;
    return peer;
}

struct neighbour *neighbour_get(struct engine *engine, const struct wire_id *id) {
    struct neighbour *peer = neighbour_find(engine, id);
    if (peer != NULL) {
        peer->dropped = false;
        return peer;
    }
    peer = calloc(1, sizeof *peer);
    if (peer == NULL) {
        engine_fail(engine);
        return NULL;
    }
    peer->member.id = *id;
    peer->member.rank = UINT32_MAX;
    peer->next = engine->peers;
    engine->peers = peer;
    return peer;
}

struct neighbour *neighbour_member(struct engine *engine, const struct wire_id *id) {
    struct neighbour *peer = neighbour_find(engine, id);
    return peer != NULL && peer->member.rank != UINT32_MAX && !peer->dropped ? peer : NULL;
}

static bool neighbour_in_pending(const struct engine *engine, const struct neighbour *peer) {
    const struct pending_epoch *pending = engine->pending;
    for (uint32_t i = 0; pending != NULL && i < pending->ops.count; i++)
        if (pending->ops.members[i] == &peer->member) return true;
    return false;
}

void neighbours_free_dropped(struct engine *engine) {
    for (struct neighbour **at = &engine->peers; *at != NULL;) {
        struct neighbour *peer = *at;
        if (peer->dropped && peer->member.rank == UINT32_MAX && peer->lane_count == 0 &&
            !neighbour_in_pending(engine, peer)) {
            *at = peer->next;
            engine->route->neighbour_gone(engine, peer);
            free(peer);
        } else {
            at = &peer->next;
        }
    }
}

static void retire(struct neighbour *peer, uint32_t index) {
    struct lane *lane = peer->lanes[index];
    if (lane == NULL) return;
    peer->lanes[index] = NULL;
    lane->retired = true;
    shutdown(lane->fd, SHUT_RDWR); // the thread sees the end of the stream and closes
}

// The secret of a run is told to everybody who registers, so a hello in a member's name proves little. A member makes
// its links from one address.
static bool is_from_elsewhere(const struct lane *lane, int fd) {
    struct wire_address known, fresh;
    return lane != NULL && socket_remote_address(lane->fd, &known) && socket_remote_address(fd, &fresh) &&
           !socket_address_same_host(&known, &fresh);
}

void engine_add_link(struct engine *engine, const struct wire_id *id, uint32_t index, int fd) {
    pthread_mutex_lock(&engine->lock);
    struct neighbour *peer =
        index <= WIRE_MAX_LANES && !engine->stopping && !engine->dead ? neighbour_get(engine, id) : NULL;
    if (peer != NULL && is_from_elsewhere(peer->lanes[index], fd)) {
        pthread_mutex_unlock(&engine->lock);
        LOG(LOG_WARN,
            "refused a connection in the name of peer %02x%02x%02x%02x, whose link lives and has another address",
            id->bytes[0], id->bytes[1], id->bytes[2], id->bytes[3]);
        socket_close(fd);
        return;
    }
    struct lane *lane = peer == NULL ? NULL : lane_new(engine, peer, index, fd);
    if (lane == NULL) {
        if (peer != NULL) engine_fail(engine);
        socket_close(fd);
    } else {
        retire(peer, index);
        peer->lanes[index] = lane;
        peer->lane_count++;
        lane->next = engine->arriving;
        engine->arriving = lane;
        engine_wake(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

bool engine_has_link(struct engine *engine, const struct wire_id *id, uint32_t index) {
    pthread_mutex_lock(&engine->lock);
    struct neighbour *peer = neighbour_find(engine, id);
    bool has = peer != NULL && index <= WIRE_MAX_LANES && peer->lanes[index] != NULL;
    pthread_mutex_unlock(&engine->lock);
    return has;
}

void engine_drop_peer(struct engine *engine, const struct wire_id *id) {
    pthread_mutex_lock(&engine->lock);
    struct neighbour *peer = neighbour_find(engine, id);
    if (peer != NULL) {
        for (uint32_t i = 0; i <= WIRE_MAX_LANES; i++) retire(peer, i);
        peer->dropped = true;
        engine_wake(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}
