#define _GNU_SOURCE
#include "state/worker_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "base/platform.h"
#include "base/stream.h"
#include "compute/hash.h"
#include "device/device.h"
#include "device/reader.h"
#include "state/content.h"

enum { TELL_JOBS = WORKER_POOL_JOBS_MOST / 4, PATIENCE_MS = 1000, LOOK_MS = 100 };

_Static_assert((int)HASH_LEAF_BYTES <= (int)READER_BYTES, "a leaf is read at once");

struct worker_pool {
    void (*tell)(void *context);
    void *context;
    struct helper {
        struct worker_pool *pool;
        pthread_t thread;
        struct reader *reader; // its own, once it was left behind
        struct slot *slot;     // at hand
        bool ended, left;
    } helpers[CONTENT_THREADS_MOST];
    unsigned helper_count, working; // of them those that have not ended and were not left behind

    pthread_mutex_t lock; // of what follows; `given` and `taken` are also read by their only writer without it
    pthread_cond_t work, ended;
    bool stopping;
    uint64_t given, begun, taken; // jobs so far; job n is in slot n % WORKER_POOL_JOBS_MOST
    unsigned untold;              // done since the last call of `tell`
    struct slot {
        struct worker_pool_job job;
        bool done;
    } slots[WORKER_POOL_JOBS_MOST];
};

static struct slot *slot_of(struct worker_pool *pool, uint64_t number) {
    return &pool->slots[number % WORKER_POOL_JOBS_MOST];
}

// False: the device has failed.
static bool bring(const struct worker_pool_job *job, const uint8_t *bytes) {
    uint8_t *landing = job->landing;
    if (landing == NULL && (landing = device_landing(job->queue, job->to, job->length)) == NULL) return false;
    if (landing != bytes) copy_bytes(landing, bytes, job->length);
    device_land(job->queue, job->to, landing, job->length);
    return device_await_fence(job->queue, device_mark(job->queue));
}

void worker_pool_do(struct worker_pool_job *job, struct reader *reader) {
    const uint8_t *bytes = job->landing;
    if (bytes == NULL) bytes = reader_read(reader, job->process, job->from, job->length);
    if (bytes == NULL)
        job->result = WORKER_POOL_UNREADABLE;
    else if (hash_xxh3_64(bytes, job->length) != job->expected)
        job->result = WORKER_POOL_WRONG;
    else
        job->result = bring(job, bytes) ? WORKER_POOL_RIGHT : WORKER_POOL_UNWRITABLE;
    if (job->result == WORKER_POOL_WRONG) device_shut(job->queue, job->landing);
}

static void work(struct helper *helper) {
    struct worker_pool *pool = helper->pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stopping && pool->begun == pool->given) pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stopping) break;
        struct slot *slot = helper->slot = slot_of(pool, pool->begun++);
        struct worker_pool_job job = slot->job;
        pthread_mutex_unlock(&pool->lock);
        worker_pool_do(&job, helper->reader);
        pthread_mutex_lock(&pool->lock);
        slot->job.result = job.result;
        slot->done = true;
        // Each telling takes the processor from somebody who works. Whoever does the last of the jobs finds no other,
        // so none is forgotten.
        if (++pool->untold < TELL_JOBS && pool->begun < pool->given) continue;
        pool->untold = 0;
        pthread_mutex_unlock(&pool->lock);
        pool->tell(pool->context);
        pthread_mutex_lock(&pool->lock);
    }
    helper->ended = true;
    pool->working--;
    pthread_cond_broadcast(&pool->ended);
    pthread_mutex_unlock(&pool->lock);
}

static void *run(void *context) {
    struct helper *helper = context;
    jmp_buf gone;
    if (setjmp(gone) != 0) return NULL; // it was left behind, and the pool may be no more
    reader_enter(helper->reader, &gone);
    work(helper);
    return NULL;
}

// False: the system refuses.
static bool add_helper(struct worker_pool *pool) {
    lock_assert_held(&pool->lock);
    if (pool->helper_count == CONTENT_THREADS_MOST) return false;
    struct helper *helper = &pool->helpers[pool->helper_count];
    *helper = (struct helper){.pool = pool, .reader = reader_new()};
    if (helper->reader == NULL || !platform_thread_start(&helper->thread, "pccl:leaf", run, helper)) {
        reader_free(helper->reader);
        return false;
    }
    pool->helper_count++;
    pool->working++;
    return true;
}

// When to look again.
static int64_t leave_behind(struct worker_pool *pool) {
    lock_assert_held(&pool->lock);
    int64_t now = platform_now_ns(), next = INT64_MAX, patience = PATIENCE_MS * MS_NS;
    for (unsigned i = 0; i < pool->helper_count; i++) {
        struct helper *helper = &pool->helpers[i];
        if (helper->ended || helper->left) continue;
        helper->left = reader_is_stuck(helper->reader, now, patience) && reader_abandon(helper->reader);
        if (helper->left) {
            pthread_detach(helper->thread);
            helper->slot->job.result = WORKER_POOL_UNREADABLE;
            helper->slot->done = true;
            pool->working--;
            if (!pool->stopping) add_helper(pool);
        }
        int64_t at = helper->left ? INT64_MAX : reader_look_at(helper->reader, patience);
        if (at < next) next = at;
    }
    // Nobody is there to do the rest.
    while (pool->working == 0 && pool->begun < pool->given) {
        struct slot *slot = slot_of(pool, pool->begun++);
        slot->job.result = WORKER_POOL_UNREADABLE;
        slot->done = true;
    }
    return next;
}

void worker_pool_watch(struct worker_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    leave_behind(pool);
    pthread_mutex_unlock(&pool->lock);
}

struct worker_pool *worker_pool_new(void (*tell)(void *), void *context) {
    struct worker_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->tell = tell;
    pool->context = context;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    platform_cond_init(&pool->ended);
    pthread_mutex_lock(&pool->lock);
    unsigned limit = content_thread_limit();
    while (pool->helper_count < limit && add_helper(pool)) continue;
    pthread_mutex_unlock(&pool->lock);
    if (pool->helper_count > 0) return pool;
    worker_pool_free(pool);
    return NULL;
}

bool worker_pool_give(struct worker_pool *pool, const struct worker_pool_job *job) {
    pthread_mutex_lock(&pool->lock);
    bool room = pool->given - pool->taken < WORKER_POOL_JOBS_MOST && pool->working > 0;
    if (room) {
        *slot_of(pool, pool->given++) = (struct slot){.job = *job};
        pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
    return room;
}

bool worker_pool_take(struct worker_pool *pool, struct worker_pool_job *out) {
    pthread_mutex_lock(&pool->lock);
    struct slot *slot = slot_of(pool, pool->taken);
    bool done = pool->taken < pool->begun && slot->done;
    if (done) {
        *out = slot->job;
        pool->taken++;
    }
    pthread_mutex_unlock(&pool->lock);
    return done;
}

bool worker_pool_has(const struct worker_pool *pool, uint64_t leaf) {
    for (uint64_t n = pool->taken; n < pool->given; n++)
        if (pool->slots[n % WORKER_POOL_JOBS_MOST].job.leaf == leaf) return true;
    return false;
}

bool worker_pool_idle(const struct worker_pool *pool) { return pool->taken == pool->given; }

void worker_pool_stop(struct worker_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

void worker_pool_free(struct worker_pool *pool) {
    if (pool == NULL) return;
    worker_pool_stop(pool);
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        int64_t at = leave_behind(pool), soon = platform_now_ns() + LOOK_MS * MS_NS;
        if (pool->working == 0) break;
        platform_cond_wait(&pool->ended, &pool->lock, at < soon ? at : soon);
    }
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->helper_count; i++) {
        if (pool->helpers[i].left) continue;
        pthread_join(pool->helpers[i].thread, NULL);
        reader_free(pool->helpers[i].reader);
    }
    pthread_cond_destroy(&pool->ended);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
