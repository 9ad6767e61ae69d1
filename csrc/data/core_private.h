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

struct block;
struct frame;
struct lane;
struct lane_route;
struct peer;
struct pool;
struct service;

enum {
    LOST_EPOCHS_MAX = WIRE_MAX_MEMBERS,
};

// The members of a group epoch. Shared; guarded by the lock.
struct roster {
    uint32_t references, count;
    struct wire_id ids[];
};

struct tag_counter {
    uint64_t tag;
    uint32_t next; // 0: empty slot
};

// In the order in which they were added. An op is in one list at most.
struct op_list {
    struct op *first, *last; // `last` means nothing while `first` is NULL
};

enum { TABLE_BITS = 10, TABLE_SLOTS = 1 << TABLE_BITS };

// Where the chain of a tag begins, in each of the tables by tag.
static inline size_t table_slot(uint64_t tag) { return (tag * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - TABLE_BITS); }

struct pending_epoch {
    uint64_t run, generation, epoch;
    uint32_t latency_us, megabytes_per_s;
    uint32_t rank, count;
    bool ready;
    struct peer *members[]; // by rank
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
    struct peer **members;         // by rank; NULL at the own rank
    struct roster *roster;         // of the epoch
    bool ready;                    // the links of `epoch` are there
    struct pending_epoch *pending; // newest first; the thread enters it
    bool killing;
    bool failed;      // and `failed` is to be called
    uint32_t waiters; // callers inside engine_wait
    pthread_cond_t no_waiters;
    bool roll_wanted, roll_asked; // a fresh group epoch, since the counters of tags have come far
    uint64_t lost[LOST_EPOCHS_MAX];
    uint32_t lost_count;

    struct door *door; // thread; NULL: nobody's memory is read, nor is ours
    struct reader *reader;
    struct lane *reading; // thread: that it reads for
    bool taken_over;      // the next thread may begin
    bool ended;           // the thread has
    pthread_cond_t thread_ended;
    struct peer *peers;
    struct lane *arriving; // added, not polled yet

    // Opened by a caller, let go of by the thread, which reads it without the lock.
    struct service *_Atomic service;
    struct service *service_over; // that the thread has let go of
    pthread_cond_t service_let_go;

    struct op *table[TABLE_SLOTS];
    struct op *free_ops;
    // un-awaited ops; segments of theirs under way beyond one each. Together WIRE_MAX_LIVE_OPS at most
    size_t live, extra;
    struct op_list waiting; // OP_WAITING, in posting order
    struct op_list posted;  // large, for the thread to begin
    struct kept *kept[TABLE_SLOTS];
    size_t kept_count;
    pthread_cond_t settled; // kept_count has become 0
    struct early *early[TABLE_SLOTS];
    struct tag_counter *counters;
    uint32_t counter_count, counter_slots;
    struct poison {
        struct poison *next;
        uint64_t tag, epoch; // of the op's name
        char text[WIRE_MAX_TEXT + 1];
    } *poisons; // mismatch verdicts on ops not posted here
    uint32_t poison_count;
    struct accusation {
        struct accusation *next;
        struct wire_mismatch mismatch;
    } *accusations; // for the thread to report

    const struct lane_route *route;
    struct pool *pool;
    struct frame *free_frames;
    struct backup_cache backups;

    // thread
    struct op_list running; // large ops with chunks or codes to inject
    uint64_t under_way;     // bytes of own chunks in the rings of all ops (plan_window)
    struct lane **lanes;    // all that are polled
    struct lane **hot;
    size_t lane_count, lane_room, hot_count; // `hot` has the room of `lanes`
    void *wide, *wide_input;                 // accumulators of QUANT_BLOCK wide elements
};

#endif
