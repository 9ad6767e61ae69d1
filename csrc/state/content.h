// A shared state as its owner passed it: where its entries lie, the hashes of what lies there, and whether it is torn.
//
// The leaves of all entries without the allow flag are hashed by the caller and, when there is much to do, by helper
// threads ("pccl:hash", PCCL_HASH_THREADS in all at most, one per processor and 8 by default). They go on while the
// caller is away, and end when all is hashed.
#ifndef PCCL_STATE_CONTENT_H
#define PCCL_STATE_CONTENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/hash.h"
#include "pccl.h"
#include "net/wire_control.h"
#include "state/delta.h"

enum { CONTENT_THREADS_MOST = 64, CONTENT_DEVICES_MOST = 8 };

struct content {
    struct delta_layout layout; // of the entries without the allow flag, in order
    uint64_t *leaves;           // their hashes, when content_hash has returned true
    uint8_t *roots;             // room for the hashes of the entries, so that content_root needs no memory
    struct wire_hash mask, hash;
    struct wire_outline outline; // as the mask, of all entries
    atomic_uint_fast64_t next;   // leaf to be hashed
    bool begun;
    unsigned helper_count; // that are not joined yet
    pthread_t helpers[CONTENT_THREADS_MOST];
    struct device_queue *queues[CONTENT_DEVICES_MOST]; // one of each device that entries lie at
    const void *reached[CONTENT_DEVICES_MOST];         // an entry there
    size_t queue_count;
};

// How many threads may work on a state at once.
unsigned content_thread_limit(void);

// Copies what it needs; the tensors are borrowed until content_free. The state was checked. `read_only`: by entry,
// those that its owner does not want written; NULL: none. pcclInternalError: memory, or a device, is refused;
// pcclInvalidUsage: a stream of a device cannot be followed.
pcclResult_t content_new(const pcclSharedState_t *state, const bool *read_only, struct content **out);
void content_free(struct content *content); // waits for the helpers to put down what they have in hand
// Hashes on from where it stands until all is done or `deadline_ns` (monotonic, INT64_MAX = never) has passed. True:
// done.
bool content_hash(struct content *content, int64_t deadline_ns);
// The devices of the content signal this wake-up when they get on; negative: nobody (device_set_wake).
void content_set_wake(struct content *content, int wake);
// NULL: no device has failed.
struct device_queue *content_failed_device(const struct content *content);
// Why the memory of the content cannot be reached; NULL: no device has failed.
const char *content_error(const struct content *content);
// Returns the content hash that these leaf hashes give. Uses `content->roots`.
struct wire_hash content_root(struct content *content, const uint64_t *leaves);
// Whether `content` was made of the same entries in the same memory, with the same flags. False also when memory was
// refused.
bool content_is_of(const struct content *content, const pcclSharedState_t *state, const bool *read_only);

// ---- torn memory ---- A transfer that ends after its first write leaves a state torn: half old, half new. Such a
// state is no candidate in an election until a sync of it has succeeded, with whatever communicator, or the program has
// written it anew (pcclMarkSharedStateRestored). So the record belongs to the process and holds places, not
// communicators. Memory that was given back and is used for another state counts as the same, for nobody reports that.
// May be called from any thread.

// Records that a transfer into these entries was cut short. Without memory for the record all memory counts as torn,
// until it is cleared state by state.
void content_mark_torn(const struct delta_layout *layout);
// Records that a sync of these entries has succeeded, or that all of them were written anew.
void content_clear_torn(const struct delta_layout *layout);
// Whether any byte of these entries lies where a transfer was cut short.
bool content_is_torn(const struct delta_layout *layout);

#endif
