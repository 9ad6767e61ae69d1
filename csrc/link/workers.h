// The turn, and who steps which lane: docs/decisions/data-threads.md.
//
// With workers (link/worker), "thread" in a comment of link/ and data/ means: with the turn. The turn is a lock that
// the owner's thread and each worker hold whenever they run, except inside the calls that move the bytes of a chunk: a
// send, a receive, a sum, a copy. The turn comes before the lock of the connections. Each worker serves the lanes of
// some indexes, and no other thread steps those.
#ifndef PCCL_LINK_WORKERS_H
#define PCCL_LINK_WORKERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lane;
struct lanes;

// Lanes that may have work.
struct lane_list {
    struct lane **list;
    size_t count, room;
};

struct worker {
    struct lanes *lanes;
    pthread_t thread;
    int epoll, wake;
    // turn
    bool waits; // in epoll_wait, or about to
    struct lane_list ready;
};

struct workers {
    pthread_mutex_t turn;
    pthread_cond_t still, go; // no worker is in a step; they may begin one
    uint32_t count, started;
    int wake; // the owner's thread's; borrowed
    // turn
    uint32_t stepping; // workers in the midst of a step
    bool paused, ending;
    bool thread_waits; // the owner's
    uint64_t freed;    // counts the times when lanes were freed
    struct worker each[];
};

// Takes the turn, or gives it up. The lock is not held. Here and below NULL stands for no workers.
void turn_take(struct workers *all);
void turn_leave(struct workers *all);
// The owner's thread gives up the turn. `waits`: and waits for events, so that a lane with work has to wake it.
void turn_leave_thread(struct workers *all, bool waits);

// Blocks until no worker is in the midst of a step; none begins another one before `workers_resume`. The owner's
// thread, with the turn, without the lock.
void workers_pause(struct workers *all);
void workers_resume(struct workers *all);

// ---- with the turn ----
// Returns the worker that lanes of this index belong to. NULL: the owner's thread serves them.
struct worker *workers_of(struct workers *all, uint32_t index);
// Makes room for so many lanes. False: memory was refused.
bool worker_has_room(struct worker *worker, size_t count);
// Wakes this worker, or with NULL the owner's thread, if it waits.
void worker_wake(struct workers *all, struct worker *worker);
// Lanes were freed: events that are still to be looked at may name them.
void workers_forget_events(struct workers *all);

#endif
