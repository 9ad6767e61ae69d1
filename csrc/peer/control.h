// The control thread of a communicator (`pccl:control`): what happens is told to the core, and what the state machine
// decides is carried out. It owns the connection to the master, and all connections to peers until they are links.
#ifndef PCCL_PEER_CONTROL_H
#define PCCL_PEER_CONTROL_H

#include <stdbool.h>

#include "peer/communicator.h"

// NULL when the system refuses.
struct control *control_new(struct communicator *c);
// The thread has ended, and the engine of `control_callbacks` too. NULL is allowed.
void control_free(struct control *control);
struct engine_callbacks control_callbacks(struct control *control);

// Starts the thread, unless it runs. False: the system refuses. Not from two threads at once.
bool control_start(struct control *control);
// Joins the thread, which ends once the communicator is closing.
void control_join(struct control *control);

// Has the thread begin an attempt. Its end is that of the open call.
void control_connect(struct control *control);

#endif
