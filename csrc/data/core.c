#include "data/core_private.h"

#include "base/platform.h"

void engine_lock(struct engine *engine) { pthread_mutex_lock(&engine->lock); }

void engine_unlock(struct engine *engine) { pthread_mutex_unlock(&engine->lock); }

const struct wire_id *engine_self(const struct engine *engine) { return &engine->self; }

uint32_t engine_rank(const struct engine *engine) { return engine->rank; }

void engine_wake(struct engine *engine) {
    if (engine->wake_pending) return;
    engine->wake_pending = true;
    wake_signal(engine->wake);
}

void engine_fail(struct engine *engine) {
    if (engine->dead) return;
    engine->dead = engine->killing = engine->failed = true;
    engine_wake(engine);
}

bool engine_may_begin(const struct engine *engine) { return engine->book.ready; }
