// Decides which links a peer's memberships require, and tracks which of them are up. Pure.
//
// Links are made for two memberships at once: the epoch in force and, while newcomers are admitted or an order is
// tried, the candidate. A neighbour (another member of the own group) carries one flag per membership, and a link is
// required when either asks for it. Nothing is closed because a membership changed; a neighbour that is in neither is
// dropped with all its links.
//
// A link that is lost is not dialled again until the master has answered with a new group epoch: bytes of the old one
// may be lost with the connection, so the link must not carry that epoch any further.
//
// Lanes lead to the neighbours of the ring, and for weighted all-reduces to all members. To a far one the
// later joined of a pair makes spare lanes too, as many as both have room for.
// Nobody waits for them: one that cannot be made is done without, but one that is lost takes bytes with it as any
// other.
//
// Two that nobody can dial meet at a relay outside of the run or, if there is none or it fails, at a member that can be
// dialled. Both ends choose it from the same membership by the same numbers (mesh.c), so nobody has to tell them; the
// next epoch chooses anew. The one that waits does so at the second choice, too, where the other one tries it next.
#ifndef PCCL_PEER_MESH_H
#define PCCL_PEER_MESH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "peer/decision.h"

enum {
    MESH_GRACE_MS = 30, // before a fresh group epoch is asked for: most often a loss brings one by itself
};

enum mesh_membership { MESH_EPOCH, MESH_CANDIDATE, MESH_MEMBERSHIPS };

struct mesh_peer;

struct mesh {
    struct wire_id self;
    uint32_t lanes, spare; // of this peer; `spare` is set before it has neighbours
    uint64_t join_number;  // likewise: the later joined of a pair dials, unless
    bool closed;           // one of the two alone cannot be dialled
    bool relay;            // two that nobody can dial meet at one outside of the run
    bool several;          // this peer announces several addresses
    struct mesh_peer *peers;
    size_t count, room;

    // of the epoch in force
    uint64_t group_epoch;
    bool linked;             // all its links were there once since it began
    int64_t linked_deadline; // when missing links are reported
    int64_t fresh_at;        // when a fresh group epoch is asked for; 0 = never
    int64_t relinked_until;  // until then a link that breaks and is older is no second failure of its pair

    struct {
        bool open; // and not answered yet
        uint32_t attempt;
        int64_t deadline;
    } candidate;
    struct wire_linked answer; // never read before it is written
};

// When an event happens, and what frames say then.
struct mesh_event {
    struct wire_header header; // of a frame to the master
    bool accepted;             // this peer is, so that its epoch counts
    int64_t limit_ns;          // how long a link may take to be made
    int64_t now_ns;
};

void mesh_init(struct mesh *mesh, const struct wire_id *self, uint32_t lanes);
void mesh_fini(struct mesh *mesh);

// The number in a run, which may be another one than before: nothing of a candidate of that stays.
void mesh_join(struct mesh *mesh, uint64_t join_number, struct member_output *out);

// ---- memberships; what they require is dialled by mesh_make ----
// The own group has changed since `before`, which is NULL for a newcomer. `mends`: the epoch may be there to make
// broken links again. False: memory was refused.
bool mesh_begin_epoch(struct mesh *mesh, const struct mesh_event *at, const struct epoch *before,
                      const struct epoch *epoch, bool mends);
// False: memory was refused.
bool mesh_begin_candidate(struct mesh *mesh, const struct mesh_event *at, uint32_t attempt,
                          const struct epoch_ring *ring);
// Drops neighbours that are in no membership any more, as mesh_make does.
void mesh_end_candidate(struct mesh *mesh, struct member_output *out);
// Tells what is complete; `dials` what is missing first.
void mesh_make(struct mesh *mesh, const struct mesh_event *at, bool dials, struct member_output *out);

// ---- links; as the events of peer/member ----
void mesh_link_up(struct mesh *mesh, const struct mesh_event *at, const struct wire_id *id, uint32_t index,
                  uint64_t serial, uint32_t latency_us, struct member_output *out);
void mesh_link_proved(struct mesh *mesh, const struct mesh_event *at, const struct wire_id *id, uint32_t index,
                      struct member_output *out);
void mesh_link_narrow(struct mesh *mesh, const struct wire_id *id);
void mesh_link_failed(struct mesh *mesh, const struct mesh_event *at, const struct wire_id *id, uint32_t index,
                      struct member_output *out);
// Ignores the loss of a connection that another one has replaced, except that a malformed frame is reported to the
// master, also of a link that need not be there.
void mesh_link_lost(struct mesh *mesh, const struct mesh_event *at, const struct wire_id *id, uint32_t index,
                    uint64_t serial, enum wire_link_reason reason, struct member_output *out);
void mesh_tick(struct mesh *mesh, const struct mesh_event *at, struct member_output *out);
int64_t mesh_deadline(const struct mesh *mesh, bool accepted); // of the next tick; INT64_MAX = never

// ---- state ----
// Where a neighbour is dialled; NULL: it is none.
const struct wire_reach *mesh_reach(const struct mesh *mesh, const struct wire_id *id);
// Whether a link or probe of a peer that knows the run's secret is let in.
enum member_judgement mesh_judge(const struct mesh *mesh, const struct wire_link_hello *hello);

#endif
