// The neighbours of an engine, found by id, and the links to each of them.
#ifndef PCCL_DATA_LINK_H
#define PCCL_DATA_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "net/wire_control.h"

struct engine;
struct neighbour;

// ---- any thread ----
// Takes ownership of an authenticated connection. An older one of the same member and index is closed, if both have the
// same address at the other end; else it lives, and this one is closed. Frames of group
// epochs not entered yet wait on it. `id` need not be a member yet (candidates).
void engine_add_link(struct engine *engine, const struct wire_id *id, uint32_t index, int fd);
// True when this link exists and works.
bool engine_has_link(struct engine *engine, const struct wire_id *id, uint32_t index);
// Closes all links of a peer that is gone.
void engine_drop_peer(struct engine *engine, const struct wire_id *id);

// ---- lock held ----
// NULL: there is none.
struct neighbour *neighbour_find(struct engine *engine, const struct wire_id *id);
// NULL: it is no member of the epoch in force.
struct neighbour *neighbour_member(struct engine *engine, const struct wire_id *id);
// No longer dropped, or a new one. NULL: memory was refused, the engine is dead.
struct neighbour *neighbour_get(struct engine *engine, const struct wire_id *id);
// Frees those that were dropped and that nothing points at. Thread.
void neighbours_free_dropped(struct engine *engine);

#endif
