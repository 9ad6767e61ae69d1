// What an engine is made of.
//
// `engine.lock` guards everything except what is marked "thread": that belongs to the engine's thread, or, before the
// thread has seen an op, to nobody. The lock is never held across a blocking call; socket calls never block.
#ifndef PCCL_DATA_CORE_PRIVATE_H
#define PCCL_DATA_CORE_PRIVATE_H

#include <pthread.h>

#include "data/backup.h"
#include "data/call.h"
#include "data/core.h"
#include "ops/book.h"

struct block;
struct frame;
struct lane;
struct lane_route;
struct mover_shared;
struct neighbour;
struct pool;
struct service;

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
    _Atomic int64_t silence_ns; // between two checks of silence, 0 = none
    int64_t silence_at;         // thread: the next one

    uint64_t run, generation, epoch;
    uint32_t latency_us, megabytes_per_s;
    uint32_t rank, count;
    struct pending_epoch *pending; // newest first; the thread enters it
    bool killing;
    bool failed;      // and `failed` is to be called
    uint32_t waiters; // callers inside engine_wait
    pthread_cond_t no_waiters;
    bool roll; // a fresh group epoch is to be asked for

    struct door *door; // thread; NULL: nobody's memory is read, nor is ours
    struct reader *reader;
    struct lane *reading; // thread: that it reads for
    bool taken_over;      // the next thread may begin
    bool ended;           // the thread has
    pthread_cond_t thread_ended;
    struct neighbour *peers;
    struct lane *arriving; // added, not polled yet

    // Opened by a caller, let go of by the thread, which reads it without the lock.
    struct service *_Atomic service;
    struct service *service_over; // that the thread has let go of
    pthread_cond_t service_let_go;

    struct book book;
    struct op_list posted;  // large, for the thread to begin
    pthread_cond_t settled; // no result is kept any more
    struct accusation {
        struct accusation *next;
        struct wire_mismatch mismatch;
    } *accusations; // for the thread to report

    const struct lane_route *route;
    struct mover_shared *shared;
    struct pool *pool;
    struct frame *free_frames;
    struct backup_cache backups;

    // thread
    struct op_list running; // large ops with chunks or codes to inject
    struct lane **lanes;    // all that are polled
    struct lane **hot;
    size_t lane_count, lane_room, hot_count; // `hot` has the room of `lanes`
};

#endif
