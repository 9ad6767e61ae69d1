#define _GNU_SOURCE
#include "sync.h"

#include <stdlib.h>
#include <string.h>

#include "../base/log.h"
#include "../data/engine_private.h"
#include "crew.h"

enum {
    ASKS_MAX = 3 * DELTA_LEAVES_ON_WAY, // of one requester; for those repeated when a link broke and when it was there again
    TICK_MS = 50,
    METER_MS = 20, // between two looks at the speed of a link
    CREW_BYTES = 64 << 10, // a leaf that is worth another thread
    PROGRESS_SECONDS = 5,  // between two lines of the log
};

struct ask {
    uint16_t type;
    uint64_t round, first;
    uint32_t count, sequence;
    uint16_t codings; // see SYNC_ASK
};

struct requester {
    struct requester *next;
    struct peer *peer;
    uint32_t first, count;
    struct ask asks[ASKS_MAX];
    struct coding_choice choice;
    int64_t metered_at;
};

struct donor {
    struct wire_id id;
    struct peer *peer; // NULL: gone
    bool lane_lost;    // and not made again yet
    uint64_t kept;     // bytes
    uint64_t seen;     // bytes that came on its lanes, when looked at last
    int64_t progress_at;
    pid_t process;   // its leaves are taken out of the memory of this one; 0: they are sent
    bool unreadable; // that has failed
};

enum phase {
    PHASE_VOTED,  // no plan yet
    PHASE_GIVING, // also of members that neither give nor receive
    PHASE_HASHES, // receiver: the winner's leaf hashes are on their way
    PHASE_LEAVES,
    PHASE_DONE, // receiver: the master was told
};

struct sync {
    struct content *content;
    int64_t stall_ns, tick_at, told_at;
    enum phase phase;
    struct wire_sync_plan *plan; // set under the lock; begun by the thread
    bool begun, ending;
    bool packs; // takes and gives packed leaves

    struct requester *requesters;

    struct donor *donors;
    uint32_t donor_count, hash_donor;
    uint32_t sequence;
    uint64_t *theirs;
    uint64_t hashes; // that have come
    int64_t hashes_asked_at;
    uint8_t *hashes_bad; // by donor: how often
    struct delta *delta;
    struct crew *crew; // made when there is work for it
    struct sync_report report; // written under the lock
};

bool sync_is_frame(uint16_t type) { return type >= WIRE_SYNC_ASK_HASHES && type <= WIRE_SYNC_LEAF; }

// ---- life ----
static void sync_free(struct sync *sync) {
    crew_free(sync->crew);
    while (sync->requesters != NULL) {
        struct requester *requester = sync->requesters;
        sync->requesters = requester->next;
        free(requester);
    }
    free(sync->plan);
    free(sync->donors);
    free(sync->theirs);
    free(sync->hashes_bad);
    delta_free(sync->delta);
    free(sync);
}

bool sync_begin(struct engine *engine, struct content *content, int64_t stall_ns) {
    struct sync *sync = calloc(1, sizeof *sync);
    if (sync == NULL) return false;
    sync->content = content;
    sync->stall_ns = stall_ns;
    sync->packs = coding_available();
    pthread_mutex_lock(&engine->lock);
    bool open = !engine->dead && !engine->stopping && engine->sync == NULL;
    if (open) engine->sync = sync;
    pthread_mutex_unlock(&engine->lock);
    if (!open) free(sync);
    return open;
}

void sync_plan(struct engine *engine, const struct wire_sync_plan *plan) {
    struct wire_sync_plan *copy = malloc(sizeof *copy);
    if (copy != NULL) *copy = *plan;
    pthread_mutex_lock(&engine->lock);
    if (copy == NULL) {
        // The others would wait for this member: it ends, and they go on without it.
        engine->dead = engine->killing = true;
        engine_wake(engine);
    } else if (engine->sync != NULL && engine->sync->plan == NULL) {
        engine->sync->plan = copy;
        copy = NULL;
        engine_wake(engine);
    }
    pthread_mutex_unlock(&engine->lock);
    free(copy);
}

// Lock held, and the thread is here or has ended: no lane touches a tensor any more. The crew ends what it has begun before the caller of
// sync_end returns.
static void let_go(struct engine *engine) {
    if (engine->sync->crew != NULL) crew_stop(engine->sync->crew);
    for (size_t i = 0; i < engine->lane_count; i++) lane_let_go_sync(engine->lanes[i]);
    engine->sync_over = engine->sync;
    engine->sync = NULL;
    pthread_cond_broadcast(&engine->sync_let_go);
}

void sync_stop(struct engine *engine) {
    if (engine->sync != NULL) let_go(engine);
}

// NULL: there was no round.
static struct sync *take_back(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    if (engine->sync != NULL) engine->sync->ending = true;
    engine_wake(engine);
    while (engine->sync != NULL) pthread_cond_wait(&engine->sync_let_go, &engine->lock);
    struct sync *sync = engine->sync_over;
    engine->sync_over = NULL;
    pthread_mutex_unlock(&engine->lock);
    return sync;
}

// Leaves that came are the donors'; those that may be half-written are nobody's.
static bool note_leaves(struct sync *sync) {
    struct content *content = sync->content;
    bool torn = false;
    for (uint64_t leaf = 0; leaf < content->layout.leaf_count; leaf++) {
        if (content->leaves[leaf] == sync->theirs[leaf]) continue;
        bool here = !delta_wants(sync->delta, leaf);
        content->leaves[leaf] = here ? sync->theirs[leaf] : ~sync->theirs[leaf];
        torn |= !here;
    }
    content->hash = content_root(&content->layout, content->leaves);
    return torn;
}

bool sync_restart(struct engine *engine, struct sync_report *out, bool *torn) {
    struct sync *sync = take_back(engine);
    if (sync == NULL) return false;
    crew_free(sync->crew); // it writes no more
    sync->crew = NULL;
    *out = sync->report;
    *torn = sync->report.wrote && note_leaves(sync);
    struct content *content = sync->content;
    int64_t stall_ns = sync->stall_ns;
    sync_free(sync);
    return sync_begin(engine, content, stall_ns);
}

void sync_end(struct engine *engine, struct sync_report *out) {
    struct sync *sync = take_back(engine);
    if (out != NULL) *out = sync == NULL ? (struct sync_report){0} : sync->report;
    if (sync != NULL) sync_free(sync);
}

void sync_look(struct engine *engine, struct sync_report *out) {
    pthread_mutex_lock(&engine->lock);
    const struct sync *sync = engine->sync != NULL ? engine->sync : engine->sync_over;
    *out = sync == NULL ? (struct sync_report){0} : sync->report;
    pthread_mutex_unlock(&engine->lock);
}

// ---- frames ----
// Belongs to its round, not to an epoch.
static void write_head(const struct engine *engine, struct frame *frame, uint16_t type, const struct wire_op *head) {
    struct wire_header header = {.length = WIRE_OP_BYTES + frame->length, .type = type, .run = engine->run, .generation = engine->generation};
    wire_header_encode(frame->head, &header);
    wire_op_encode(frame->head + WIRE_HEADER_BYTES, head);
}

// Lock held.
static struct frame *new_frame(struct engine *engine, uint16_t type, const struct wire_op *head, size_t payload) {
    struct frame *frame = frame_new(engine, type, head, payload);
    if (frame == NULL) return NULL;
    write_head(engine, frame, type, head);
    frame->sync = true;
    return frame;
}

// False: there is no way to the peer now.
static bool send_ask(struct engine *engine, struct peer *peer, uint16_t type, const struct wire_op *head) {
    pthread_mutex_lock(&engine->lock);
    struct lane *lane = peer == NULL ? NULL : peer->lanes[0];
    struct frame *frame = lane == NULL ? NULL : new_frame(engine, type, head, 0);
    if (frame != NULL) {
        lane_push(lane, frame);
        lane_heat(lane);
    }
    pthread_mutex_unlock(&engine->lock);
    return frame != NULL;
}

// ---- giving ----
static struct requester *find_requester(struct sync *sync, const struct peer *peer) {
    struct requester *requester = sync->requesters;
    while (requester != NULL && requester->peer != peer) requester = requester->next;
    return requester;
}

static struct requester *requester_of(struct sync *sync, struct peer *peer) {
    struct requester *requester = find_requester(sync, peer);
    if (requester != NULL) return requester;
    requester = calloc(1, sizeof *requester);
    if (requester == NULL) return NULL;
    requester->peer = peer;
    requester->next = sync->requesters;
    sync->requesters = requester;
    return requester;
}

static bool take_ask(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    const struct wire_op *head = &lane->head;
    uint32_t most = lane->header.type == WIRE_SYNC_ASK ? WIRE_SYNC_MAX_LEAVES : WIRE_SYNC_MAX_HASHES;
    if (head->extra == 0 || head->extra > most) return false;
    if (sync == NULL || sync->ending || (sync->begun && head->tag != sync->plan->round)) return true;
    uint64_t leaves = sync->content->layout.leaf_count;
    if (head->offset >= leaves || head->extra > leaves - head->offset) return false;
    struct requester *requester = requester_of(sync, lane->peer);
    if (requester == NULL || requester->count == ASKS_MAX) return false;
    requester->asks[(requester->first + requester->count++) % ASKS_MAX] =
        (struct ask){.type = lane->header.type, .round = head->tag, .first = head->offset, .count = head->extra, .sequence = head->sequence, .codings = head->shard};
    peer_heat(lane->peer);
    return true;
}

// Lock held.
static struct frame *answer_hashes(struct engine *engine, struct sync *sync, struct ask *ask) {
    struct wire_op head = {.tag = ask->round, .offset = ask->first, .extra = ask->count, .sequence = ask->sequence};
    struct frame *frame = new_frame(engine, WIRE_SYNC_HASHES, &head, ask->count * sizeof(uint64_t));
    if (frame != NULL) frame->payload = (const uint8_t *)(sync->content->leaves + ask->first);
    ask->count = 0;
    return frame;
}

// Lock held.
static struct frame *answer_leaf(struct engine *engine, struct sync *sync, struct ask *ask) {
    struct delta_piece piece = delta_layout_find(&sync->content->layout, ask->first);
    const uint8_t *leaf = (const uint8_t *)sync->content->layout.entries[piece.entry].data + piece.offset;
    bool placed = (ask->codings & 1 << WIRE_SYNC_PLACED) != 0 && memory_can_be_read(leaf, piece.length);
    struct wire_op head = {.tag = ask->round, .offset = ask->first, .sequence = ask->sequence, .extra = placed ? WIRE_SYNC_PLACED : WIRE_SYNC_PLAIN};
    struct frame *frame = new_frame(engine, WIRE_SYNC_LEAF, &head, placed ? PLACE_BYTES : piece.length);
    ask->first++;
    ask->count--;
    if (frame == NULL) return NULL;
    uint64_t address = (uint64_t)(uintptr_t)leaf;
    memcpy(frame->place, &address, sizeof address);
    frame->payload = placed ? frame->place : leaf;
    return frame;
}

// Lock held.
static struct frame *answer(struct engine *engine, struct sync *sync, struct ask *ask) {
    return ask->type == WIRE_SYNC_ASK ? answer_leaf(engine, sync, ask) : answer_hashes(engine, sync, ask);
}

// Lock held. `codings`: those that may be chosen for the answer instead of plain.
static struct frame *next_answer(struct engine *engine, struct sync *sync, struct requester *requester, uint16_t *codings) {
    while (requester->count > 0) {
        struct ask *ask = &requester->asks[requester->first];
        *codings = ask->type == WIRE_SYNC_ASK ? ask->codings : 0;
        struct frame *frame = ask->round == sync->plan->round ? answer(engine, sync, ask) : NULL;
        if (frame == NULL || ask->count == 0) {
            requester->first = (requester->first + 1) % ASKS_MAX;
            requester->count--;
        }
        if (frame != NULL) return frame;
    }
    return NULL;
}

static void meter(struct engine *engine, struct requester *requester) {
    int64_t now = platform_now_ns();
    if (now - requester->metered_at < METER_MS * MS_NS) return;
    requester->metered_at = now;
    double rate = 0;
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i <= WIRE_MAX_LANES && (i == 0 || requester->peer->lanes[i] != NULL); i++)
        if (requester->peer->lanes[i] != NULL) rate += coding_look(&requester->peer->lanes[i]->meter, requester->peer->lanes[i]->fd);
    pthread_mutex_unlock(&engine->lock);
    coding_measured(&requester->choice, rate);
}

// Makes the frame of a plain leaf shorter, if that pays on the way to this peer.
static void pack(struct lane *lane, struct requester *requester, struct frame *frame) {
    if (frame->length < CODING_LEAST_BYTES || frame->payload == frame->place) return;
    meter(lane->engine, requester);
    if (!coding_tries(&requester->choice)) return;
    if (lane->stage == NULL && (lane->stage = malloc(WIRE_MAX_DATA_BYTES)) == NULL) return;
    // Not the time on the clock: one turn of another process would turn packing off for long.
    int64_t began = platform_thread_ns();
    uint32_t packed = coding_pack(lane->stage, frame->payload, frame->length);
    coding_tried(&requester->choice, frame->length, packed, platform_thread_ns() - began);
    struct wire_op head;
    if (packed == 0 || !coding_pays(&requester->choice) || !wire_op_decode(frame->head + WIRE_HEADER_BYTES, &head)) return;
    head.extra = WIRE_SYNC_LZ4;
    frame->payload = lane->stage;
    frame->length = packed;
    write_head(lane->engine, frame, WIRE_SYNC_LEAF, &head);
}

struct frame *sync_next(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    if (sync == NULL || sync->phase != PHASE_GIVING) return NULL;
    pthread_mutex_lock(&engine->lock);
    // The direct link carries the questions; it stands in for lanes where there are none.
    bool gives = lane->index != 0 || lane->peer->lanes[1] == NULL;
    struct requester *requester = gives ? find_requester(sync, lane->peer) : NULL;
    uint16_t codings = 0;
    struct frame *frame = requester == NULL ? NULL : next_answer(engine, sync, requester, &codings);
    pthread_mutex_unlock(&engine->lock);
    if (frame != NULL && sync->packs && (codings & 1 << WIRE_SYNC_LZ4) != 0) pack(lane, requester, frame);
    return frame;
}

// ---- receiving ----
static void finish(struct engine *engine, enum wire_sync_completion complete) {
    struct sync *sync = engine->sync;
    sync->phase = PHASE_DONE;
    struct wire_sync_done *done = calloc(1, sizeof *done);
    if (done == NULL) return; // the master counts this member out when it is silent, and the caller hears of that
    done->round = sync->plan->round;
    done->complete = (uint8_t)complete;
    for (uint32_t i = 0; i < sync->donor_count; i++)
        if (sync->donors[i].kept > 0) done->sources[done->count++] = (struct wire_sync_source){.id = sync->donors[i].id, .bytes = sync->donors[i].kept};
    if (complete == WIRE_SYNC_MISSING)
        LOG(LOG_WARN, "shared state: no donor is left, %llu leaves are missing", (unsigned long long)(sync->delta ? delta_missing(sync->delta) : 0));
    engine->callbacks.synced(engine->callbacks.context, done);
    free(done);
}

static bool has_way(struct engine *engine, const struct peer *peer) {
    pthread_mutex_lock(&engine->lock);
    bool has = peer != NULL && peer->lanes[0] != NULL;
    pthread_mutex_unlock(&engine->lock);
    return has;
}

static void pump_donor(struct engine *engine, uint32_t index, int64_t now) {
    struct sync *sync = engine->sync;
    struct donor *donor = &sync->donors[index];
    if (!has_way(engine, donor->peer)) return;
    for (;;) {
        bool idle = delta_on_way(sync->delta, index) == 0;
        struct delta_run run = delta_ask(sync->delta, index, now);
        if (run.count == 0) return;
        if (idle) donor->progress_at = now;
        if (donor->process == 0 && !donor->unreadable) donor->process = donor->peer->memory;
        struct wire_op head = {.tag = sync->plan->round, .offset = run.first, .extra = run.count, .sequence = ++sync->sequence};
        if (donor->process != 0) head.shard |= 1 << WIRE_SYNC_PLACED;
        if (sync->packs) head.shard |= 1 << WIRE_SYNC_LZ4;
        if (send_ask(engine, donor->peer, WIRE_SYNC_ASK, &head)) continue;
        delta_revoke(sync->delta, index);
        return;
    }
}

static void pump(struct engine *engine) {
    struct sync *sync = engine->sync;
    if (sync->phase != PHASE_LEAVES) return;
    int64_t now = platform_now_ns();
    for (uint32_t i = 0; i < sync->donor_count; i++) pump_donor(engine, i, now);
    if (delta_missing(sync->delta) == 0)
        finish(engine, WIRE_SYNC_COMPLETE);
    else if (delta_hopeless(sync->delta) && (sync->crew == NULL || crew_idle(sync->crew)))
        finish(engine, WIRE_SYNC_MISSING);
}

static void ask_hashes(struct engine *engine) {
    struct sync *sync = engine->sync;
    uint64_t rest = sync->content->layout.leaf_count - sync->hashes;
    uint32_t count = rest < WIRE_SYNC_MAX_HASHES ? (uint32_t)rest : WIRE_SYNC_MAX_HASHES;
    struct wire_op head = {.tag = sync->plan->round, .offset = sync->hashes, .extra = count, .sequence = ++sync->sequence};
    // Without a way to it now: asked again until its link is there, or it is gone.
    bool sent = send_ask(engine, sync->donors[sync->hash_donor].peer, WIRE_SYNC_ASK_HASHES, &head);
    sync->hashes_asked_at = sent ? platform_now_ns() : 0;
}

// The hash list begins anew with another donor. Each receiver begins with another one, so that nobody is everybody's first.
static void next_hash_donor(struct engine *engine) {
    struct sync *sync = engine->sync;
    for (uint32_t i = 1; i <= sync->donor_count; i++) {
        uint32_t donor = (sync->hash_donor + i) % sync->donor_count;
        if (sync->donors[donor].peer == NULL || sync->hashes_bad[donor] == DELTA_WRONG_LEAVES) continue;
        sync->hash_donor = donor;
        sync->hashes = 0;
        ask_hashes(engine);
        return;
    }
    finish(engine, WIRE_SYNC_MISSING);
}

// The first entry with a leaf that differs that cannot be written; NULL: there is none.
static const struct delta_entry *find_read_only(const struct sync *sync) {
    const struct delta_layout *layout = &sync->content->layout;
    for (size_t i = 0; i < layout->count; i++) {
        const struct delta_entry *entry = &layout->entries[i];
        uint64_t leaf = entry->first_leaf, end = leaf + entry->leaf_count;
        while (leaf < end && !delta_wants(sync->delta, leaf)) leaf++;
        if (leaf < end && (entry->read_only || !memory_can_be_written(entry->data, entry->bytes))) return entry;
    }
    return NULL;
}

static void begin_leaves(struct engine *engine) {
    struct sync *sync = engine->sync;
    sync->phase = PHASE_LEAVES;
    sync->delta = delta_new(&sync->content->layout, sync->donor_count);
    if (sync->delta == NULL) {
        finish(engine, WIRE_SYNC_MISSING);
        return;
    }
    delta_compare(sync->delta, sync->content->leaves, sync->theirs);
    const struct delta_entry *read_only = find_read_only(sync);
    if (read_only != NULL) {
        pthread_mutex_lock(&engine->lock);
        sync->report.read_only = read_only;
        pthread_mutex_unlock(&engine->lock);
        finish(engine, WIRE_SYNC_READ_ONLY);
        return;
    }
    for (uint32_t i = 0; i < sync->donor_count; i++)
        if (sync->donors[i].peer == NULL) delta_drop(sync->delta, i);
    pthread_mutex_lock(&engine->lock);
    sync->report.missing_bytes = delta_missing_bytes(sync->delta);
    pthread_mutex_unlock(&engine->lock);
    LOG(LOG_INFO, "shared state: %llu of %llu leaves differ, %llu bytes to fetch from %u peers", (unsigned long long)delta_missing(sync->delta),
        (unsigned long long)sync->content->layout.leaf_count, (unsigned long long)delta_missing_bytes(sync->delta), sync->donor_count);
    pump(engine);
}

static bool take_hashes(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    if (lane->to == NULL || sync == NULL || sync->phase != PHASE_HASHES) return true;
    sync->hashes += lane->head.extra;
    if (sync->hashes < sync->content->layout.leaf_count) {
        ask_hashes(engine);
        return true;
    }
    struct wire_hash root = content_root(&sync->content->layout, sync->theirs);
    if (wire_hash_equal(&root, &sync->plan->content)) {
        begin_leaves(engine);
        return true;
    }
    LOG(LOG_WARN, "shared state: a donor sent leaf hashes that do not give the elected content");
    sync->hashes_bad[sync->hash_donor]++;
    next_hash_donor(engine);
    return true;
}

static uint32_t donor_of(const struct sync *sync, const struct peer *peer) {
    uint32_t i = 0;
    while (i < sync->donor_count && sync->donors[i].peer != peer) i++;
    return i;
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

// A donor whose memory cannot be read any more is most likely dying, and its links live on until its memory is freed: others come first.
static void doubt(struct sync *sync, uint32_t index) {
    struct donor *donor = &sync->donors[index];
    if (donor->unreadable) return;
    LOG(LOG_INFO, "shared state: the memory of a donor cannot be read any more");
    donor->unreadable = true;
    donor->process = 0;
    delta_shun(sync->delta, index);
}

static void take_result(struct engine *engine, const struct crew_job *job) {
    struct sync *sync = engine->sync;
    switch (job->result) {
    case CREW_RIGHT: keep_leaf(engine, job); break;
    case CREW_WRONG:
        LOG(LOG_WARN, "shared state: leaf %llu came with wrong bytes and is fetched again", (unsigned long long)job->leaf);
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
        pump_donor(engine, job->donor, platform_now_ns());
    else
        pump(engine);
}

static void tell_crew_is_done(void *context) {
    struct engine *engine = context;
    pthread_mutex_lock(&engine->lock);
    engine_wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

static void take_crew_results(struct engine *engine) {
    struct crew_job job;
    struct crew *crew = engine->sync->crew;
    while (crew != NULL && engine->sync->phase == PHASE_LEAVES && crew_take(crew, &job)) {
        take_result(engine, &job);
        go_on(engine, &job);
    }
}

// The crew does it, or, if that is busy or the job is small, the thread itself.
static void do_job(struct engine *engine, struct crew_job *job) {
    struct sync *sync = engine->sync;
    if (job->length >= CREW_BYTES) {
        if (sync->crew == NULL) sync->crew = crew_new(tell_crew_is_done, engine);
        if (sync->crew != NULL && crew_give(sync->crew, job)) return;
    }
    crew_do(job);
    take_result(engine, job);
    go_on(engine, job);
}

static bool take_leaf(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    if (lane->to == NULL || sync == NULL || sync->phase != PHASE_LEAVES) return true;
    uint32_t index = donor_of(sync, lane->peer);
    if (index == sync->donor_count) return true;
    uint64_t leaf = lane->head.offset;
    struct delta_piece piece = delta_layout_find(&sync->content->layout, leaf);
    struct crew_job job = {
        .kind = CREW_HERE,
        .leaf = leaf,
        .donor = index,
        .to = (uint8_t *)sync->content->layout.entries[piece.entry].data + piece.offset,
        .length = piece.length,
        .came = (uint32_t)lane->length,
        .expected = sync->theirs[leaf],
    };
    if (lane->head.extra == WIRE_SYNC_PLACED) {
        job.kind = CREW_PLACED;
        job.process = sync->donors[index].process;
        memcpy(&job.from, lane->place, sizeof job.from);
    }
    if (lane->head.extra == WIRE_SYNC_LZ4 && !coding_unpack(job.to, job.length, lane->to, (uint32_t)lane->length)) {
        job.result = CREW_WRONG;
        take_result(engine, &job);
        go_on(engine, &job);
        return true;
    }
    do_job(engine, &job);
    return true;
}

static bool place_hashes(struct lane *lane) {
    struct sync *sync = lane->engine->sync;
    const struct wire_op *head = &lane->head;
    if (sync == NULL || !sync->begun || head->tag != sync->plan->round || sync->phase != PHASE_HASHES) return true;
    if (lane->peer != sync->donors[sync->hash_donor].peer || head->offset != sync->hashes || head->sequence != sync->sequence) return true;
    uint64_t rest = sync->content->layout.leaf_count - sync->hashes;
    if (head->extra > rest || head->extra == 0 || lane->length != head->extra * sizeof(uint64_t)) return false;
    lane->to = (uint8_t *)(sync->theirs + head->offset);
    lane->sync = true;
    return true;
}

// Nobody else writes the leaf from now on. False: the crew is at it, and ends what it has begun.
static bool take_over(struct lane *lane) {
    struct engine *engine = lane->engine;
    uint64_t leaf = lane->head.offset;
    if (engine->sync->crew != NULL && crew_has(engine->sync->crew, leaf)) return false;
    for (size_t i = 0; i < engine->lane_count; i++) {
        struct lane *other = engine->lanes[i];
        if (other == lane || !other->sync || other->header.type != WIRE_SYNC_LEAF || other->head.offset != leaf) continue;
        other->to = NULL;
        other->sync = false;
    }
    return true;
}

static bool place_leaf(struct lane *lane) {
    struct engine *engine = lane->engine;
    struct sync *sync = engine->sync;
    const struct wire_op *head = &lane->head;
    if (sync == NULL || !sync->begun || head->tag != sync->plan->round || sync->phase != PHASE_LEAVES) return true;
    if (donor_of(sync, lane->peer) == sync->donor_count) return true;
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
        if (lane->length != PLACE_BYTES) return false;
        if (sync->donors[donor_of(sync, lane->peer)].unreadable) return true; // asked again elsewhere, as all that was on its way
        to = lane->place;
        break;
    default: return false;
    }
    if (to == NULL) return false;
    if (!delta_wants(sync->delta, head->offset) || !take_over(lane)) return true;
    lane->to = to;
    lane->sync = true;
    sync->report.wrote = true;
    return true;
}

bool sync_place(struct lane *lane) {
    switch (lane->header.type) {
    case WIRE_SYNC_HASHES: return place_hashes(lane);
    case WIRE_SYNC_LEAF: return place_leaf(lane);
    default: return lane->length == 0;
    }
}

bool sync_deliver(struct lane *lane) {
    lane->sync = false;
    bool good;
    switch (lane->header.type) {
    case WIRE_SYNC_HASHES: good = take_hashes(lane); break;
    case WIRE_SYNC_LEAF: good = take_leaf(lane); break;
    default:
        pthread_mutex_lock(&lane->engine->lock);
        good = take_ask(lane);
        pthread_mutex_unlock(&lane->engine->lock);
        break;
    }
    lane->to = NULL;
    return good;
}

// ---- what happens around it ----
static struct peer *find_peer(struct engine *engine, const struct wire_id *id) {
    struct peer *peer = engine->peers;
    while (peer != NULL && !wire_id_equal(&peer->id, id)) peer = peer->next;
    return peer != NULL && peer->rank != UINT32_MAX && !peer->dropped ? peer : NULL;
}

static bool is_receiver(const struct engine *engine, const struct wire_sync_plan *plan) {
    for (uint32_t i = 0; i < plan->receiver_count; i++)
        if (wire_id_equal(&plan->receivers[i], &engine->self)) return true;
    return false;
}

// Lock held. False: memory was refused.
static bool begin_receiving(struct engine *engine, struct sync *sync) {
    const struct wire_sync_plan *plan = sync->plan;
    sync->donors = calloc(plan->donor_count + 1, sizeof *sync->donors);
    sync->hashes_bad = calloc(plan->donor_count + 1, sizeof *sync->hashes_bad);
    sync->theirs = calloc(sync->content->layout.leaf_count + 1, sizeof *sync->theirs);
    if (sync->donors == NULL || sync->hashes_bad == NULL || sync->theirs == NULL) return false;
    sync->donor_count = plan->donor_count;
    int64_t now = platform_now_ns();
    for (uint32_t i = 0; i < plan->donor_count; i++)
        sync->donors[i] = (struct donor){.id = plan->donors[i], .peer = find_peer(engine, &plan->donors[i]), .progress_at = now};
    sync->hash_donor = engine->rank % sync->donor_count;
    return true;
}

void sync_obey(struct engine *engine) {
    struct sync *sync = engine->sync;
    if (sync == NULL) return;
    if (sync->ending) {
        let_go(engine);
        return;
    }
    if (sync->plan == NULL || sync->begun) return;
    sync->begun = true;
    sync->phase = PHASE_GIVING;
    if (!is_receiver(engine, sync->plan)) {
        for (struct requester *requester = sync->requesters; requester != NULL; requester = requester->next) peer_heat(requester->peer);
        return;
    }
    if (begin_receiving(engine, sync)) {
        sync->phase = PHASE_HASHES;
    } else {
        engine->dead = engine->killing = true;
    }
}

// The donors that are missing may be back, those that stall are replaced.
static void look_at_donors(struct engine *engine, int64_t now) {
    struct sync *sync = engine->sync;
    for (uint32_t i = 0; i < sync->donor_count; i++) {
        struct donor *donor = &sync->donors[i];
        uint64_t seen = donor->kept;
        for (size_t k = 0; k < engine->lane_count; k++)
            if (engine->lanes[k]->peer == donor->peer && engine->lanes[k]->sync) seen += engine->lanes[k]->got;
        if (seen != donor->seen || delta_on_way(sync->delta, i) == 0) {
            donor->seen = seen;
            donor->progress_at = now;
        } else if (now - donor->progress_at > sync->stall_ns) {
            LOG(LOG_WARN, "shared state: a donor stalls and is replaced");
            donor->progress_at = now;
            delta_shun(sync->delta, i);
        }
    }
    pump(engine);
}

static void tell_progress(struct sync *sync, int64_t now) {
    if (sync->told_at == 0) sync->told_at = now;
    if (now - sync->told_at < PROGRESS_SECONDS * SECOND_NS) return;
    sync->told_at = now;
    LOG(LOG_INFO, "shared state: %llu bytes have come, %llu are missing", (unsigned long long)sync->report.rx_bytes,
        (unsigned long long)sync->report.missing_bytes);
}

void sync_step(struct engine *engine) {
    struct sync *sync = engine->sync;
    if (sync == NULL || (sync->phase != PHASE_HASHES && sync->phase != PHASE_LEAVES)) return;
    take_crew_results(engine);
    int64_t now = platform_now_ns();
    if (now < sync->tick_at) return;
    sync->tick_at = now + TICK_MS * MS_NS;
    if (sync->phase == PHASE_LEAVES) {
        tell_progress(sync, now);
        look_at_donors(engine, now);
        return;
    }
    if (sync->content->layout.leaf_count == 0) {
        finish(engine, WIRE_SYNC_COMPLETE);
        return;
    }
    bool unasked = sync->hashes_asked_at == 0, gone = sync->donors[sync->hash_donor].peer == NULL;
    if (unasked && !gone)
        ask_hashes(engine);
    else if (gone || now - sync->hashes_asked_at > sync->stall_ns)
        next_hash_donor(engine);
}

int sync_timeout_ms(const struct engine *engine) {
    const struct sync *sync = engine->sync;
    return sync != NULL && (sync->phase == PHASE_HASHES || sync->phase == PHASE_LEAVES) ? TICK_MS : -1;
}

void sync_forget(struct engine *engine, const struct peer *peer) {
    struct sync *sync = engine->sync;
    if (sync == NULL) return;
    for (struct requester **at = &sync->requesters; *at != NULL;) {
        struct requester *requester = *at;
        if (requester->peer == peer) {
            *at = requester->next;
            free(requester);
        } else {
            at = &requester->next;
        }
    }
    for (uint32_t i = 0; i < sync->donor_count; i++)
        if (sync->donors[i].peer == peer) {
            sync->donors[i].peer = NULL;
            if (sync->delta != NULL) delta_drop(sync->delta, i);
            sync->tick_at = 0;
        }
}

void sync_members_changed(struct engine *engine) {
    for (struct peer *peer = engine->peers; peer != NULL; peer = peer->next)
        if (peer->rank == UINT32_MAX) sync_forget(engine, peer);
}

static void ask_again(struct sync *sync, uint32_t index) {
    if (sync->phase == PHASE_LEAVES) delta_revoke(sync->delta, index);
    if (sync->phase == PHASE_HASHES && index == sync->hash_donor) sync->hashes_asked_at = 0;
    sync->tick_at = 0;
}

// What was asked may be lost with the connection, questions and answers alike.
void sync_lane_gone(struct lane *lane) {
    struct sync *sync = lane->engine->sync;
    lane->sync = false;
    lane->to = NULL;
    if (sync == NULL) return;
    uint32_t index = donor_of(sync, lane->peer);
    if (index == sync->donor_count) return;
    sync->donors[index].lane_lost = true;
    ask_again(sync, index);
}

// Until now the donor may have sent what was asked again into the connection that was lost: it may not have known yet.
void sync_lane_came(struct lane *lane) {
    struct sync *sync = lane->engine->sync;
    if (sync == NULL) return;
    uint32_t index = donor_of(sync, lane->peer);
    if (index == sync->donor_count || !sync->donors[index].lane_lost) return;
    sync->donors[index].lane_lost = false;
    ask_again(sync, index);
}
