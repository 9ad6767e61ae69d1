// The data plane of a simulated peer: the shipped state machine of the ops (ops/call_table), driven in virtual time,
// and an algorithm that adds numbers.
#ifndef PCCL_SIM_ENGINE_H
#define PCCL_SIM_ENGINE_H

#include "peer/member.h"
#include "sim/algorithm.h"

void engine_model_begin(struct pccl_sim *s, int slot); // with its process
void engine_model_end(struct engine_model *e);
void engine_model_missed_loss(struct pccl_sim *s, int slot, uint64_t group_epoch);
void engine_model_enter(struct pccl_sim *s, int slot, const struct member_action *action);
void engine_model_ready(struct pccl_sim *s, int slot, uint64_t group_epoch);
// The thread is woken. True: a group epoch is entered; then come the frames that waited for it, and engine_model_go_on.
bool engine_model_apply(struct pccl_sim *s, int slot);
void engine_model_go_on(struct pccl_sim *s, int slot);
void engine_model_verdict(struct pccl_sim *s, int slot, const struct wire_verdict *verdict);
void engine_model_frame(struct pccl_sim *s, int slot, int from, const struct frame *frame);
// False: it is a member of the epoch in force, and is forgotten with that.
bool engine_model_forget(struct pccl_sim *s, int slot, int other, uint32_t life);
void engine_model_post(struct pccl_sim *s, int slot, uint32_t tag, const struct call *what, uint64_t adopted);
bool engine_model_await(struct pccl_sim *s, int slot, uint32_t tag); // true: it has ended
void engine_model_drain(struct pccl_sim *s, int slot);

#endif
