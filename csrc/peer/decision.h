// Decisions of a peer's state machine: actions for its driver, frames for the master, which hellos to accept, and the
// vote that is open. Pure.
#ifndef PCCL_PEER_DECISION_H
#define PCCL_PEER_DECISION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/wire_control.h"
#include "net/wire_data.h"
#include "ops/members.h"
#include "pccl.h"

enum { MEMBER_NO_RANK = UINT32_MAX };

// The numbers a program may see of one epoch. `rank`: of this peer in its group, by join numbers; MEMBER_NO_RANK where
// it is not known.
struct member_view {
    uint64_t number, group_epoch;
    uint32_t global_world, group_world, groups, largest_group, rank;
};

struct member_view member_view_of(const struct wire_epoch *epoch, const struct epoch_ring *ring);

enum member_action_kind {
    MEMBER_DIAL, // make link (id, index) by reach, then member_link_up or member_link_failed
    // the same at a member with `reach` or, if that is empty, the relay of the settings. `waits`: the other end begins,
    // and nothing is to be told of it. `again`: half of the time is left for another relay
    MEMBER_RELAY,
    MEMBER_DROP_PEER, // id is gone: close its links
    // own group lost somebody in group_epoch, which is never entered; comes before the next ENTER_EPOCH
    MEMBER_MISSED_LOSS,
    MEMBER_ENTER_EPOCH, // own group changed: epoch; borrowed until the next event
    MEMBER_LINKS_READY, // all links of group_epoch are there
    MEMBER_VERDICT,     // verdict; borrowed until the next event
    MEMBER_PROBE,       // flood id by reach for duration_ms
    MEMBER_CONNECT_END, // code (pcclResult_t), view; text when it failed
    MEMBER_VOTE_END,    // code, value, view; text when it failed; `end` when SYNC_END ended it
    MEMBER_SYNC_PLAN,   // plan; borrowed until the next event
    MEMBER_RECHECK,     // parked hellos are to be judged again
    // the master is lost (text): close its connection, keep all links, connect to a master and call member_resume.
    // `anew`: to the first of the list if that can be, for there may be more by now
    MEMBER_SEEK,
    MEMBER_FOUND,   // the run goes on with the master of that connection
    MEMBER_WAITING, // the master has no run for this peer yet, or says for whom it waits: member_waits_why
    MEMBER_DONORS,  // newcomer: donors to copy the state from; then member_copied. Borrowed until the next event
    MEMBER_DIE,     // the communicator is dead: text
};

struct member_action {
    enum member_action_kind kind;
    struct wire_id id;
    struct wire_reach reach; // at least one address
    uint32_t index, duration_ms;
    bool anew, spare, waits, again;
    uint64_t group_epoch;
    const struct epoch *epoch;
    const struct wire_gone *gone; // of it: who is out, of all groups
    uint32_t gone_count;
    const struct wire_verdict *verdict;
    const struct wire_sync_plan *plan;
    const struct wire_sync_end *end;
    const struct wire_donors *donors;
    pcclResult_t code;
    uint64_t value;
    struct member_view view;
};

struct member_output {
    struct member_action *actions;
    size_t count, capacity;
    struct wire_buffer frames; // to the master; sent after the actions
    bool failed;
};

void member_output_clear(struct member_output *output); // keeps the memory
void member_output_fini(struct member_output *output);
// Adds an action, to be filled in. Never NULL: when memory is refused, `failed` is set and what is written is never
// read.
struct member_action *member_act(struct member_output *output, enum member_action_kind kind);

// Content of the tensors of a round of shared state when its master is lost.
enum member_tensors {
    MEMBER_TENSORS_AS_VOTED,
    MEMBER_TENSORS_RECEIVED, // wholly
    MEMBER_TENSORS_TORN,
};

// Returns what an epoch says of a member that is out of it. NULL: nothing.
const struct wire_gone *member_action_gone(const struct member_action *action, const struct wire_id *id);

enum member_judgement { MEMBER_ACCEPT, MEMBER_PARK, MEMBER_REJECT };

// The open vote of a peer, as it is cast, and cast again before the next master.
struct pending_vote {
    uint8_t kind;               // enum wire_vote_kind, 0 = none is open
    bool unsent;                // it was opened when nobody could hear it
    struct wire_sync_vote sync; // of WIRE_VOTE_SYNC
    bool differs_told;
    struct wire_sync_differs differs; // of the round at hand, or the last one
};

// `sync` is NULL unless `kind` is WIRE_VOTE_SYNC. `heard`: the master hears it.
void decision_vote_open(struct pending_vote *b, enum wire_vote_kind kind, const struct wire_sync_vote *sync,
                        bool heard);
static inline void decision_vote_close(struct pending_vote *b) {
    b->kind = 0;
    b->unsent = false;
}
// Casts it.
void decision_vote_cast(struct pending_vote *b, struct wire_header header, struct wire_buffer *out);
// The next master will hold the election again, with what the tensors hold now; `self` is whose they are.
void decision_vote_renew(struct pending_vote *b, enum member_tensors tensors, const struct wire_hash *content,
                         const struct wire_id *self);
// SYNC_DIFFERS. False: malformed.
bool decision_vote_take_differs(struct pending_vote *b, const uint8_t *body, size_t length);

#endif
