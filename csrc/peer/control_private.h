// Private header of the control thread's parts: control.c, and control_precopy.c, which copies shared state for a
// newcomer beside the members' steps (state/precopy). The control thread alone calls it.
#ifndef PCCL_PEER_CONTROL_PRIVATE_H
#define PCCL_PEER_CONTROL_PRIVATE_H

#include "peer/communicator_private.h"
#include "peer/wireup.h"
#include "state/precopy.h"

// The copy that a newcomer makes before it is admitted. All 0 at first.
struct control_precopy {
    struct wire_donors donors; // that the master has named
    uint32_t tried;            // of them
    bool copied;               // the master is to be told
};

// `wireup` may be NULL in all of them: the connection to the master has ended.

// Has the first of `donors` dialled. Without one, the newcomer is as far as it gets.
void control_precopy_begin(struct control_precopy *p, struct communicator *c, struct wireup *wireup,
                           const struct wire_donors *donors, int64_t now_ns);
// Takes the stream of a WIREUP_PRECOPY event: gives the state to the newcomer that dialled, or copies it from the donor
// that was dialled. If that cannot be (NULL: the dial failed), the next donor is dialled.
void control_precopy_take(struct control_precopy *p, struct communicator *c, struct wireup *wireup,
                          struct transport *stream, int64_t now_ns);
// Returns what the master is to be told, once: PRECOPY_ADVANCED; PRECOPY_UP_TO_DATE, also if no donor is left; both
// with `progress`; or PRECOPY_QUIET. If a donor is lost, the next one is dialled.
enum precopy_news control_precopy_news(struct control_precopy *p, struct communicator *c, struct wireup *wireup,
                                       struct wire_progress *progress, int64_t now_ns);

#endif
