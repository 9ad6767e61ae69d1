#include "sim/memory.h"

#include "sim/effect.h"
#include "sim/refuse.h"
#include "sim/trace.h"

static _Thread_local struct {
    struct pccl_sim *sim;
    struct shortage *shortage; // of the process at work; NULL: none
} now;

void sim_short(struct pccl_sim *s, struct shortage *shortage) {
    now.sim = s;
    now.shortage = shortage;
}

bool refuse_now(void) {
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
