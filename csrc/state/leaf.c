#define _GNU_SOURCE
#include "state/leaf.h"

#include <stdlib.h>
#include <string.h>
#ifdef PCCL_HAVE_LZ4
#include <lz4.h>
#endif

#include "base/environment.h"
#include "base/platform.h"
#include "compute/hash.h"
#include "device/device.h"
#include "state/content.h"

// ---- packing ----

enum {
    WAIT_LEAST = 16,  // leaves between two trials, at least
    WAIT_MOST = 1024, // leaves between two trials, at most
};

#define TRIALS_PART 0.01 // of the time of a transfer: what trials take, at most
#define PAYS_BELOW 0.9   // of the time to send a leaf as it is: packing has to stay below it
#define UNPACK_PART 0.5  // of the time to pack: what unpacking is taken to last
#define NEWEST_PART 0.25 // weight of the newest leaf in the mean ratio and the mean time to pack

#ifdef PCCL_HAVE_LZ4
bool leaf_packing_available(void) { return environment_switch("PCCL_LZ4", true); }

uint32_t leaf_pack(uint8_t *to, const uint8_t *leaf, uint32_t length) {
    return (uint32_t)LZ4_compress_default((const char *)leaf, (char *)to, (int)length, (int)(length - length / 16));
}

bool leaf_unpack(uint8_t *to, uint32_t length, const uint8_t *packed, uint32_t packed_length) {
    return LZ4_decompress_safe((const char *)packed, (char *)to, (int)packed_length, (int)length) == (int)length;
}
#else
bool leaf_packing_available(void) { return false; }

uint32_t leaf_pack(uint8_t *to, const uint8_t *leaf, uint32_t length) {
    (void)to, (void)leaf, (void)length;
    return 0;
}

bool leaf_unpack(uint8_t *to, uint32_t length, const uint8_t *packed, uint32_t packed_length) {
    (void)to, (void)length, (void)packed, (void)packed_length;
    return false;
}
#endif

static void average(double *value, double newest) {
    *value = *value == 0 ? newest : *value + NEWEST_PART * (newest - *value);
}

static bool pays(const struct leaf_packing *choice, double speed) {
    if (speed == 0 || choice->pack == 0) return false;
    return choice->pack * (1 + UNPACK_PART) + choice->ratio / speed < PAYS_BELOW / speed;
}

bool leaf_packing_tries(struct leaf_packing *choice, double speed) {
    if (speed == 0) return false;
    if (pays(choice, speed)) return true;
    if (choice->wait > 0) choice->wait--;
    return choice->wait == 0;
}

bool leaf_packing_tried(struct leaf_packing *choice, double speed, uint32_t length, uint32_t packed_length,
                        int64_t ns) {
    double pack = (double)ns / length, wait = pack * speed / TRIALS_PART;
    average(&choice->pack, pack > 0 ? pack : 1e-9);
    average(&choice->ratio, packed_length == 0 ? 1 : (double)packed_length / length);
    choice->wait = wait < WAIT_LEAST ? WAIT_LEAST : wait < WAIT_MOST ? (uint32_t)wait : WAIT_MOST;
    return pays(choice, speed);
}

// ---- checking ----

enum {
    TELL_JOBS = LEAF_JOBS_MOST / 4, // jobs that are done before the engine is told of them
};

struct leaf_pool {
    void (*tell)(void *context);
    void *context;
    struct helper {
        struct leaf_pool *pool;
        pthread_t thread;
    } helpers[CONTENT_THREADS_MOST];
    unsigned helper_count;

    pthread_mutex_t lock; // of what follows; `given` and `taken` are also read by their only writer without it
    pthread_cond_t work;
    bool stopping;
    uint64_t given, begun, taken; // jobs so far; job n is in slot n % LEAF_JOBS_MOST
    unsigned untold;              // done since the last call of `tell`
    struct slot {
        struct leaf_job job;
        bool done;
    } slots[LEAF_JOBS_MOST];
};

static struct slot *slot_of(struct leaf_pool *pool, uint64_t number) { return &pool->slots[number % LEAF_JOBS_MOST]; }

// Returns false if the device has failed.
static bool bring(const struct leaf_job *job) {
    device_unstage(job->queue, job->to, job->staging, job->length);
    return device_await_fence(job->queue, device_mark(job->queue));
}

void leaf_check(struct leaf_job *job) {
    if (hash_xxh3_64(job->staging, job->length) != job->expected)
        job->result = LEAF_WRONG;
    else
        job->result = bring(job) ? LEAF_RIGHT : LEAF_UNWRITABLE;
    if (job->result == LEAF_WRONG) device_unmap(job->queue, job->staging);
}

static void work(struct helper *helper) {
    struct leaf_pool *pool = helper->pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stopping && pool->begun == pool->given) pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stopping) break;
        struct slot *slot = slot_of(pool, pool->begun++);
        struct leaf_job job = slot->job;
        pthread_mutex_unlock(&pool->lock);
        leaf_check(&job);
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
static bool add_helper(struct leaf_pool *pool) {
    struct helper *helper = &pool->helpers[pool->helper_count];
    *helper = (struct helper){.pool = pool};
    if (!platform_thread_start(&helper->thread, "pccl:leaf", run, helper)) return false;
    pool->helper_count++;
    return true;
}

struct leaf_pool *leaf_pool_new(void (*tell)(void *), void *context) {
    struct leaf_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->tell = tell;
    pool->context = context;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    unsigned limit = content_thread_limit();
    while (pool->helper_count < limit && add_helper(pool)) continue;
    if (pool->helper_count > 0) return pool;
    leaf_pool_free(pool);
    return NULL;
}

bool leaf_pool_give(struct leaf_pool *pool, const struct leaf_job *job) {
    pthread_mutex_lock(&pool->lock);
    bool room = pool->given - pool->taken < LEAF_JOBS_MOST;
    if (room) {
        *slot_of(pool, pool->given++) = (struct slot){.job = *job};
        pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
    return room;
}

bool leaf_pool_take(struct leaf_pool *pool, struct leaf_job *out) {
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

bool leaf_pool_has(const struct leaf_pool *pool, uint64_t leaf) {
    for (uint64_t n = pool->taken; n < pool->given; n++)
        if (pool->slots[n % LEAF_JOBS_MOST].job.leaf == leaf) return true;
    return false;
}

bool leaf_pool_idle(const struct leaf_pool *pool) { return pool->taken == pool->given; }

void leaf_pool_stop(struct leaf_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

void leaf_pool_free(struct leaf_pool *pool) {
    if (pool == NULL) return;
    leaf_pool_stop(pool);
    for (unsigned i = 0; i < pool->helper_count; i++) pthread_join(pool->helpers[i].thread, NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
