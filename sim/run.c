// A run: faults for a while, then calm until everybody who lives has got on, and so on until the time is over.
#include <stdlib.h>
#include <string.h>

#include "sim/controls.h"
#include "sim/effect.h"
#include "sim/engine.h"
#include "sim/faults.h"
#include "sim/judge_master.h"
#include "sim/judge_ops.h"
#include "sim/links.h"
#include "sim/masters.h"
#include "sim/peers.h"
#include "sim/program.h"
#include "sim/sim.h"
#include "sim/state.h"
#include "sim/trace.h"
#include "sim/truth.h"
#include "sim/watch.h"

enum {
    PEERS_LEAST = 2,
    LOOK_MS = 20,
    FAULTS_MOST_MS = 1500, // until the next calm
    EVENTS_AT_ONCE = 20000,
    EVENTS_OF_EACH = 1000, // more for each peer of many, who may all have waited for one moment
};

static const char *const count_names[COUNTS] = {
#define X(name, text) text,
    WORLD_COUNTS(X)
#undef X
};

const char *pccl_sim_count_name(uint32_t index) { return index < COUNTS ? count_names[index] : NULL; }

uint64_t pccl_sim_count(const struct pccl_sim *s, uint32_t index) { return index < COUNTS ? s->counts[index] : 0; }

// ---- life ----

// The parts of a world, each with its type and its number.
#define PARTS(X) \
    X(places, cut_until, PROCESSES) \
    X(places, slow_until, PROCESSES) \
    X(struct queue, queue, 1) \
    X(struct trace, trace, 1) \
    X(struct process, processes, SLOTS) \
    X(struct master, masters, MASTERS_MOST) \
    X(struct connection, controls, CONTROLS_MOST) \
    X(struct links, links, 1) \
    X(struct truths, truths, 1) \
    X(struct judged_ops, ops, 1) \
    X(struct judged_ends, ends, 1) \
    X(struct rosters, rosters, 1) \
    X(struct judged_masters, said, 1) \
    X(struct watch, watch, 1)

typedef int64_t places[PROCESSES];

struct whole {
    struct pccl_sim sim; // the first, so that the one pointer is the other
#define X(type, name, count) type name[count];
    PARTS(X)
#undef X
    struct engine_model engines[SLOTS];
    struct state_model states[SLOTS];
    struct program programs[SLOTS];
};

static void end_process(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    member_free(p->core);
    member_output_fini(&p->out);
    delta_free(p->state->delta);
    p->state->delta = NULL;
    engine_model_end(p->engine);
    memset(p, 0, offsetof(struct process, engine));
}

struct pccl_sim *pccl_sim_new(void) {
    plan_segmented_min = SEGMENTS_MOST / 2 * PLAN_SEGMENT_MIN;
    struct whole *whole = calloc(1, sizeof *whole);
    if (whole == NULL) return NULL;
    whole->sim.state = PCCL_SIM_PASSED;
#define X(type, name, count) whole->sim.name = whole->name;
    PARTS(X)
#undef X
    for (int slot = 0; slot < SLOTS; slot++) {
        whole->processes[slot].engine = &whole->engines[slot];
        whole->processes[slot].state = &whole->states[slot];
        whole->processes[slot].program = &whole->programs[slot];
    }
    return &whole->sim;
}

static void clear(struct pccl_sim *s) {
    sim_queue_clear(s);
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (s->processes[slot].life != 0) end_process(s, slot);
    for (uint32_t i = 0; i < MASTERS_MOST; i++) {
        core_free(s->masters[i].core);
        s->masters[i] = (struct master){0};
    }
}

void pccl_sim_free(struct pccl_sim *s) {
    if (s == NULL) return;
    clear(s);
    trace_fini(s->trace);
    free(s);
}

// ---- a run ----

static void begin_faults(struct pccl_sim *s) {
    s->faulty = true;
    s->calm_from = s->now;
    s->faults_end = s->config.by_hand != 0                        ? INT64_MAX
                    : s->now + FAULTS_MOST_MS * MS_NS < s->end_at ? s->now + FAULTS_MOST_MS * MS_NS
                                                                  : s->end_at;
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (!s->processes[slot].running) sim_start(s, slot);
    for (uint32_t i = 0; i < s->master_count; i++)
        if (s->masters[i].rests && !s->masters[i].held) sim_start_master(s, i);
    if (s->config.by_hand == 0) sim_push(s, sim_event(s, EVENT_FAULT, s->now + s->fault_every_ns));
}

static void end_faults(struct pccl_sim *s) {
    s->faulty = false;
    SIM_TRACE(s, "no more faults");
    if (s->now > s->calm_from) s->calm_from = s->now;
    for (int slot = 0; slot < PROCESSES; slot++) s->bodies[slot].shortage.times = 0;
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (s->processes[slot].tainted) sim_end(s, slot, true);
    watch_calm(s);
}

static void look(struct pccl_sim *s) {
    watch_look(s);
    if (s->state != PCCL_SIM_RUNNING) return;
    if (s->faulty && s->now >= s->faults_end) {
        end_faults(s);
    } else if (!s->faulty && watch_is_calm(s)) {
        s->counts[COUNT_CALMS]++;
        if (s->now >= s->end_at)
            s->state = PCCL_SIM_PASSED;
        else
            begin_faults(s);
    }
    sim_push(s, sim_event(s, EVENT_LOOK, s->now + LOOK_MS * MS_NS));
}

// Clears what a run uses of the tables, which are larger than most runs need. A changed frame may name any slot.
static void clear_tables(struct pccl_sim *s) {
    int slots = s->only_votes ? SLOTS : DATA_SLOTS, paths = s->only_votes ? (int)s->peers : DATA_SLOTS;
    for (int a = 0; a < PROCESSES; a = a + 1 == slots ? MASTER : a + 1) {
        s->bodies[a] = (struct body){0};
        for (int b = 0; b < PROCESSES && (a < paths || a >= MASTER); b = b + 1 == paths ? MASTER : b + 1)
            s->cut_until[a][b] = s->slow_until[a][b] = 0;
        if (a >= MASTER) continue;
        s->apart[a] = (struct apart){0};
        s->tainted[a] = s->said->expelled[a] = 0;
        s->said->left[a] = (struct left_record){0};
        s->truths->resumed[a].life = 0;
        memset(s->said->reported_at[a], 0, s->peers * sizeof s->said->reported_at[0][0]);
        memset(s->said->unreached_at[a], 0, s->peers * sizeof s->said->unreached_at[0][0]);
    }
    memset(s->controls, 0, controls_most(s) * sizeof s->controls[0]);
    links_begin(s);
    judge_ops_begin(s);
    for (uint32_t i = 0; i < RUNS_MOST; i++) s->truths->runs[i].run = 0;
    for (uint32_t i = 0; i < EPOCHS_MOST; i++) s->truths->epochs[i].run = 0;
    s->truths->epoch_count = 0;
    memset(s->ends, 0, offsetof(struct judged_ends, heard));
    *s->rosters = (struct rosters){0};
    memset(s->said, 0, offsetof(struct judged_masters, left));
    *s->watch = (struct watch){0};
}

enum pccl_sim_state pccl_sim_begin(struct pccl_sim *s, const struct pccl_sim_config *config) {
    clear(s);
    // Everything that a run reads is set here.
    s->config = *config;
    if (s->config.peers == 1) s->config.peers = PEERS_LEAST;
    if (s->config.peers > SLOTS) s->config.peers = SLOTS;
    s->random = sim_mix(config->seed + 1);
    s->now = SECOND_NS;
    s->queue->busy_at = s->queue->busy = 0;
    s->serial = s->master_lives = 0;
    if (!trace_begin(s)) return s->state = PCCL_SIM_NO_MEMORY;
    s->state = PCCL_SIM_RUNNING;
    sim_draw_faults(s);
    clear_tables(s);
    for (uint32_t i = 0; i < s->master_count; i++) sim_start_master(s, i);
    begin_faults(s);
    sim_push(s, sim_event(s, EVENT_LOOK, s->now + LOOK_MS * MS_NS));
    return s->state;
}

// ---- events ----

// Until when the event cannot be delivered, because the path is cut or the process stopped; 0: it can.
static int64_t put_off(const struct pccl_sim *s, const struct event *event) {
    int64_t until = 0, stopped = 0;
    bool master = event->slot >= MASTER;
    if (event->kind == EVENT_GOES_ON || event->kind >= EVENT_START) return 0;
    if (event->kind <= EVENT_LINK_ENDS && !(event->kind == EVENT_LINK_ENDS && event->flag))
        until = s->cut_until[event->from][event->slot];
    if (master || sim_alive(s, event->slot, event->life)) stopped = s->bodies[event->slot].stopped_until;
    // The first connection to be read is random; each keeps its order, and the clock comes last.
    if (master && stopped != 0 && (s->naps || (s->faults & PCCL_SIM_BLOCK) != 0))
        stopped += event->kind == EVENT_TICK
                       ? NAP_SKEW_MS * MS_NS
                       : (int64_t)(sim_mix(event->serial ^ (uint64_t)stopped) % (NAP_SKEW_MS * MS_NS));
    if (stopped > until) until = stopped;
    return until > s->now ? until : 0;
}

static void requeue(struct pccl_sim *s, struct event *event, int64_t at) {
    // A stopped process first hears what was said meanwhile, then looks at the clock.
    if (event->kind == EVENT_TICK) {
        int64_t *tick_at = &s->bodies[event->slot].tick_at;
        at++;
        if (*tick_at == event->at) *tick_at = at;
    }
    sim_requeue(s, event, at);
}

static void run_event(struct pccl_sim *s, struct event *event, bool *kept) {
    int slot = event->slot;
    switch (event->kind) {
    case EVENT_START:
        if (slot >= MASTER)
            sim_start_master(s, (uint32_t)(slot - MASTER));
        else if (s->faulty)
            sim_start(s, slot);
        return;
    case EVENT_TAKEN_OUT:
        if (sim_alive(s, slot, event->life)) sim_end(s, slot, true);
        return;
    case EVENT_LET_GO:
        if (slot >= MASTER)
            sim_let_go_master(s, (uint32_t)(slot - MASTER));
        else
            sim_let_go(s, slot, event->life);
        return;
    case EVENT_FAULT:
        if (s->faulty) sim_fault(s);
        return;
    case EVENT_LOOK: look(s); return;
    default: break;
    }
    sim_short(s, &s->bodies[slot].shortage);
    if (slot >= MASTER)
        sim_master_event(s, event);
    else if (sim_alive(s, slot, event->life))
        sim_peer_event(s, event, kept);
    else if (event->kind == EVENT_DIAL_ARRIVES)
        sim_refuse_dial(s, event);
    sim_short(s, NULL);
}

static void step(struct pccl_sim *s) {
    struct event *event = sim_pop(s);
    if (event == NULL) {
        sim_fail(s, "progress", "nothing will ever happen again");
        return;
    }
    s->now = event->at;
    int64_t until = put_off(s, event);
    if (until != 0) {
        requeue(s, event, until);
        return;
    }
    struct queue *queue = s->queue;
    queue->busy = s->now == queue->busy_at ? queue->busy + 1 : 0;
    queue->busy_at = s->now;
    if (queue->busy > EVENTS_AT_ONCE + (s->only_votes ? EVENTS_OF_EACH * s->peers : 0))
        sim_fail(s, "progress", "time stands still: %u events in one moment", queue->busy);
    s->counts[COUNT_EVENTS]++;
    bool kept = false;
    run_event(s, event, &kept);
    if (!kept) sim_event_free(s, event);
}

enum pccl_sim_state pccl_sim_go(struct pccl_sim *s, uint32_t events) {
    bool running = s->state == PCCL_SIM_RUNNING;
    for (uint32_t i = 0; i < events && s->state == PCCL_SIM_RUNNING; i++) step(s);
    if (running && s->state == PCCL_SIM_FAILED) trace_report(s);
    return s->state;
}

const char *pccl_sim_report(const struct pccl_sim *s) { return s->trace->report != NULL ? s->trace->report : ""; }
