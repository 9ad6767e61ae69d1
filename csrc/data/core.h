// An engine: what the modules of the data plane share, its lock, the wake-up of its thread, its end.
//
// `engine.lock` guards everything except what is marked "thread": that belongs to the engine's thread, or, before the
// thread has seen an op, to nobody; with workers it is guarded by the turn (link/workers). The lock is never held
// across a blocking call; socket calls never block. Modules of data/ read and change the fields; state/ and algorithms
// use the functions here and in data/algorithm.h.
#ifndef PCCL_DATA_CORE_H
#define PCCL_DATA_CORE_H

#include <pthread.h>

#include "base/platform.h"
#include "data/backup.h"
#include "data/callbacks.h"
#include "data/op_stats.h"
#include "device/device.h"
#include "ops/call_table.h"

struct algorithm_shared;
struct lanes;
struct neighbour;
struct pool;
struct rendezvous;
struct service;

struct engine {
    pthread_mutex_t lock;
    struct wire_id self;
    struct engine_callbacks callbacks;
    pthread_t thread;
    bool started, stopping, dead;
    int epoll, wake;
    bool wake_pending;

    const struct epoch *pending; // the newest, for the thread to enter; NULL: it is in force
    bool pending_ready;          // and its links are there
    bool killing;
    bool failed;                  // and `failed` is to be called
    char why[DEVICE_ERROR_BYTES]; // a device has failed; "": memory or descriptors were refused
    uint32_t waiters;             // callers inside engine_wait and engine_hold
    pthread_cond_t no_waiters;
    pthread_cond_t not_holding; // an op that a stream was to wait for
    bool request_epoch;         // a fresh group epoch is to be asked for

    struct call_table call_table;
    struct op_queue posted;        // large, or of a device, for the thread to begin
    uint32_t device_calls;         // live ones whose tensors a device has
    pthread_cond_t drained;        // no result is kept any more
    struct wire_buffer for_master; // frames that the thread is still to send

    // each belongs to the module of its name
    struct lanes *lanes;
    struct algorithm_shared *shared;
    struct pool *pool;
    struct rendezvous *rendezvous; // of data/slots; thread; NULL: memory is shared with nobody. Its address is its tag
    struct backup_cache backups;
    struct op_stats op_stats;

    // the service that is open (data/service): by a caller, and stopped by the thread, which reads it without the lock
    struct service *_Atomic service;
    struct service *stopped_service; // not taken back yet
    pthread_cond_t service_stopped;

    // thread
    struct op_queue running; // large ops with chunks or codes to inject
};

static inline void engine_lock(struct engine *engine) { pthread_mutex_lock(&engine->lock); }
static inline void engine_unlock(struct engine *engine) { pthread_mutex_unlock(&engine->lock); }
// A function that begins with it is called with the lock held.
#define engine_assert_locked(engine) lock_assert_held(&(engine)->lock)
// The thread looks at what others want of it.
void engine_wake(struct engine *engine);
// Memory or descriptors were refused, and others would wait for ever for what is not done now: all ops and links end.
void engine_fail(struct engine *engine);
// The same, and if the device of this queue has failed, its error is the reason.
void engine_fail_of(struct engine *engine, const struct device_queue *queue);

// Neither dead nor about to end.
static inline bool engine_is_open(const struct engine *engine) {
    engine_assert_locked(engine);
    return !engine->dead && !engine->stopping;
}
// Returns true if `member` is in the epoch that the thread is about to enter.
bool engine_awaits(const struct engine *engine, const struct op_member *member);
static inline const struct wire_id *engine_self(const struct engine *engine) { return &engine->self; }
// Run, generation and epoch in force; the rest is 0.
struct wire_header engine_header(const struct engine *engine);
// The member of the epoch in force; NULL: there is none. Lock held.
struct neighbour *engine_member(struct engine *engine, const struct wire_id *id);
// The list of running ops has changed. Thread.
void engine_note_running(struct engine *engine);
// Sends what was encoded in `for_master`; memory that was refused for it is the engine's end. Thread.
void engine_tell(struct engine *engine);

struct op_driver engine_driver(struct engine *engine); // engine_ops.c

// ---- engine_epochs.c, thread ----
// Enters the pending epoch and makes the report of it; or memory was refused, and the engine is dead.
void engine_enter_pending(struct engine *engine);
// No lane has a frame of a large op any more, none is running.
void engine_drop_ops(struct engine *engine);

#endif
