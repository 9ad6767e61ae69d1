#include "sim/process.h"

bool sim_alive(const struct pccl_sim *s, int slot, uint32_t life) {
    return s->processes[slot].running && s->processes[slot].life == life;
}

struct wire_id sim_id(const struct pccl_sim *s, int slot) { return sim_id_of(slot, s->processes[slot].life); }

void sim_push_for(struct pccl_sim *s, int slot, enum event_kind kind, int64_t at) {
    struct event *event = sim_event(s, kind, at);
    event->slot = (uint16_t)slot;
    event->life = s->processes[slot].life;
    sim_push(s, event);
}
