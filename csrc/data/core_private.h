// What an engine is made of.
//
// `engine.lock` guards everything except what is marked "thread": that belongs to the engine's thread, or, before the
// thread has seen an op, to nobody. The lock is never held across a blocking call; socket calls never block.
#ifndef PCCL_DATA_CORE_PRIVATE_H
#define PCCL_DATA_CORE_PRIVATE_H

#include <pthread.h>

#include "data/backup.h"
#include "data/callbacks.h"
#include "data/core.h"
#include "device/device.h"
#include "ops/book.h"

struct mover_shared;

struct pending_epoch {
    uint64_t run, generation;
    struct book_epoch ops;
    bool ready;
};

struct engine {
    pthread_mutex_t lock;
    struct wire_id self;
    struct engine_callbacks callbacks;
    pthread_t thread;
    bool started, stopping, dead;
    int epoll, wake;
    bool wake_pending;

    uint64_t run, generation;
    struct pending_epoch *pending; // newest first; the thread enters it
    bool killing;
    bool failed;                  // and `failed` is to be called
    char why[DEVICE_ERROR_BYTES]; // a device has failed; "": memory or descriptors were refused
    uint32_t waiters;             // callers inside engine_wait
    pthread_cond_t no_waiters;
    bool roll; // a fresh group epoch is to be asked for

    bool taken_over; // the next thread may begin
    bool ended;      // the thread has
    pthread_cond_t thread_ended;

    struct book book;
    struct op_list posted;         // large, or of a device, for the thread to begin
    uint32_t device_calls;         // live ones whose tensors a device has
    pthread_cond_t settled;        // no result is kept any more
    struct wire_buffer for_master; // frames that the thread is still to send

    // each belongs to the module of its name
    struct lanes *lanes;
    struct mover_shared *shared;
    struct pool *pool;
    struct same_host *same_host;
    struct service_slot *service;
    struct backup_cache backups;

    // thread
    struct op_list running; // large ops with chunks or codes to inject
};

struct op_driver engine_driver(struct engine *engine); // engine_ops.c

// ---- engine_epochs.c, thread ----
// Enters the pending epoch and makes the report of it; or memory was refused, and the engine is dead. Lock held.
void engine_enter_pending(struct engine *engine);
void pending_free(struct pending_epoch *pending); // NULL is allowed
// No lane has a frame of a large op any more, none is running. Lock held.
void engine_let_go(struct engine *engine);

#endif
