// Private header of a round of shared state: sync.c (its life, the engine's thread, and leaves for those that ask) and
// sync_receive.c (requests to donors, and leaves that come). Everything belongs to the engine's thread, except where
// the lock is named.
#ifndef PCCL_STATE_SYNC_PRIVATE_H
#define PCCL_STATE_SYNC_PRIVATE_H

#include "base/log.h"
#include "base/platform.h"
#include "data/core.h"
#include "link/connection.h"
#include "data/service.h"
#include "device/device.h"
#include "state/leaf.h"
#include "state/sync.h"

enum {
    // of one requester; for those repeated when a link broke and when it was there again
    ASKS_MAX = 3 * DELTA_LEAVES_ON_WAY,
    SYNC_TICK_MS = 50,
};

struct ask {
    uint16_t type;
    struct wire_sync_ask what; // what is left of it
};

struct requester {
    struct requester *next;
    struct neighbour *peer;
    uint32_t first, count;
    struct ask asks[ASKS_MAX];
    struct leaf_packing choice;
};

struct donor {
    struct wire_id id;
    struct neighbour *peer; // NULL: gone
    bool link_lost;         // and not made again yet
    uint64_t kept;          // bytes
    uint64_t seen;          // bytes that came on its lanes, when looked at last
    int64_t progress_at;
};

enum phase {
    PHASE_VOTED,  // no plan yet
    PHASE_GIVING, // also of members that neither give nor receive
    PHASE_HASHES, // receiver: the winner's leaf hashes are on their way
    PHASE_LEAVES,
    PHASE_DONE, // receiver: the master was told
};

struct sync {
    struct service service;
    struct engine *engine;
    struct content *content;
    int64_t stall_ns, tick_at, told_at;
    struct log_limit log; // of what donors do
    enum phase phase;
    struct wire_sync_plan *plan; // set under the lock; begun by the thread
    bool begun;
    bool packs; // takes and gives packed leaves

    struct requester *requesters;

    struct donor *donors;
    uint32_t donor_count, hash_donor;
    uint32_t sequence;
    uint64_t *theirs;
    uint64_t hashes; // that have come
    int64_t hashes_asked_at;
    uint8_t *hashes_bad;                 // by donor: how often
    const struct delta_entry **by_place; // room for all entries
    struct wire_sync_done *done;         // made ready, so that the end cannot fail
    struct delta *delta;
    struct leaf_pool *pool;    // made when there is work for it
    struct sync_report report; // written under the lock
};

// ---- sync_receive.c ----
bool sync_receive_begin(struct sync *sync); // false: memory was refused
// Does what there is to do now and then: asks, and replaces donors.
void sync_receive_step(struct sync *sync);
void sync_receive_results(struct sync *sync);                     // of the pool
bool sync_receive_locate(struct sync *sync, struct incoming *in); // hashes or a leaf, as service_type.locate
bool sync_receive_take(struct sync *sync, struct incoming *in);   // likewise, as service_type.arrived
void sync_receive_changed(struct sync *sync, const struct neighbour *peer, enum service_change change);
// The round is over or void, and nothing writes any more: the content's hashes become those of what lies in memory.
// Leaves that came are the donors'; those that may be half-written are nobody's, and then it returns true.
bool sync_note_leaves(struct sync *sync);

// The device of this queue has failed, and so the engine fails. Lock not held.
static inline void sync_fail(struct sync *sync, const struct device_queue *queue) {
    engine_lock(sync->engine);
    engine_fail_of(sync->engine, queue);
    engine_unlock(sync->engine);
}

static inline struct sync *sync_of(struct service *service) { return (struct sync *)service; }

#endif
