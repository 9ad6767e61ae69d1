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
#include "data/engine.h"
#include "device/device.h"
#include "link/connection.h"
#include "net/rendezvous.h"
#include "ops/call_table.h"

struct algorithm_shared;
struct service;

// ---- the engine ----
// Counts the operations of an engine until it reports to the master (data/telemetry). All 0 at the beginning.
struct op_stats {
    atomic_bool awake; // ops are called, and the thread reports; set under the lock
    atomic_bool moved; // something of an op came, went or ended since the last step
    // lock
    uint64_t ops, op_us, live;
    int64_t oldest_ns;
    // thread
    _Atomic int64_t since_ns; // the report at hand; 0: not begun. Others read it
    int64_t looks_at, beats_at, tells_at, moved_ns, ran_ns, processor_ns;
};

enum { BACKUP_CACHE_COUNT = 16 };

// Mappings of plain memory that are kept for the ops to come.
struct backup_cache {
    struct backup backups[BACKUP_CACHE_COUNT];
};

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
    pid_t caller;             // the thread that begins calls; 0: none has
    bool several_callers;     // another one did so while it lived
    struct wire_waits *waits; // that engine_waits fills in, and when
    int64_t waits_ns;
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
    int64_t claims_ns;             // thread: when slots are claimed again; INT64_MAX: no claim has failed
    struct log_limit claims_log;   // of the control thread
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
// A function that begins with it is called on the thread.
#define engine_assert_thread(engine) lanes_assert_thread((engine)->lanes)
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
// Returns run, generation and epoch in force; the rest is 0.
static inline struct wire_header engine_header(const struct engine *engine) {
    const struct epoch *now = engine->call_table.now;
    return (struct wire_header){.run = now->run, .generation = now->generation, .epoch = now->group_epoch};
}
// The member of the epoch in force; NULL: there is none. Lock held.
struct neighbour *engine_member(struct engine *engine, const struct wire_id *id);
// The list of running ops has changed. Thread.
static inline void engine_note_running(struct engine *engine) {
    engine_assert_thread(engine);
    engine->lanes->busy = engine->running.first != NULL;
}
// Sends what was encoded in `for_master`; memory that was refused for it is the engine's end. Thread.
void engine_tell(struct engine *engine);

struct op_driver engine_driver(struct engine *engine); // engine_ops.c

// Leads the frames of connections whose context is a struct engine to their owners, by type (route.c).
extern const struct link_events route_events;

// ---- another member as the engine knows it: its connections, what the call table knows of it, and shared memory ----
// The memory shared with a neighbour (data/slots), of the epoch in force; all 0: there is none. Lock held; the thread
// reads `other` without it.
struct slots {
    uint8_t *own;         // for chunks that go to the neighbour
    uint32_t free;        // slots of it, a bit each
    bool populated;       // it has pages
    bool mapped;          // the neighbour has mapped it
    const uint8_t *other; // chunks that come from the neighbour
    uint32_t to_return;   // slots of it, a bit each
};

struct op_peer {
    struct neighbour link;   // first
    struct op_member member; // rank UINT32_MAX: it is no member
    bool claims_again;       // its socket took no connection
    bool offered;            // in this epoch it has told the name of its socket, which is in `rendezvous`
    uint8_t rendezvous[RENDEZVOUS_NAME_BYTES];
    struct slots slots;
    uint64_t eager_bytes; // algorithms/direct, algorithms/ring: sent before the peer posted the op
};

static inline struct op_peer *op_peer_of(const struct neighbour *peer) { return (struct op_peer *)(uintptr_t)peer; }
// NULL for NULL, which stands for the own place in a team.
static inline struct neighbour *neighbour_of(struct op_member *member) {
    return member == NULL ? NULL : (struct neighbour *)(void *)((char *)member - offsetof(struct op_peer, member));
}
// Returns true if large tensors pass to the neighbour through shared memory.
static inline bool neighbour_is_by_memory(const struct neighbour *peer) { return op_peer_of(peer)->slots.mapped; }
static inline struct engine *engine_of(const struct lane *lane) { return lane->all->context; }

// ---- counts of operations ----
static inline void op_stats_moved(struct op_stats *op_stats) {
    atomic_store_explicit(&op_stats->moved, true, memory_order_relaxed);
}
// A call is posted. True: the thread is to be woken.
static inline bool op_stats_posted(struct op_stats *op_stats) { return !atomic_exchange(&op_stats->awake, true); }
// A call that was posted at `posted_ns` has ended; 0: while it was being posted.
static inline void op_stats_ended(struct op_stats *op_stats, int64_t posted_ns, int64_t now_ns) {
    op_stats->ops++;
    if (posted_ns != 0 && now_ns > posted_ns) op_stats->op_us += (uint64_t)((now_ns - posted_ns) / US_NS);
    op_stats_moved(op_stats);
}

// ---- saved inputs (backup.c): of an in-place op, range by range before it is overwritten ----
// Room for a tensor of so many bytes, in the memory that this queue is of. False: no memory.
bool backup_begin(struct backup_cache *cache, struct backup *backup, struct device_queue *queue, size_t bytes);
// Saves what was not saved yet of this range of the input. False: no memory.
bool backup_save(struct backup *backup, const void *input, uint64_t offset, uint64_t length);
// Writes back what was saved, by way of this queue. It stays saved, since an op that is moved again begins with it.
void backup_restore(struct backup *backup, struct device_queue *queue, void *to);
// Hands the room back.
void backup_end(struct backup_cache *cache, struct backup *backup);
void backup_cache_free(struct backup_cache *cache);

#endif
