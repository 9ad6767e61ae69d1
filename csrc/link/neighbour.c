#include "link/neighbour.h"

#include <stdlib.h>

#include "link/connection.h"

struct neighbour *neighbour_find(struct lanes *all, const struct wire_id *id) {
    lanes_assert_locked(all);
    struct neighbour *peer = all->neighbours;
    while (peer != NULL && !wire_id_equal(&peer->id, id)) peer = peer->next;
    return peer;
}

struct neighbour *neighbour_get(struct lanes *all, const struct wire_id *id) {
    lanes_assert_locked(all);
    struct neighbour *peer = neighbour_find(all, id);
    if (peer != NULL) {
        peer->dropped = false;
        return peer;
    }
    peer = calloc(1, all->neighbour_bytes);
    if (peer == NULL) {
        all->events->refused(all->context);
        return NULL;
    }
    peer->all = all;
    peer->id = *id;
    peer->next = all->neighbours;
    all->neighbours = peer;
    all->events->state(all->context, peer, NEIGHBOUR_NEW);
    return peer;
}

struct peer_label neighbour_label(const struct neighbour *peer) { return peer_label(&peer->id, &peer->name); }

void neighbour_schedule(struct neighbour *peer) {
    // If workers have the lanes, the direct link has no bulk data, and its thread need not wake for each chunk.
    uint32_t first = peer->lanes[1] != NULL && peer->lanes[1]->worker != NULL ? 1 : 0;
    uint32_t turn = peer->turn++, count = peer->lane_end - first;
    for (uint32_t i = 0; i < count; i++) {
        struct lane *lane = peer->lanes[first + (turn + i) % count];
        if (lane != NULL) lane_schedule(lane);
    }
}

struct lane *neighbour_lane(struct neighbour *peer, uint32_t index) {
    if (index <= WIRE_MAX_LANES && peer->lanes[index] != NULL) return peer->lanes[index];
    uint32_t lanes = 0;
    while (lanes < WIRE_MAX_LANES && peer->lanes[lanes + 1] != NULL) lanes++;
    return lanes == 0 ? peer->lanes[0] : peer->lanes[1 + (index - 1) % lanes];
}

void neighbours_free_dropped(struct lanes *all) {
    lanes_assert_locked(all);
    for (struct neighbour **at = &all->neighbours; *at != NULL;) {
        struct neighbour *peer = *at;
        if (peer->dropped && peer->lane_count == 0 && !all->events->keeps(all->context, peer)) {
            *at = peer->next;
            all->events->state(all->context, peer, NEIGHBOUR_FREED);
            free(peer);
        } else {
            at = &peer->next;
        }
    }
}
