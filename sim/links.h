// Links between peers. Each direction of a connection keeps its order; connections overtake each other.
//
// A path that is cut loses nothing, as with TCP: what was sent arrives when the cut is over. A connection whose bytes
// stay unacknowledged for user_timeout_ns is given up by the side that sent them. Order outlives a cut and a stopped
// process because whatever cannot be delivered is put off, in the order in which it would have come, to the same
// moment.
#ifndef PCCL_SIM_LINKS_H
#define PCCL_SIM_LINKS_H

#include "sim/process.h"

enum { CONNECTIONS_MOST = SLOTS > DATA_SLOTS ? 1 << 20 : 2048, CONNECTIONS_OF_FEW = 2048 };

// A link between two peers, or a control connection of a peer with a master. Ends: 0 has dialled, 1 accepts.
struct connection {
    bool used, open[2], broken;
    bool ghost; // a second one, which its dialler has forgotten
    uint16_t ends[2];
    uint32_t lives[2], serial, index;
    int64_t last[2]; // delivery to that end
    // of a link
    struct wire_id to;                        // whom the dialler means
    uint32_t next;                            // dialled by the same process to the same slot, + 1
    uint32_t parked_first[2], parked_last[2]; // event + 1: frames of an epoch not entered yet, and those behind them
    // of a control connection
    bool known; // its first frame has come
    uint32_t group;
    int64_t lost_from; // what reaches the peer from then on is lost; INT64_MAX: nothing is
};

struct links {
    struct connection all[CONNECTIONS_MOST];
    uint32_t high;  // those from here on were never used
    uint32_t first; // those before it are in use
};

// ---- connections of either kind ----

// An event at that end, of this kind.
struct event *links_event(struct pccl_sim *s, const struct connection *c, enum event_kind kind, uint32_t end,
                          int64_t at);
// When something sent to that end now is there.
int64_t links_arrival(struct pccl_sim *s, struct connection *c, uint32_t end);
// Closes one end; the other end learns of it after it has received everything sent before.
void links_close_end(struct pccl_sim *s, struct connection *c, uint32_t end, bool told);
// Closes what a process had in that life, of the first `count` of a table.
void links_close_life(struct pccl_sim *s, struct connection *table, uint32_t count, int slot, uint32_t life, bool told);

// ---- links ----

void links_begin(struct pccl_sim *s);
void sim_dial(struct pccl_sim *s, int slot, const struct member_action *action);
void sim_dial_arrives(struct pccl_sim *s, struct event *event);
void sim_dial_ends(struct pccl_sim *s, struct event *event);
void sim_refuse_dial(struct pccl_sim *s, const struct event *event); // nobody listens there any more
void sim_dial_late(struct pccl_sim *s, struct event *event);
// The `i`-th of the hellos that were parked before they are judged again; `count` of them.
uint32_t links_take_parked(struct pccl_sim *s, int slot);
void links_judge_parked(struct pccl_sim *s, int slot, uint32_t i);
void sim_expire_parked(struct pccl_sim *s, int slot);
void sim_link_ends(struct pccl_sim *s, struct event *event);
void sim_drop_links(struct pccl_sim *s, int slot, int other, uint32_t other_life);
void sim_close_links(struct pccl_sim *s, int slot, bool told); // the process ends
void sim_hold(struct pccl_sim *s, int slot);                   // the same, but a child holds what it had
void sim_let_go(struct pccl_sim *s, int slot, uint32_t life);  // and ends
void sim_break(struct pccl_sim *s, uint32_t connection);
void sim_fall_silent(struct pccl_sim *s, int from, int to);
bool sim_has_link(const struct pccl_sim *s, int slot, int other);
// False: there is no link now.
bool sim_send(struct pccl_sim *s, int slot, int other, uint32_t index, const struct frame *frame);
// A frame has come. True: it is to be delivered now, to a peer that is in that group epoch; else it is void, or
// `*kept`: the event waits for its epoch.
bool sim_link_frame(struct pccl_sim *s, struct event *event, uint64_t epoch, bool *kept);
// The next frame on a link that waited for this epoch, to be delivered and freed; NULL: none.
struct event *links_next_parked(struct pccl_sim *s, int slot, int other, uint32_t index, uint64_t epoch);

#endif
