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
#include "sim/roster.h"
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
};

static const char *const count_names[COUNTS] = {
#define X(name, text) text,
    WORLD_COUNTS(X)
#undef X
};

const char *pccl_sim_count_name(uint32_t index) { return index < COUNTS ? count_names[index] : NULL; }

uint64_t pccl_sim_count(const struct pccl_sim *s, uint32_t index) { return index < COUNTS ? s->counts[index] : 0; }

// ---- life ----

struct whole {
    struct pccl_sim sim; // the first, so that the one pointer is the other
    struct queue queue;
    struct trace trace;
    int64_t cut_until[PROCESSES][PROCESSES], slow_until[PROCESSES][PROCESSES];
    struct process processes[SLOTS];
    struct engine_model engines[SLOTS];
    struct state_model states[SLOTS];
    struct program programs[SLOTS];
    struct master masters[MASTERS_MOST];
    struct control controls[CONTROLS_MOST];
    struct links links;
    struct truths truths;
    struct judged_ops ops;
    struct judged_ends ends;
    struct rosters rosters;
    struct judged_masters said;
    struct watch watch;
};

static void end_process(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    member_free(p->core);
    member_output_fini(&p->out);
    delta_free(p->state->delta);
    p->state->delta = NULL;
    engine_model_end(p->engine);
    memset(p, 0, offsetof(struct process, engine));
    p->tick_at = INT64_MAX;
}

struct pccl_sim *pccl_sim_new(void) {
    plan_segmented_min = SEGMENTS_MOST / 2 * PLAN_SEGMENT_MIN;
    struct whole *whole = calloc(1, sizeof *whole);
    if (whole == NULL) return NULL;
    whole->sim = (struct pccl_sim){.state = PCCL_SIM_PASSED,
                                   .cut_until = whole->cut_until,
                                   .slow_until = whole->slow_until,
                                   .queue = &whole->queue,
                                   .trace = &whole->trace,
                                   .processes = whole->processes,
                                   .masters = whole->masters,
                                   .controls = whole->controls,
                                   .links = &whole->links,
                                   .truths = &whole->truths,
                                   .ops = &whole->ops,
                                   .ends = &whole->ends,
                                   .rosters = &whole->rosters,
                                   .said = &whole->said,
                                   .watch = &whole->watch};
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
    for (uint32_t i = 0; i < s->master_count; i++) s->masters[i].shortage.times = 0;
    for (int slot = 0; slot < (int)s->peers; slot++) {
        s->processes[slot].shortage.times = 0;
        if (s->processes[slot].tainted) sim_end(s, slot, true);
    }
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

// Clears what a run of so many peers uses of the tables, which are larger than most runs need.
static void clear_tables(struct pccl_sim *s) {
    for (int a = 0; a < PROCESSES; a++) {
        if (a >= (int)s->peers && a < MASTER) continue;
        for (int b = 0; b < PROCESSES; b = b + 1 == (int)s->peers ? MASTER : b + 1)
            s->cut_until[a][b] = s->slow_until[a][b] = 0;
        if (a >= MASTER) continue;
        memset(s->said->reported_at[a], 0, s->peers * sizeof s->said->reported_at[0][0]);
        memset(s->said->unreached_at[a], 0, s->peers * sizeof s->said->unreached_at[0][0]);
    }
    memset(s->apart, 0, sizeof s->apart);
    memset(s->tainted, 0, sizeof s->tainted);
    controls_begin(s);
    links_begin(s);
    judge_ops_begin(s);
    memset(s->truths->runs, 0, sizeof s->truths->runs);
    for (uint32_t i = 0; i < EPOCHS_MOST; i++) s->truths->epochs[i].run = 0;
    memset(s->truths->resumed, 0, sizeof s->truths->resumed);
    s->truths->epoch_count = 0;
    memset(s->ends, 0, offsetof(struct judged_ends, heard));
    *s->rosters = (struct rosters){0};
    memset(s->said, 0, offsetof(struct judged_masters, reported_at));
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

static bool is_for_master(enum event_kind kind) { return kind <= EVENT_MASTER_STARTS; }
static bool is_for_peer(enum event_kind kind) { return kind > EVENT_MASTER_STARTS && kind <= EVENT_PEER_GOES_ON; }

// Until when the event cannot be delivered, because the path is cut or the process stopped; 0: it can.
static int64_t put_off(const struct pccl_sim *s, const struct event *event) {
    int from = event->from, to = event->slot, master = MASTER + event->from;
    int64_t until = 0;
    if (event->kind == EVENT_MASTER_GOES_ON || event->kind == EVENT_PEER_GOES_ON) return 0;
    switch (event->kind) {
    case EVENT_TO_MASTER:
    case EVENT_MASTER_LOSES: until = s->cut_until[to][master]; break;
    case EVENT_TO_PEER:
    case EVENT_PEER_LOSES: until = s->cut_until[master][to]; break;
    case EVENT_DIAL_ARRIVES:
    case EVENT_DIAL_ENDS:
    case EVENT_LINK_FRAME: until = s->cut_until[from][to]; break;
    case EVENT_LINK_ENDS: until = event->flag ? 0 : s->cut_until[from][to]; break;
    default: break;
    }
    int64_t stopped = 0;
    if (is_for_master(event->kind) && event->kind != EVENT_MASTER_STARTS)
        stopped = s->masters[event->from].stopped_until;
    // The first connection to be read is random; each keeps its order, and the clock comes last.
    if (stopped != 0 && (s->naps || (s->faults & PCCL_SIM_BLOCK) != 0))
        stopped += event->kind == EVENT_MASTER_TICK
                       ? NAP_SKEW_MS * MS_NS
                       : (int64_t)(sim_mix(event->serial ^ (uint64_t)stopped) % (NAP_SKEW_MS * MS_NS));
    if (is_for_peer(event->kind) && sim_alive(s, event->slot, event->life))
        stopped = s->processes[event->slot].stopped_until;
    if (stopped > until) until = stopped;
    return until > s->now ? until : 0;
}

static void requeue(struct pccl_sim *s, struct event *event, int64_t at) {
    // A stopped process first hears what was said meanwhile, then looks at the clock.
    if (event->kind == EVENT_PEER_TICK || event->kind == EVENT_MASTER_TICK) {
        int64_t *tick_at =
            event->kind == EVENT_PEER_TICK ? &s->processes[event->slot].tick_at : &s->masters[event->from].tick_at;
        if (*tick_at == event->at) *tick_at = at + 1;
        at++;
    }
    sim_requeue(s, event, at);
}

static void run_event(struct pccl_sim *s, struct event *event, bool *kept) {
    if (is_for_master(event->kind)) {
        sim_short(s, &s->masters[event->from].shortage);
        sim_master_event(s, event);
        sim_short(s, NULL);
        return;
    }
    if (is_for_peer(event->kind)) {
        sim_short(s, &s->processes[event->slot].shortage);
        if (sim_alive(s, event->slot, event->life))
            sim_peer_event(s, event, kept);
        else if (event->kind == EVENT_DIAL_ARRIVES)
            sim_refuse_dial(s, event);
        sim_short(s, NULL);
        return;
    }
    switch (event->kind) {
    case EVENT_START:
        if (s->faulty) sim_start(s, event->slot);
        return;
    case EVENT_TAKEN_OUT:
        if (sim_alive(s, event->slot, event->life)) sim_end(s, event->slot, true);
        return;
    case EVENT_LET_GO: sim_let_go(s, event->slot, event->life); return;
    case EVENT_MASTER_LET_GO: sim_let_go_master(s, event->from); return;
    case EVENT_FAULT:
        if (s->faulty) sim_fault(s);
        return;
    case EVENT_LOOK: look(s); return;
    default: return;
    }
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
    if (queue->busy > EVENTS_AT_ONCE)
        sim_fail(s, "progress", "time stands still: %u events in one moment", queue->busy);
    s->counts[COUNT_EVENTS]++;
    bool kept = false;
    run_event(s, event, &kept);
    if (!kept) sim_event_free(s, event);
}

enum pccl_sim_state pccl_sim_go(struct pccl_sim *s, uint32_t events) {
    bool running = s->state == PCCL_SIM_RUNNING;
    for (uint32_t i = 0; i < events && s->state == PCCL_SIM_RUNNING; i++) step(s);
    if (running && s->state == PCCL_SIM_FAILED) trace_report_failure(s);
    return s->state;
}

const char *pccl_sim_report(const struct pccl_sim *s) { return s->trace->report_length > 0 ? s->trace->report : ""; }
