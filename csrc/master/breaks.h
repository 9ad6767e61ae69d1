// Links that break between living members of one group. A break that comes from a death is explained by the control
// socket within moments, so it is acted on after a short grace only: the first time the group gets a new epoch in which
// both sides make the link again; if it fails once more before both have had all their links complete, one of the two
// is expelled: the one with more broken pairs, whichever side of them told; else the one that more members report, else
// the one that joined later. That judgement waits until all have had the time to speak, for the first report alone says
// nothing of which end is at fault.
//
// Malformed frames are judged apart, because new links do not cure their sender. A report of them makes a dispute of
// the pair, and it does not matter which of the two reported: a sender and a lying reporter look alike to the master.
// If one member is at fault, it is part of every dispute, so only that one can have two. The master expels a member
// with disputes with two others. Of a single pair that stays in dispute it expels the one that joined later. Disputes
// outlive new links, and end BREAKS_DISPUTE_LIMITS heartbeat limits after the last report.
#ifndef PCCL_MASTER_BREAKS_H
#define PCCL_MASTER_BREAKS_H

#include "master/membership.h"

enum {
    // between a link's break and its repair: most breaks are deaths, told by the end of the control connection
    BREAKS_GRACE_MS = 30,
    // in a heartbeat limit: the time to say whom one reports, before somebody is expelled for broken links
    BREAKS_HEARING_OF = 8,
    // heartbeat limits after which a dispute is forgotten
    BREAKS_DISPUTE_LIMITS = 32,
    // reports in all disputes of a member before it is expelled: at most one of each pair per group epoch
    BREAKS_MALFORMED_MAX = 3,
    // reports in the single dispute of a pair; a member at fault has had the time to meet others
    BREAKS_MALFORMED_PAIR_MAX = 5,
};

// Two members whose link broke and is not yet known to work again.
struct breaks_pair {
    uint16_t a, b; // slots, a < b
    uint8_t failures;
    bool pending; // down, not yet acted on
    bool a_reports, b_reports;
    int64_t silent_at;       // when it was last told to be silent, 0 = never
    bool contested;          // malformed frames were reported in the group epoch in force
    uint8_t malformed;       // group epochs in which they were reported
    int64_t malformed_at_ns; // time of the last report
};

// All zero until the group enters its first group epoch.
struct breaks {
    struct breaks_pair *pairs;
    uint32_t count;
    size_t capacity;
    int64_t due_ns;     // when the broken pairs are looked at; INT64_MAX: no link is down
    int64_t hearing_ns; // since then somebody may be expelled; 0: not
};

void breaks_fini(struct breaks *breaks);
// A new group epoch makes all links again.
void breaks_begin(struct breaks *breaks);
// A member cannot reach another one of its group.
void breaks_add(struct breaks *breaks, struct membership *table, struct peer_record *reporter,
                struct peer_record *reported, enum wire_link_reason reason);
// A member reports malformed frames of another one of its group, maybe from a group epoch that is over.
void breaks_malformed(struct breaks *breaks, struct membership *table, struct peer_record *reporter,
                      struct peer_record *reported);
// All the peer's links of the group epoch in force are complete.
void breaks_linked(struct breaks *breaks, struct membership *table, struct peer_record *peer);
// At due_ns: expels those at fault, or asks for a new group epoch.
void breaks_tick(struct breaks *breaks, struct membership *table, struct peer_group *group);
void breaks_forget(struct breaks *breaks, uint32_t slot); // of a member that is out

#endif
