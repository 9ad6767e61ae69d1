// The helpers of a receiver ("pccl:leaf", as many as may hash, see content.h): each checks a leaf where it has landed,
// and brings it to its place if it is right, so that the engine's thread only moves bytes.
//
// Used by one thread, which gives jobs and takes them back in the same order; `tell` is called from a helper, without a
// lock, now and then, and when nothing is left to do.
#ifndef PCCL_STATE_WORKER_POOL_H
#define PCCL_STATE_WORKER_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { WORKER_POOL_JOBS_MOST = 64 }; // under way

enum worker_pool_result {
    WORKER_POOL_RIGHT,
    WORKER_POOL_WRONG,
    WORKER_POOL_UNWRITABLE, // its device has failed
};

struct worker_pool_job {
    uint64_t leaf;
    uint32_t donor;
    uint8_t *to; // its place, written by the helper until the job is taken back, and only with what is right
    struct device_queue *queue; // of that memory
    uint8_t *landing;           // where the leaf was received for its place (device_landing)
    uint32_t length;
    uint32_t came;     // bytes over the link for it
    uint64_t expected; // hash
    enum worker_pool_result result;
};

struct worker_pool;

// NULL when the system refuses memory or every thread.
struct worker_pool *worker_pool_new(void (*tell)(void *context), void *context);
// False: there are WORKER_POOL_JOBS_MOST under way; nothing was done.
bool worker_pool_give(struct worker_pool *pool, const struct worker_pool_job *job);
// False: the oldest is not done yet, or there is none.
bool worker_pool_take(struct worker_pool *pool, struct worker_pool_job *out);
bool worker_pool_has(const struct worker_pool *pool, uint64_t leaf); // given and not taken back
bool worker_pool_idle(const struct worker_pool *pool);               // all were taken back
// No further job is begun. Does not block.
void worker_pool_stop(struct worker_pool *pool);
// Stops, and waits until no helper touches anything. NULL is allowed. Any one thread.
void worker_pool_free(struct worker_pool *pool);

// The work itself; sets the result.
void worker_pool_do(struct worker_pool_job *job);

#endif
