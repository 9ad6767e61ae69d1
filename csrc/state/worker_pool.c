#define _GNU_SOURCE
#include "state/worker_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/platform.h"
#include "base/memory.h"
#include "compute/hash.h"
#include "device/device.h"
#include "state/content.h"

enum { TELL_JOBS = WORKER_POOL_JOBS_MOST / 4 };

struct worker_pool {
    void (*tell)(void *context);
    void *context;
    struct helper {
        struct worker_pool *pool;
        pthread_t thread;
    } helpers[CONTENT_THREADS_MOST];
    unsigned helper_count;

    pthread_mutex_t lock; // of what follows; `given` and `taken` are also read by their only writer without it
    pthread_cond_t work;
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

// Returns false if the device has failed.
static bool bring(const struct worker_pool_job *job) {
    device_land(job->queue, job->to, job->landing, job->length);
    return device_await_fence(job->queue, device_mark(job->queue));
}

void worker_pool_do(struct worker_pool_job *job) {
    if (hash_xxh3_64(job->landing, job->length) != job->expected)
        job->result = WORKER_POOL_WRONG;
    else
        job->result = bring(job) ? WORKER_POOL_RIGHT : WORKER_POOL_UNWRITABLE;
    if (job->result == WORKER_POOL_WRONG) device_shut(job->queue, job->landing);
}

static void work(struct helper *helper) {
    struct worker_pool *pool = helper->pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stopping && pool->begun == pool->given) pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stopping) break;
        struct slot *slot = slot_of(pool, pool->begun++);
        struct worker_pool_job job = slot->job;
        pthread_mutex_unlock(&pool->lock);
        worker_pool_do(&job);
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
    pthread_mutex_unlock(&pool->lock);
}

static void *run(void *context) {
    work(context);
    return NULL;
}

// False: the system refuses.
static bool add_helper(struct worker_pool *pool) {
    struct helper *helper = &pool->helpers[pool->helper_count];
    *helper = (struct helper){.pool = pool};
    if (!platform_thread_start(&helper->thread, "pccl:leaf", run, helper)) return false;
    pool->helper_count++;
    return true;
}

struct worker_pool *worker_pool_new(void (*tell)(void *), void *context) {
    struct worker_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->tell = tell;
    pool->context = context;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    unsigned limit = content_thread_limit();
    while (pool->helper_count < limit && add_helper(pool)) continue;
    if (pool->helper_count > 0) return pool;
    worker_pool_free(pool);
    return NULL;
}

bool worker_pool_give(struct worker_pool *pool, const struct worker_pool_job *job) {
    pthread_mutex_lock(&pool->lock);
    bool room = pool->given - pool->taken < WORKER_POOL_JOBS_MOST;
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
    for (unsigned i = 0; i < pool->helper_count; i++) pthread_join(pool->helpers[i].thread, NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
