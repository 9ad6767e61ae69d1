// Threads that receive, sum and send beside the owner's thread: docs/decisions/data-threads.md.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/environment.h"
#include "base/platform.h"
#include "compute/kernels.h"
#include "link/connection.h"

enum { EVENTS = 64 };

// ---- a worker; turn ----
// False: it is to end.
static bool begin_step(struct workers *all) {
    while (all->paused && !all->ending) pthread_cond_wait(&all->go, &all->turn);
    if (all->ending) return false;
    all->stepping++;
    return true;
}

static void end_step(struct workers *all) {
    if (--all->stepping == 0 && all->paused) pthread_cond_signal(&all->still);
}

static void note_events(struct worker *worker, const struct epoll_event *events, int count) {
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr == NULL)
            wake_clear(worker->wake);
        else
            lane_note_events(events[i].data.ptr, events[i].events);
    }
}

// Events come once, so those that nobody looked at are assumed of every lane.
static void assume_events(struct worker *worker) {
    struct lanes *lanes = worker->lanes;
    wake_clear(worker->wake);
    for (size_t i = 0; i < lanes->count; i++)
        if (lanes->list[i]->worker == worker) lane_note_events(lanes->list[i], EPOLLIN | EPOLLOUT);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct lanes *lanes = worker->lanes;
    struct workers *all = lanes->workers;
    struct epoll_event events[EVENTS];
    kernels_enter();
    turn_take(lanes->workers);
    while (begin_step(all)) {
        bool busy = lane_step_all(&worker->ready);
        end_step(all);
        worker->waits = !busy;
        uint64_t freed = all->freed;
        turn_leave(lanes->workers);
        int count = epoll_wait(worker->epoll, events, EVENTS, busy ? 0 : -1);
        turn_take(lanes->workers);
        worker->waits = false;
        if (freed == all->freed)
            note_events(worker, events, count);
        else
            assume_events(worker);
    }
    turn_leave(lanes->workers);
    return NULL;
}

// ---- the owner's thread ----
#ifdef PCCL_CHECKS
void workers_check(const struct lanes *all, bool paused, const char *file, int line) {
    const struct workers *workers = all->workers;
    if (all->thread == 0) return;
    if (workers != NULL) platform_check_held(&workers->turn, "the turn", file, line);
    bool alone = all->thread == gettid() && (workers == NULL || (workers->paused && workers->stepping == 0));
    if (alone || (workers != NULL && !paused)) return;
    fprintf(stderr, "%s:%d: this is not the data thread, or workers are not paused\n", file, line);
    abort();
}
#endif

void workers_pause(struct lanes *lanes) {
    struct workers *all = lanes->workers;
    lanes_assert_thread(lanes);
    if (all == NULL) return;
    all->paused = true;
    while (all->stepping > 0) pthread_cond_wait(&all->still, &all->turn);
    lanes_assert_paused(lanes);
}

void workers_resume(struct lanes *lanes) {
    struct workers *all = lanes->workers;
    if (all == NULL || !all->paused) return;
    lanes_assert_paused(lanes);
    all->paused = false;
    pthread_cond_broadcast(&all->go);
}

// ---- life ----
static bool start(struct worker *worker, struct lanes *lanes) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    worker->lanes = lanes;
    worker->wake = -1;
    worker->epoll = descriptor_epoll();
    if (worker->epoll < 0) return false;
    worker->wake = wake_open();
    return worker->wake >= 0 && epoll_ctl(worker->epoll, EPOLL_CTL_ADD, worker->wake, &event) == 0 &&
           platform_thread_start(&worker->thread, "pccl:lanes", work, worker);
}

bool workers_start(struct lanes *lanes) {
    uint32_t count = environment_number("PCCL_DATA_THREADS", 0, WORKERS_MOST, 0);
    if (count == 0) return true;
    struct workers *all = calloc(1, sizeof *all + count * sizeof all->each[0]);
    if (all == NULL) return false;
    all->count = count;
    all->wake = lanes->wake;
    pthread_mutex_init(&all->turn, NULL);
    platform_cond_init(&all->still);
    platform_cond_init(&all->go);
    for (uint32_t i = 0; i < count; i++) all->each[i].epoll = all->each[i].wake = -1;
    lanes->workers = all;
    while (all->started < count && start(&all->each[all->started], lanes)) all->started++;
    return all->started == count;
}

void workers_stop(struct lanes *lanes) {
    struct workers *all = lanes->workers;
    if (all == NULL) return;
    turn_take(lanes->workers);
    all->ending = true;
    pthread_cond_broadcast(&all->go);
    turn_leave(lanes->workers);
    for (uint32_t i = 0; i < all->started; i++) {
        wake_signal(all->each[i].wake);
        pthread_join(all->each[i].thread, NULL);
    }
    all->started = 0;
}

void workers_free(struct lanes *lanes) {
    struct workers *all = lanes->workers;
    if (all == NULL) return;
    for (uint32_t i = 0; i < all->count; i++) {
        descriptor_close(all->each[i].epoll);
        descriptor_close(all->each[i].wake);
        free(all->each[i].ready.list);
    }
    pthread_cond_destroy(&all->still);
    pthread_cond_destroy(&all->go);
    pthread_mutex_destroy(&all->turn);
    free(all);
    lanes->workers = NULL;
}
