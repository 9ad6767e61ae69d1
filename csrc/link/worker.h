// Threads that receive, sum and send beside the owner's thread: docs/decisions/data-threads.md.
#ifndef PCCL_LINK_WORKER_H
#define PCCL_LINK_WORKER_H

#include "link/workers.h"

enum { WORKERS_MOST = 16 };

// Starts as many workers as PCCL_DATA_THREADS says; none by default. False: the system refused.
bool workers_start(struct lanes *lanes);
// Ends all workers. The owner's thread has ended. Idempotent.
void workers_stop(struct lanes *lanes);
void workers_free(struct lanes *lanes); // they have ended

#endif
