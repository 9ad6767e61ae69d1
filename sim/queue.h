// Events in virtual time. Of two events at one moment the one pushed first comes first.
#ifndef PCCL_SIM_QUEUE_H
#define PCCL_SIM_QUEUE_H

#include "sim/world.h"

enum {
    EVENTS_MOST = SLOTS > DATA_SLOTS ? 1 << 20 : 1 << 16,
    EVENTS_OF_FEW = 1 << 16,
    LEAVES = 6,    // of a shared state
    ACKS_MOST = 4, // names in one ACK; the engine's limit, smaller
};

enum event_kind {
    // for a master or a peer, over a path that may be cut
    EVENT_CONTROL,      // a frame between the two; `flag`: from here on there is garbage
    EVENT_CONTROL_ENDS, // their connection
    EVENT_DIAL_ARRIVES,
    EVENT_DIAL_ENDS, // `flag`: accepted; else refused
    EVENT_LINK_FRAME,
    EVENT_LINK_ENDS, // `flag`: that side gives up by itself
    // for a master or a peer
    EVENT_TICK,
    EVENT_GOES_ON,   // its thread no longer blocks
    EVENT_LOOKS,     // a master: for a run that another one serves
    EVENT_HEARS,     // a master: `number` is the activity of the busiest other one, when they were asked
    EVENT_DIAL_LATE, // its limit has passed
    EVENT_PROBED,
    EVENT_RECHECK, // parked hellos
    EVENT_SEEK,    // a master is looked for; `flag`: it did not answer
    EVENT_ENGINE,  // the engine's thread looks at what it was told
    EVENT_PROGRAM,
    EVENT_NOTICE, // it has to go
    EVENT_SYNC_TICK,
    // for a slot
    EVENT_START,
    EVENT_LET_GO, // the child of a process that has ended ends, too
    EVENT_TAKEN_OUT,
    EVENT_FAULT,
    EVENT_LOOK,
};

// A frame between two peers, by its contents.
struct frame {
    uint16_t type;
    uint16_t shard, hop;
    uint8_t name_count;
    uint16_t segment;
    uint32_t sequence, extra;
    struct wire_fingerprint fingerprint;
    uint32_t contributors; // slots in `value`
    uint64_t run, epoch, tag, offset, value;
    struct wire_op_name names[ACKS_MOST];
    uint64_t leaves[LEAVES];
};

struct event {
    int64_t at;
    uint64_t order;
    enum event_kind kind;
    uint16_t slot, from; // who it is for; whom it comes from
    bool flag;
    uint32_t life; // of slot
    uint32_t other_life, index, serial;
    uint64_t number;
    struct wire_header header; // control frame
    uint8_t *body;             // owned
    struct frame frame;
    uint32_t next; // parked, or unused
};

struct heap_entry {
    int64_t at;
    uint64_t order;
    uint32_t event;
};

struct queue {
    struct event events[EVENTS_MOST]; // pool
    struct heap_entry heap[EVENTS_MOST];
    uint32_t used, free, heap_count;
    uint64_t orders;
    int64_t busy_at; // many events at one moment: a livelock
    uint32_t busy;
};

// To be filled and pushed; when there are too many, the run fails.
struct event *sim_event(struct pccl_sim *s, enum event_kind kind, int64_t at);
void sim_push(struct pccl_sim *s, struct event *event);
void sim_requeue(struct pccl_sim *s, struct event *event, int64_t at);
struct event *sim_pop(struct pccl_sim *s); // NULL: none
void sim_event_free(struct pccl_sim *s, struct event *event);
void sim_queue_clear(struct pccl_sim *s);

#endif
