// What moves ops: the parts of the data plane that know how.
#ifndef PCCL_DATA_OP_H
#define PCCL_DATA_OP_H

#include <pthread.h>

#include "base/platform.h"
#include "data/backup.h"
#include "data/core.h"
#include "data/core_private.h"
#include "data/frame.h"
#include "data/lane.h"
#include "data/lane_private.h"
#include "data/link.h"
#include "data/pool.h"
#include "data/same_host.h"

// ---- engine_ops.c ----
struct op_driver engine_driver(struct engine *engine);

// ---- engine_epochs.c, thread ----
// Lock held. False: memory was refused, the engine is dead.
bool engine_enter_pending(struct engine *engine, struct wire_report *report);
void pending_free(struct pending_epoch *pending); // NULL is allowed
// No lane has a frame of a large op any more, none is running. Lock held.
void engine_let_go(struct engine *engine);

#endif
