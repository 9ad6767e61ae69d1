// The neighbours of an engine, found by id, and the links to each of them.
#ifndef PCCL_LINK_LANES_H
#define PCCL_LINK_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_control.h"

struct engine;
struct incoming;
struct lanes;
struct neighbour;
struct lane_list;
struct transport;

// ---- any thread ----
// Takes ownership of an authenticated connection. An older one of the same member and index is closed, if both have the
// same address at the other end; else it lives, and this one is closed. Frames of group
// epochs not entered yet wait on it. `id` need not be a member yet (candidates).
void engine_add_link(struct engine *engine, const struct wire_id *id, uint32_t index, struct transport *stream);
// True when this link exists and works.
bool engine_has_link(struct engine *engine, const struct wire_id *id, uint32_t index);
// Closes all links of a peer that is gone.
void engine_drop_peer(struct engine *engine, const struct wire_id *id);

// A link is down when nothing is heard on it, or nothing taken by it, for about this long (longer where pauses are
// usual). Before the first call silence is not watched.
void engine_set_silence(struct engine *engine, int64_t limit_ns);

// All lanes carry bulk, also those to far neighbours: their number is the program's. Before the first link.
void engine_fix_lanes(struct engine *engine);

// ---- neighbours ----
// NULL: there is none.
struct neighbour *neighbour_find(struct engine *engine, const struct wire_id *id);
// NULL: it is no member of the epoch in force.
struct neighbour *neighbour_member(struct engine *engine, const struct wire_id *id);
// No longer dropped, or a new one. NULL: memory was refused, the engine is dead.
struct neighbour *neighbour_get(struct engine *engine, const struct wire_id *id);
// Frees those that were dropped and that nothing points at. Thread.
void neighbours_free_dropped(struct engine *engine);

// ---- for the engine; thread, unless told otherwise ----
struct lanes *lanes_new(struct engine *engine, int epoll); // NULL: no memory
// Closes all. The thread has ended. NULL is allowed, as in lanes_free.
void lanes_close(struct lanes *all);
void lanes_free(struct lanes *all);
// Begins to poll what was added. False: the system refused memory or a descriptor.
bool lanes_poll_arriving(struct engine *engine);
// Before callers get their memory back: neighbours may be reading it, and believe what they read while the link stands.
//
void lanes_hang_up(struct engine *engine);
// Schedules the lanes of neighbours whose bucket has filled.
void lanes_look_at_buckets(struct engine *engine);
// Gives each of these lanes a step. Whether there is more.
bool lanes_step(struct lane_list *ready);
void lanes_free_broken(struct engine *engine);
void lanes_schedule(struct engine *engine); // there may be work for all of them
// Drops all frames of large ops, or all of the service, in either direction.
void lanes_drop_frames(struct engine *engine, bool service);
// Forgets what neighbours were in the epoch before, and looks again at the frames that wait for this one.
void lanes_enter_epoch(struct engine *engine);
// Returns the incoming service frame of the next lane that is in the midst of one; `at` begins with 0. Returns NULL if
// there is none.
struct incoming *lanes_next_service(struct engine *engine, size_t *at);
// The limit that was set. Any thread.
int64_t lanes_silence_limit_ns(const struct engine *engine);
// Breaks the lanes that have been silent for too long, if it is time to check; lets the others say something.
void lanes_check_silence(struct engine *engine);
// Until the next check, if that is sooner.
int lanes_timeout_ms(const struct engine *engine, int timeout_ms);

#endif
