// Leaves as they come from donors: each is brought to its place and checked, by the pool or by the thread itself.
#define _GNU_SOURCE
#include "state/sync_private.h"
#include "link/lanes.h"

#include "base/stream.h"

enum { WORKER_POOL_BYTES = 64 << 10 }; // a leaf that is worth another thread

// Nobody else writes the leaf from now on. False: it is here, or the pool is at it, and ends what it has begun.
static bool take_over(struct sync *sync, const struct incoming *in, uint64_t leaf) {
    if (!delta_wants(sync->delta, leaf)) return false;
    if (sync->pool != NULL && worker_pool_has(sync->pool, leaf)) return false;
    size_t at = 0;
    for (struct incoming *other; (other = lanes_next_service(sync->engine->lanes, &at)) != NULL;) {
        if (other == in || other->header.type != WIRE_SYNC_LEAF || other->head.offset != leaf) continue;
        other->to = NULL;
        other->service = false;
    }
    return true;
}

// Returns the buffer to receive a leaf into. NULL: the device has failed, and the engine is dead.
static uint8_t *land_leaf(struct sync *sync, uint64_t leaf) {
    engine_assert_locked(sync->engine);
    struct delta_piece piece = delta_layout_find(&sync->content->layout, leaf);
    const struct delta_entry *entry = &sync->content->layout.entries[piece.entry];
    uint8_t *landing = device_landing(entry->queue, (uint8_t *)entry->data + piece.offset, piece.length);
    if (landing == NULL) engine_fail_of(sync->engine, entry->queue);
    return landing;
}

// Returns whether the leaf is of the round at hand and comes from a donor. The others are discarded.
static bool is_wanted(const struct sync *sync, const struct incoming *in) {
    return sync->begun && in->head.tag == sync->plan->round && sync->phase == PHASE_LEAVES &&
           sync_donor_of(sync, in->from) < sync->donor_count;
}

bool sync_place_leaf(struct sync *sync, struct incoming *in) {
    const struct wire_op *head = &in->head;
    if (!is_wanted(sync, in)) return true;
    if (head->offset >= sync->content->layout.leaf_count) return false;
    struct delta_piece piece = delta_layout_find(&sync->content->layout, head->offset);
    switch (head->extra) {
    case WIRE_SYNC_PLAIN:
        if (in->length != piece.length) return false;
        if (!take_over(sync, in, head->offset)) return true;
        in->to = land_leaf(sync, head->offset);
        break;
    case WIRE_SYNC_LZ4:
        if (!sync->packs || in->length == 0 || in->length >= piece.length) return false;
        if (!take_over(sync, in, head->offset)) return true;
        in->to = lane_scratch(in->lane);
        break;
    case WIRE_SYNC_SLOT: return true; // the bytes are found when the frame is here
    default: return false;
    }
    if (in->to == NULL) return false;
    in->service = true;
    sync->report.wrote = true;
    return true;
}

// A leaf is in its place, and checked.
static void keep_leaf(struct sync *sync, const struct worker_pool_job *job) {
    struct donor *donor = &sync->donors[job->donor];
    delta_arrived(sync->delta, job->leaf, job->donor, platform_now_ns());
    donor->kept += job->length;
    engine_lock(sync->engine);
    sync->report.donors += donor->kept == job->length;
    sync->report.rx_bytes += job->length;
    sync->report.wire_bytes += job->came;
    sync->report.rx_leaves++;
    sync->report.missing_bytes -= job->length;
    engine_unlock(sync->engine);
}

static void take_result(struct sync *sync, const struct worker_pool_job *job) {
    switch (job->result) {
    case WORKER_POOL_RIGHT: keep_leaf(sync, job); break;
    case WORKER_POOL_WRONG:
        LOG(LOG_WARN, "shared state: leaf %llu came with wrong bytes and is fetched again",
            (unsigned long long)job->leaf);
        delta_wrong(sync->delta, job->leaf, job->donor);
        delta_lost(sync->delta, job->leaf);
        break;
    case WORKER_POOL_UNWRITABLE:
        delta_lost(sync->delta, job->leaf);
        sync_fail(sync, job->queue);
        break;
    }
}

static void go_on(struct sync *sync, const struct worker_pool_job *job) {
    if (job->result == WORKER_POOL_RIGHT && delta_missing(sync->delta) > 0)
        sync_pump_donor(sync, job->donor, platform_now_ns());
    else
        sync_pump(sync);
}

static void tell_workers_are_done(void *context) {
    struct engine *engine = context;
    engine_lock(engine);
    engine_wake(engine);
    engine_unlock(engine);
}

void sync_take_worker_results(struct sync *sync) {
    struct worker_pool_job job;
    struct worker_pool *pool = sync->pool;
    while (pool != NULL && sync->phase == PHASE_LEAVES && worker_pool_take(pool, &job)) {
        take_result(sync, &job);
        go_on(sync, &job);
    }
}

// The pool does it, or, if that is busy or the job is small, the thread itself.
static void do_job(struct sync *sync, struct worker_pool_job *job) {
    if (job->length >= WORKER_POOL_BYTES) {
        if (sync->pool == NULL) sync->pool = worker_pool_new(tell_workers_are_done, sync->engine);
        if (sync->pool != NULL && worker_pool_give(sync->pool, job)) return;
        sync_take_worker_results(sync); // there may be room then, or an end of it all
        if (sync->phase != PHASE_LEAVES || (sync->pool != NULL && worker_pool_give(sync->pool, job))) return;
    }
    worker_pool_do(job);
    take_result(sync, job);
    go_on(sync, job);
}

static struct worker_pool_job job_of(const struct sync *sync, uint64_t leaf, uint32_t donor) {
    struct delta_piece piece = delta_layout_find(&sync->content->layout, leaf);
    const struct delta_entry *entry = &sync->content->layout.entries[piece.entry];
    return (struct worker_pool_job){
        .leaf = leaf,
        .donor = donor,
        .to = (uint8_t *)entry->data + piece.offset,
        .queue = entry->queue,
        .length = piece.length,
        .expected = sync->theirs[leaf],
    };
}

// Copies a leaf out of the donor's slots. Returns its place, or NULL if it is not wanted, has to be asked for again, or
// its device has failed.
static uint8_t *copy_from_slots(struct sync *sync, const struct incoming *in) {
    uint64_t leaf = in->head.offset;
    if (in->slot == NULL) {
        if (delta_wants(sync->delta, leaf)) delta_lost(sync->delta, leaf);
        sync_pump(sync);
        return NULL;
    }
    engine_lock(sync->engine);
    bool taken = take_over(sync, in, leaf);
    uint8_t *landing = taken ? land_leaf(sync, leaf) : NULL;
    sync->report.wrote |= landing != NULL;
    engine_unlock(sync->engine);
    if (landing != NULL) stream_copy(landing, in->slot, delta_layout_find(&sync->content->layout, leaf).length);
    return landing;
}

// False: it is not a leaf, or its device has failed, and the job is done.
static bool unpack(struct sync *sync, const struct incoming *in, struct worker_pool_job *job) {
    engine_lock(sync->engine);
    job->landing = land_leaf(sync, job->leaf);
    engine_unlock(sync->engine);
    job->result = job->landing == NULL ? WORKER_POOL_UNWRITABLE : WORKER_POOL_WRONG;
    if (job->landing == NULL) return false;
    if (coding_unpack(job->landing, job->length, in->to, (uint32_t)in->length)) return true;
    device_shut(job->queue, job->landing);
    return false;
}

bool sync_take_leaf(struct sync *sync, struct incoming *in) {
    if (in->to == NULL || !is_wanted(sync, in)) return true;
    bool slot = in->head.extra == WIRE_SYNC_SLOT, packed = in->head.extra == WIRE_SYNC_LZ4;
    if (slot && in->head.offset >= sync->content->layout.leaf_count) return false;
    struct worker_pool_job job = job_of(sync, in->head.offset, sync_donor_of(sync, in->from));
    job.came = (uint32_t)in->length;
    job.landing = slot ? copy_from_slots(sync, in) : in->to;
    if (job.landing == NULL) return true;
    if (!packed || unpack(sync, in, &job)) {
        do_job(sync, &job);
        return true;
    }
    take_result(sync, &job);
    go_on(sync, &job);
    return true;
}
