// Rounds of votes, reduces and syncs, drawn from the seed and from the point that the
// program has reached. Peers that pass the same point have read the same numbers, so they go on alike; the one that
// reads another number parts ways, and the run stands still.
#include "sim/program.h"

#include <string.h>

#include "pccl.h"
#include "sim/controls.h"
#include "sim/engine.h"
#include "sim/judge_ops.h"
#include "sim/state.h"
#include "sim/trace.h"

enum {
    SYNC_TRIES = 3, // then the program helps itself
    SETTLE_MS = 500,
    LOOK_MS = 5,
    CANCELS_IN = 12, // calls, one is cancelled
    CANCEL_MS = 8,   // after its beginning at most
    REPORTS = 4,
    CITIES = 3,
};

static const uint32_t sizes[] = {1 << 10, 1 << 16, 200 << 10, 1 << 20, 1 << 22, SEGMENTS_MOST << 21};

// The same for all that are at this point.
static uint64_t draw(const struct pccl_sim *s, const struct program *program, uint64_t what) {
    return sim_mix(sim_mix(s->config.seed * 1000003 + program->key_number) + sim_mix(program->key_round * 64 + what));
}

// ---- reports on links (TELEMETRY), which make the master choose ----

static uint64_t draw_link(const struct pccl_sim *s, uint64_t epoch, uint64_t what) {
    return sim_mix(sim_mix(s->config.seed ^ sim_mix(epoch)) + what);
}

// Some members are slow, in some epochs; some are far from each other, always.
static struct wire_seen see(const struct pccl_sim *s, uint64_t epoch, int from, int to, bool next) {
    bool slow = draw_link(s, epoch, 100 + (uint64_t)from) % 4 == 0 || draw_link(s, epoch, 100 + (uint64_t)to) % 4 == 0;
    bool near = draw_link(s, 0, (uint64_t)from) % CITIES == draw_link(s, 0, (uint64_t)to) % CITIES;
    bool carries = next || draw_link(s, epoch, 1) % 2 == 0;
    return (struct wire_seen){.acked = carries ? (slow ? 4u : 16u) << 20 : 1000u,
                              .busy_us = 1000000,
                              .samples = 100,
                              .backlogged = carries && slow ? 90 : 5,
                              .round_trip_us = near ? 300 : 40000};
}

// Enough for the master to choose algorithms, weights and ring orders, of the group epoch that the peer is in, or
// nothing.
static void tell_reports(struct pccl_sim *s, int slot) {
    static _Thread_local struct wire_telemetry told;
    struct engine_model *e = s->processes[slot].engine;
    const struct epoch_ring *ring = &e->call_table.now->ring;
    uint64_t epoch = e->call_table.now->group_epoch;
    if (ring->count < 3 || draw_link(s, epoch, 0) % 2 == 0) return;
    told = (struct wire_telemetry){.ops = {.span_us = 1000000, .ops = 1, .op_us = 1000, .epoch = epoch}};
    for (uint32_t i = 1; i < ring->count; i++) {
        uint32_t life, rank = (ring->rank + i) % ring->count;
        int other = sim_slot(&ring->members[rank].id, &life);
        if (other < 0) continue;
        told.others[told.count].id = ring->members[rank].id;
        told.others[told.count++].seen = see(s, epoch, slot, other, i == 1);
    }
    for (int i = 0; i < REPORTS; i++) {
        SIM_TELL(s, slot, telemetry, sim_algorithm_header(e), &told);
    }
}

// ---- lists of members ----

static bool is_used(const struct pccl_sim *s, const struct roster *roster) {
    for (int slot = 0; slot < (int)s->peers; slot++)
        if (roster->users[slot] != 0 && sim_alive(s, slot, roster->users[slot])) return true;
    return false;
}

const struct roster *program_pass_roster(struct pccl_sim *s, int slot, uint64_t number) {
    struct process *p = &s->processes[slot];
    uint64_t run = member_header(p->core).run;
    const struct epoch_ring *ring = &member_epoch(p->core)->ring;
    struct roster *found = NULL;
    for (uint32_t i = 0; i < ROSTERS_MOST; i++) {
        struct roster *roster = &s->rosters->list[i];
        // A number that only those have heard of who are gone may be given again.
        if (roster->run == run && roster->number == number && roster->group == p->group && is_used(s, roster) &&
            !p->tainted)
            found = roster;
    }
    if (found == NULL) {
        found = &s->rosters->list[s->rosters->next++ % ROSTERS_MOST];
        // A peer that learnt of other members from a changed frame uses its own roster.
        *found = (struct roster){.run = p->tainted ? 0 : run, .number = number, .group = p->group};
        for (uint32_t i = 0; i < ring->count && i < DATA_SLOTS; i++) found->ids[found->count++] = ring->members[i].id;
    }
    found->users[slot] = p->life;
    return found;
}

// Some of the members, at least two where there are so many, as bits.
static uint32_t draw_some(uint64_t drawn, uint32_t count) {
    uint32_t all = (1U << count) - 1, some = (uint32_t)sim_mix(drawn) & all;
    uint32_t first = (uint32_t)(sim_mix(drawn + 1) % count), step = 1 + (uint32_t)(sim_mix(drawn + 2) % (count - 1));
    return some | 1U << first | 1U << (first + step) % count;
}

// Makes a call one over a list, by what is drawn alike for all that make it. False: this peer is not in the list.
static bool choose_list(struct pccl_sim *s, int slot, const struct roster *roster, uint64_t drawn, struct call *call) {
    const struct process *p = &s->processes[slot];
    struct wire_id own = sim_id(s, slot);
    uint32_t self = 0;
    while (self < roster->count && !wire_id_equal(&roster->ids[self], &own)) self++;
    if (self == roster->count || roster->users[slot] != p->life) return false; // it was lost when others passed
    uint32_t some = roster->count < 2 ? 1 : draw_some(drawn, roster->count);
    call->kind = (uint8_t)(sim_mix(drawn + 3) % PLAN_KINDS);
    // Members that are not named call another operation with the same tag, all together.
    if ((some >> self & 1) == 0) {
        some = ((1U << roster->count) - 1) & ~some;
        call->kind = (uint8_t)(sim_mix(drawn + 4) % PLAN_KINDS);
    }
    for (uint32_t i = 0; i < roster->count; i++) {
        if ((some >> i & 1) == 0) continue;
        if (i == self) call->rank = call->count;
        call->ids[call->count++] = roster->ids[i];
    }
    if (call->kind == PLAN_SEND && call->count != 2) call->kind = PLAN_BROADCAST;
    if (call->kind == PLAN_BARRIER || call->kind == PLAN_ALL_TO_ALL_V) call->bytes = 0;
    call->root = (uint32_t)(sim_mix(drawn + 5) % call->count);
    call->root_id = call->ids[call->root];
    call->retry = call->retry && plan_collective(call->kind)->survives;
    call->tag |= (sim_mix(drawn + 6) | 1) << CALL_BITS; // of nobody else
    return true;
}

// Makes a call one of everyone, whom each member knows by its own epoch. The root is the same for all that make it.
static void choose_everyone(const struct roster *roster, uint64_t drawn, struct call *call) {
    static const uint8_t kinds[] = {PLAN_ALL_REDUCE, PLAN_BROADCAST, PLAN_REDUCE, PLAN_BARRIER};
    call->everyone = call->retry = true;
    call->kind = kinds[sim_mix(drawn + 7) % (sizeof kinds / sizeof kinds[0])];
    call->root = (uint32_t)(sim_mix(drawn + 8) % roster->count);
    call->root_id = roster->ids[call->root];
    if (call->kind == PLAN_BARRIER) call->bytes = 0;
}

// ---- calls ----

static void call(struct pccl_sim *s, struct process *p, enum step step) {
    p->program->step = step;
    p->program->since = step == STEP_THINKING || step == STEP_LEAVING ? INT64_MAX : s->now;
}

static void vote(struct pccl_sim *s, int slot, uint8_t kind) {
    struct process *p = &s->processes[slot];
    static const char *const names[] = {"?", "update", "pending", "optimize"};
    SIM_TRACE(s, "peer %d: votes %s", slot + 1, names[kind]);
    call(s, p, STEP_VOTING);
    p->program->vote = kind;
    if (!s->only_votes && (kind == WIRE_VOTE_UPDATE || kind == WIRE_VOTE_OPTIMIZE)) tell_reports(s, slot);
    member_vote(p->core, kind, NULL, &p->out);
}

// ---- shared state ----

static void drift(struct pccl_sim *s, struct state_model *state) {
    state->leaves[sim_below(s, LEAVES)] ^= sim_random(s);
}

static uint8_t choose_strategy(const struct pccl_sim *s, const struct process *p) {
    if (draw(s, p->program, 40 + p->group) % 6 != 0 || s->config.by_hand != 0) return WIRE_SYNC_ENFORCE_POPULAR;
    return p->state->revision == 0 || p->state->incomplete ? WIRE_SYNC_RECEIVE_ONLY : WIRE_SYNC_SEND_ONLY;
}

static void sync_state(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    struct state_model *state = p->state;
    struct wire_sync_vote message = {.strategy = choose_strategy(s, p),
                                     .incomplete = state->incomplete,
                                     .revision = state->revision,
                                     .mask = {1, 1}};
    bool misuse = s->faulty && (s->faults & PCCL_SIM_MISUSE) != 0;
    if (misuse && sim_chance(s, 40)) {
        message.revision++; // a step that the others have not made
        p->misused = true;
        s->counts[COUNT_MISUSES]++;
    } else if (misuse && sim_chance(s, 40)) {
        message.mask.low++; // another model
        s->counts[COUNT_MISUSES]++;
    }
    if (s->faulty && sim_chance(s, 12)) drift(s, state);
    message.content.low = state_model_content(state->leaves);
    SIM_TRACE(s, "peer %d: syncs revision %ju, content %04jx%s", slot + 1, message.revision,
              (message.content.low & 0xffff), message.incomplete ? ", incomplete" : "");
    call(s, p, STEP_SYNCING);
    state_model_begin(s, slot);
    member_vote(p->core, WIRE_VOTE_SYNC, &message, &p->out);
}

static void leave(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    SIM_TRACE(s, "peer %d: leaves", slot + 1);
    s->counts[COUNT_LEAVES]++;
    call(s, p, STEP_LEAVING);
    p->program->leave_by = s->now + SETTLE_MS * MS_NS;
    engine_model_drain(s, slot);
    sim_push_for(s, slot, EVENT_PROGRAM, s->now);
}

static void think(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    int64_t common = (int64_t)(draw(s, p->program, 1) % 12) * (s->only_votes ? 8 : 1) * MS_NS;
    call(s, p, STEP_THINKING);
    sim_push_for(s, slot, EVENT_PROGRAM, s->now + common + (int64_t)sim_below(s, 3 * MS_NS));
}

static void end_round(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    p->program->rounds++;
    p->program->key_round++;
    s->counts[COUNT_ROUNDS]++;
    if (s->faulty && (s->faults & PCCL_SIM_LEAVE) != 0 && sim_chance(s, 30))
        leave(s, slot);
    else
        think(s, slot);
}

static void on_sync_end(struct pccl_sim *s, int slot, const struct member_action *action) {
    struct process *p = &s->processes[slot];
    struct state_model *state = p->state;
    if (action->end == NULL || (action->code != 0 && action->code != pcclNoSharedStateAvailable)) {
        if (!p->tainted) sim_fail(s, "parity", "a sync of peer %d ends with code %d", slot + 1, action->code);
        return;
    }
    judge_sync(s, slot, action->end, state_model_content(state->leaves), state->revision);
    state->incomplete = action->code != 0 && (state->incomplete || state->wrote);
    state_model_end(s, slot);
    if (action->code == 0) {
        s->counts[COUNT_SYNCS]++;
        state->tries = 0;
        state->revision = action->end->revision + 1;
        for (uint32_t i = 0; i < LEAVES; i++) state->leaves[i] = sim_mix(state->leaves[i]); // a step, the same at all
        end_round(s, slot);
        return;
    }
    s->counts[COUNT_NO_STATE]++;
    if (++state->tries < SYNC_TRIES) {
        sync_state(s, slot);
    } else if (state->incomplete) {
        leave(s, slot); // nobody has what it lacks
    } else {
        s->counts[COUNT_RESUMED]++;
        state->tries = 0;
        if (state->revision == 0) state->revision = 1; // begins anew, from what it has
        sync_state(s, slot);
    }
}

// ---- reduces ----

static void post(struct pccl_sim *s, int slot, uint32_t tag) {
    struct process *p = &s->processes[slot];
    uint64_t what = draw(s, p->program, 100 + 16 * p->program->phase + tag);
    bool listed = (what >> 48) % 3 == 0;
    uint32_t variant = 0;
    if (s->faulty && (s->faults & PCCL_SIM_MISUSE) != 0 && sim_chance(s, 120)) {
        variant = 1 + (uint32_t)slot;
        s->counts[COUNT_MISUSES]++;
    }
    bool cancels = s->faulty && (s->faults & PCCL_SIM_CANCEL) != 0 && sim_chance(s, CANCELS_IN);
    struct call made = {.tag = tag,
                        .cancel_at = cancels ? s->now + (int64_t)sim_below(s, CANCEL_MS * MS_NS) : INT64_MAX,
                        .retry = (what >> 32) % 3 == 0,
                        .variant = variant,
                        .bytes = sizes[what % (sizeof sizes / sizeof sizes[0])],
                        .input = sim_random(s)};
    uint64_t drawn = draw(s, p->program, 1000 + 16 * p->program->phase + tag);
    if (!listed && (what >> 40) % 3 == 0 && p->program->roster->count > 0)
        choose_everyone(p->program->roster, drawn, &made);
    if (listed && !choose_list(s, slot, p->program->roster, drawn, &made))
        p->engine->calls[tag].result = CALL_OK;
    else
        engine_model_post(s, slot, tag, &made, member_adopted(p->core)->group_epoch);
}

static void after_reduces(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    memset(p->engine->calls, 0, sizeof p->engine->calls);
    if (draw(s, p->program, 30 + p->group) % 3 != 0)
        sync_state(s, slot);
    else
        end_round(s, slot);
}

static void reduce(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    struct program *program = p->program;
    if (program->phase == program->phases || member_adopted(p->core)->group_world < 2) {
        after_reduces(s, slot);
        return;
    }
    call(s, p, STEP_REDUCING);
    memset(p->engine->calls, 0, sizeof p->engine->calls);
    program->tags = 1 + (uint32_t)(draw(s, program, 60 + program->phase) % (TAGS - 1));
    uint32_t first = (uint32_t)sim_below(s, program->tags); // the order differs from peer to peer
    for (uint32_t i = 0; i < program->tags; i++) post(s, slot, (first + i) % program->tags);
}

// Nobody calls again over a list that has lost somebody whom it needs, nor what was cancelled.
static bool is_over(const struct call *call) {
    bool needs = call->count > 0 || call->everyone;
    return call->result == CALL_OK || call->result == CALL_CANCELLED || (needs && call->result == CALL_LOST);
}

// Waits for all, then repeats those that were lost or were given other arguments.
static void await_all(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    const struct call *calls = p->engine->calls;
    uint64_t lost = 0;
    bool again = false;
    for (uint32_t tag = 0; tag < p->program->tags; tag++) {
        if (!engine_model_await(s, slot, tag)) return;
        again |= !is_over(&calls[tag]);
        if (calls[tag].count == 0 && calls[tag].epoch > lost) lost = calls[tag].epoch;
    }
    if (lost != 0) member_adopt_loss(p->core, lost); // in retry mode every end names an epoch, and all the same
    if (!again) {
        p->program->phase++;
        reduce(s, slot);
        return;
    }
    if (member_adopted(p->core)->group_world < 2) {
        after_reduces(s, slot);
        return;
    }
    for (uint32_t tag = 0; tag < p->program->tags; tag++)
        if (!is_over(&calls[tag])) post(s, slot, tag);
}

static void begin_reduces(struct pccl_sim *s, int slot) {
    struct program *program = s->processes[slot].program;
    program->phase = 0;
    program->phases = (uint32_t)(draw(s, program, 20 + s->processes[slot].group) % 3);
    reduce(s, slot);
}

// ---- votes ----

static void after_update(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    if (s->only_votes)
        end_round(s, slot);
    else if (draw(s, p->program, 2) % 8 == 0 && s->config.by_hand == 0 && member_adopted(p->core)->global_world > 1)
        vote(s, slot, WIRE_VOTE_OPTIMIZE);
    else
        begin_reduces(s, slot);
}

static void adopt(struct process *p, const struct member_view *view) {
    member_adopt(p->core, view);
    call_table_verdicts_voted(&p->engine->call_table.verdicts, view->group_epoch);
}

static void pass_update(struct pccl_sim *s, int slot, const struct member_action *action) {
    struct process *p = &s->processes[slot];
    adopt(p, &action->view);
    // By hand many rounds may pass in one epoch, and each is another one.
    if (s->config.by_hand == 0 || p->program->key_number != action->view.number) p->program->key_round = 0;
    p->program->key_number = action->view.number;
    if (!s->only_votes) p->program->roster = program_pass_roster(s, slot, action->view.number);
    after_update(s, slot);
}

void program_connected(struct pccl_sim *s, int slot, const struct member_action *action) {
    judge_vote(s, slot, action);
    pass_update(s, slot, action);
}

void program_vote_ended(struct pccl_sim *s, int slot, const struct member_action *action) {
    struct process *p = &s->processes[slot];
    if (member_phase(p->core) == MEMBER_DEAD) return; // it ends
    if (p->program->step == STEP_SYNCING) {
        on_sync_end(s, slot, action);
        return;
    }
    uint8_t kind = p->program->vote;
    judge_vote(s, slot, action);
    bool has_least = s->limits.least > 0 || (s->faults & PCCL_SIM_FLIP) != 0; // a changed RESUME tells another number
    bool is_short = kind == WIRE_VOTE_UPDATE && action->code == pcclTooFewPeers && has_least;
    if (kind == WIRE_VOTE_UPDATE && action->code == 0 && action->view.global_world < s->limits.least && !p->tainted)
        sim_fail(s, "agreement", "an update of peer %d ends with %u members, and there must be %u", slot + 1,
                 action->view.global_world, s->limits.least);
    if (is_short && p->program->step == STEP_VOTING) { // goes on with those who are there
        s->counts[COUNT_SHORT]++;
        after_update(s, slot);
        return;
    }
    if (p->program->step != STEP_VOTING || (action->code != 0 && kind != WIRE_VOTE_OPTIMIZE)) {
        if (!p->tainted)
            sim_fail(s, "agreement", "a vote of peer %d ends with code %d where it cannot", slot + 1, action->code);
        return;
    }
    if (kind == WIRE_VOTE_UPDATE) {
        pass_update(s, slot, action);
    } else if (kind == WIRE_VOTE_PENDING && action->value != 0) {
        vote(s, slot, WIRE_VOTE_UPDATE);
    } else if (kind == WIRE_VOTE_PENDING) {
        after_update(s, slot);
    } else {
        if (action->code == 0) adopt(p, &action->view);
        begin_reduces(s, slot);
    }
}

static bool go_on_leaving(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    if (p->engine->call_table.retained.count > 0 && p->engine->call_table.now->ring.count > 1 &&
        s->now < p->program->leave_by) {
        sim_push_for(s, slot, EVENT_PROGRAM, s->now + LOOK_MS * MS_NS);
        return false;
    }
    return true;
}

bool program_go_on(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    switch (p->program->step) {
    case STEP_THINKING:
        vote(s, slot, draw(s, p->program, 3) % 4 == 0 ? WIRE_VOTE_UPDATE : WIRE_VOTE_PENDING);
        return false;
    case STEP_REDUCING: await_all(s, slot); return false;
    case STEP_LEAVING: return go_on_leaving(s, slot);
    default: return false;
    }
}
