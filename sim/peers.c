#include "sim/peers.h"

#include <stdlib.h>
#include <string.h>

#include "pccl.h"
#include "sim/controls.h"
#include "sim/effect.h"
#include "sim/engine.h"
#include "sim/judge_ops.h"
#include "sim/links.h"
#include "sim/masters.h"
#include "sim/program.h"
#include "sim/state.h"
#include "sim/trace.h"
#include "sim/truth.h"
#include "sim/watch.h"

enum {
    TURNS_MOST = 50, // of what a program makes its state machine say, which makes the program go on
    RESTART_MS = 120,
};

// NULL: memory was refused.
static struct member *new_core(struct pccl_sim *s, int slot) {
    struct wire_id id = sim_id(s, slot);
    struct member *core = member_new(&id, s->processes[slot].group, LANES);
    struct member_settings settings = {
        .recovery_limit_ms = s->recovery_ms, .masters = s->master_count, .limits = s->limits};
    if (core != NULL) member_configure(core, &settings);
    return core;
}

// ---- masters: the first that there is, and the next one when it is lost ----

static void connect_to(struct pccl_sim *s, int slot, uint32_t master) {
    struct process *p = &s->processes[slot];
    struct connection *control = control_open(s, slot, master);
    if (control == NULL) return;
    p->control = (uint32_t)(control - s->controls) + 1;
    member_join(p->core, 48149, s->now, &p->out);
    if ((s->faults & PCCL_SIM_DUPLICATE) != 0 && s->faulty && sim_chance(s, 6))
        control_double(s, slot, master, &p->out.frames);
}

// Skips dead masters, which refuse. The peer finds out by itself about the last one of the list.
static void join_master(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    while (!s->masters[p->seek.at].running && !s->masters[p->seek.at].held && p->seek.at + 1 < p->seek.count)
        recovery_seek_failed(&p->seek, s->now);
    connect_to(s, slot, p->seek.at);
}

static void seek_at(struct pccl_sim *s, int slot, int64_t at, bool late) {
    sim_push_for(s, slot, EVENT_SEEK, platform_later(at, s->now))->flag = late;
}

static void lose_master(struct pccl_sim *s, int slot, bool anew) {
    struct process *p = &s->processes[slot];
    if (p->control != 0 && !p->seeking) { // silent
        SIM_TELL(s, slot, empty, member_header(p->core), WIRE_MOVED);
    }
    sim_close_controls(s, slot, true);
    if (!p->seeking)
        recovery_seek_begin(&p->seek, true, s->now);
    else if (anew)
        recovery_seek_anew(&p->seek, s->now);
    else
        recovery_seek_failed(&p->seek, s->now);
    p->seeking = true;
    seek_at(s, slot, p->seek.next + (int64_t)sim_below(s, 5 * MS_NS), false);
}

static void seek_master(struct pccl_sim *s, int slot, bool late) {
    struct process *p = &s->processes[slot];
    if (p->control != 0 || !p->seeking || !member_is_seeking(p->core)) return;
    uint32_t master = p->seek.at;
    if (late || (!s->masters[master].running && !s->masters[master].held)) {
        recovery_seek_failed(&p->seek, s->now);
        seek_at(s, slot, p->seek.next + (int64_t)sim_below(s, 5 * MS_NS), false);
        return;
    }
    if (s->master_count > 1 && sim_cut(s, slot, MASTER + (int)master)) { // no answer
        int64_t there = s->cut_until[slot][MASTER + master], back = s->cut_until[MASTER + master][slot],
                at = there > back ? there : back;
        bool gives_up = at > s->now + SEEK_DIAL_MS * MS_NS;
        seek_at(s, slot, gives_up ? s->now + SEEK_DIAL_MS * MS_NS : at, gives_up);
        return;
    }
    struct connection *control = control_open(s, slot, master);
    if (control == NULL) return;
    p->control = (uint32_t)(control - s->controls) + 1;
    struct wire_hash content = {0};
    enum member_tensors tensors = state_model_restart(s, slot, &content);
    s->truths->resumed[slot].life = p->life;
    s->truths->resumed[slot].generation = member_header(p->core).generation;
    s->truths->resumed[slot].epoch = member_header(p->core).epoch;
    member_resume(p->core, 48149, master > 0, tensors, &content, s->now, &p->out);
}

// A master of the list has refused this newcomer: perhaps the next one serves the run.
static bool try_next_master(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    if (p->seek.again || !recovery_seek_failed(&p->seek, s->now)) return false;
    struct member *fresh = new_core(s, slot);
    if (fresh == NULL) return false;
    SIM_TRACE(s, "peer %d: tries the next master: %s", slot + 1, member_text(p->core));
    sim_close_controls(s, slot, true);
    sim_close_links(s, slot, true);
    p->parked_count = 0;
    member_free(p->core);
    p->core = fresh;
    s->bodies[slot].tick_at = INT64_MAX;
    join_master(s, slot);
    return true;
}

static void is_over(struct pccl_sim *s, int slot, bool told) {
    s->processes[slot].running = false;
    s->processes[slot].dark = !told;
    s->processes[slot].ended_at = s->now;
    if (!s->faulty || s->config.by_hand != 0) return;
    sim_push_for(s, slot, EVENT_START, s->now + (int64_t)sim_below(s, RESTART_MS) * MS_NS);
}

void sim_end(struct pccl_sim *s, int slot, bool told) {
    struct process *p = &s->processes[slot];
    if (!p->running) return;
    SIM_TRACE(s, "peer %d: ends%s", slot + 1, told ? "" : ", and nobody is told");
    sim_close_controls(s, slot, told);
    sim_close_links(s, slot, told);
    is_over(s, slot, told);
}

void sim_end_held(struct pccl_sim *s, int slot) {
    if (!s->processes[slot].running) return;
    SIM_TRACE(s, "peer %d: ends, and a child holds its connections", slot + 1);
    sim_hold(s, slot);
    is_over(s, slot, false);
}

// ---- what a state machine says ----

static void probe(struct pccl_sim *s, int slot, const struct member_action *action) {
    uint32_t life;
    int other = sim_slot(&action->id, &life);
    int64_t at = s->now + action->duration_ms * MS_NS + sim_delay(s, slot, other);
    bool reached = s->cut_until[slot][other] <= s->now && sim_alive(s, other, life);
    struct event *event = sim_push_for(s, reached ? other : slot, EVENT_PROBED, at);
    event->from = (uint16_t)(reached ? slot : other);
    event->other_life = reached ? s->processes[slot].life : life;
    event->flag = reached;
    event->number = reached ? 1000000 * (1 + sim_below(s, 100)) : 0;
}

static void run_action(struct pccl_sim *s, int slot, const struct member_action *action) {
    struct process *p = &s->processes[slot];
    uint32_t life;
    int other;
    switch (action->kind) {
    case MEMBER_DIAL: sim_dial(s, slot, action); return;
    case MEMBER_RELAY: return;  // all can be dialled here
    case MEMBER_DONORS: return; // newcomers here copy nothing ahead
    case MEMBER_DROP_PEER:
        other = sim_slot(&action->id, &life);
        if (other < 0) return;
        sim_drop_links(s, slot, other, life);
        if (engine_model_forget(s, slot, other, life)) state_model_forget(s, slot, other);
        return;
    case MEMBER_MISSED_LOSS: engine_model_missed_loss(s, slot, action->group_epoch); return;
    case MEMBER_ENTER_EPOCH: engine_model_enter(s, slot, action); return;
    case MEMBER_LINKS_READY: engine_model_ready(s, slot, action->group_epoch); return;
    case MEMBER_VERDICT: engine_model_verdict(s, slot, action->verdict); return;
    case MEMBER_PROBE: probe(s, slot, action); return;
    case MEMBER_CONNECT_END:
        if (action->code == 0) {
            program_connected(s, slot, action);
            return;
        }
        if (action->code == pcclMasterConnectionFailed && try_next_master(s, slot)) return;
        s->counts[COUNT_REFUSED]++;
        judge_dies(s, slot, member_text(p->core), "refused");
        sim_end(s, slot, true);
        return;
    case MEMBER_VOTE_END: program_vote_ended(s, slot, action); return;
    case MEMBER_SYNC_PLAN: state_model_plan(s, slot, action->plan); return;
    case MEMBER_RECHECK: sim_push_for(s, slot, EVENT_RECHECK, s->now); return;
    case MEMBER_SEEK:
        SIM_TRACE(s, "peer %d: looks for a master: %s", slot + 1, member_lost_why(p->core));
        lose_master(s, slot, action->anew);
        return;
    case MEMBER_FOUND:
        s->counts[COUNT_FOUND]++;
        p->seeking = false;
        SIM_TRACE(s, "peer %d: goes on with a master", slot + 1);
        return;
    case MEMBER_WAITING: SIM_TRACE(s, "peer %d: hears that the master %s", slot + 1, member_waits_why(p->core)); return;
    case MEMBER_DIE:
        if (member_leaving(p->core)->left) {
            SIM_TRACE(s, "peer %d: has left in order", slot + 1);
            s->counts[COUNT_LEFT]++;
            sim_end(s, slot, true);
            return;
        }
        s->counts[COUNT_EXPELLED]++;
        judge_dies(s, slot, member_text(p->core), "dead");
        sim_end(s, slot, true);
        return;
    }
}

// Ends the peer for lack of memory, as the driver does: nothing is known for sure any more.
static void die_of_memory(struct pccl_sim *s, int slot) {
    if (s->bodies[slot].shortage.refused == 0)
        sim_fail(s, "bounded memory", "the state machine of peer %d asks for more memory than there is", slot + 1);
    s->counts[COUNT_EXPELLED]++;
    judge_dies(s, slot, "the system refused memory", "dead");
    sim_end(s, slot, true);
}

// The frames after the actions, as the body does; what an action makes the state machine say comes after that.
static void act(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    uint32_t life = p->life, turns = 0;
    while (sim_alive(s, slot, life) &&
           (p->out.count > 0 || p->out.frames.length > 0 || p->out.failed || p->out.frames.failed) &&
           s->state == PCCL_SIM_RUNNING) {
        struct member_output out = p->out;
        if (++turns > TURNS_MOST)
            sim_fail(s, "progress", "the state machine of peer %d and its program answer each other without end",
                     slot + 1);
        p->out = (struct member_output){0};
        const struct member *core = p->core;
        if (out.failed || out.frames.failed) {
            member_output_fini(&out);
            die_of_memory(s, slot);
            return;
        }
        for (size_t i = 0; i < out.count && sim_alive(s, slot, life) && p->core == core; i++)
            run_action(s, slot, &out.actions[i]);
        if (sim_alive(s, slot, life) && p->core == core) sim_to_master(s, slot, &out.frames);
        member_output_clear(&out);
        if (sim_alive(s, slot, life) && p->out.capacity == 0 && p->out.frames.capacity == 0 &&
            s->bodies[slot].shortage.times == 0 && !p->out.failed && !p->out.frames.failed)
            p->out = out; // the memory serves again
        else
            member_output_fini(&out);
    }
    if (sim_alive(s, slot, life)) sim_plan_tick(s, slot, life, member_deadline(p->core));
}

void sim_start(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    if (p->running) return;
    uint32_t life = p->life + 1;
    member_free(p->core);
    member_output_fini(&p->out);
    delta_free(p->state->delta);
    engine_model_end(p->engine);
    *p->state = (struct state_model){0};
    *p->program = (struct program){0};
    memset(p, 0, offsetof(struct process, engine));
    p->running = true;
    p->life = life;
    s->bodies[slot] = (struct body){.tick_at = INT64_MAX};
    s->ends->voted[slot] = 0;
    p->group = sim_chance(s, 4) && s->config.by_hand == 0;
    p->program->since = s->now;
    engine_model_begin(s, slot);
    for (uint32_t i = 0; i < LEAVES; i++)
        p->state->leaves[i] = sim_mix(s->config.seed * 64 + (sim_chance(s, 2) ? i : 32 + i));
    p->core = new_core(s, slot);
    if (p->core == NULL) abort(); // a test that cannot go on
    s->counts[COUNT_STARTS]++;
    SIM_TRACE(s, "peer %d: starts (life %u, group %u)", slot + 1, life, p->group);
    p->seek = (struct recovery_seek){.masters = s->addresses, .count = s->master_count};
    recovery_seek_begin(&p->seek, false, s->now);
    join_master(s, slot);
    act(s, slot);
}

// ---- what happens ----

static void on_peer_tick(struct pccl_sim *s, int slot, const struct event *event) {
    struct process *p = &s->processes[slot];
    if (s->bodies[slot].tick_at != event->at) return; // an earlier one was queued after it
    s->bodies[slot].tick_at = INT64_MAX;
    if (member_deadline(p->core) <= s->now) member_tick(p->core, s->now, &p->out);
    sim_expire_parked(s, slot);
}

static void on_control(struct pccl_sim *s, int slot, const struct event *event) {
    struct process *p = &s->processes[slot];
    struct connection *control = &s->controls[event->index];
    if (p->control != event->index + 1 || control->serial != event->serial) return;
    if (s->now >= control->lost_from && event->kind == EVENT_CONTROL) return;
    if (event->kind == EVENT_CONTROL && !event->flag) {
        if (s->tracing && event->header.type != WIRE_HEARTBEAT) {
            char text[TEXT_BYTES];
            sim_line(s, "peer %d <- %s: %s", slot + 1, master_name(s, control->ends[1] - (uint32_t)MASTER),
                     trace_frame_name(s, text, &event->header, event->body));
        }
        s->counts[COUNT_ORDERS] += event->header.type == WIRE_EPOCH && event->body[0] == WIRE_REASON_ORDER;
        s->counts[COUNT_TOLD_LATE] += event->header.type == WIRE_RESUMED && (event->body[4] | event->body[5]) != 0;
        s->counts[COUNT_AFRESH] += event->header.type == WIRE_WELCOME && member_is_seeking(p->core);
        member_frame(p->core, &event->header, event->body, s->now, &p->out);
        return;
    }
    if (!event->flag)
        sim_close_controls(s, slot, true); // else it is open, and the master hears that the peer leaves it
    member_disconnected(p->core, event->flag ? "garbage" : "the master closed", s->now, &p->out);
}

// Frames under way on links that have ended are lost.
static void tell_state(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    if (p->ended != 0) state_model_link_ends(s, slot, p->ended - 1);
    p->ended = 0;
}

static void judge_parked(struct pccl_sim *s, int slot) {
    uint32_t life = s->processes[slot].life, count = links_take_parked(s, slot);
    for (uint32_t i = 0; i < count && sim_alive(s, slot, life); i++) {
        links_judge_parked(s, slot, i);
        tell_state(s, slot);
        act(s, slot);
    }
}

static void deliver(struct pccl_sim *s, const struct event *event) {
    const struct frame *frame = &event->frame;
    SIM_TRACE(s, "peer %d <- %d: %s (%ju, %ju, %u)", event->slot + 1, event->from + 1, wire_type_name(frame->type),
              OP_NAME(*frame));
    if (frame->type >= WIRE_SYNC_ASK_HASHES && frame->type <= WIRE_SYNC_LEAF)
        state_model_frame(s, event->slot, event->from, frame);
    else
        engine_model_frame(s, event->slot, event->from, frame);
}

// The data thread is woken.
static void on_engine(struct pccl_sim *s, int slot) {
    struct event *event;
    if (!engine_model_apply(s, slot)) return;
    const struct epoch *now = s->processes[slot].engine->call_table.now;
    bool members[SLOTS] = {false};
    for (uint32_t rank = 0, life; rank < now->ring.count; rank++) {
        int other = sim_slot(&now->ring.members[rank].id, &life);
        if (other >= 0) members[other] = true;
    }
    for (int other = 0; other < (int)s->peers; other++)
        if (!members[other]) state_model_forget(s, slot, other);
    for (int other = 0; other < (int)s->peers; other++)
        for (uint32_t index = 0; index <= LANES; index++)
            while ((event = links_next_parked(s, slot, other, index, now->group_epoch)) != NULL) {
                deliver(s, event);
                sim_event_free(s, event);
            }
    engine_model_go_on(s, slot);
}

static void on_program(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    if (!program_go_on(s, slot)) return;
    member_leave(p->core, &p->out);
    sim_to_master(s, slot, &p->out.frames);
    sim_end(s, slot, true);
}

// Before it carries out what its state machine has said.
static bool blocks(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    int64_t blocked = p->running && p->out.count + p->out.frames.length > 0 ? effect_block(s, false) : 0;
    if (blocked == 0) return false;
    SIM_TRACE(s, "fault: the control thread of peer %d blocks for %jd ms", slot + 1, blocked / MS_NS);
    s->bodies[slot].stopped_until = s->now + blocked;
    sim_push_for(s, slot, EVENT_GOES_ON, s->now + blocked - 1);
    return true;
}

void sim_peer_event(struct pccl_sim *s, struct event *event, bool *kept) {
    int slot = event->slot;
    struct process *p = &s->processes[slot];
    switch (event->kind) {
    case EVENT_CONTROL:
    case EVENT_CONTROL_ENDS: on_control(s, slot, event); break;
    case EVENT_TICK: on_peer_tick(s, slot, event); break;
    case EVENT_DIAL_ARRIVES: sim_dial_arrives(s, event); break;
    case EVENT_DIAL_ENDS: sim_dial_ends(s, event); break;
    case EVENT_DIAL_LATE: sim_dial_late(s, event); break;
    case EVENT_LINK_FRAME:
        if (sim_link_frame(s, event, p->engine->call_table.now->group_epoch, kept)) deliver(s, event);
        break;
    case EVENT_LINK_ENDS: sim_link_ends(s, event); break;
    case EVENT_PROBED: {
        struct wire_id self = sim_id(s, slot), other = sim_id_of(event->from, event->other_life);
        member_measured(p->core, event->flag ? &other : &self, event->flag ? &self : &other, event->number, &p->out);
        break;
    }
    case EVENT_ENGINE: on_engine(s, slot); break;
    case EVENT_SEEK: seek_master(s, slot, event->flag); break;
    case EVENT_RECHECK: judge_parked(s, slot); break;
    case EVENT_PROGRAM: on_program(s, slot); break;
    case EVENT_NOTICE:
        if (member_phase(p->core) != MEMBER_ACCEPTED || p->program->step == STEP_JOINING) break;
        s->counts[COUNT_NOTICES]++;
        member_announce(p->core, (uint32_t)sim_below(s, 10000), true, s->now, &p->out);
        break;
    case EVENT_SYNC_TICK: state_model_tick(s, slot); break;
    default: break;
    }
    tell_state(s, slot);
    if (event->kind == EVENT_GOES_ON || !blocks(s, slot)) act(s, slot);
}
