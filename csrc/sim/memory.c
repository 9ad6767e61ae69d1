#include "sim/memory.h"

#include <stdlib.h>

#include "sim/effect.h"
#include "sim/trace.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

static _Thread_local struct {
    struct pccl_sim *sim;
    struct shortage *shortage; // of the process at work; NULL: none
} now;

void sim_short(struct pccl_sim *s, struct shortage *shortage) {
    now.sim = s;
    now.shortage = shortage;
}

static bool refuse(void) {
    struct shortage *shortage = now.shortage;
    if (shortage == NULL || shortage->times == 0) return false;
    if (shortage->granted > 0) {
        shortage->granted--;
        return false;
    }
    shortage->times--;
    shortage->refused++;
    now.sim->counts[COUNT_REFUSALS]++;
    effect_until(now.sim, now.sim->now);
    SIM_TRACE(now.sim, "fault: memory is refused");
    return true;
}

void *sim_take(size_t bytes) {
    void *taken = __real_malloc(bytes);
    if (taken == NULL) abort(); // a test that cannot go on
    return taken;
}

void *__wrap_malloc(size_t bytes) { return refuse() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return refuse() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse() ? NULL : __real_realloc(old, bytes); }
