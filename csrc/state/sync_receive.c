// Receiving: the winner's leaf hashes from one donor, then the leaves that differ from all of them.
#define _GNU_SOURCE
#include "state/sync_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "link/connection.h"

enum { PROGRESS_SECONDS = 5 }; // between two lines of the log

static void finish(struct sync *sync, enum wire_sync_completion complete) {
    sync->phase = PHASE_DONE;
    if (sync->pool != NULL) leaf_pool_stop(sync->pool); // it ends while the others complete
    struct wire_sync_done *done = sync->done;
    done->round = sync->plan->round;
    done->complete = (uint8_t)complete;
    for (uint32_t i = 0; i < sync->donor_count; i++)
        if (sync->donors[i].kept > 0)
            done->sources[done->count++] =
                (struct wire_sync_source){.id = sync->donors[i].id, .bytes = sync->donors[i].kept};
    if (complete == WIRE_SYNC_MISSING)
        LOG(LOG_WARN, "shared state: no donor is left; %llu leaves are missing",
            (unsigned long long)(sync->delta ? delta_missing(sync->delta) : 0));
    service_report(sync->engine, done);
}

// ---- asking ----
static uint32_t donor_of(const struct sync *sync, const struct neighbour *peer) {
    uint32_t i = 0;
    while (i < sync->donor_count && sync->donors[i].peer != peer) i++;
    return i;
}

// False: there is no way to the peer now.
static bool send_ask(struct sync *sync, struct neighbour *peer, uint16_t type, const struct wire_sync_ask *ask) {
    struct wire_head head = {.sync_ask = *ask};
    engine_lock(sync->engine);
    struct frame *frame = peer != NULL && peer->lanes[0] != NULL ? service_frame(sync->engine, type, &head, 0) : NULL;
    if (frame != NULL) neighbour_push(peer, frame);
    engine_unlock(sync->engine);
    return frame != NULL;
}

static bool has_way(struct sync *sync, const struct neighbour *peer) {
    engine_lock(sync->engine);
    bool has = peer != NULL && peer->lanes[0] != NULL;
    engine_unlock(sync->engine);
    return has;
}

static void pump_donor(struct sync *sync, uint32_t index, int64_t now) {
    struct donor *donor = &sync->donors[index];
    if (!has_way(sync, donor->peer)) return;
    for (;;) {
        bool idle = delta_on_way(sync->delta, index) == 0;
        struct delta_range range = delta_ask(sync->delta, index, now);
        if (range.count == 0) return;
        if (idle) donor->progress_at = now;
        struct wire_sync_ask ask = {sync->plan->round, range.first, ++sync->sequence, range.count,
                                    1 << WIRE_SYNC_SLOT}; // a donor on another host has none
        if (sync->packs) ask.codings |= 1 << WIRE_SYNC_LZ4;
        if (send_ask(sync, donor->peer, WIRE_SYNC_ASK, &ask)) continue;
        delta_revoke(sync->delta, index);
        return;
    }
}

// Ends the round for this peer, which cannot have what was elected: this entry would have to hold something else, too.
static void finish_unwritable(struct sync *sync, const struct delta_entry *entry) {
    engine_lock(sync->engine);
    sync->report.read_only = entry;
    engine_unlock(sync->engine);
    finish(sync, WIRE_SYNC_READ_ONLY);
}

static int compare_places(const void *a, const void *b) {
    const struct delta_entry *x = *(const struct delta_entry *const *)a, *y = *(const struct delta_entry *const *)b;
    return ((uintptr_t)x->data > (uintptr_t)y->data) - ((uintptr_t)x->data < (uintptr_t)y->data);
}

static bool holds_elected(const struct sync *sync, const struct delta_entry *entry) {
    uint64_t hash;
    for (uint64_t leaf = 0; leaf < entry->leaf_count; leaf++)
        if (!device_hash(entry->queue, &hash, entry->data, entry->bytes, leaf, 1) ||
            hash != sync->theirs[entry->first_leaf + leaf])
            return false;
    return true;
}

// Entries may share memory, as tied weights do. Returns one that the leaves of another have overwritten with something
// else, since others keep the two apart. NULL: there is none.
static const struct delta_entry *find_overwritten(struct sync *sync) {
    const struct delta_layout *layout = &sync->content->layout;
    const struct delta_entry *widest = NULL, *looked_at = NULL;
    for (size_t i = 0; i < layout->count; i++) sync->by_place[i] = &layout->entries[i];
    qsort(sync->by_place, layout->count, sizeof *sync->by_place, compare_places);
    for (size_t i = 0; i < layout->count; i++) {
        const struct delta_entry *entry = sync->by_place[i];
        uintptr_t begin = (uintptr_t)entry->data, end = widest == NULL ? 0 : (uintptr_t)widest->data + widest->bytes;
        if (begin < end && looked_at != widest && !holds_elected(sync, looked_at = widest)) return widest;
        if (begin < end && !holds_elected(sync, entry)) return entry;
        if (begin + entry->bytes > end) widest = entry;
    }
    return NULL;
}

static void complete(struct sync *sync) {
    const struct delta_entry *overwritten = sync->report.wrote ? find_overwritten(sync) : NULL;
    if (overwritten == NULL)
        finish(sync, WIRE_SYNC_COMPLETE);
    else
        finish_unwritable(sync, overwritten);
}

static void pump(struct sync *sync) {
    if (sync->phase != PHASE_LEAVES) return;
    int64_t now = platform_now_ns();
    for (uint32_t i = 0; i < sync->donor_count; i++) pump_donor(sync, i, now);
    if (delta_missing(sync->delta) == 0)
        complete(sync);
    else if (delta_hopeless(sync->delta) && (sync->pool == NULL || leaf_pool_idle(sync->pool)))
        finish(sync, WIRE_SYNC_MISSING);
}

// Discards what still comes in answer to an earlier request.
static void ask_hashes(struct sync *sync) {
    size_t at = 0;
    for (struct incoming *in; (in = lanes_next_service(sync->engine->lanes, &at)) != NULL;)
        if (in->header.type == WIRE_SYNC_HASHES) in->to = NULL;
    uint64_t rest = sync->content->layout.leaf_count - sync->hashes;
    uint32_t count = rest < WIRE_SYNC_MAX_HASHES ? (uint32_t)rest : WIRE_SYNC_MAX_HASHES;
    struct wire_sync_ask ask = {sync->plan->round, sync->hashes, ++sync->sequence, count, 0};
    // Without a way to it now: asked again until its link is there, or it is gone.
    bool sent = send_ask(sync, sync->donors[sync->hash_donor].peer, WIRE_SYNC_ASK_HASHES, &ask);
    sync->hashes_asked_at = sent ? platform_now_ns() : 0;
}

// The hash list begins anew with another donor. Each receiver begins with another one, so that nobody is everybody's
// first.
static void next_hash_donor(struct sync *sync) {
    for (uint32_t i = 1; i <= sync->donor_count; i++) {
        uint32_t donor = (sync->hash_donor + i) % sync->donor_count;
        if (sync->donors[donor].peer == NULL || sync->hashes_bad[donor] == DELTA_WRONG_LEAVES) continue;
        sync->hash_donor = donor;
        sync->hashes = 0;
        ask_hashes(sync);
        return;
    }
    finish(sync, WIRE_SYNC_MISSING);
}

// ---- leaf hashes ----
static bool entry_differs(const struct sync *sync, const struct delta_entry *entry) {
    uint64_t leaf = entry->first_leaf, end = leaf + entry->leaf_count;
    while (leaf < end && !delta_wants(sync->delta, leaf)) leaf++;
    return leaf < end;
}

static void report_differences(struct sync *sync) {
    const struct delta_layout *layout = &sync->content->layout;
    for (size_t i = layout->count; i-- > 0;)
        if (entry_differs(sync, &layout->entries[i])) {
            sync->report.differs = &layout->entries[i];
            sync->report.differing++;
        }
}

// The first entry with a leaf that differs that cannot be written; NULL: there is none.
static const struct delta_entry *find_read_only(const struct sync *sync) {
    const struct delta_layout *layout = &sync->content->layout;
    for (size_t i = 0; i < layout->count; i++) {
        const struct delta_entry *entry = &layout->entries[i];
        if (entry_differs(sync, entry) &&
            (entry->read_only || !device_is_writable(entry->queue, entry->data, entry->bytes)))
            return entry;
    }
    return NULL;
}

static void begin_leaves(struct sync *sync) {
    sync->phase = PHASE_LEAVES;
    sync->delta = delta_new(&sync->content->layout, sync->donor_count);
    if (sync->delta == NULL) {
        finish(sync, WIRE_SYNC_MISSING);
        return;
    }
    delta_compare(sync->delta, sync->content->leaves, sync->theirs);
    const struct delta_entry *read_only = find_read_only(sync);
    if (read_only != NULL) {
        finish_unwritable(sync, read_only);
        return;
    }
    for (uint32_t i = 0; i < sync->donor_count; i++)
        if (sync->donors[i].peer == NULL) delta_drop(sync->delta, i);
    engine_lock(sync->engine);
    sync->report.missing_bytes = delta_missing_bytes(sync->delta);
    report_differences(sync);
    engine_unlock(sync->engine);
    LOG(LOG_INFO, "shared state: %llu of %llu leaves differ, %llu bytes to fetch from %u peers",
        (unsigned long long)delta_missing(sync->delta), (unsigned long long)sync->content->layout.leaf_count,
        (unsigned long long)delta_missing_bytes(sync->delta), sync->donor_count);
    pump(sync);
}

static bool locate_hashes(struct sync *sync, struct incoming *in) {
    const struct wire_sync_hashes *some = &in->head.sync_hashes;
    if (!sync->begun || some->round != sync->plan->round || sync->phase != PHASE_HASHES) return true;
    if (in->from != sync->donors[sync->hash_donor].peer || some->first != sync->hashes ||
        some->sequence != sync->sequence)
        return true;
    uint64_t rest = sync->content->layout.leaf_count - sync->hashes;
    if (some->count > rest || in->length != some->count * sizeof(uint64_t)) return false;
    in->to = (uint8_t *)(sync->theirs + some->first);
    in->service = true;
    return true;
}

static bool take_hashes(struct sync *sync, struct incoming *in) {
    if (in->to == NULL || sync->phase != PHASE_HASHES) return true;
    sync->hashes += in->head.sync_hashes.count;
    if (sync->hashes < sync->content->layout.leaf_count) {
        ask_hashes(sync);
        return true;
    }
    struct wire_hash root = content_root(sync->content, sync->theirs);
    if (wire_hash_equal(&root, &sync->plan->content)) {
        begin_leaves(sync);
        return true;
    }
    LOG_LIMITED(&sync->log, LOG_WARN, "shared state: a donor sent leaf hashes that do not match the elected content");
    sync->hashes_bad[sync->hash_donor]++;
    next_hash_donor(sync);
    return true;
}

// ---- donors that stall, go and come ----
// The donors that are missing may be back, those that stall are replaced.
static void look_at_donors(struct sync *sync, int64_t now) {
    for (uint32_t i = 0; i < sync->donor_count; i++) {
        struct donor *donor = &sync->donors[i];
        uint64_t seen = donor->kept;
        size_t at = 0;
        for (const struct incoming *in; (in = lanes_next_service(sync->engine->lanes, &at)) != NULL;)
            if (in->from == donor->peer) seen += in->got;
        if (seen != donor->seen || delta_on_way(sync->delta, i) == 0) {
            donor->seen = seen;
            donor->progress_at = now;
        } else if (now - donor->progress_at > sync->stall_ns) {
            LOG(LOG_WARN, "shared state: replaces a donor that stalls");
            donor->progress_at = now;
            delta_shun(sync->delta, i);
        }
    }
    pump(sync);
}

static void tell_progress(struct sync *sync, int64_t now) {
    if (sync->told_at == 0) sync->told_at = now;
    if (now - sync->told_at < PROGRESS_SECONDS * SECOND_NS) return;
    sync->told_at = now;
    LOG(LOG_INFO, "shared state: received %llu bytes, %llu are missing", (unsigned long long)sync->report.rx_bytes,
        (unsigned long long)sync->report.missing_bytes);
}

void sync_receive_step(struct sync *sync) {
    int64_t now = platform_now_ns();
    if (now < sync->tick_at) return;
    sync->tick_at = now + SYNC_TICK_MS * MS_NS;
    if (sync->phase == PHASE_LEAVES) {
        tell_progress(sync, now);
        look_at_donors(sync, now);
        return;
    }
    if (sync->content->layout.leaf_count == 0) {
        finish(sync, WIRE_SYNC_COMPLETE);
        return;
    }
    bool unasked = sync->hashes_asked_at == 0, gone = sync->donors[sync->hash_donor].peer == NULL;
    if (unasked && !gone)
        ask_hashes(sync);
    else if (gone || now - sync->hashes_asked_at > sync->stall_ns)
        next_hash_donor(sync);
}

static void ask_again(struct sync *sync, uint32_t index) {
    if (sync->phase == PHASE_LEAVES) delta_revoke(sync->delta, index);
    if (sync->phase == PHASE_HASHES && index == sync->hash_donor) sync->hashes_asked_at = 0;
    sync->tick_at = 0;
}

void sync_receive_changed(struct sync *sync, const struct neighbour *peer, enum service_change change) {
    uint32_t index = donor_of(sync, peer);
    if (index == sync->donor_count) return;
    struct donor *donor = &sync->donors[index];
    switch (change) {
    case SERVICE_LINK_DOWN: // requests and answers may be lost with the connection
        donor->link_lost = true;
        ask_again(sync, index);
        break;
    case SERVICE_LINK_UP: // until now the donor may have answered into the connection that was lost
        if (donor->link_lost) ask_again(sync, index);
        donor->link_lost = false;
        break;
    case SERVICE_PEER_LEFT:
    case SERVICE_PEER_FREED:
        donor->peer = NULL;
        if (sync->delta != NULL) delta_drop(sync->delta, index);
        sync->tick_at = 0;
        break;
    }
}

// ---- beginning and end ----
bool sync_receive_begin(struct sync *sync) {
    engine_assert_locked(sync->engine);
    const struct wire_sync_plan *plan = sync->plan;
    sync->donors = calloc(plan->donor_count + 1, sizeof *sync->donors);
    sync->hashes_bad = calloc(plan->donor_count + 1, sizeof *sync->hashes_bad);
    sync->theirs = calloc(sync->content->layout.leaf_count + 1, sizeof *sync->theirs);
    sync->by_place = calloc(sync->content->layout.count + 1, sizeof *sync->by_place);
    sync->done = calloc(1, sizeof *sync->done);
    if (sync->donors == NULL || sync->hashes_bad == NULL || sync->theirs == NULL || sync->by_place == NULL ||
        sync->done == NULL)
        return false;
    sync->donor_count = plan->donor_count;
    int64_t now = platform_now_ns();
    for (uint32_t i = 0; i < plan->donor_count; i++)
        sync->donors[i] = (struct donor){
            .id = plan->donors[i], .peer = engine_member(sync->engine, &plan->donors[i]), .progress_at = now};
    sync->hash_donor = sync->engine->call_table.now->ring.rank % sync->donor_count;
    return true;
}

bool sync_note_leaves(struct sync *sync) {
    struct content *content = sync->content;
    bool torn = false;
    for (uint64_t leaf = 0; leaf < content->layout.leaf_count; leaf++) {
        if (content->leaves[leaf] == sync->theirs[leaf]) continue;
        bool here = !delta_wants(sync->delta, leaf);
        content->leaves[leaf] = here ? sync->theirs[leaf] : ~sync->theirs[leaf];
        torn |= !here;
    }
    const struct delta_entry *overwritten = torn ? NULL : find_overwritten(sync);
    if (overwritten != NULL) content->leaves[overwritten->first_leaf] = ~sync->theirs[overwritten->first_leaf];
    content->hash = content_root(content, content->leaves);
    return torn || overwritten != NULL;
}

// ---- leaves that come ----
enum { POOLED_LEAST = 64 << 10 }; // a leaf that is worth another thread

// Nobody else writes the leaf from now on. False: it is here, or the pool is at it, and ends what it has begun.
static bool take_over(struct sync *sync, const struct incoming *in, uint64_t leaf) {
    if (!delta_wants(sync->delta, leaf)) return false;
    if (sync->pool != NULL && leaf_pool_has(sync->pool, leaf)) return false;
    size_t at = 0;
    for (struct incoming *other; (other = lanes_next_service(sync->engine->lanes, &at)) != NULL;) {
        if (other == in || other->header.type != WIRE_SYNC_LEAF || other->head.sync_leaf.leaf != leaf) continue;
        other->to = NULL;
        other->service = false;
    }
    return true;
}

// Returns the buffer to receive a leaf into. NULL: the device has failed, and the engine is dead.
static uint8_t *stage_leaf(struct sync *sync, uint64_t leaf) {
    engine_assert_locked(sync->engine);
    struct delta_piece piece = delta_layout_find(&sync->content->layout, leaf);
    const struct delta_entry *entry = &sync->content->layout.entries[piece.entry];
    uint8_t *staging = device_staging(entry->queue, (uint8_t *)entry->data + piece.offset, piece.length);
    if (staging == NULL) engine_fail_of(sync->engine, entry->queue);
    return staging;
}

// Returns whether the leaf is of the round at hand and comes from a donor. The others are discarded.
static bool is_wanted(const struct sync *sync, const struct incoming *in) {
    return sync->begun && in->head.sync_leaf.round == sync->plan->round && sync->phase == PHASE_LEAVES &&
           donor_of(sync, in->from) < sync->donor_count;
}

static bool locate_leaf(struct sync *sync, struct incoming *in) {
    uint64_t leaf = in->head.sync_leaf.leaf;
    if (!is_wanted(sync, in)) return true;
    if (leaf >= sync->content->layout.leaf_count) return false;
    struct delta_piece piece = delta_layout_find(&sync->content->layout, leaf);
    switch (in->head.sync_leaf.coding) {
    case WIRE_SYNC_PLAIN:
        if (in->length != piece.length) return false;
        if (!take_over(sync, in, leaf)) return true;
        in->to = stage_leaf(sync, leaf);
        break;
    case WIRE_SYNC_LZ4:
        if (!sync->packs || in->length == 0 || in->length >= piece.length) return false;
        if (!take_over(sync, in, leaf)) return true;
        in->to = lane_scratch(in->lane);
        break;
    default: return true; // SLOT: the bytes are found when the frame is here
    }
    if (in->to == NULL) return false;
    in->service = true;
    sync->report.wrote = true;
    return true;
}

// A leaf is in its place, and checked.
static void keep_leaf(struct sync *sync, const struct leaf_job *job) {
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

static void take_result(struct sync *sync, const struct leaf_job *job) {
    switch (job->result) {
    case LEAF_RIGHT: keep_leaf(sync, job); break;
    case LEAF_WRONG:
        LOG_LIMITED(&sync->log, LOG_WARN, "shared state: leaf %llu does not match its hash and is fetched again",
                    (unsigned long long)job->leaf);
        delta_wrong(sync->delta, job->leaf, job->donor);
        delta_lost(sync->delta, job->leaf);
        break;
    case LEAF_UNWRITABLE:
        delta_lost(sync->delta, job->leaf);
        sync_fail(sync, job->queue);
        break;
    }
}

static void go_on(struct sync *sync, const struct leaf_job *job) {
    if (job->result == LEAF_RIGHT && delta_missing(sync->delta) > 0)
        pump_donor(sync, job->donor, platform_now_ns());
    else
        pump(sync);
}

static void tell_workers_are_done(void *context) {
    struct engine *engine = context;
    engine_lock(engine);
    engine_wake(engine);
    engine_unlock(engine);
}

void sync_receive_results(struct sync *sync) {
    struct leaf_job job;
    struct leaf_pool *pool = sync->pool;
    while (pool != NULL && sync->phase == PHASE_LEAVES && leaf_pool_take(pool, &job)) {
        take_result(sync, &job);
        go_on(sync, &job);
    }
}

// The pool does it, or, if that is busy or the job is small, the thread itself.
static void do_job(struct sync *sync, struct leaf_job *job) {
    if (job->length >= POOLED_LEAST) {
        if (sync->pool == NULL) sync->pool = leaf_pool_new(tell_workers_are_done, sync->engine);
        if (sync->pool != NULL && leaf_pool_give(sync->pool, job)) return;
        sync_receive_results(sync); // there may be room then, or an end of it all
        if (sync->phase != PHASE_LEAVES || (sync->pool != NULL && leaf_pool_give(sync->pool, job))) return;
    }
    leaf_check(job);
    take_result(sync, job);
    go_on(sync, job);
}

static struct leaf_job job_of(const struct sync *sync, uint64_t leaf, uint32_t donor) {
    struct delta_piece piece = delta_layout_find(&sync->content->layout, leaf);
    const struct delta_entry *entry = &sync->content->layout.entries[piece.entry];
    return (struct leaf_job){
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
    uint64_t leaf = in->head.sync_leaf.leaf;
    if (in->slot == NULL) {
        if (delta_wants(sync->delta, leaf)) delta_lost(sync->delta, leaf);
        pump(sync);
        return NULL;
    }
    engine_lock(sync->engine);
    bool taken = take_over(sync, in, leaf);
    uint8_t *staging = taken ? stage_leaf(sync, leaf) : NULL;
    sync->report.wrote |= staging != NULL;
    engine_unlock(sync->engine);
    if (staging != NULL)
        memory_copy_past_caches(staging, in->slot, delta_layout_find(&sync->content->layout, leaf).length);
    return staging;
}

// False: it is not a leaf, or its device has failed, and the job is done.
static bool unpack(struct sync *sync, const struct incoming *in, struct leaf_job *job) {
    engine_lock(sync->engine);
    job->staging = stage_leaf(sync, job->leaf);
    engine_unlock(sync->engine);
    job->result = job->staging == NULL ? LEAF_UNWRITABLE : LEAF_WRONG;
    if (job->staging == NULL) return false;
    if (leaf_unpack(job->staging, job->length, in->to, (uint32_t)in->length)) return true;
    device_unmap(job->queue, job->staging);
    return false;
}

static bool take_leaf(struct sync *sync, struct incoming *in) {
    if (in->to == NULL || !is_wanted(sync, in)) return true;
    const struct wire_sync_leaf *leaf = &in->head.sync_leaf;
    bool slot = leaf->coding == WIRE_SYNC_SLOT, packed = leaf->coding == WIRE_SYNC_LZ4;
    if (slot && leaf->leaf >= sync->content->layout.leaf_count) return false;
    struct leaf_job job = job_of(sync, leaf->leaf, donor_of(sync, in->from));
    job.came = (uint32_t)in->length;
    job.staging = slot ? copy_from_slots(sync, in) : in->to;
    if (job.staging == NULL) return true;
    if (!packed || unpack(sync, in, &job)) {
        do_job(sync, &job);
        return true;
    }
    take_result(sync, &job);
    go_on(sync, &job);
    return true;
}

bool sync_receive_locate(struct sync *sync, struct incoming *in) {
    return in->header.type == WIRE_SYNC_HASHES ? locate_hashes(sync, in) : locate_leaf(sync, in);
}

bool sync_receive_take(struct sync *sync, struct incoming *in) {
    return in->header.type == WIRE_SYNC_HASHES ? take_hashes(sync, in) : take_leaf(sync, in);
}
