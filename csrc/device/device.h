// The memory that tensors lie in: nobody but this folder touches the bytes of a caller's tensor.
//
// Memory of the CPU is plain: it has no queue (NULL), and each call below does its work at once, with a copy, a kernel
// or nothing at all. Any other memory belongs to a device, a table of functions. All its work for one call, or for one
// state, goes through a queue, in the order in which it was asked for, and none of that waits for other processes.
//
// What may be not yet done when a call of a queue returns: everything but device_await, device_await_fence,
// device_hash and device_close. A position in the queue is a fence. device_passed tells whether all up to it is done,
// and whenever a queue gets on or fails, it signals its wake-up. The fence of a mapped view tells of that view, and may
// pass before what was asked for earlier. What a stream of the caller had been given before device_follow comes before
// all else: that may take long, and is over when the fence 0 has passed.
//
// What fails, fails the queue: it takes no further work, its fences are DEVICE_FAILED, pointers that it gives are NULL,
// and device_error says why. A call that fails has written nothing. Any thread may call, also at the same time.
#ifndef PCCL_DEVICE_DEVICE_H
#define PCCL_DEVICE_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "compute/codec.h"
#include "compute/hash.h"
#include "compute/kernels.h"

enum { DEVICE_ERROR_BYTES = 160 };

enum device_state { DEVICE_FAILED, DEVICE_BUSY, DEVICE_DONE };

struct device_queue;

// How two tensors become one.
struct device_sum {
    int op, dtype;
    uint32_t divisor; // of the sum; 0: it is not divided
};

// A sum of terms that come in the valid codes of one codec (compute/codec.h), and what becomes of it. The codes of the
// terms are memory of the host, and not looked at any more when the call returns; tensors are all of one device, and
// NULL where there is none.
struct device_codes {
    uint8_t codec;
    struct device_sum sum;
    size_t count;
    const uint8_t *const *terms;           // in the order of the sum; not looked at where the own term stands
    uint32_t term_count, own;              // which one that is; term_count: none
    const void *input;                     // the own term
    const float *residual_in;              // is added to it
    const struct codec_rounding *rounding; // NULL: to nearest
    void *result;                          // what the codes of the sum stand for; without codes, the sum
    float *residual_out;                   // (sum - result) * times; without a result, what the codes stand for
    uint32_t times;
};

enum device_coding { DEVICE_CODING_FAILED, DEVICE_CODING_ELSEWHERE, DEVICE_CODING_ASKED };

// Functions of a device, called by those of the same names below for queues of that device.
struct device {
    const char *name;
    bool (*owns)(const void *memory);
    bool (*together)(const void *one, const void *other);       // NULL: all memory of the device is in one place
    struct device_queue *(*open)(const void *tensor, int wake); // NULL: refused
    bool (*follow)(struct device_queue *queue, void *stream);   // NULL: there are no streams
    void (*close)(struct device_queue *queue);
    enum device_state (*passed)(struct device_queue *queue, uint64_t fence);
    uint64_t (*mark)(struct device_queue *queue);
    bool (*await)(struct device_queue *queue);
    bool (*await_fence)(struct device_queue *queue, uint64_t fence);
    void (*set_wake)(struct device_queue *queue, int wake);
    const void *(*map)(struct device_queue *queue, const void *tensor, size_t bytes, uint64_t *fence);
    void (*unmap)(struct device_queue *queue, const void *place);
    void *(*staging)(struct device_queue *queue, size_t bytes);
    void (*unstage)(struct device_queue *queue, void *tensor, void *staging, size_t bytes);
    void (*reduce)(struct device_queue *queue, void *result, void *staging, const void *input, size_t count,
                   const struct device_sum *sum);
    enum device_coding (*code)(struct device_queue *queue, const struct device_codes *what, const void **codes,
                               uint64_t *fence); // NULL: elsewhere
    void *(*take)(struct device_queue *queue, size_t bytes);
    void (*give)(struct device_queue *queue, void *room);
    void (*copy)(struct device_queue *queue, void *to, const void *from, size_t bytes);
    bool (*hash)(struct device_queue *queue, uint64_t *leaves, const void *content, uint64_t bytes, uint64_t first,
                 uint64_t count);
    bool (*hold)(struct device_queue *queue, void *stream); // NULL: there are no streams
    void (*release)(struct device_queue *queue);
};

// The first member of a queue of any device.
struct device_queue {
    const struct device *device;
    atomic_bool failed;
    char error[DEVICE_ERROR_BYTES]; // written before `failed` is set
};

// ---- devices ----
// Before the first tensor is passed to the library.
void device_add(const struct device *device);
// Returns the device that owns this memory; NULL for plain memory.
const struct device *device_of(const void *memory);
// Whether one queue can serve both: plain memory, or memory of the same device and place.
bool device_is_one(const void *one, const void *other);
// For a device: the queue fails, if it has not failed before.
void device_fail(struct device_queue *queue, const char *why);

// ---- queues ----
// For this tensor, and all memory that is one with it. `wake`: see base/platform; negative: nobody. False: the device
// refuses. *out is NULL for plain memory.
static inline bool device_open(const void *tensor, int wake, struct device_queue **out) {
    const struct device *device = device_of(tensor);
    *out = device == NULL ? NULL : device->open(tensor, wake);
    return device == NULL || *out != NULL;
}
// Once, before anything is asked of the queue: what is in this stream of the device (NULL: the default one) comes
// first. False, with its text in base/detail: the stream cannot be followed; the queue can be used all the same. May
// block for as long as the device takes nothing more into the stream.
static inline bool device_follow(struct device_queue *queue, void *stream) {
    return queue == NULL || queue->device->follow == NULL || queue->device->follow(queue, stream);
}
// Waits until nothing is under way, but not for a stream that the queue follows, if nothing was asked of it. All
// mapped views, staging buffers and rooms that are left are the device's again.
static inline void device_close(struct device_queue *queue) {
    if (queue != NULL) queue->device->close(queue);
}

static inline enum device_state device_passed(struct device_queue *queue, uint64_t fence) {
    return queue == NULL ? DEVICE_DONE : queue->device->passed(queue, fence);
}

// The fence behind all that was asked for until now.
static inline uint64_t device_mark(struct device_queue *queue) {
    return queue == NULL ? 0 : queue->device->mark(queue);
}

// Waits until nothing is under way. False: the queue has failed.
static inline bool device_await(struct device_queue *queue) { return queue == NULL || queue->device->await(queue); }

// Waits until the fence has passed. False: the queue has failed.
static inline bool device_await_fence(struct device_queue *queue, uint64_t fence) {
    return queue == NULL || queue->device->await_fence(queue, fence);
}

// The queue signals this wake-up from now on, and no longer the one before; negative: nobody.
static inline void device_set_wake(struct device_queue *queue, int wake) {
    if (queue != NULL) queue->device->set_wake(queue, wake);
}

static inline bool device_has_failed(const struct device_queue *queue) {
    return queue != NULL && atomic_load_explicit(&queue->failed, memory_order_acquire);
}

static inline const char *device_error(const struct device_queue *queue) { return queue->error; }

// ---- to and from the wire ----
// Returns a mapped view of the tensor, which the wire may read once *fence has passed; the fence is 0 for plain memory,
// whose view is the tensor itself. Whoever has read the view unmaps it.
static inline const void *device_map(struct device_queue *queue, const void *tensor, size_t bytes, uint64_t *fence) {
    *fence = 0;
    return queue == NULL ? tensor : queue->device->map(queue, tensor, bytes, fence);
}

static inline void device_unmap(struct device_queue *queue, const void *place) {
    if (queue != NULL && place != NULL) queue->device->unmap(queue, place);
}

// Returns a staging buffer to receive bytes for the tensor; for plain memory, the tensor itself. Pass it to
// device_unstage, device_reduce or device_unmap.
static inline void *device_staging(struct device_queue *queue, void *tensor, size_t bytes) {
    return queue == NULL ? tensor : queue->device->staging(queue, bytes);
}

// Copies the bytes in the staging buffer to the tensor, and takes the buffer back.
static inline void device_unstage(struct device_queue *queue, void *tensor, void *staging, size_t bytes) {
    if (queue != NULL) queue->device->unstage(queue, tensor, staging, bytes);
}

// result = staging op input; takes the staging buffer back. Of plain memory `staging` is any memory.
static inline void device_reduce(struct device_queue *queue, void *result, void *staging, const void *input,
                                 size_t count, const struct device_sum *sum) {
    if (queue != NULL) {
        queue->device->reduce(queue, result, staging, input, count, sum);
        return;
    }
    const struct kernels *kernels = kernels_get();
    kernels->reduce[sum->op][sum->dtype](result, staging, input, count);
    if (sum->divisor != 0) kernels->divide[sum->dtype](result, count, sum->divisor);
}

// Reckons with codes at the device. *codes is a mapped view of those of the sum, as of device_map; NULL: it has none.
// Elsewhere: the device does not, nothing was asked for, and the caller does it on the host.
static inline enum device_coding device_code(struct device_queue *queue, const struct device_codes *what,
                                             const void **codes, uint64_t *fence) {
    if (queue == NULL || queue->device->code == NULL) return DEVICE_CODING_ELSEWHERE;
    return queue->device->code(queue, what, codes, fence);
}

// ---- streams of the caller ----
// What is put into the stream from now on waits for device_release, and for all that was asked for before that. False,
// with its text in base/detail: the device or the stream cannot do so, or has failed. May block, as device_follow.
static inline bool device_hold(struct device_queue *queue, void *stream) {
    return queue->device->hold != NULL && queue->device->hold(queue, stream);
}

static inline void device_release(struct device_queue *queue) {
    if (queue != NULL && queue->device->release != NULL) queue->device->release(queue);
}

// ---- what is saved ----
// Room at the device; for plain memory it is the caller's own affair. Given back, it is used again when what was asked
// for before is done.
static inline void *device_take(struct device_queue *queue, size_t bytes) { return queue->device->take(queue, bytes); }
static inline void device_give(struct device_queue *queue, void *room) { queue->device->give(queue, room); }

// From a tensor to a room, or back, or to another tensor.
static inline void device_copy(struct device_queue *queue, void *to, const void *from, size_t bytes) {
    if (queue == NULL)
        memory_copy(to, from, bytes);
    else
        queue->device->copy(queue, to, from, bytes);
}

// ---- content ----
// As hash_leaves, when it returns. False: the queue has failed.
static inline bool device_hash(struct device_queue *queue, uint64_t *leaves, const void *content, uint64_t bytes,
                               uint64_t first, uint64_t count) {
    if (queue != NULL) return queue->device->hash(queue, leaves, content, bytes, first, count);
    hash_leaves(leaves, content, bytes, first, count);
    return true;
}

static inline bool device_is_writable(const struct device_queue *queue, void *memory, size_t bytes) {
    return queue != NULL || memory_can_be_written(memory, bytes);
}

#endif
