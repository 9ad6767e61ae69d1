#include "link/workers.h"

#include "base/memory.h"
#include "base/platform.h"

enum { READY_LEAST = 16 };

// ---- the turn ----
void turn_take(struct workers *all) {
    if (all != NULL) pthread_mutex_lock(&all->turn);
}

void turn_leave(struct workers *all) {
    if (all != NULL) pthread_mutex_unlock(&all->turn);
}

void turn_leave_thread(struct workers *all, bool waits) {
    if (all != NULL) all->thread_waits = waits;
    turn_leave(all);
}

void workers_pause(struct workers *all) {
    if (all == NULL) return;
    all->paused = true;
    while (all->stepping > 0) pthread_cond_wait(&all->still, &all->turn);
}

void workers_resume(struct workers *all) {
    if (all == NULL || !all->paused) return;
    all->paused = false;
    pthread_cond_broadcast(&all->go);
}

// ---- lanes ----
struct worker *workers_of(struct workers *all, uint32_t index) {
    return all == NULL || index == 0 ? NULL : &all->each[(index - 1) % all->count];
}

bool worker_has_room(struct worker *worker, size_t count) {
    return GROW(worker->ready.list, worker->ready.room, count, READY_LEAST);
}

void worker_wake(struct workers *all, struct worker *worker) {
    if (all == NULL) return;
    bool *waits = worker != NULL ? &worker->waits : &all->thread_waits;
    if (*waits) wake_signal(worker != NULL ? worker->wake : all->wake);
    *waits = false;
}

void workers_forget_events(struct workers *all) {
    if (all != NULL) all->freed++;
}
