// Leaves of a shared state on their way: each is packed for a slow link, unpacked, checked against its
// hash, and brought to its place by helper threads.
#ifndef PCCL_STATE_LEAF_H
#define PCCL_STATE_LEAF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// ---- packing ---- Leaves are packed with LZ4, where the build has found it, when that pays. It pays on a link if
// packing and unpacking a leaf and sending what is left takes less than nine tenths of the time to send the leaf as it
// is. The speed of the link is what the kernel measures on its connections while they are busy (link/pace); ratio and
// time of packing come from a leaf tried now and then, so rarely that trying costs at most a hundredth of the transfer.
// While it pays, each leaf is such a trial.

enum {
    LEAF_PACKED_LEAST = 4096, // bytes of a leaf that is worth packing
};

// Built in, and not turned off (PCCL_LZ4=0 in the environment).
bool leaf_packing_available(void);
// The length of the packed leaf in `to`, or 0: it would not be shorter than 15/16 of the leaf. `to` has room for a
// leaf.
uint32_t leaf_pack(uint8_t *to, const uint8_t *leaf, uint32_t length);
// Writes `length` bytes at most, whatever the packed bytes are. False: they are not a leaf of exactly this length.
bool leaf_unpack(uint8_t *to, uint32_t length, const uint8_t *packed, uint32_t packed_length);

// ---- the choice, of one link ----
// `speed` is that of the link, in bytes per ns; 0: unknown.
struct leaf_packing { // all 0 at the beginning
    double pack;      // ns per byte of the leaf, 0 = unknown
    double ratio;     // packed to plain
    uint32_t wait;    // leaves until the next trial
};

// Whether the next leaf is to be packed, to send it so or as a trial.
bool leaf_packing_tries(struct leaf_packing *choice, double speed);
// Notes a trial. Returns whether packing pays.
bool leaf_packing_tried(struct leaf_packing *choice, double speed, uint32_t length, uint32_t packed_length, int64_t ns);

// ---- checking ----
enum { LEAF_JOBS_MOST = 64 }; // under way

enum leaf_result {
    LEAF_RIGHT,
    LEAF_WRONG,
    LEAF_UNWRITABLE, // its device has failed
};

struct leaf_job {
    uint64_t leaf;
    uint32_t donor;
    uint8_t *to; // its place, written by the helper until the job is taken back, and only with what is right
    struct device_queue *queue; // of that memory
    uint8_t *staging;           // where the leaf was received for its place (device_staging)
    uint32_t length;
    uint32_t came;     // bytes over the link for it
    uint64_t expected; // hash
    enum leaf_result result;
};

// Checks a leaf where it has landed, and brings it to its place if it is right. Sets the result.
void leaf_check(struct leaf_job *job);

// The helpers of a receiver ("pccl:leaf", as many as may hash, see content.h), which check leaves so that the engine's
// thread only moves bytes. Used by one thread, which gives jobs and takes them back in the same order.
struct leaf_pool;

// `tell` is called from a helper, without a lock, now and then, and when nothing is left to do. NULL when the system
// refuses memory or every thread.
struct leaf_pool *leaf_pool_new(void (*tell)(void *context), void *context);
// False: there are LEAF_JOBS_MOST under way; nothing was done.
bool leaf_pool_give(struct leaf_pool *pool, const struct leaf_job *job);
// False: the oldest is not done yet, or there is none.
bool leaf_pool_take(struct leaf_pool *pool, struct leaf_job *out);
bool leaf_pool_has(const struct leaf_pool *pool, uint64_t leaf); // given and not taken back
bool leaf_pool_idle(const struct leaf_pool *pool);               // all were taken back
// No further job is begun. Does not block.
void leaf_pool_stop(struct leaf_pool *pool);
// Stops, and waits until no helper touches anything. NULL is allowed. Any one thread.
void leaf_pool_free(struct leaf_pool *pool);

#endif
