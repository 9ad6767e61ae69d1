// Leaves as they come from donors: each is brought to its place and checked, by the crew or by the thread itself.
#define _GNU_SOURCE
#include "state/sync_private.h"

#include <string.h>

enum { CREW_BYTES = 64 << 10 }; // a leaf that is worth another thread

// Nobody else writes the leaf from now on. False: it is here, or the crew is at it, and ends what it has begun.
static bool take_over(struct lane *lane, uint64_t leaf) {
    struct engine *engine = lane->engine;
    if (!delta_wants(engine->sync->delta, leaf)) return false;
    if (engine->sync->crew != NULL && crew_has(engine->sync->crew, leaf)) return false;
    for (size_t i = 0; i < engine->lane_count; i++) {
        struct lane *other = engine->lanes[i];
        if (other == lane || !other->sync || other->header.type != WIRE_SYNC_LEAF || other->head.offset != leaf)
            continue;
        if (other->head.extra == WIRE_SYNC_PLACED) continue; // it writes nothing before it is here
        other->to = NULL;
        other->sync = false;
    }
    return true;
}

// Whether the leaves of a placed answer are all of this entry.
static bool are_together(const struct sync *sync, size_t index, const struct wire_op *head) {
    const struct delta_entry *entry = &sync->content->layout.entries[index];
    return head->shard > 0 && head->shard <= entry->first_leaf + entry->leaf_count - head->offset;
}

bool sync_place_leaf(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    const struct wire_op *head = &lane->head;
    if (sync == NULL || !sync->begun || head->tag != sync->plan->round || sync->phase != PHASE_LEAVES) return true;
    if (sync_donor_of(sync, lane->peer) == sync->donor_count) return true;
    if (head->offset >= sync->content->layout.leaf_count) return false;
    struct delta_piece piece = delta_layout_find(&sync->content->layout, head->offset);
    uint8_t *to;
    switch (head->extra) {
    case WIRE_SYNC_PLAIN:
        if (lane->length != piece.length) return false;
        to = (uint8_t *)sync->content->layout.entries[piece.entry].data + piece.offset;
        break;
    case WIRE_SYNC_LZ4:
        if (!sync->packs || lane->length == 0 || lane->length >= piece.length) return false;
        to = lane_scratch(lane);
        break;
    case WIRE_SYNC_PLACED:
        if (lane->length != PLACE_BYTES || !are_together(sync, piece.entry, head)) return false;
        to = lane->place;
        break;
    default: return false;
    }
    if (to == NULL) return false;
    if (head->extra != WIRE_SYNC_PLACED && !take_over(lane, head->offset)) return true;
    lane->to = to;
    lane->sync = true;
    sync->report.wrote = true;
    return true;
}

// A leaf is in its place, and checked.
static void keep_leaf(struct engine *engine, const struct crew_job *job) {
    struct sync *sync = engine->sync;
    struct donor *donor = &sync->donors[job->donor];
    delta_arrived(sync->delta, job->leaf, job->donor, platform_now_ns());
    donor->kept += job->length;
    pthread_mutex_lock(&engine->lock);
    sync->report.donors += donor->kept == job->length;
    sync->report.rx_bytes += job->length;
    sync->report.wire_bytes += job->came;
    sync->report.rx_leaves++;
    sync->report.missing_bytes -= job->length;
    pthread_mutex_unlock(&engine->lock);
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

void sync_memory_hangs(struct engine *engine, const struct peer *peer) {
    struct sync *sync = engine->sync;
    uint32_t index = sync == NULL || sync->delta == NULL ? 0 : sync_donor_of(sync, peer);
    if (sync != NULL && sync->delta != NULL && index < sync->donor_count) doubt(sync, index);
}

static void take_result(struct engine *engine, const struct crew_job *job) {
    struct sync *sync = engine->sync;
    switch (job->result) {
    case CREW_RIGHT: keep_leaf(engine, job); break;
    case CREW_WRONG:
        LOG(LOG_WARN, "shared state: leaf %llu came with wrong bytes and is fetched again",
            (unsigned long long)job->leaf);
        delta_wrong(sync->delta, job->leaf, job->donor);
        delta_lost(sync->delta, job->leaf);
        break;
    case CREW_UNREADABLE:
        delta_lost(sync->delta, job->leaf);
        doubt(sync, job->donor);
        break;
    }
}

static void go_on(struct engine *engine, const struct crew_job *job) {
    if (job->result == CREW_RIGHT && delta_missing(engine->sync->delta) > 0)
        sync_pump_donor(engine, job->donor, platform_now_ns());
    else
        sync_pump(engine);
}

static void tell_crew_is_done(void *context) {
    struct engine *engine = context;
    pthread_mutex_lock(&engine->lock);
    engine_wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

void sync_take_crew_results(struct engine *engine) {
    struct crew_job job;
    struct crew *crew = engine->sync->crew;
    while (crew != NULL && engine->sync->phase == PHASE_LEAVES && crew_take(crew, &job)) {
        take_result(engine, &job);
        go_on(engine, &job);
    }
}

// The crew does it, or, if that is busy or the job is small, the thread itself.
static void do_job(struct lane *lane, struct crew_job *job) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    if (job->length >= CREW_BYTES) {
        if (sync->crew == NULL) sync->crew = crew_new(tell_crew_is_done, engine);
        if (sync->crew != NULL && crew_give(sync->crew, job)) return;
        sync_take_crew_results(engine); // there may be room then, or an end of it all
        if (sync->phase != PHASE_LEAVES || (sync->crew != NULL && crew_give(sync->crew, job))) return;
    }
    engine->reading = lane;
    crew_do(job, engine->reader);
    take_result(engine, job);
    go_on(engine, job);
}

static struct crew_job job_of(const struct sync *sync, uint64_t leaf, uint32_t donor) {
    struct delta_piece piece = delta_layout_find(&sync->content->layout, leaf);
    return (struct crew_job){
        .kind = CREW_HERE,
        .leaf = leaf,
        .donor = donor,
        .to = (uint8_t *)sync->content->layout.entries[piece.entry].data + piece.offset,
        .length = piece.length,
        .expected = sync->theirs[leaf],
    };
}

// Leaves that lie one after another in the donor's memory.
static void take_placed(struct lane *lane, uint32_t donor) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    uint64_t from, came = lane->length;
    memcpy(&from, lane->place, sizeof from);
    for (uint32_t i = 0; i < lane->head.shard; i++) {
        // What was on its way from a donor that cannot be read was asked again elsewhere.
        if (sync->phase != PHASE_LEAVES || sync->donors[donor].unreadable) return;
        struct crew_job job = job_of(sync, lane->head.offset + i, donor);
        job.kind = CREW_PLACED;
        job.process = lane->vouched ? sync->donors[donor].process : 0; // 0: it is sent, then
        job.from = from;
        job.came = (uint32_t)came;
        from += job.length;
        if (!take_over(lane, job.leaf)) continue;
        came = 0;
        do_job(lane, &job);
    }
}

bool sync_take_leaf(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    if (lane->to == NULL || sync == NULL || sync->phase != PHASE_LEAVES) return true;
    uint32_t donor = sync_donor_of(sync, lane->peer);
    if (donor == sync->donor_count) return true;
    if (lane->head.extra == WIRE_SYNC_PLACED) {
        take_placed(lane, donor);
        return true;
    }
    struct crew_job job = job_of(sync, lane->head.offset, donor);
    job.came = (uint32_t)lane->length;
    if (lane->head.extra == WIRE_SYNC_LZ4 && !coding_unpack(job.to, job.length, lane->to, (uint32_t)lane->length)) {
        job.result = CREW_WRONG;
        take_result(engine, &job);
        go_on(engine, &job);
        return true;
    }
    do_job(lane, &job);
    return true;
}
