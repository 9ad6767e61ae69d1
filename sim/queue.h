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
    // for a master: `from` is its place in the list
    EVENT_TO_MASTER,
    EVENT_MASTER_LOSES, // a control connection has ended
    EVENT_MASTER_TICK,
    EVENT_MASTER_LOOKS,   // for a run that another one serves
    EVENT_MASTER_HEARS,   // what the others do: `number` is the activity of the busiest, when they were asked
    EVENT_MASTER_GOES_ON, // its thread no longer blocks
    EVENT_MASTER_STARTS,
    // for a peer
    EVENT_TO_PEER,
    EVENT_PEER_LOSES, // its control connection
    EVENT_PEER_TICK,
    EVENT_DIAL_ARRIVES,
    EVENT_DIAL_ENDS, // `flag`: accepted; else refused
    EVENT_DIAL_LATE, // its limit has passed
    EVENT_LINK_FRAME,
    EVENT_LINK_ENDS,
    EVENT_PROBED,
    EVENT_RECHECK, // parked hellos
    EVENT_SEEK,    // a master is looked for; `flag`: it did not answer
    EVENT_ENGINE,  // the engine's thread looks at what it was told
    EVENT_PROGRAM,
    EVENT_NOTICE, // it has to go
    EVENT_SYNC_TICK,
    EVENT_PEER_GOES_ON, // its control thread no longer blocks
    // for nobody
    EVENT_START, // a process
    EVENT_TAKEN_OUT,
    EVENT_LET_GO, // the child of a process that has ended ends, too
    EVENT_MASTER_LET_GO,
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
