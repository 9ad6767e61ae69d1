// All connections of an owner: adding and dropping them, polling them, giving each a step, the checks for silence.
#ifndef PCCL_LINK_LANES_H
#define PCCL_LINK_LANES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_data.h"

struct block;
struct incoming;
struct lane_list;
struct lanes;
struct link_events;
struct neighbour;
struct pool;
struct transport;

// Borrows all that it points at.
struct lanes_options {
    const struct link_events *events;
    void *context; // of the events
    pthread_mutex_t *lock;
    struct pool *pool;
    size_t neighbour_bytes; // of what the owner keeps of a neighbour, which begins with struct neighbour
    int epoll, wake;        // of the thread
};

struct lanes *lanes_new(const struct lanes_options *options); // NULL: no memory
// Closes all. The thread has ended. NULL is allowed, as in lanes_free.
void lanes_close(struct lanes *all);
void lanes_free(struct lanes *all);
// All lanes carry bulk, also those to far neighbours: their number is the program's. Before the first link.
void lanes_fix(struct lanes *all);
// A link is down when nothing is heard on it, or nothing taken by it, for about this long (longer where pauses are
// usual). Before the first call silence is not watched. Any thread.
void lanes_set_silence(struct lanes *all, int64_t limit_ns);
// Returns the limit that was set. Any thread.
int64_t lanes_silence_limit_ns(const struct lanes *all);

// ---- any thread, lock held ----
// Takes an authenticated connection and returns its serial number, which grows with each. Closes an older one of the
// same member and index if both have the same address at the other end. 0: the stream stays the caller's, because the
// older one lives and has another address (`from_elsewhere`), or memory was refused.
uint64_t lanes_add(struct lanes *all, const struct wire_id *id, uint32_t index, struct transport *stream,
                   bool *from_elsewhere);
// Closes all connections to a member that is gone.
void lanes_drop(struct lanes *all, const struct wire_id *id);
// Sends a frame without or with a block over the direct link, at once if the kernel takes it. False: there is no link,
// or memory was refused.
bool lanes_signal(struct neighbour *peer, uint16_t type, const struct wire_head *head, struct block *payload);

// ---- thread ----
// Begins to poll what was added. Lock held. False: the system refused memory or a descriptor.
bool lanes_poll_arriving(struct lanes *all);
// Ends all connections, before callers get their memory back: neighbours may be reading it, and believe what they read
// while the link stands. Lock held.
void lanes_hang_up(struct lanes *all);
// Schedules the lanes of neighbours whose bucket has filled.
void lanes_look_at_buckets(struct lanes *all);
// Gives each of these lanes a step. Returns whether there is more.
bool lanes_step(struct lane_list *ready);
void lanes_free_broken(struct lanes *all);
void lanes_schedule(struct lanes *all); // there may be work for all of them
// Drops all frames of large ops, or all of the service, in either direction. Lock held.
void lanes_drop_frames(struct lanes *all, bool service);
// An epoch with this run, generation and number is in force: looks again at the frames that wait for it. Lock held.
void lanes_enter_epoch(struct lanes *all, const struct wire_header *now);
// Returns the incoming service frame of the next lane that is in the midst of one; `at` begins with 0. Returns NULL if
// there is none.
struct incoming *lanes_next_service(struct lanes *all, size_t *at);
// Breaks the lanes that have been silent for too long, if it is time to check; lets the others send heartbeats.
void lanes_check_silence(struct lanes *all);
// Until the next check, if that is sooner.
int lanes_timeout_ms(const struct lanes *all, int timeout_ms);

#endif
