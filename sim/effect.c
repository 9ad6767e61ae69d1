#include "sim/effect.h"

#include "sim/refuse.h"
#include "sim/trace.h"

enum {
    EFFECT_MOST_MS = 600, // of one fault
    BLOCK_MOST_MS = 3000,
    BLOCKS_IN = 400, // events of a master or a peer per block in the middle of one
    BLOCKS_WEIGHTY_IN = 12,
};

void effect_until(struct pccl_sim *s, int64_t until) {
    if (until > s->calm_from) s->calm_from = until;
}

int64_t effect_draw(struct pccl_sim *s) {
    return (int64_t)sim_below(s, sim_chance(s, 2) ? (uint64_t)s->limit_ns : EFFECT_MOST_MS * MS_NS);
}

int64_t effect_block(struct pccl_sim *s, bool weighty) {
    if (!s->faulty || (s->faults & PCCL_SIM_BLOCK) == 0 || !sim_chance(s, weighty ? BLOCKS_WEIGHTY_IN : BLOCKS_IN))
        return 0;
    int64_t blocked = sim_chance(s, 8) ? (int64_t)sim_below(s, BLOCK_MOST_MS * MS_NS) : effect_draw(s);
    s->counts[COUNT_BLOCKS]++;
    effect_until(s, s->now + blocked + NAP_SKEW_MS * MS_NS);
    return blocked + MS_NS;
}

// ---- memory ----

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
