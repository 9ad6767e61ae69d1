#include "link/workers.h"

#include "base/grow.h"
#include "base/platform.h"
#include "data/core.h"

enum { READY_LEAST = 16 };

// ---- the turn ----
void turn_take(struct engine *engine) {
    if (engine->workers != NULL) pthread_mutex_lock(&engine->workers->turn);
}

void turn_leave(struct engine *engine) {
    if (engine->workers != NULL) pthread_mutex_unlock(&engine->workers->turn);
}

void turn_leave_thread(struct engine *engine, bool waits) {
    if (engine->workers != NULL) engine->workers->thread_waits = waits;
    turn_leave(engine);
}

void workers_pause(struct engine *engine) {
    struct workers *all = engine->workers;
    if (all == NULL) return;
    all->paused = true;
    while (all->stepping > 0) pthread_cond_wait(&all->still, &all->turn);
}

void workers_resume(struct engine *engine) {
    struct workers *all = engine->workers;
    if (all == NULL || !all->paused) return;
    all->paused = false;
    pthread_cond_broadcast(&all->go);
}

// ---- lanes ----
struct worker *workers_of(const struct engine *engine, uint32_t index) {
    struct workers *all = engine->workers;
    return all == NULL || index == 0 ? NULL : &all->each[(index - 1) % all->count];
}

bool worker_has_room(struct worker *worker, size_t lanes) {
    return GROW(worker->ready.list, worker->ready.room, lanes, READY_LEAST);
}

void worker_wake(struct engine *engine, struct worker *worker) {
    struct workers *all = engine->workers;
    if (all == NULL) return;
    bool *waits = worker != NULL ? &worker->waits : &all->thread_waits;
    if (*waits) wake_signal(worker != NULL ? worker->wake : engine->wake);
    *waits = false;
}

void workers_forget_events(struct engine *engine) {
    if (engine->workers != NULL) engine->workers->freed++;
}
