// Records the memory of this process whose state is torn: a transfer ended after its first write, half old, half new.
//
// Such a state is no candidate in an election until a sync of it has succeeded, with whatever communicator. So the
// record belongs to the process and knows places, not communicators. Memory that was given back and is used for another
// state is taken for the same, for nobody tells us of it: then the new state waits for a first sync, too. May be called
// from any thread.
#ifndef PCCL_STATE_UNFINISHED_H
#define PCCL_STATE_UNFINISHED_H

#include <stdbool.h>

#include "state/delta.h"

// A transfer into these entries was cut short.
void unfinished_add(const struct delta_layout *layout);
// A sync of these entries has succeeded.
void unfinished_remove(const struct delta_layout *layout);
// Whether any byte of these entries lies where a transfer was cut short.
bool unfinished_has(const struct delta_layout *layout);

#endif
