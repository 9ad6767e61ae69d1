// What the engine's thread tells: ops and rounds to the master at once (peer/output), links that broke and memory that
// was refused to the control thread, when that comes to it.
#ifndef PCCL_PEER_REPORTS_H
#define PCCL_PEER_REPORTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "data/engine.h"
#include "peer/output.h"

struct lost_link {
    struct wire_id id; // the own one: the data plane wants a fresh group epoch
    uint32_t index;
    bool silent;
};

struct reports {
    struct output *output;
    pthread_mutex_t lock; // of the rest; taken last
    struct lost_link *lost;
    size_t count, room;
    bool refused; // memory, to the engine, or for one of these
};

void reports_init(struct reports *reports, struct output *output);
void reports_fini(struct reports *reports);
// For an engine that lives no longer than `reports`.
struct engine_callbacks reports_callbacks(struct reports *reports);
// Memory was refused to the data plane: the communicator dies, when the control thread comes to it.
void reports_refused(void *reports);

// ---- the control thread ----
// The next link that broke; false: there is none. `refused`: memory was, and nothing is known for sure any more.
bool reports_next(struct reports *reports, struct lost_link *out, bool *refused);
void reports_forget(struct reports *reports);

#endif
