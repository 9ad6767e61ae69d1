// The candidate for the next epoch: members and newcomers, or another order or other weights of the members. Each
// member makes its links and reports whom it could not reach. Then the master decides who is left out, and whether the
// candidate comes into force.
#ifndef PCCL_MASTER_CANDIDATE_H
#define PCCL_MASTER_CANDIDATE_H

#include "master/breaks.h"
#include "master/membership.h"

enum { CANDIDATE_WORDS = WIRE_MAX_MEMBERS / 64 };

struct candidate {
    uint8_t kind; // WIRE_VOTE_UPDATE or WIRE_VOTE_OPTIMIZE
    bool stale;   // the epoch in force or the candidate's members changed under it
    bool lingers; // all answered; until `deadline_ns` a death may explain missing links of newcomers
    bool judged;  // all answered, and a broken link between accepted peers must be repaired first
    uint32_t attempt;
    uint32_t count, unanswered;
    uint32_t accepted_unanswered, hopeless; // of the unanswered
    int64_t deadline_ns;                    // INT64_MAX: judged
    // From here on nothing is read before it is written.
    struct peer_record *order[WIRE_MAX_MEMBERS];
    uint16_t weight[WIRE_MAX_MEMBERS], site[WIRE_MAX_MEMBERS]; // by the place in `order`
    uint64_t unreachable[WIRE_MAX_MEMBERS][CANDIDATE_WORDS];   // from slot, to slot, as answered
    uint64_t narrow[WIRE_MAX_MEMBERS][CANDIDATE_WORDS];        // likewise, of those: large packets are lost
};

enum candidate_verdict {
    CANDIDATE_PASSES,
    CANDIDATE_FAILS,  // it was to make ops faster alone, and what is in force stays
    CANDIDATE_REPAIRS // somebody is expelled, or a link between members is made again, first
};

static inline void candidate_init(struct candidate *candidate) {
    memset(candidate, 0, offsetof(struct candidate, order));
}
// The members, and all newcomers that are invited. False: there are none of these.
bool candidate_form(struct candidate *candidate, struct membership *table);
// `order` and `count` are set: each member keeps its weight and its site, and a newcomer gets a fair weight.
void candidate_keep_weights(struct candidate *candidate);
// `order`, `count`, `weight` and `site` are set: sends the candidate to its members, if there are others to make links
// to.
void candidate_propose(struct candidate *candidate, struct membership *table, uint8_t kind);
// A member says whom it could not reach. When the last one has, `unanswered` is 0. A candidate that would lose a
// newcomer for a missing link then lingers: the end of a control connection tells of a death within moments, and a
// newcomer is not to blame for its links to the dead.
void candidate_linked(struct candidate *candidate, struct membership *table, struct peer_record *peer,
                      const struct wire_linked *linked);
// Returns whether the candidate is to be judged now.
bool candidate_is_due(const struct candidate *candidate);
// The caller has seen `deadline_ns` pass: the candidate is judged by the answers that are here.
void candidate_time_out(struct candidate *candidate);
// All have answered, or the time for it is over. `breaks`: by the group's slot.
enum candidate_verdict candidate_judge(struct candidate *candidate, struct membership *table, struct breaks *breaks);
// Makes the candidate's newcomers members and its order that of the membership. Returns the lowest join number among
// the newcomers, or UINT64_MAX if there are none.
uint64_t candidate_commit(struct candidate *candidate, struct membership *table);

#endif
