// A peer's process: its core, its connections, and the models in it.
#ifndef PCCL_SIM_PROCESS_H
#define PCCL_SIM_PROCESS_H

#include "peer/member.h"
#include "peer/recovery.h"
#include "sim/effect.h"
#include "sim/queue.h"

enum { LANES = 2, PARKED_MOST = SLOTS > DATA_SLOTS ? SLOTS : 64, PARKED_OF_FEW = 64 };

enum { CONTROLS_MOST = SLOTS > DATA_SLOTS ? 4 * SLOTS : 128, CONTROLS_OF_FEW = 128 };
static inline uint32_t controls_most(const struct pccl_sim *s) {
    return s->only_votes ? CONTROLS_MOST : CONTROLS_OF_FEW;
}

struct process {
    bool running;
    uint32_t life, group;
    int64_t ended_at;
    bool dark;    // it has ended, and nobody was told
    bool tainted; // a frame of its connection was changed: what it says is not judged
    bool misused; // its program gave a wrong revision
    struct member *core;
    struct member_output out;
    uint32_t control; // + 1; 0: none
    struct recovery_seek seek;
    bool seeking;                     // the master is lost
    uint32_t links[SLOTS][LANES + 1]; // connection + 1
    uint32_t met[SLOTS];              // lives that it had a link to
    uint32_t dialled[SLOTS];          // the first of its connections that it has dialled there, + 1
    int ended;                        // slot to which a link has ended, which the state is still to hear of, + 1
    uint32_t parked_count;
    // of this slot, for ever
    struct engine_model *engine;
    struct state_model *state;
    struct program *program;
    struct {
        struct wire_link_hello hello;
        uint32_t connection, serial;
        int64_t until;
    } parked[PARKED_MOST];
};

static inline bool sim_alive(const struct pccl_sim *s, int slot, uint32_t life) {
    return s->processes[slot].running && s->processes[slot].life == life;
}
static inline struct wire_id sim_id(const struct pccl_sim *s, int slot) {
    return sim_id_of(slot, s->processes[slot].life);
}
// An event of the process in that slot.
static inline struct event *sim_push_for(struct pccl_sim *s, int slot, enum event_kind kind, int64_t at) {
    struct event *event = sim_event(s, kind, at);
    event->slot = (uint16_t)slot;
    event->life = s->processes[slot].life;
    sim_push(s, event);
    return event;
}
// The state machine of the process in that slot waits until `next`. A tick that is queued before it looks again.
static inline void sim_plan_tick(struct pccl_sim *s, int slot, uint32_t life, int64_t next) {
    int64_t *tick_at = &s->bodies[slot].tick_at;
    if (next >= *tick_at) return;
    *tick_at = next > s->now ? next : s->now;
    struct event *event = sim_event(s, EVENT_TICK, *tick_at);
    event->slot = (uint16_t)slot;
    event->life = life;
    sim_push(s, event);
}

#endif
