// The bodies of masters: they carry out what the state machine says, and feed it what happens. In place of
// master/master.
#ifndef PCCL_SIM_MASTERS_H
#define PCCL_SIM_MASTERS_H

#include "master/core.h"
#include "sim/effect.h"
#include "sim/queue.h"

struct master {
    bool running, rests; // rests: it is started again when the next faults begin
    struct master_core *core;
    uint32_t life; // no two masters have the same
    int64_t began_at;
    bool looks, asks;             // it will look whether another one serves a run; it has asked the others
    int64_t known_until;          // what they said holds
    bool held;                    // it has ended, and a child of it holds its port and its connections
    const struct actions *unsaid; // its thread blocks in the middle of these; NULL: it does not
    size_t said;                  // of them
};

void sim_master_event(struct pccl_sim *s, struct event *event);
void sim_start_master(struct pccl_sim *s, uint32_t master);
void sim_end_master(struct pccl_sim *s, uint32_t master);  // and perhaps starts it again
void sim_hold_master(struct pccl_sim *s, uint32_t master); // it ends, but a child holds what it had
void sim_let_go_master(struct pccl_sim *s, uint32_t master);

const char *master_name(const struct pccl_sim *s, uint32_t master);

#endif
