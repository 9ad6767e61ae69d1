#include "sim/seeking.h"

#include "sim/controls.h"
#include "sim/masters.h"
#include "sim/state.h"
#include "sim/trace.h"
#include "sim/truth.h"

static void connect_to(struct pccl_sim *s, int slot, uint32_t master) {
    struct process *p = &s->processes[slot];
    struct control *control = control_open(s, slot, master);
    if (control == NULL) return;
    p->control = (uint32_t)(control - s->controls) + 1;
    member_join(p->core, 48149, s->now, &p->out);
    if ((s->faults & PCCL_SIM_DUPLICATE) != 0 && s->faulty && sim_chance(s, 6))
        control_double(s, slot, master, &p->out.frames);
}

// Skips dead masters, which refuse. The peer finds out by itself about the last one of the list.
void sim_join_master(struct pccl_sim *s, int slot) {
    struct process *p = &s->processes[slot];
    while (!s->masters[p->seek.at].running && !s->masters[p->seek.at].held && p->seek.at + 1 < p->seek.count)
        recovery_seek_failed(&p->seek, s->now);
    connect_to(s, slot, p->seek.at);
}

static void seek_at(struct pccl_sim *s, int slot, int64_t at, bool late) {
    struct event *event = sim_event(s, EVENT_SEEK, at > s->now ? at : s->now);
    event->slot = (uint8_t)slot;
    event->life = s->processes[slot].life;
    event->flag = late;
    sim_push(s, event);
}

void sim_lose_master(struct pccl_sim *s, int slot, bool anew) {
    struct process *p = &s->processes[slot];
    if (p->control != 0 && !p->seeking) { // silent
        struct wire_buffer moved = {0};
        wire_encode_empty(&moved, member_header(p->core), WIRE_MOVED);
        sim_send_master(s, p, &moved);
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

void sim_seek_master(struct pccl_sim *s, int slot, bool late) {
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
    struct control *control = control_open(s, slot, master);
    if (control == NULL) return;
    p->control = (uint32_t)(control - s->controls) + 1;
    struct wire_hash content = {0};
    enum member_tensors tensors = state_model_restart(s, slot, &content);
    s->truths->resumed[slot].life = p->life;
    s->truths->resumed[slot].generation = member_header(p->core).generation;
    s->truths->resumed[slot].epoch = member_header(p->core).epoch;
    member_resume(p->core, 48149, master > 0, tensors, &content, s->now, &p->out);
}
