// The engine's thread, which drives the lanes and enters epochs; the life of an engine; and the control side's calls on
// links, epochs and verdicts.
//
// The thread is the only one that enters an epoch, so between two of its steps the members, their order and the running
// ops stand still for it without a lock. Callers begin and end small ops themselves, under the lock: the member that
// comes last finds all inputs waiting and needs no other thread at all.
#define _GNU_SOURCE
#include "data/engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/platform.h"
#include "compute/kernels.h"
#include "data/algorithm.h"
#include "data/slots.h"
#include "data/core.h"
#include "link/connection.h"
#include "link/frame.h"
#include "data/service.h"
#include "data/telemetry.h"
#include "device/device.h"
#include "net/rendezvous.h"

enum { EVENTS = 64 };

// ---- the thread enters an epoch ----
static void links_are_ready(struct engine *engine) {
    slots_announce(engine);
    call_table_links_ready(&engine->call_table);
}

// No lane has a frame of a large op any more, none is running.
static void drop_ops(struct engine *engine) {
    engine_assert_locked(engine);
    lanes_drop_frames(engine->lanes, false);
    engine->running.first = engine->posted.first = NULL;
    engine_note_running(engine);
    struct algorithm_shared *shared = engine->shared;
    shared->under_way = shared->early = shared->granted = 0;
}

// Returns true if this member, which was in a group, continues with another master, or again with the one that it had
// lost.
static bool changes_master(const struct engine *engine) {
    const struct epoch *now = engine->call_table.now;
    return now->ring.count > 0 && now->generation != engine->pending->generation;
}

// Forgets what neighbours were in the epoch before.
static void leave_epoch(struct engine *engine) {
    for (struct neighbour *peer = engine->lanes->neighbours; peer != NULL; peer = peer->next) {
        struct op_peer *op_peer = op_peer_of(peer);
        op_peer->eager_bytes = 0;
        op_peer->offered = op_peer->claims_again = false;
        slots_end(&op_peer->slots);
        if (op_peer->member.rank == UINT32_MAX) service_changed(engine, peer, SERVICE_PEER_LEFT);
    }
}

// Enters the pending epoch and makes the report of it; or memory was refused, and the engine is dead.
static void enter_pending(struct engine *engine) {
    engine_assert_locked(engine);
    struct wire_report report;
    // The last report of the operations may be lost with the connection to the previous master.
    if (changes_master(engine)) atomic_store(&engine->op_stats.awake, true);
    drop_ops(engine);
    engine->request_epoch = false;
    if (!call_table_enter(&engine->call_table, engine->pending, &report)) {
        engine_fail(engine);
        return;
    }
    epoch_put(engine->pending);
    engine->pending = NULL;
    wire_encode_report(&engine->for_master, engine_header(engine), &report);
    free(report.ops);
    algorithm_leave_slots(engine); // they end with the epoch
    struct wire_header now = engine_header(engine);
    leave_epoch(engine);
    lanes_enter_epoch(engine->lanes, &now);
    if (engine->pending_ready) links_are_ready(engine);
}

// ---- the thread ----
static void end_all(struct engine *engine) {
    engine->posted.first = engine->running.first = NULL;
    engine_note_running(engine);
    call_table_end_all(&engine->call_table);
}

// Returns true if the operation may begin. On a device it waits until the work that its caller had queued there is
// done, and until its input is saved or, if small, at hand.
static bool may_begin(struct engine *engine, struct op *op) {
    engine_assert_locked(engine);
    struct device_queue *queue = op->args.queue;
    if (queue == NULL) return true;
    if (algorithm_of(op)->direct && op->input == NULL && op->in_bytes > 0)
        op->input = device_map(queue, op->args.send, op->in_bytes, &op->fence);
    if (device_passed(queue, op->fence) != DEVICE_DONE) return false;
    if (op->backup.bytes != NULL && !ranges_add(&op->backup.saved, 0, op->bytes)) engine_fail_of(engine, queue);
    return true;
}

// NULL: nothing may begin now.
static struct op *take_posted(struct engine *engine) {
    engine_assert_locked(engine);
    struct op *op = engine->posted.first;
    while (op != NULL && !may_begin(engine, op)) op = op->next;
    if (op == NULL) return NULL;
    op_queue_remove(&engine->posted, op);
    op->phase = OP_RUNNING;
    return op;
}

static void begin_posted(struct engine *engine) {
    for (;;) {
        engine_lock(engine);
        struct op *op = take_posted(engine);
        bool direct = op != NULL && algorithm_of(op)->direct;
        if (direct && !algorithm_of(op)->begin(engine, op)) call_table_refuse(&engine->call_table, op);
        engine_unlock(engine);
        if (op == NULL) return;
        if (direct) continue;
        if (op->restart) backup_restore(&op->backup, op->args.queue, op->args.recv);
        op->restart = false;
        op_queue_insert(&engine->running, op);
        engine_note_running(engine);
        if (algorithm_begin(engine, op)) continue;
        engine_lock(engine);
        op_queue_remove(&engine->running, op);
        engine_note_running(engine);
        engine_fail_of(engine, op->args.queue);
        call_table_refuse(&engine->call_table, op);
        engine_unlock(engine);
    }
}

static void fail_with_device(struct call_table *call_table, struct op *op) {
    if (device_has_failed(op->args.queue)) engine_fail_of(call_table->driver.context, op->args.queue);
}

// A device that gets on wakes the thread.
static void go_on_with_devices(struct engine *engine) {
    for (struct op *op = engine->running.first, *next; op != NULL; op = next) {
        next = op->next;
        if (op->moved) algorithm_check(engine, op);
    }
    lanes_schedule(engine->lanes);
}

// Returns whether lanes or ops are to change that workers may be in the midst of.
static bool changes_all(const struct engine *engine) {
    engine_assert_locked(engine);
    return engine->pending != NULL || engine->killing || engine->stopping || engine->lanes->arriving != NULL;
}

// Does what other threads have asked for. False: the thread is to end, and no worker begins another step.
static bool serve_requests(struct engine *engine) {
    engine_lock(engine);
    if (engine->lanes->workers != NULL && changes_all(engine)) {
        engine_unlock(engine);
        workers_pause(engine->lanes);
        engine_lock(engine);
    }
    engine->wake_pending = false;
    bool go_on = !engine->stopping;
    if (!engine->dead && !lanes_poll_arriving(engine->lanes)) engine_fail(engine);
    if (engine->pending != NULL && !engine->dead) enter_pending(engine);
    if (engine->killing || !go_on) {
        engine->killing = false;
        drop_ops(engine);
        lanes_hang_up(engine->lanes);
        end_all(engine);
    }
    service_woken(engine);
    if (!go_on) service_stop(engine);
    bool devices = engine->device_calls > 0;
    if (devices) call_table_for_each(&engine->call_table, fail_with_device);
    bool failed = engine->failed, request_epoch = engine->request_epoch;
    engine->failed = engine->request_epoch = false;
    engine_unlock(engine);
    engine_tell(engine);
    if (failed) engine->callbacks.failed(engine->callbacks.context, engine->why);
    if (go_on && request_epoch)
        engine->callbacks.link_down(engine->callbacks.context, &engine->self, 0, 0, WIRE_LINK_BROKEN);
    if (go_on && devices) go_on_with_devices(engine);
    if (go_on) workers_resume(engine->lanes);
    if (go_on) begin_posted(engine);
    return go_on;
}

// Ends when the engine stops.
static void work(struct engine *engine) {
    struct epoll_event events[EVENTS];
    bool woken = true, busy = false;
    kernels_enter();
    turn_take(engine->lanes->workers);
    engine->lanes->thread = gettid();
    for (;;) {
        if (woken && !serve_requests(engine)) break;
        struct service *service = engine->service;
        int timeout_ms = service == NULL ? -1 : service->type->step(service);
        lanes_check_silence(engine->lanes);
        timeout_ms = slots_step(engine, telemetry_step(engine, timeout_ms));
        lanes_look_at_buckets(engine->lanes);
        busy = lane_step_all(&engine->lanes->ready);
        lanes_free_broken(engine->lanes);
        timeout_ms = busy ? 0 : lanes_timeout_ms(engine->lanes, timeout_ms);
        turn_leave_thread(engine->lanes->workers, !busy);
        int count = epoll_wait(engine->epoll, events, EVENTS, timeout_ms);
        turn_take(engine->lanes->workers);
        woken = false;
        for (int i = 0; i < count; i++) {
            void *tag = events[i].data.ptr;
            if (tag == &engine->rendezvous) {
                slots_take_claims(engine);
            } else if (tag == NULL) {
                wake_clear(engine->wake);
                woken = true;
            } else {
                lane_note_events(tag, events[i].events);
            }
        }
    }
    engine->lanes->thread = 0;
    turn_leave(engine->lanes->workers);
}

static void *run(void *argument) {
    work(argument);
    return NULL;
}

// ---- life ----
static void out_of_memory(void *engine) { engine_fail(engine); }

struct engine *engine_new(const struct wire_id *self, const struct engine_callbacks *callbacks) {
    struct engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) return NULL;
    engine->self = *self;
    engine->claims_ns = INT64_MAX;
    engine->claims_log = (struct log_limit){.lines = 8, .seconds = 10};
    engine->callbacks = *callbacks;
    struct op_driver driver = engine_driver(engine);
    call_table_init(&engine->call_table, &driver, algorithm_work_bytes());
    pthread_mutex_init(&engine->lock, NULL);
    platform_cond_init(&engine->no_waiters);
    platform_cond_init(&engine->not_holding);
    platform_cond_init(&engine->drained);
    platform_cond_init(&engine->service_stopped);
    engine->pool = frame_pool_new(&engine->lock, out_of_memory, engine);
    engine->shared = calloc(1, sizeof *engine->shared);
    engine->epoll = descriptor_epoll();
    engine->wake = wake_open();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    struct lanes_options options = {.events = &route_events,
                                    .context = engine,
                                    .lock = &engine->lock,
                                    .pool = engine->pool,
                                    .neighbour_bytes = sizeof(struct op_peer),
                                    .epoll = engine->epoll,
                                    .wake = engine->wake};
    engine->lanes = lanes_new(&options);
    bool made = engine->pool != NULL && engine->shared != NULL && engine->lanes != NULL && engine->epoll >= 0 &&
                engine->wake >= 0 && epoll_ctl(engine->epoll, EPOLL_CTL_ADD, engine->wake, &event) == 0;
    if (made && environment_switch("PCCL_SAME_HOST_MEMORY", true))
        engine->rendezvous = rendezvous_open(engine->epoll, &engine->rendezvous);
    made = made && workers_start(engine->lanes);
    engine->started = made && platform_thread_start(&engine->thread, "pccl:data", run, engine);
    if (engine->started) return engine;
    engine_free(engine);
    return NULL;
}

void engine_kill(struct engine *engine) {
    engine_lock(engine);
    engine->dead = engine->killing = true;
    pthread_cond_broadcast(&engine->drained);
    engine_wake(engine);
    engine_unlock(engine);
}

void engine_drain(struct engine *engine, int64_t deadline_ns) {
    engine_lock(engine);
    call_table_drain(&engine->call_table);
    while (engine->call_table.retained.count > 0 && engine->call_table.now->ring.count > 1 && !engine->dead &&
           !engine->stopping)
        if (!platform_cond_wait(&engine->drained, &engine->lock, deadline_ns)) break;
    engine_unlock(engine);
}

static void await_device(struct call_table *call_table, struct op *op) {
    (void)call_table;
    device_await(op->args.queue);
}

void engine_stop(struct engine *engine) {
    engine_lock(engine);
    bool first = !engine->stopping && engine->lanes != NULL; // an engine that engine_new gave up may have none
    engine->stopping = true;
    engine_wake(engine);
    engine_unlock(engine);
    if (first && engine->started) pthread_join(engine->thread, NULL);
    if (first) workers_stop(engine->lanes);
    engine_lock(engine);
    if (first) {
        end_all(engine);
        call_table_for_each(&engine->call_table, await_device);
        lanes_close(engine->lanes);
    }
    while (engine->waiters > 0) pthread_cond_wait(&engine->no_waiters, &engine->lock);
    engine_unlock(engine);
}

void engine_free(struct engine *engine) {
    if (engine == NULL) return;
    engine_stop(engine);
    engine_lock(engine); // nobody else has the engine, but these functions check
    call_table_fini(&engine->call_table);
    backup_cache_free(&engine->backups);
    for (struct neighbour *peer = engine->lanes != NULL ? engine->lanes->neighbours : NULL; peer != NULL;
         peer = peer->next) {
        slots_end(&op_peer_of(peer)->slots);
    }
    if (engine->lanes != NULL) workers_free(engine->lanes);
    lanes_free(engine->lanes);
    rendezvous_close(engine->rendezvous);
    wire_buffer_fini(&engine->for_master);
    frame_pool_free(engine->pool);
    engine_unlock(engine);
    epoch_put(engine->pending);
    if (engine->shared != NULL) free(engine->shared->wide);
    if (engine->shared != NULL) free(engine->shared->wide_input);
    free(engine->shared);
    descriptor_close(engine->epoll);
    descriptor_close(engine->wake);
    pthread_cond_destroy(&engine->no_waiters);
    pthread_cond_destroy(&engine->not_holding);
    pthread_cond_destroy(&engine->drained);
    pthread_cond_destroy(&engine->service_stopped);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

// ---- the control side: links ----
// The addresses that a member of the newest epoch announces; NULL: it is none.
static const struct wire_reach *reach_of(const struct engine *engine, const struct wire_id *id) {
    const struct epoch *epoch = engine->pending != NULL ? engine->pending : engine->call_table.now;
    const struct wire_member *member = wire_member_with(epoch->ring.members, epoch->ring.count, id);
    return member == NULL ? NULL : &member->reach;
}

uint64_t engine_add_link(struct engine *engine, const struct wire_id *id, uint32_t index, struct transport *stream) {
    if (stream == NULL) return 0;
    bool from_elsewhere = false;
    transport_apply_congestion(stream);
    engine_lock(engine);
    bool open = index <= WIRE_MAX_LANES && engine_is_open(engine);
    uint64_t serial = open ? lanes_add(engine->lanes, id, index, stream, reach_of(engine, id), &from_elsewhere) : 0;
    struct peer_label label = {.chars = ""};
    if (from_elsewhere) label = neighbour_label(neighbour_find(engine->lanes, id));
    engine_unlock(engine);
    if (from_elsewhere)
        LOG_LIMITED(&engine->claims_log, LOG_WARN,
                    "refused a connection that claims to be %s: its link is up, from another address", label.chars);
    if (serial == 0) transport_free(stream);
    return serial;
}

bool engine_has_link(struct engine *engine, const struct wire_id *id, uint32_t index) {
    engine_lock(engine);
    struct neighbour *peer = neighbour_find(engine->lanes, id);
    bool has = peer != NULL && index <= WIRE_MAX_LANES && peer->lanes[index] != NULL;
    engine_unlock(engine);
    return has;
}

void engine_drop_peer(struct engine *engine, const struct wire_id *id) {
    engine_lock(engine);
    lanes_drop(engine->lanes, id);
    engine_unlock(engine);
}

void engine_set_silence(struct engine *engine, int64_t limit_ns) { lanes_set_silence(engine->lanes, limit_ns); }

void engine_fix_lanes(struct engine *engine) { engine->lanes->fixed = true; }

// ---- the control side: epochs and verdicts ----
void engine_missed_loss(struct engine *engine, uint64_t group_epoch) {
    engine_lock(engine);
    call_table_note_loss(&engine->call_table, group_epoch);
    engine_unlock(engine);
}

void engine_enter_epoch(struct engine *engine, const struct epoch *epoch) {
    const struct epoch_ring *ring = &epoch->ring;
    bool known = true;
    engine_lock(engine);
    for (uint32_t i = 0; i < ring->count && known; i++) {
        struct neighbour *peer = i == ring->rank ? NULL : neighbour_get(engine->lanes, &ring->members[i].id);
        if (peer != NULL) peer->name = ring->members[i].name;
        known = i == ring->rank || peer != NULL;
    }
    if (known) {
        epoch_put(engine->pending);
        engine->pending = epoch_get(epoch);
        engine->pending_ready = engine->call_table.ready = false;
        if (epoch->lost) call_table_note_loss(&engine->call_table, epoch->group_epoch);
    }
    engine_wake(engine);
    engine_unlock(engine);
}

void engine_links_ready(struct engine *engine, uint64_t group_epoch) {
    engine_lock(engine);
    if (engine->pending != NULL) {
        if (engine->pending->group_epoch == group_epoch) engine->pending_ready = true;
    } else if (engine->call_table.now->group_epoch == group_epoch) {
        links_are_ready(engine);
    }
    engine_unlock(engine);
}

void engine_verdict(struct engine *engine, const struct wire_verdict *verdict) {
    engine_lock(engine);
    call_table_verdict(&engine->call_table, verdict);
    engine_unlock(engine);
}
