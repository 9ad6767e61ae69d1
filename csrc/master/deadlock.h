// Members that wait for each other: each is in a call that ends only if another one makes a call, and that one is in a
// call that waits as well. Members tell what they wait for (WAITS), and the votes that are open are here.
//
// A slow member is never part of a deadlock: it waits in no call. A member cannot make the call that others wait for
//  - if it is in another vote: it can open no second one, and begin no operation but beside are_peers_pending;
//  - if it waits in an operation, and the call is a vote: all but are_peers_pending want all operations awaited first;
//  - if the only thread that calls its communicator waits.
// Nothing ends such a wait but a cancellation or a loss, so reports of different moments prove a deadlock alike.
#ifndef PCCL_MASTER_DEADLOCK_H
#define PCCL_MASTER_DEADLOCK_H

#include "master/membership.h"

enum {
    DEADLOCK_LOOK_MS = 1000,  // between two looks while members wait
    DEADLOCK_FRESH_MS = 5000, // so old the report of a member may be
};

// A member waits: it is looked whether others wait for it.
void deadlock_note(struct membership *table, struct peer_record *peer, const struct wire_waits *waits);
// At `deadlock_at`: fails the calls of members that have waited for each other for `deadlock_ns`.
void deadlock_look(struct membership *table);

#endif
