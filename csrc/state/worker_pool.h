// The helpers of a receiver ("pccl:leaf", as many as may hash, see content.h): each takes a leaf that a donor named or
// sent, brings it to its place, and checks it there, so that the engine's thread only moves frames.
//
// A leaf that has come whole is checked where it has landed. One that lies in the memory of another process of this
// host is read from there. What is right is brought to its place. A helper that hangs in that
// memory is left behind (see device/reader), its leaf is unreadable.
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
    WORKER_POOL_UNREADABLE, // nothing is known of the leaf, but that it has to come another way
    WORKER_POOL_UNWRITABLE, // its device has failed
};

struct worker_pool_job {
    uint64_t leaf;
    uint32_t donor;
    uint8_t *to; // its place, written by the helper until the job is taken back, and only with what is right
    struct device_queue *queue; // of that memory
    uint8_t *landing;           // where the leaf was received for its place (device_landing); NULL: in another process
    uint32_t length;
    uint32_t came;     // bytes over the link for it
    uint64_t expected; // hash
    pid_t process;     // this one
    uint64_t from;     // address there
    enum worker_pool_result result;
};

struct worker_pool;
struct reader;

// NULL when the system refuses memory or every thread.
struct worker_pool *worker_pool_new(void (*tell)(void *context), void *context);
// False: there are WORKER_POOL_JOBS_MOST under way; nothing was done.
bool worker_pool_give(struct worker_pool *pool, const struct worker_pool_job *job);
// False: the oldest is not done yet, or there is none.
bool worker_pool_take(struct worker_pool *pool, struct worker_pool_job *out);
bool worker_pool_has(const struct worker_pool *pool, uint64_t leaf); // given and not taken back
bool worker_pool_idle(const struct worker_pool *pool);               // all were taken back
// Whether a helper hangs, of which the one thread learns by worker_pool_take; to be called now and then.
void worker_pool_watch(struct worker_pool *pool);
// No further job is begun. Does not block.
void worker_pool_stop(struct worker_pool *pool);
// Stops, and waits until no helper touches anything, or it hangs and never will. NULL is allowed. Any one thread.
void worker_pool_free(struct worker_pool *pool);

// The work itself; sets the result.
void worker_pool_do(struct worker_pool_job *job, struct reader *reader);

#endif
