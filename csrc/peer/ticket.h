// A call that waits for others: a connect, a vote, a round of shared state. It is begun once, which gives a ticket, and
// waited for as often as it takes. A communicator has one at a time.
//
// A wait that is cut short leaves the call open. A ticket is a number, so there is nothing to free: an open call that
// no thread is in is taken up by the next begin of the same call, which gets a new ticket, and the old one is void.
// When the communicator is destroyed, every wait ends with pcclMasterConnectionFailed.
#ifndef PCCL_PEER_TICKET_H
#define PCCL_PEER_TICKET_H

#include "peer/communicator.h"

// Callbacks of a ticket, on its caller's thread.
struct ticket_type {
    const char *name; // as texts call it
    // Before it can be waited for; pcclTimedOut: there is more to do. NULL: nothing.
    pcclResult_t (*prepare)(struct communicator *c, int64_t deadline_ns);
    // Called when the call has ended, or the communicator is being destroyed. Writes `value` on success.
    pcclResult_t (*collect)(struct communicator *c, uint64_t *value);
};

// Waits in any thread, but in one at a time (pcclInvalidUsage), until `deadline_ns` (monotonic; INT64_MAX = for ever).
// pcclTimedOut: it goes on, and the detail says what is known of whom it waits for. Any other result ends it, and its
// ticket is void (pcclInvalidUsage). `value` is the answer of are_peers_pending, or the revision of a round.
pcclResult_t ticket_wait(struct communicator *c, uint64_t ticket, int64_t deadline_ns, uint64_t *value);

// ---- votes ----
// Begins a vote other than that of a round of shared state. Update and optimise adopt when they succeed.
pcclResult_t ticket_begin_vote(struct communicator *c, enum wire_vote_kind kind, uint64_t *ticket);
// Whether the open call is are_peers_pending, beside which ops may be launched.
bool ticket_is_peers_pending(const struct communicator *c);

// ---- for those who begin one ----
// Returns pcclInvalidUsage if one is open.
pcclResult_t ticket_check_none(const struct communicator *c);
// Whether one of this type is open, and no thread is in it.
bool ticket_is_left(const struct communicator *c, const struct ticket_type *type);
// Opens one, with the caller in it. Until ticket_begun, nobody takes it up or waits for it.
void ticket_open(struct communicator *c, const struct ticket_type *type);
// Ends a begin, with `code`: gives the ticket of the open call, or closes it when it could not be begun.
pcclResult_t ticket_begun(struct communicator *c, pcclResult_t code, uint64_t *ticket);

// ---- the control thread ----
// Ends the one that is open, if any. `view` may be NULL.
void ticket_end(struct communicator *c, pcclResult_t code, uint64_t value, const struct member_view *view);

#endif
