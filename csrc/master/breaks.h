// Links that break between living members of one group. A break that comes from a death is explained by the control
// socket within moments, so it is acted on after a short grace only: the first time the group gets a new epoch in which
// both sides make the link again; if it fails once more before both have had all their links complete, one of the two
// is expelled: the one with more broken pairs, whichever side of them told; else the one that more members accuse, else
// the one that joined later. That judgement waits until all have had the time to speak, for the first report alone says
// nothing of which end is at fault.
#ifndef PCCL_MASTER_BREAKS_H
#define PCCL_MASTER_BREAKS_H

#include "master/desk.h"

enum {
    // between a link's break and its repair: most breaks are deaths, told by the control socket
    BREAKS_GRACE_MS = 30,
    // in a heartbeat limit: the time to say whom one accuses, before somebody is expelled for broken links
    BREAKS_HEARING_OF = 8,
};

// Two members whose link broke and is not yet known to work again.
struct breaks_pair {
    uint16_t a, b; // slots, a < b
    uint8_t failures;
    bool pending; // down, not yet acted on
    bool a_accuses, b_accuses;
    int64_t silent_at; // when it was last told to be silent, 0 = never
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
// A member cannot reach another one of its group; silent: the link stands, and nothing comes.
void breaks_add(struct breaks *breaks, struct desk *desk, struct desk_peer *accuser, struct desk_peer *accused,
                bool silent);
// All the peer's links of the group epoch in force are complete.
void breaks_linked(struct breaks *breaks, struct desk *desk, struct desk_peer *peer);
// At due_ns: expels those at fault, or asks for a new group epoch.
void breaks_tick(struct breaks *breaks, struct desk *desk, struct desk_group *group);
void breaks_forget(struct breaks *breaks, uint32_t slot); // of a member that is out

#endif
