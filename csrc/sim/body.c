// The bodies around the minds: they carry out what a mind says, and feed it what happens. In place of control/master and control/peer.
#include "world.h"

#include <stdlib.h>
#include <string.h>

enum { TURNS_MOST = 50, // of what a program makes its mind say, which makes the program go on
       RESTART_MS = 120,
       YOUNG_MS = 150, // as in control/master
       ENDS_IN = 800 };

// ---- the master ----

static void plan_master_tick(struct pccl_sim *s) {
    int64_t next = membership_next_deadline(s->master.mind);
    if (next >= s->master.tick_at) return; // the tick that is queued looks again
    s->master.tick_at = next > s->now ? next : s->now;
    struct event *event = sim_event(s, EVENT_MASTER_TICK, s->master.tick_at);
    event->life = s->master.life;
    sim_push(s, event);
}

static void send_to_peer(struct pccl_sim *s, const struct membership_actions *actions, const struct membership_send *send) {
    struct control *control = &s->controls[send->conn];
    if (send->conn >= CONTROLS_MOST || !control->used || !control->at_master) {
        sim_fail(s, "bounded memory", "the master sends on a connection that it has closed");
        return;
    }
    struct event *event = sim_event(s, EVENT_TO_PEER, s->now + sim_delay(s, MASTER, control->slot));
    if (!wire_header_decode(actions->bytes.bytes + send->offset, &event->header)) {
        sim_fail(s, "no trust in bytes", "the master made a frame without a valid header");
        return;
    }
    event->body = malloc(event->header.length + 1);
    if (event->body == NULL) abort(); // a test that cannot go on
    memcpy(event->body, actions->bytes.bytes + send->offset + WIRE_HEADER_BYTES, event->header.length);
    if (event->at < control->down_at) event->at = control->down_at;
    control->down_at = event->at;
    event->slot = control->slot;
    event->life = control->life;
    event->index = send->conn;
    event->serial = control->serial;
    sim_flip(s, control, event);
    sim_push(s, event);
}

static void close_at_master(struct pccl_sim *s, struct control *control) {
    control->at_master = false;
    if (control->reset) control->down_at = 0;
    if (!control->at_peer) {
        control->used = false;
        return;
    }
    struct event *event = sim_event(s, EVENT_PEER_LOSES, s->now + sim_delay(s, MASTER, control->slot));
    if (event->at < control->down_at) event->at = control->down_at;
    event->slot = control->slot;
    event->life = control->life;
    event->index = (uint32_t)(control - s->controls);
    event->serial = control->serial;
    sim_push(s, event);
}

void sim_carry_out(struct pccl_sim *s, const struct membership_actions *actions) {
    for (size_t i = 0; i < actions->log_count && s->tracing; i++) sim_line(s, "master: %s", actions->logs[i].text);
    size_t count = actions->send_count;
    bool ends = count > 1 && s->faulty && (s->faults & PCCL_SIM_MASTER) != 0 && sim_chance(s, ENDS_IN);
    if (ends) count = sim_below(s, count); // in the middle of what it says
    judge_sends(s, actions, count);
    for (size_t i = 0; i < count && s->state == PCCL_SIM_RUNNING; i++) send_to_peer(s, actions, &actions->sends[i]);
    if (ends) {
        sim_master_fault(s);
        return;
    }
    for (size_t i = 0; i < actions->close_count; i++) close_at_master(s, &s->controls[actions->closes[i]]);
    if (membership_wants_random(s->master.mind)) {
        uint8_t random[MEMBERSHIP_RANDOM_BYTES];
        for (size_t i = 0; i < sizeof random; i++) random[i] = (uint8_t)sim_random(s);
        membership_set_random(s->master.mind, random);
    }
    plan_master_tick(s);
}

void sim_start_master(struct pccl_sim *s) {
    uint8_t random[MEMBERSHIP_RANDOM_BYTES];
    for (size_t i = 0; i < sizeof random; i++) random[i] = (uint8_t)sim_random(s);
    s->master.mind = membership_new((uint32_t)(s->limit_ns / MS_NS), random, s->now);
    if (s->master.mind == NULL) abort(); // a test that cannot go on
    s->master.running = true;
    s->master.life++;
    s->master.tick_at = INT64_MAX;
    s->master.began_at = s->now;
    if (s->master.life > 1 || sim_chance(s, 8)) membership_expect_survivors(s->master.mind, s->now + YOUNG_MS * MS_NS);
    SIM_TRACE(s, "master: starts");
}

void sim_end_master(struct pccl_sim *s) {
    if (!s->master.running) return;
    SIM_TRACE(s, "master: ends");
    s->master.running = false;
    membership_free(s->master.mind);
    s->master.mind = NULL;
    for (uint32_t i = 0; i < CONTROLS_MOST; i++) {
        if (!s->controls[i].used || !s->controls[i].at_master) continue;
        s->controls[i].reset = sim_chance(s, 3); // the kernel had something unread, and takes back what was said
        close_at_master(s, &s->controls[i]);
    }
}

static void on_frame_to_master(struct pccl_sim *s, struct control *control, const struct event *event) {
    uint32_t conn = (uint32_t)(control - s->controls);
    if (s->tracing) {
        char text[TEXT_BYTES];
        if (event->header.type != WIRE_HEARTBEAT) sim_line(s, "master <- %d: %s", event->slot + 1, judge_frame_name(s, text, &event->header, event->body));
    }
    struct wire_address source = {.family = 4, .bytes = {10, 0, 0, (uint8_t)(event->slot + 1)}};
    if (control->known) {
        sim_carry_out(s, membership_message(s->master.mind, s->now, conn, &event->header, event->body));
        return;
    }
    control->known = true;
    if (event->header.type == WIRE_RESUME) {
        sim_carry_out(s, membership_peer_resumed(s->master.mind, s->now, conn, &source, &event->header, event->body));
        return;
    }
    struct wire_hello hello;
    if (event->header.type == WIRE_HELLO && wire_decode_hello(event->body, event->header.length, &hello))
        sim_carry_out(s, membership_peer_connected(s->master.mind, s->now, conn, &source, &hello));
    else
        close_at_master(s, control);
}

void sim_master_event(struct pccl_sim *s, struct event *event) {
    if (event->kind == EVENT_MASTER_STARTS) {
        sim_start_master(s);
        return;
    }
    if (event->kind == EVENT_MASTER_TICK) {
        if (!s->master.running || event->life != s->master.life || event->at != s->master.tick_at) return;
        s->master.tick_at = INT64_MAX;
        if (membership_next_deadline(s->master.mind) <= s->now)
            sim_carry_out(s, membership_tick(s->master.mind, s->now));
        else
            plan_master_tick(s);
        return;
    }
    struct control *control = &s->controls[event->index];
    if (!control->used || control->serial != event->serial || !control->at_master) return;
    if (!s->master.running) {
        close_at_master(s, control); // nobody listens
        return;
    }
    if (event->kind == EVENT_TO_MASTER && !event->flag) {
        on_frame_to_master(s, control, event);
        return;
    }
    // It has ended, or is garbage from here on.
    const char *why = event->flag ? "garbage" : "closed";
    if (event->flag && control->at_peer) {
        struct event *told = sim_event(s, EVENT_PEER_LOSES, s->now + sim_delay(s, MASTER, control->slot));
        told->slot = control->slot;
        told->life = control->life;
        told->index = event->index;
        told->serial = control->serial;
        sim_push(s, told);
    }
    sim_carry_out(s, membership_peer_lost(s->master.mind, s->now, event->index, why));
    control->at_master = false;
    if (!control->at_peer) control->used = false;
}

// ---- peers ----

void sim_start(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    if (p->running) return;
    uint32_t life = p->life + 1;
    member_free(p->mind);
    member_output_fini(&p->out);
    delta_free(p->state.delta);
    *p = (struct process){.running = true, .life = life, .tick_at = INT64_MAX};
    p->group = sim_chance(s, 4);
    p->program.since = s->now;
    p->engine.now.slots[0] = (uint8_t)slot;
    for (uint32_t i = 0; i < LEAVES; i++) p->state.leaves[i] = sim_mix(s->config.seed * 64 + (sim_chance(s, 2) ? i : 32 + i));
    struct wire_id id = sim_id(s, slot);
    p->mind = member_new(&id, p->group, LANES);
    if (p->mind == NULL) abort(); // a test that cannot go on
    member_set_recovery(p->mind, s->recovery_ms, 1);
    s->counts[COUNT_STARTS]++;
    SIM_TRACE(s, "peer %d: starts (life %u, group %u)", slot + 1, life, p->group);
    sim_connect_master(s, slot);
    sim_act(s, slot);
}

void sim_end(struct pccl_sim *s, int slot, bool told) {
    struct process *p = &s->processes[slot];
    if (!p->running) return;
    SIM_TRACE(s, "peer %d: ends%s", slot + 1, told ? "" : ", and nobody is told");
    sim_close_controls(s, slot, told);
    sim_close_links(s, slot, told);
    p->running = false;
    p->ended_at = s->now;
    if (!s->faulty) return;
    struct event *event = sim_event(s, EVENT_START, s->now + (int64_t)sim_below(s, RESTART_MS) * MS_NS);
    event->slot = (uint8_t)slot;
    sim_push(s, event);
}

static void probe(struct pccl_sim *s, int slot, const struct member_action *action) {
    uint32_t life;
    int other = sim_slot(&action->id, &life);
    int64_t at = s->now + action->duration_ms * MS_NS + sim_delay(s, slot, other);
    bool reached = s->cut_until[slot][other] <= s->now && sim_alive(s, other, life);
    struct event *event = sim_event(s, EVENT_PROBED, at);
    event->slot = (uint8_t)(reached ? other : slot);
    event->life = reached ? life : s->processes[slot].life;
    event->from = (uint8_t)(reached ? slot : other);
    event->other_life = reached ? s->processes[slot].life : life;
    event->flag = reached;
    event->number = reached ? 1000000 * (1 + sim_below(s, 100)) : 0;
    sim_push(s, event);
}

static void run_action(struct pccl_sim *s, int slot, const struct member_action *action) {
    struct process *p = &s->processes[slot];
    uint32_t life;
    int other;
    switch (action->kind) {
    case MEMBER_DIAL: sim_dial(s, slot, action); return;
    case MEMBER_DROP_PEER:
        other = sim_slot(&action->id, &life);
        if (other < 0) return;
        sim_drop_links(s, slot, other, life);
        engine_model_forget(s, slot, other, life);
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
        s->counts[COUNT_REFUSED]++;
        judge_dies(s, slot, member_text(p->mind), "refused");
        sim_end(s, slot, true);
        return;
    case MEMBER_VOTE_END: program_vote_ended(s, slot, action); return;
    case MEMBER_SYNC_PLAN: state_model_plan(s, slot, action->plan); return;
    case MEMBER_RECHECK: sim_push_for(s, slot, EVENT_RECHECK, s->now); return;
    case MEMBER_SEEK:
        SIM_TRACE(s, "peer %d: looks for a master", slot + 1);
        sim_close_controls(s, slot, true);
        sim_push_for(s, slot, EVENT_SEEK, s->now + (int64_t)sim_below(s, 5 * MS_NS));
        return;
    case MEMBER_FOUND:
        s->counts[COUNT_FOUND]++;
        SIM_TRACE(s, "peer %d: goes on with a master", slot + 1);
        return;
    case MEMBER_WAITING:
        SIM_TRACE(s, "peer %d: hears that the master %s", slot + 1, member_waits_why(p->mind));
        return;
    case MEMBER_DIE:
        s->counts[COUNT_EXPELLED]++;
        judge_dies(s, slot, member_text(p->mind), "dead");
        sim_end(s, slot, true);
        return;
    }
}

// The frames after the actions, as the body does; what an action makes the mind say comes after that.
void sim_act(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    uint32_t life = p->life, turns = 0;
    while (sim_alive(s, slot, life) && (p->out.count > 0 || p->out.frames.length > 0) && s->state == PCCL_SIM_RUNNING) {
        struct member_output out = p->out;
        if (++turns > TURNS_MOST) sim_fail(s, "progress", "the mind of peer %d and its program answer each other without end", slot + 1);
        p->out = (struct member_output){0};
        if (out.failed || out.frames.failed) sim_fail(s, "bounded memory", "memory was refused to the mind of peer %d", slot + 1);
        for (size_t i = 0; i < out.count && sim_alive(s, slot, life); i++) run_action(s, slot, &out.actions[i]);
        if (sim_alive(s, slot, life)) sim_to_master(s, slot, &out.frames);
        member_output_clear(&out);
        if (sim_alive(s, slot, life) && p->out.capacity == 0 && p->out.frames.capacity == 0)
            p->out = out; // the memory serves again
        else
            member_output_fini(&out);
    }
    if (!sim_alive(s, slot, life)) return;
    int64_t next = member_deadline(p->mind);
    if (next >= p->tick_at) return; // the tick that is queued looks again
    p->tick_at = next > s->now ? next : s->now;
    sim_push_for(s, slot, EVENT_PEER_TICK, p->tick_at);
}

static void on_peer_tick(struct pccl_sim *s, int slot, const struct event *event) {
    struct process *p = &s->processes[slot];
    if (p->tick_at != event->at) return; // an earlier one was queued after it
    p->tick_at = INT64_MAX;
    if (member_deadline(p->mind) <= s->now) member_tick(p->mind, s->now, &p->out);
    sim_expire_parked(s, slot);
}

static void on_control(struct pccl_sim *s, int slot, const struct event *event) {
    struct process *p = &s->processes[slot];
    struct control *control = &s->controls[event->index];
    if (p->control != event->index + 1 || control->serial != event->serial) return;
    if (control->reset && event->kind == EVENT_TO_PEER) return;
    if (event->kind == EVENT_TO_PEER && !event->flag) {
        if (s->tracing && event->header.type != WIRE_HEARTBEAT) {
            char text[TEXT_BYTES];
            sim_line(s, "peer %d <- master: %s", slot + 1, judge_frame_name(s, text, &event->header, event->body));
        }
        s->counts[COUNT_ORDERS] += event->header.type == WIRE_EPOCH && event->body[0] == WIRE_REASON_ORDER;
        member_frame(p->mind, &event->header, event->body, s->now, &p->out);
        return;
    }
    sim_close_controls(s, slot, true);
    member_disconnected(p->mind, event->flag ? "garbage" : "the master closed", s->now, &p->out);
}

void sim_peer_event(struct pccl_sim *s, struct event *event, bool *kept) {
    int slot = event->slot;
    struct process *p = &s->processes[slot];
    switch (event->kind) {
    case EVENT_TO_PEER:
    case EVENT_PEER_LOSES: on_control(s, slot, event); break;
    case EVENT_PEER_TICK: on_peer_tick(s, slot, event); break;
    case EVENT_DIAL_ARRIVES: sim_dial_arrives(s, event); break;
    case EVENT_DIAL_ENDS: sim_dial_ends(s, event); break;
    case EVENT_DIAL_LATE: sim_dial_late(s, event); break;
    case EVENT_LINK_FRAME: sim_link_frame(s, event, kept); break;
    case EVENT_LINK_ENDS: sim_link_ends(s, event); break;
    case EVENT_PROBED: {
        struct wire_id self = sim_id(s, slot), other = sim_id_of(event->from, event->other_life);
        member_measured(p->mind, event->flag ? &other : &self, event->flag ? &self : &other, event->number, &p->out);
        break;
    }
    case EVENT_ENGINE: engine_model_obey(s, slot); break;
    case EVENT_SEEK: sim_seek_master(s, slot); break;
    case EVENT_RECHECK: sim_judge_parked(s, slot); break;
    case EVENT_PROGRAM: program_go_on(s, slot); break;
    case EVENT_SYNC_TICK: state_model_tick(s, slot); break;
    default: break;
    }
    sim_act(s, slot);
}
