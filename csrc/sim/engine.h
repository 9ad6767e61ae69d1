// A model of the data plane: what data/engine promises, with one number in place of a tensor.
#ifndef PCCL_SIM_ENGINE_H
#define PCCL_SIM_ENGINE_H

#include "peer/member.h"
#include "sim/queue.h"
#include "sim/ring.h"

enum {
    TAGS = 6,
    SHARDS_MOST = 2, // of an op that travel, for those of all members
    EARLY_MOST = 256,
    KEPT_MOST = 128,
    HELD_MOST = 8,
    LOSSES_MOST = 64,
    POISONS_MOST = 8,
};

enum op_phase { OP_NONE, OP_WAITING, OP_RUNNING, OP_COMPLETE, OP_OK, OP_LOST, OP_MISMATCHED };

struct op {
    enum op_phase phase;
    bool small, frozen, accused, mismatched;
    uint32_t variant, bytes;
    uint64_t input, adopted, ended_epoch;
    uint32_t calls; // with this tag in this phase of the program
    struct wire_op_name name;
    uint32_t instance;
    // small
    uint32_t missing, arrived; // slots
    // large
    bool next_ready;
    uint32_t to_receive, to_send;
    uint32_t shards, results; // that travel in the model; that are here
    struct frame held[HELD_MOST];
    uint32_t held_count;
    // of what has been reduced
    uint64_t value;
    uint32_t contributors;
};

struct kept {
    struct wire_op_name name;
    uint64_t value;
    uint32_t contributors, unacked; // slots
    bool supplier;
};

struct early {
    uint8_t from;
    struct frame frame;
};

struct engine_model {
    uint64_t run, generation;
    struct ring now, pending;
    bool woken;
    uint64_t losses[LOSSES_MOST];
    uint32_t loss_count;
    uint32_t sequences[TAGS];
    struct op ops[TAGS];
    struct kept kept[KEPT_MOST];
    uint32_t kept_count;
    struct early early[EARLY_MOST];
    uint32_t early_count;
    struct {
        uint32_t count;
        uint64_t epochs[POISONS_MOST]; // group epochs of mismatched ops that were not posted here, oldest first
    } poisons[TAGS];
    struct wire_op_name acks[SLOTS][ACKS_MOST];
    uint8_t ack_count[SLOTS];
    bool settling[SLOTS];
};

void engine_model_missed_loss(struct pccl_sim *s, int slot, uint64_t group_epoch);
void engine_model_enter(struct pccl_sim *s, int slot, const struct member_action *action);
void engine_model_ready(struct pccl_sim *s, int slot, uint64_t group_epoch);
// The thread is woken. True: a group epoch is entered; then come the frames that waited for it, and engine_model_go_on.
bool engine_model_obey(struct pccl_sim *s, int slot);
void engine_model_go_on(struct pccl_sim *s, int slot);
void engine_model_verdict(struct pccl_sim *s, int slot, const struct wire_verdict *verdict);
void engine_model_frame(struct pccl_sim *s, int slot, int from, const struct frame *frame);
// False: it is a member of the epoch in force, and is forgotten with that.
bool engine_model_forget(struct pccl_sim *s, int slot, int other, uint32_t life);
void engine_model_post(struct pccl_sim *s, int slot, uint32_t tag, uint32_t bytes, uint32_t variant, uint64_t input,
                       uint64_t adopted);
void engine_model_settle(struct pccl_sim *s, int slot);

#endif
