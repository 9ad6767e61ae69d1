// The bodies around the minds: they carry out what a mind says, and feed it what happens. In place of master/master
// and peer/peer.
#include "sim/world.h"

#include <stdlib.h>
#include <string.h>

#include "pccl.h"

enum {
    TURNS_MOST = 50, // of what a program makes its mind say, which makes the program go on
    RESTART_MS = 120,
    YOUNG_MS = 150, // as in master/master
    LOOK_MS = 200,  // shorter, as the other limits are
    ASK_MS = 60,
    BUSY_MS = 200,
    IDLE_MS = 20,
    PART_MS = 20,
    ENDS_IN = 800, // of a master, in the middle of what it says
    ENDS_AT_ONCE_IN = 16
}; // when that takes a run up

// ---- masters ----

static const char *name_of(const struct pccl_sim *s, uint32_t master) {
    static const char *const names[MASTERS_MOST] = {"master 1", "master 2", "master 3"};
    return s->master_count > 1 ? names[master] : "master";
}

static void plan_master_tick(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    int64_t next = membership_next_deadline(master->mind);
    if (next >= master->tick_at) return; // the tick that is queued looks again
    master->tick_at = next > s->now ? next : s->now;
    struct event *event = sim_event(s, EVENT_MASTER_TICK, master->tick_at);
    event->from = (uint8_t)k;
    event->life = master->life;
    sim_push(s, event);
}

static void plan_look(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    if (s->master_count == 1 || master->looks || membership_activity(master->mind) != WIRE_GATHERS) return;
    master->looks = true;
    struct event *event = sim_event(s, EVENT_MASTER_LOOKS, s->now + LOOK_MS * MS_NS);
    event->from = (uint8_t)k;
    event->life = master->life;
    sim_push(s, event);
}

static void send_to_peer(struct pccl_sim *s, const struct membership_actions *actions,
                         const struct membership_send *send) {
    struct control *control = &s->controls[send->conn];
    if (send->conn >= CONTROLS_MOST || !control->used || !control->at_master) {
        sim_fail(s, "bounded memory", "the master sends on a connection that it has closed");
        return;
    }
    struct event *event = sim_event(s, EVENT_TO_PEER, s->now + sim_delay(s, MASTER + control->master, control->slot));
    if (!wire_header_decode(actions->bytes.bytes + send->offset, &event->header)) {
        sim_fail(s, "no trust in bytes", "the master made a frame without a valid header");
        return;
    }
    event->body = sim_take(event->header.length + 1);
    memcpy(event->body, actions->bytes.bytes + send->offset + WIRE_HEADER_BYTES, event->header.length);
    if (event->at < control->down_at) event->at = control->down_at;
    control->down_at = event->at;
    event->slot = control->slot;
    event->from = control->master;
    event->life = control->life;
    event->index = send->conn;
    event->serial = control->serial;
    sim_flip(s, control, event);
    sim_push(s, event);
}

static void close_at_master(struct pccl_sim *s, struct control *control) {
    control->at_master = false;
    if (control->lost_from != INT64_MAX) control->down_at = control->lost_from;
    if (!control->at_peer) {
        control->used = false;
        return;
    }
    struct event *event =
        sim_event(s, EVENT_PEER_LOSES, s->now + sim_delay(s, MASTER + control->master, control->slot));
    if (event->at < control->down_at) event->at = control->down_at;
    event->slot = control->slot;
    event->from = control->master;
    event->life = control->life;
    event->index = (uint32_t)(control - s->controls);
    event->serial = control->serial;
    sim_push(s, event);
}

static bool takes_up(const struct membership_actions *actions) {
    struct wire_header header;
    return actions->send_count > 0 && wire_header_decode(actions->bytes.bytes + actions->sends[0].offset, &header) &&
           header.type == WIRE_RESUMED;
}

static void say(struct pccl_sim *s, uint32_t k, const struct membership_actions *actions, size_t first, size_t end) {
    judge_sends(s, k, actions, first, end);
    for (size_t i = first; i < end && s->state == PCCL_SIM_RUNNING; i++) send_to_peer(s, actions, &actions->sends[i]);
}

// A mind that is short of memory keeps none from one event to the next, so that it has to ask for it again.
static void take_buffers(struct membership_actions *actions) {
    wire_buffer_fini(&actions->bytes);
    free(actions->sends);
    actions->sends = NULL;
    actions->send_count = actions->send_capacity = 0;
}

// All is said.
static void end_event(struct pccl_sim *s, uint32_t k, const struct membership_actions *actions) {
    struct master *master = &s->masters[k];
    for (size_t i = 0; i < actions->close_count; i++) close_at_master(s, &s->controls[actions->closes[i]]);
    if (master->shortage.times > 0) take_buffers((struct membership_actions *)actions);
    if (membership_wants_random(master->mind)) {
        uint8_t random[MEMBERSHIP_RANDOM_BYTES] = {0};
        for (size_t i = 0; i < sizeof random - MEMBERSHIP_KEY_BYTES; i++) random[i] = (uint8_t)sim_random(s);
        membership_set_random(master->mind, random);
    }
    plan_look(s, k);
    plan_master_tick(s, k);
}

void sim_carry_out(struct pccl_sim *s, uint32_t k, const struct membership_actions *actions) {
    struct master *master = &s->masters[k];
    for (size_t i = 0; i < actions->log_count && s->tracing; i++)
        sim_line(s, "%s: %s", name_of(s, k), actions->logs[i].text);
    sim_admission_fault(s, k, actions);
    size_t count = actions->send_count;
    int64_t blocked = sim_block_fault(s, takes_up(actions));
    if (blocked > 0) {
        SIM_TRACE(s, "fault: the thread of %s blocks for %lld ms", name_of(s, k), (long long)(blocked / MS_NS));
        count = sim_below(s, count + 1);
        say(s, k, actions, 0, count);
        master->unsaid = actions;
        master->said = count;
        master->stopped_until = s->now + blocked;
        // before what came meanwhile
        struct event *event = sim_event(s, EVENT_MASTER_GOES_ON, master->stopped_until - 1);
        event->from = (uint8_t)k;
        event->life = master->life;
        sim_push(s, event);
        return;
    }
    bool ends = count > 1 && s->faulty && (s->faults & PCCL_SIM_MASTER) != 0 &&
                sim_chance(s, takes_up(actions) ? ENDS_AT_ONCE_IN : ENDS_IN);
    if (ends) count = sim_below(s, count); // in the middle of what it says
    say(s, k, actions, 0, count);
    if (ends)
        sim_master_fault(s, k);
    else
        end_event(s, k, actions);
}

static void master_goes_on(struct pccl_sim *s, const struct event *event) {
    struct master *master = &s->masters[event->from];
    const struct membership_actions *actions = master->unsaid;
    if (!master->running || event->life != master->life || actions == NULL) return;
    master->unsaid = NULL;
    say(s, event->from, actions, master->said, actions->send_count);
    end_event(s, event->from, actions);
}

void sim_start_master(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    uint8_t random[MEMBERSHIP_RANDOM_BYTES] = {0};
    for (size_t i = 0; i < sizeof random - MEMBERSHIP_KEY_BYTES; i++) random[i] = (uint8_t)sim_random(s);
    *master = (struct master){.running = true,
                              .life = ++s->master_lives,
                              .stopped_until = master->stopped_until,
                              .tick_at = INT64_MAX,
                              .began_at = s->now};
    master->mind = membership_new((uint32_t)(s->limit_ns / MS_NS), random, s->now);
    if (master->mind == NULL) abort(); // a test that cannot go on
    membership_set_standby(master->mind, k > 0);
    if (master->life > s->master_count || sim_chance(s, 8))
        membership_expect_survivors(master->mind, s->now + YOUNG_MS * MS_NS);
    SIM_TRACE(s, "%s: starts", name_of(s, k));
}

static void end_mind(struct master *master) {
    master->running = false;
    membership_free(master->mind);
    master->mind = NULL;
    master->unsaid = NULL;
}

static void close_all_at_master(struct pccl_sim *s, uint32_t k) {
    for (uint32_t i = 0; i < CONTROLS_MOST; i++) {
        if (!s->controls[i].used || !s->controls[i].at_master || s->controls[i].master != k) continue;
        // The kernel had something unread, and takes back what was said, or the later part of it.
        uint64_t part = sim_mix(s->config.seed ^ sim_mix(s->controls[i].serial)) % (2 * PART_MS * MS_NS);
        if (sim_chance(s, 3))
            s->controls[i].lost_from = s->now + (s->in_part && part < PART_MS * MS_NS ? (int64_t)part : 0);
        close_at_master(s, &s->controls[i]);
    }
}

void sim_end_master(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    if (!master->running) return;
    SIM_TRACE(s, "%s: ends", name_of(s, k));
    end_mind(master);
    close_all_at_master(s, k);
}

void sim_hold_master(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    SIM_TRACE(s, "%s: ends, and a child holds its connections and its port", name_of(s, k));
    end_mind(master);
    master->held = true;
}

void sim_let_go_master(struct pccl_sim *s, uint32_t k) {
    SIM_TRACE(s, "%s: its child ends", name_of(s, k));
    s->masters[k].held = false;
    close_all_at_master(s, k);
    sim_start_master(s, k);
}

// STATUS. The answers are of this moment, and are heard later: by then they may be wrong.
static void ask_others(struct pccl_sim *s, uint32_t k) {
    struct master *master = &s->masters[k];
    enum wire_activity most = WIRE_IDLE;
    int64_t at = s->now;
    if (master->asks) return;
    for (uint32_t i = 0; i < s->master_count; i++) {
        const struct master *other = &s->masters[i];
        if (i == k) continue;
        bool hears = s->now >= other->stopped_until && !sim_cut(s, MASTER + (int)k, MASTER + (int)i);
        int64_t end = s->now + (hears ? sim_delay(s, MASTER + (int)k, MASTER + (int)i) : ASK_MS * MS_NS);
        if (end > at) at = end;
        if (hears && other->running && membership_activity(other->mind) > most) most = membership_activity(other->mind);
    }
    master->asks = true;
    struct event *event = sim_event(s, EVENT_MASTER_HEARS, at);
    event->from = (uint8_t)k;
    event->life = master->life;
    event->number = most;
    sim_push(s, event);
}

static void on_frame_to_master(struct pccl_sim *s, struct control *control, const struct event *event) {
    uint32_t conn = (uint32_t)(control - s->controls), k = control->master;
    struct membership *mind = s->masters[k].mind;
    if (s->tracing) {
        char text[TEXT_BYTES];
        if (event->header.type != WIRE_HEARTBEAT)
            sim_line(s, "%s <- %d: %s", name_of(s, k), event->slot + 1,
                     judge_frame_name(s, text, &event->header, event->body));
    }
    struct wire_address source = {.family = 4, .bytes = {10, 0, 0, (uint8_t)(event->slot + 1)}};
    if (control->known) {
        judge_accusation(s, control, &event->header, event->body);
        sim_carry_out(s, k, membership_message(mind, s->now, conn, &event->header, event->body));
        return;
    }
    control->known = true;
    if (event->header.type == WIRE_RESUME) {
        sim_carry_out(s, k, membership_peer_resumed(mind, s->now, conn, &source, &event->header, event->body));
        return;
    }
    struct wire_hello hello;
    if (event->header.type != WIRE_HELLO || !wire_decode_hello(event->body, event->header.length, &hello)) {
        close_at_master(s, control);
        return;
    }
    if (k == 0 && s->master_count > 1 && membership_activity(mind) != WIRE_SERVES &&
        s->now >= s->masters[k].known_until) {
        ask_others(s, k);
        membership_await_others(mind);
    }
    sim_carry_out(s, k, membership_peer_connected(mind, s->now, conn, &source, &hello));
}

static void on_look(struct pccl_sim *s, const struct event *event) {
    struct master *master = &s->masters[event->from];
    if (!master->running || event->life != master->life) return;
    master->looks = false;
    if (membership_activity(master->mind) == WIRE_GATHERS) ask_others(s, event->from);
}

static void on_others_heard(struct pccl_sim *s, const struct event *event) {
    uint32_t k = event->from;
    struct master *master = &s->masters[k];
    if (!master->running || event->life != master->life) return;
    master->asks = false;
    master->known_until = s->now + (event->number == WIRE_IDLE ? IDLE_MS : BUSY_MS) * MS_NS;
    if (k == 0) sim_carry_out(s, k, membership_others_are(master->mind, s->now, (enum wire_activity)event->number));
    if (!master->running || event->life != master->life) return; // it has ended in the middle of what it said
    if (event->number == WIRE_SERVES && membership_activity(master->mind) == WIRE_GATHERS)
        sim_carry_out(s, k, membership_send_on(master->mind, s->now));
    else
        plan_look(s, k);
}

static void on_master_tick(struct pccl_sim *s, const struct event *event) {
    struct master *master = &s->masters[event->from];
    if (!master->running || event->life != master->life || event->at != master->tick_at) return;
    master->tick_at = INT64_MAX;
    if (membership_next_deadline(master->mind) <= s->now)
        sim_carry_out(s, event->from, membership_tick(master->mind, s->now));
    else
        plan_master_tick(s, event->from);
}

void sim_master_event(struct pccl_sim *s, struct event *event) {
    uint32_t k = event->from;
    if (event->kind == EVENT_MASTER_STARTS) {
        if (!s->masters[k].running) sim_start_master(s, k);
        return;
    }
    if (event->kind == EVENT_MASTER_GOES_ON) {
        master_goes_on(s, event);
        return;
    }
    if (event->kind == EVENT_MASTER_LOOKS) {
        on_look(s, event);
        return;
    }
    if (event->kind == EVENT_MASTER_HEARS) {
        on_others_heard(s, event);
        return;
    }
    if (event->kind == EVENT_MASTER_TICK) {
        on_master_tick(s, event);
        return;
    }
    struct control *control = &s->controls[event->index];
    if (!control->used || control->serial != event->serial || !control->at_master) return;
    if (s->masters[k].held && event->kind == EVENT_TO_MASTER) return; // nobody reads
    if (!s->masters[k].running) {
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
        struct event *told =
            sim_event(s, EVENT_PEER_LOSES, s->now + sim_delay(s, MASTER + control->master, control->slot));
        told->slot = control->slot;
        told->from = control->master;
        told->life = control->life;
        told->index = event->index;
        told->serial = control->serial;
        sim_push(s, told);
    }
    sim_carry_out(s, k, membership_peer_lost(s->masters[k].mind, s->now, event->index, why));
    control->at_master = false;
    if (!control->at_peer) control->used = false;
}

// ---- peers ----

// NULL: memory was refused.
static struct member *new_mind(struct pccl_sim *s, int slot) {
    struct wire_id id = sim_id(s, slot);
    struct member *mind = member_new(&id, s->processes[slot].group, LANES);
    if (mind != NULL) member_set_recovery(mind, s->recovery_ms, s->master_count);
    return mind;
}

void sim_start(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    if (p->running) return;
    uint32_t life = p->life + 1;
    member_free(p->mind);
    member_output_fini(&p->out);
    delta_free(p->state.delta);
    *p = (struct process){.running = true, .life = life, .tick_at = INT64_MAX};
    s->voted[slot] = 0;
    p->group = sim_chance(s, 4);
    p->program.since = s->now;
    p->engine.now.slots[0] = (uint8_t)slot;
    for (uint32_t i = 0; i < LEAVES; i++)
        p->state.leaves[i] = sim_mix(s->config.seed * 64 + (sim_chance(s, 2) ? i : 32 + i));
    p->mind = new_mind(s, slot);
    if (p->mind == NULL) abort(); // a test that cannot go on
    s->counts[COUNT_STARTS]++;
    SIM_TRACE(s, "peer %d: starts (life %u, group %u)", slot + 1, life, p->group);
    p->seek = (struct seek){.masters = s->addresses, .count = s->master_count};
    seek_begin(&p->seek, false, s->now);
    sim_join_master(s, slot);
    sim_act(s, slot);
}

// A master of the list has refused this newcomer: perhaps the next one serves the run.
static bool try_next_master(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    if (p->seek.again || !seek_failed(&p->seek, s->now)) return false;
    struct member *fresh = new_mind(s, slot);
    if (fresh == NULL) return false;
    SIM_TRACE(s, "peer %d: tries the next master: %s", slot + 1, member_text(p->mind));
    sim_close_controls(s, slot, true);
    sim_close_links(s, slot, true);
    p->parked_count = 0;
    member_free(p->mind);
    p->mind = fresh;
    p->tick_at = INT64_MAX;
    sim_join_master(s, slot);
    return true;
}

static void is_over(struct pccl_sim *s, int slot, bool told) {
    s->processes[slot].running = false;
    s->processes[slot].dark = !told;
    s->processes[slot].ended_at = s->now;
    if (!s->faulty) return;
    struct event *event = sim_event(s, EVENT_START, s->now + (int64_t)sim_below(s, RESTART_MS) * MS_NS);
    event->slot = (uint8_t)slot;
    sim_push(s, event);
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
        if (action->code == pcclMasterConnectionFailed && try_next_master(s, slot)) return;
        s->counts[COUNT_REFUSED]++;
        judge_dies(s, slot, member_text(p->mind), "refused");
        sim_end(s, slot, true);
        return;
    case MEMBER_VOTE_END: program_vote_ended(s, slot, action); return;
    case MEMBER_SYNC_PLAN: state_model_plan(s, slot, action->plan); return;
    case MEMBER_RECHECK: sim_push_for(s, slot, EVENT_RECHECK, s->now); return;
    case MEMBER_SEEK:
        SIM_TRACE(s, "peer %d: looks for a master: %s", slot + 1, member_lost_why(p->mind));
        sim_lose_master(s, slot);
        return;
    case MEMBER_FOUND:
        s->counts[COUNT_FOUND]++;
        p->seeking = false;
        SIM_TRACE(s, "peer %d: goes on with a master", slot + 1);
        return;
    case MEMBER_WAITING: SIM_TRACE(s, "peer %d: hears that the master %s", slot + 1, member_waits_why(p->mind)); return;
    case MEMBER_DIE:
        s->counts[COUNT_EXPELLED]++;
        judge_dies(s, slot, member_text(p->mind), "dead");
        sim_end(s, slot, true);
        return;
    }
}

// As in the body: nothing is known for sure any more.
static void die_of_memory(struct pccl_sim *s, int slot) {
    if (s->processes[slot].shortage.refused == 0)
        sim_fail(s, "bounded memory", "the mind of peer %d asks for more memory than there is", slot + 1);
    s->counts[COUNT_EXPELLED]++;
    judge_dies(s, slot, "the system refused memory", "dead");
    sim_end(s, slot, true);
}

// The frames after the actions, as the body does; what an action makes the mind say comes after that.
void sim_act(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    uint32_t life = p->life, turns = 0;
    while (sim_alive(s, slot, life) &&
           (p->out.count > 0 || p->out.frames.length > 0 || p->out.failed || p->out.frames.failed) &&
           s->state == PCCL_SIM_RUNNING) {
        struct member_output out = p->out;
        if (++turns > TURNS_MOST)
            sim_fail(s, "progress", "the mind of peer %d and its program answer each other without end", slot + 1);
        p->out = (struct member_output){0};
        const struct member *mind = p->mind;
        if (out.failed || out.frames.failed) {
            member_output_fini(&out);
            die_of_memory(s, slot);
            return;
        }
        for (size_t i = 0; i < out.count && sim_alive(s, slot, life) && p->mind == mind; i++)
            run_action(s, slot, &out.actions[i]);
        if (sim_alive(s, slot, life) && p->mind == mind) sim_to_master(s, slot, &out.frames);
        member_output_clear(&out);
        if (sim_alive(s, slot, life) && p->out.capacity == 0 && p->out.frames.capacity == 0 && p->shortage.times == 0 &&
            !p->out.failed && !p->out.frames.failed)
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
    if (s->now >= control->lost_from && event->kind == EVENT_TO_PEER) return;
    if (event->kind == EVENT_TO_PEER && !event->flag) {
        if (s->tracing && event->header.type != WIRE_HEARTBEAT) {
            char text[TEXT_BYTES];
            sim_line(s, "peer %d <- %s: %s", slot + 1, name_of(s, control->master),
                     judge_frame_name(s, text, &event->header, event->body));
        }
        s->counts[COUNT_ORDERS] += event->header.type == WIRE_EPOCH && event->body[0] == WIRE_REASON_ORDER;
        s->counts[COUNT_TOLD_LATE] += event->header.type == WIRE_RESUMED && (event->body[4] | event->body[5]) != 0;
        s->counts[COUNT_AFRESH] += event->header.type == WIRE_WELCOME && member_is_seeking(p->mind);
        member_frame(p->mind, &event->header, event->body, s->now, &p->out);
        return;
    }
    sim_close_controls(s, slot, true);
    member_disconnected(p->mind, event->flag ? "garbage" : "the master closed", s->now, &p->out);
}

// Before it carries out what its mind has said.
static bool blocks(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    int64_t blocked = p->running && p->out.count + p->out.frames.length > 0 ? sim_block_fault(s, false) : 0;
    if (blocked == 0) return false;
    SIM_TRACE(s, "fault: the control thread of peer %d blocks for %lld ms", slot + 1, (long long)(blocked / MS_NS));
    p->stopped_until = s->now + blocked;
    sim_push_for(s, slot, EVENT_PEER_GOES_ON, p->stopped_until - 1);
    return true;
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
    case EVENT_SEEK: sim_seek_master(s, slot, event->flag); break;
    case EVENT_SEEK_ANEW: sim_seek_anew(s, slot, event->serial); break;
    case EVENT_RECHECK: sim_judge_parked(s, slot); break;
    case EVENT_PROGRAM: program_go_on(s, slot); break;
    case EVENT_SYNC_TICK: state_model_tick(s, slot); break;
    default: break;
    }
    if (event->kind == EVENT_PEER_GOES_ON || !blocks(s, slot)) sim_act(s, slot);
}
