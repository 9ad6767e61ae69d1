#include "sim/faults.h"

#include "sim/effect.h"
#include "sim/links.h"
#include "sim/masters.h"
#include "sim/partition.h"
#include "sim/peers.h"
#include "sim/trace.h"

enum {
    LATE_FAULTS = PCCL_SIM_FORK | PCCL_SIM_BLOCK | PCCL_SIM_MEMORY,
    BY_HAND_LIMIT_MS = 200, // heartbeat limit of a run in which only the caller makes faults
    BY_HAND_RECOVERY_MS = 10000,
};

// By themselves and for a third of the seeds only, so that the others stay what they were when these faults came.
static void draw_late_faults(struct pccl_sim *s) {
    uint64_t draw = sim_mix(s->config.seed ^ UINT64_C(0x6c6174650000dc35));
    if (s->config.faults != 0 || draw % 3 != 0) return;
    s->faults |= (1 + (uint32_t)(draw >> 8) % 7) * PCCL_SIM_FORK; // one of them at least
}

// Draws traits that were added later, from their own random numbers.
static void draw_later_traits(struct pccl_sim *s) {
    uint64_t draw = sim_mix(s->config.seed ^ UINT64_C(0x7472616974735f31));
    s->prompt = draw % 4 == 0;
    s->in_part = (draw >> 8) % 4 == 0;
    if (s->config.faults == 0 && (draw >> 16) % 12 == 0)
        s->faults = (draw >> 32) % 4 == 0 ? PCCL_SIM_APART : s->faults | PCCL_SIM_APART;
    if (s->config.faults == 0 && (draw >> 40) % 6 == 0) s->faults |= PCCL_SIM_CANCEL;
}

static void draw_notices(struct pccl_sim *s) {
    uint64_t draw = sim_mix(s->config.seed ^ UINT64_C(0x6e6f74696365));
    if (s->config.faults == 0 && !s->only_naps && !s->only_apart && draw % 8 == 0)
        s->faults = (draw >> 8) % 4 == 0 ? PCCL_SIM_NOTICE : s->faults | PCCL_SIM_NOTICE;
    s->only_notice = s->faults == PCCL_SIM_NOTICE;
}

// How many members the run has at least and at most. A changed HELLO would give the run others.
static void draw_limits(struct pccl_sim *s) {
    uint64_t draw = sim_mix(s->config.seed ^ UINT64_C(0x6c696d697473));
    s->limits = (struct wire_limits){0};
    if (draw % 8 != 0 || s->config.faults != 0 || (s->faults & PCCL_SIM_FLIP) != 0) return;
    s->limits.least = (uint16_t)((draw >> 8) % s->peers);
    uint32_t more = s->peers - s->limits.least;
    s->limits.most = (draw >> 16) % 4 == 0 ? 0 : (uint16_t)(s->limits.least + 1 + (draw >> 24) % more);
    s->limits.wait_ms = (uint32_t)((int64_t)((draw >> 32) % 4) * s->limit_ns / MS_NS);
}

void sim_draw_faults(struct pccl_sim *s) {
    const struct pccl_sim_config *config = &s->config;
    s->peers = config->peers != 0 ? config->peers : 2 + (uint32_t)sim_below(s, 4) + (uint32_t)sim_below(s, 4);
    s->only_votes = s->peers > DATA_SLOTS;
    s->limit_ns = (120 + (int64_t)sim_below(s, 200)) * MS_NS;
    s->user_timeout_ns = s->limit_ns;
    s->recovery_ms = sim_chance(s, 8) ? 0 : (uint32_t)((8 + (int64_t)sim_below(s, 8)) * s->limit_ns / MS_NS);
    s->fault_every_ns = (10 + (int64_t)sim_below(s, 120)) * MS_NS;
    s->faults = PCCL_SIM_CRASH | PCCL_SIM_BREAK;
    for (uint32_t bit = 1; bit <= PCCL_SIM_MASTER; bit *= 2) {
        if (sim_chance(s, bit == PCCL_SIM_FLIP ? 6 : bit == PCCL_SIM_MASTER ? 4 : 2)) s->faults |= bit;
    }
    if (s->only_votes) s->faults |= PCCL_SIM_MASTER;
    if (config->faults != 0) s->faults = config->faults;
    draw_late_faults(s);
    draw_later_traits(s);
    // A list of masters is drawn by itself, so that the other seeds stay what they are.
    uint64_t list = sim_mix(config->seed ^ UINT64_C(0x6d617374657273)) % 8;
    s->master_count = config->masters != 0                                             ? config->masters
                      : (s->faults & (PCCL_SIM_MASTER | LATE_FAULTS)) == 0 || list < 3 ? 1
                      : list < 7                                                       ? 2
                                                                                       : 3;
    if (s->master_count > MASTERS_MOST) s->master_count = MASTERS_MOST;
    for (uint32_t i = 0; i < s->master_count; i++)
        s->addresses[i] = (struct wire_address){.family = 4, .bytes = {10, 0, 1, (uint8_t)(i + 1)}, .port = 48148};
    // Naps of a single master come from their own random numbers, too.
    uint64_t naps = sim_mix(config->seed ^ UINT64_C(0x6e617073)) % 12;
    s->only_naps = s->master_count == 1 && config->faults == 0 && naps == 0;
    if (s->only_naps) s->faults = PCCL_SIM_STALL;
    s->naps = s->master_count == 1 && (s->faults & PCCL_SIM_STALL) != 0 && naps < 4;
    if (s->only_naps && s->recovery_ms == 0) s->recovery_ms = (uint32_t)(8 * s->limit_ns / MS_NS);
    s->nap_from = 0;
    s->only_apart = s->faults == PCCL_SIM_APART;
    draw_notices(s);
    s->only = s->only_naps ? "the master stood still" : s->only_notice ? "members left in order" : NULL;
    draw_limits(s);
    if (config->by_hand != 0) {
        s->limit_ns = s->user_timeout_ns = BY_HAND_LIMIT_MS * MS_NS;
        s->recovery_ms = BY_HAND_RECOVERY_MS;
    }
    int64_t length = config->fault_ms != 0 ? config->fault_ms : 300 + (int64_t)sim_below(s, 900);
    if (s->only_votes && config->fault_ms == 0) length *= 2;
    s->end_at = s->now + length * MS_NS;
}

static bool stop(struct pccl_sim *s, int slot, int64_t until) {
    int64_t *stopped = &s->bodies[slot].stopped_until;
    if (s->now < *stopped) return false; // waking it earlier would reorder what waits for it
    *stopped = until;
    s->counts[COUNT_STALLS]++;
    effect_until(s, until);
    return true;
}

static void stall(struct pccl_sim *s) {
    bool master = sim_chance(s, s->master_count > 1 ? 3 : 10);
    int peer = (int)sim_below(s, s->peers), k = MASTER + (int)sim_draw_master(s), slot = master ? k : peer;
    int64_t until = s->now + effect_draw(s);
    if (!stop(s, slot, until)) return;
    SIM_TRACE(s, "fault: %s %d stands still for %jd ms", SLOT_NAME(slot), (until - s->now) / MS_NS);
}

// Long enough for peers to leave it, often just about. Between two of them there is time to come back.
static void nap(struct pccl_sim *s) {
    int64_t least = s->limit_ns * 6 / 10,
            until = s->now + least +
                    (int64_t)sim_below(s, (uint64_t)(sim_chance(s, 2) ? s->limit_ns : 5 * s->limit_ns / 2));
    if (s->now < s->nap_from || s->now < s->bodies[MASTER].stopped_until || !s->masters[0].running) return;
    s->bodies[MASTER].stopped_until = until;
    s->nap_from = until + s->limit_ns;
    s->counts[COUNT_STALLS]++;
    effect_until(s, until + NAP_SKEW_MS * MS_NS);
    SIM_TRACE(s, "fault: the master stands still for %jd ms", (until - s->now) / MS_NS);
}

static void slow_down(struct pccl_sim *s) {
    int from = (int)sim_below(s, s->peers),
        to = sim_chance(s, 3) ? MASTER + (int)sim_draw_master(s) : (int)sim_below(s, s->peers);
    int64_t until = s->now + effect_draw(s);
    s->slow_until[from][to] = s->slow_until[to][from] = until;
    s->counts[COUNT_DELAYS]++;
    effect_until(s, until);
    SIM_TRACE(s, "fault: the path between %s %d and %s %d is slow", SLOT_NAME(from), SLOT_NAME(to));
}

static void break_link(struct pccl_sim *s) {
    for (uint32_t tries = 0; tries < 50 && s->links->high > 0; tries++) {
        uint32_t i = (uint32_t)sim_below(s, s->links->high);
        const struct connection *c = &s->links->all[i];
        if (!c->used || c->broken) continue;
        s->counts[COUNT_BREAKS]++;
        SIM_TRACE(s, "fault: link %u between %d and %d is reset", c->index, c->ends[0] + 1, c->ends[1] + 1);
        sim_break(s, i);
        return;
    }
}

// A process ends, but a child that it forked lives on for a while with all its connections.
static void end_held(struct pccl_sim *s, int slot) {
    int64_t until = s->now + effect_draw(s);
    bool master = sim_chance(s, 6);
    uint32_t k = sim_draw_master(s);
    if (master ? !s->masters[k].running : !s->processes[slot].running) return;
    s->counts[COUNT_HELD]++;
    effect_until(s, until);
    struct event *event = sim_event(s, EVENT_LET_GO, until);
    event->slot = (uint16_t)(master ? MASTER + k : (uint32_t)slot);
    event->life = s->processes[slot].life;
    sim_push(s, event);
    if (master)
        sim_hold_master(s, k);
    else
        sim_end_held(s, slot);
}

// From some allocation on, once or several times.
static void refuse_memory(struct pccl_sim *s, int slot) {
    int k = MASTER + (int)sim_draw_master(s);
    if (sim_chance(s, 2)) slot = k;
    struct shortage *shortage = &s->bodies[slot].shortage;
    shortage->granted = (uint32_t)sim_below(s, sim_chance(s, 2) ? 4 : 24);
    shortage->times = sim_chance(s, 2) ? 1 : 1 + (uint32_t)sim_below(s, 12);
    SIM_TRACE(s, "fault: after %u more allocations %u are refused to %s %d", shortage->granted, shortage->times,
              SLOT_NAME(slot));
}

static void crash(struct pccl_sim *s, int slot, bool told) {
    s->counts[told ? COUNT_CRASHES : COUNT_POWER_OFFS] += s->processes[slot].running;
    sim_end(s, slot, told);
}

// A master ends. Up to a quarter of the peers may end with it, and others stand still meanwhile. Soon the faults are
// over, until all that are left are one run again.
static void lose_many(struct pccl_sim *s) {
    uint32_t most = s->peers / 4, ends = sim_chance(s, 2) ? 0 : (uint32_t)sim_below(s, most),
             stands = (uint32_t)sim_below(s, most);
    for (; ends > 0 && (s->faults & (PCCL_SIM_CRASH | PCCL_SIM_POWER_OFF)) != 0; ends--)
        crash(s, (int)sim_below(s, s->peers), (s->faults & PCCL_SIM_POWER_OFF) == 0 || sim_chance(s, 2));
    for (; stands > 0 && (s->faults & PCCL_SIM_STALL) != 0; stands--)
        stop(s, (int)sim_below(s, s->peers), s->now + (int64_t)sim_below(s, (uint64_t)s->limit_ns / 2));
    sim_end_master(s, sim_draw_master(s));
    s->faults_end = s->now + (sim_chance(s, 2) ? 0 : (int64_t)sim_below(s, 2 * (uint64_t)s->limit_ns));
}

static void late_fault(struct pccl_sim *s, int slot) {
    if ((s->faults & PCCL_SIM_MEMORY) != 0 && ((s->faults & PCCL_SIM_FORK) == 0 || sim_chance(s, 2)))
        refuse_memory(s, slot);
    else if ((s->faults & PCCL_SIM_FORK) != 0)
        end_held(s, slot);
}

static void give_notice(struct pccl_sim *s, int slot) {
    if (!s->processes[slot].running) return;
    SIM_TRACE(s, "fault: peer %d has to go", slot + 1);
    sim_push_for(s, slot, EVENT_NOTICE, s->now);
}

void sim_fault(struct pccl_sim *s) {
    int slot = (int)sim_below(s, s->peers);
    uint32_t kind = 1U << sim_below(s, 12);
    bool late = (s->faults & LATE_FAULTS) != 0 && sim_chance(s, 2);
    bool apart = (s->faults & PCCL_SIM_APART) != 0 && sim_chance(s, 4);
    bool notice = !late && !apart && (s->faults & PCCL_SIM_NOTICE) != 0 && sim_chance(s, s->only_notice ? 1 : 3);
    bool naps = !late && !apart && !notice && s->naps && sim_chance(s, 4);
    effect_until(s, s->now);
    bool many = s->only_votes && (s->faults & PCCL_SIM_MASTER) != 0 && sim_chance(s, 4);
    if (many)
        lose_many(s);
    else if (apart)
        partition_pair(s);
    else if (late)
        late_fault(s, slot);
    else if (notice)
        give_notice(s, slot);
    else if (naps)
        nap(s);
    else if ((s->faults & kind) != 0 && !s->only_naps)
        switch (kind) {
        case PCCL_SIM_CRASH: crash(s, slot, true); break;
        case PCCL_SIM_POWER_OFF: crash(s, slot, false); break;
        case PCCL_SIM_STALL: stall(s); break;
        case PCCL_SIM_DELAY: slow_down(s); break;
        case PCCL_SIM_BREAK: break_link(s); break;
        case PCCL_SIM_PARTITION: partition_in_two(s); break;
        case PCCL_SIM_ONE_WAY: partition_one_way(s); break;
        case PCCL_SIM_MASTER:
            if (sim_chance(s, 3)) sim_end_master(s, sim_draw_master(s));
            break;
        default: break; // where it happens: in connects, programs and frames
        }
    if (s->faulty)
        sim_push(s, sim_event(s, EVENT_FAULT, s->now + (int64_t)sim_below(s, 2 * (uint64_t)s->fault_every_ns)));
}
