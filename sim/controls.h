// Connections between peers and masters. Each direction keeps its order. A path that is cut loses nothing: what was
// sent comes when the cut is over, or the connection is given up.
#ifndef PCCL_SIM_CONTROLS_H
#define PCCL_SIM_CONTROLS_H

#include "sim/links.h"

// Opens a peer's connection to a master, which is named by its place in the table. Returns NULL if there are too many;
// the run fails then.
struct connection *control_open(struct pccl_sim *s, int slot, uint32_t master);
// The same hello again, on a connection of its own that ends at once.
void control_double(struct pccl_sim *s, int slot, uint32_t master, const struct wire_buffer *hello);
// The peer says what is in `frames`.
void sim_to_master(struct pccl_sim *s, int slot, struct wire_buffer *frames);
void sim_send_master(struct pccl_sim *s, int slot, struct wire_buffer *frame); // and lets go of it
// The peer says that, in a frame of its own.
#define SIM_TELL(s, slot, name, header, message) \
    do { \
        struct wire_buffer told_frame = {0}; \
        wire_encode_##name(&told_frame, header, message); \
        sim_send_master(s, slot, &told_frame); \
    } while (0)
// The master says a frame of which the header is whole.
void control_to_peer(struct pccl_sim *s, uint32_t conn, const uint8_t *frame);
void sim_close_controls(struct pccl_sim *s, int slot, bool told);

#endif
