// The bodies of peers: they carry out what the state machine says, and feed it what happens. In place of peer/control.
#ifndef PCCL_SIM_PEERS_H
#define PCCL_SIM_PEERS_H

#include "sim/queue.h"

void sim_start(struct pccl_sim *s, int slot);
void sim_end(struct pccl_sim *s, int slot, bool told); // the process ends; told: its kernel closes what it had
void sim_end_held(struct pccl_sim *s, int slot);       // the process ends, but a child holds what it had
void sim_peer_event(struct pccl_sim *s, struct event *event, bool *kept);

#endif
