// Connections between peers and masters. Each direction keeps its order. A path that is cut loses nothing: what was
// sent comes when the cut is over, or the connection is given up.
#ifndef PCCL_SIM_CONTROLS_H
#define PCCL_SIM_CONTROLS_H

#include "sim/process.h"

enum { CONTROLS_MOST = SLOTS > DATA_SLOTS ? 4 * SLOTS : 128, CONTROLS_OF_FEW = 128 };

// A connection between a peer and a master, in the master's eyes named by its place in the table.
struct control {
    bool used;
    bool ghost; // a second one of the same peer
    bool known; // its first frame has come
    uint16_t slot;
    uint8_t master;
    uint32_t life, group, serial;
    bool at_peer, at_master; // open there
    int64_t lost_from;       // what reaches the peer from then on is lost; INT64_MAX: nothing is
    int64_t up_at, down_at;  // last deliveries, since nothing overtakes
};

void controls_begin(struct pccl_sim *s);
static inline uint32_t controls_most(const struct pccl_sim *s) {
    return s->only_votes ? CONTROLS_MOST : CONTROLS_OF_FEW;
}
// Opens a peer's connection to a master. Returns NULL if there are too many; the run fails then.
struct control *control_open(struct pccl_sim *s, int slot, uint32_t master);
// The same hello again, on a connection of its own that ends at once.
void control_double(struct pccl_sim *s, int slot, uint32_t master, const struct wire_buffer *hello);
// The peer says what is in `frames`.
void sim_to_master(struct pccl_sim *s, int slot, struct wire_buffer *frames);
void sim_send_master(struct pccl_sim *s, struct process *p, struct wire_buffer *frame); // and lets go of it
// The master says a frame of which the header is whole.
void control_to_peer(struct pccl_sim *s, uint32_t conn, const uint8_t *frame);
void control_close_at_master(struct pccl_sim *s, struct control *control);
// Loses everything that the master sends from time `from` on.
void control_lose(struct control *control, int64_t from);
// The peer hears that the master has closed, though that has not closed yet.
void control_tell_peer(struct pccl_sim *s, const struct control *control);
void sim_close_controls(struct pccl_sim *s, int slot, bool told);
void control_close_life(struct pccl_sim *s, int slot, uint32_t life, bool told); // those of an earlier life

#endif
