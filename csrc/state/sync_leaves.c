// Leaves as they come from donors: each is brought to its place and checked, by the pool or by the thread itself.
#define _GNU_SOURCE
#include "state/sync_private.h"

#include <string.h>

enum { WORKER_POOL_BYTES = 64 << 10 }; // a leaf that is worth another thread

// Nobody else writes the leaf from now on. False: it is here, or the pool is at it, and ends what it has begun.
static bool take_over(struct sync *sync, const struct incoming *in, uint64_t leaf) {
    if (!delta_wants(sync->delta, leaf)) return false;
    if (sync->pool != NULL && worker_pool_has(sync->pool, leaf)) return false;
    size_t at = 0;
    for (struct incoming *other; (other = lanes_next_service(sync->engine, &at)) != NULL;) {
        if (other == in || other->header.type != WIRE_SYNC_LEAF || other->head.offset != leaf) continue;
        if (other->head.extra == WIRE_SYNC_PLACED) continue; // it writes nothing before it is here
        other->to = NULL;
        other->service = false;
    }
    return true;
}

// Whether the leaves of a placed answer are all of this entry.
static bool are_together(const struct sync *sync, size_t index, const struct wire_op *head) {
    const struct delta_entry *entry = &sync->content->layout.entries[index];
    return head->shard > 0 && head->shard <= entry->first_leaf + entry->leaf_count - head->offset;
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

bool sync_place_leaf(struct sync *sync, struct incoming *in) {
    const struct wire_op *head = &in->head;
    if (!sync->begun || head->tag != sync->plan->round || sync->phase != PHASE_LEAVES) return true;
    if (sync_donor_of(sync, in->from) == sync->donor_count) return true;
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
    case WIRE_SYNC_PLACED:
        if (in->length != WIRE_PLACE_BYTES || !are_together(sync, piece.entry, head)) return false;
        in->to = in->place;
        break;
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

// A donor whose memory cannot be read any more is most likely dying, and its links live on until its memory is freed:
// others come first.
static void doubt(struct sync *sync, uint32_t index) {
    struct donor *donor = &sync->donors[index];
    if (donor->unreadable) return;
    LOG(LOG_INFO, "shared state: the memory of a donor cannot be read any more");
    donor->unreadable = true;
    donor->process = 0;
    delta_shun(sync->delta, index);
}

void sync_memory_hangs(struct sync *sync, const struct neighbour *peer) {
    uint32_t index = sync->delta == NULL ? sync->donor_count : sync_donor_of(sync, peer);
    if (index < sync->donor_count) doubt(sync, index);
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
    case WORKER_POOL_UNREADABLE:
        delta_lost(sync->delta, job->leaf);
        doubt(sync, job->donor);
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
static void do_job(struct sync *sync, struct lane *lane, struct worker_pool_job *job) {
    if (job->length >= WORKER_POOL_BYTES) {
        if (sync->pool == NULL) sync->pool = worker_pool_new(tell_workers_are_done, sync->engine);
        if (sync->pool != NULL && worker_pool_give(sync->pool, job)) return;
        sync_take_worker_results(sync); // there may be room then, or an end of it all
        if (sync->phase != PHASE_LEAVES || (sync->pool != NULL && worker_pool_give(sync->pool, job))) return;
    }
    worker_pool_do(job, lane_reader(lane));
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

// Leaves that lie one after another in the donor's memory.
static void take_placed(struct sync *sync, const struct incoming *in, uint32_t donor) {
    uint64_t from = wire_place_decode(in->place), came = in->length;
    for (uint32_t i = 0; i < in->head.shard; i++) {
        // Leaves in flight from an unreadable donor were asked of others.
        if (sync->phase != PHASE_LEAVES || sync->donors[donor].unreadable) return;
        struct worker_pool_job job = job_of(sync, in->head.offset + i, donor);
        job.process = in->lane->verified_local ? sync->donors[donor].process : 0; // 0: it is sent, then
        job.from = from;
        job.came = (uint32_t)came;
        from += job.length;
        if (!take_over(sync, in, job.leaf)) continue;
        came = 0;
        do_job(sync, in->lane, &job);
    }
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
    if (in->to == NULL || sync->phase != PHASE_LEAVES) return true;
    uint32_t donor = sync_donor_of(sync, in->from);
    if (donor == sync->donor_count) return true;
    if (in->head.extra == WIRE_SYNC_PLACED) {
        take_placed(sync, in, donor);
        return true;
    }
    struct worker_pool_job job = job_of(sync, in->head.offset, donor);
    job.came = (uint32_t)in->length;
    job.landing = in->to;
    if (in->head.extra != WIRE_SYNC_LZ4 || unpack(sync, in, &job)) {
        do_job(sync, in->lane, &job);
        return true;
    }
    take_result(sync, &job);
    go_on(sync, &job);
    return true;
}
